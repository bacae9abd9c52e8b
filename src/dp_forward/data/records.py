"""What a source gives (`Row`) and what a task makes of it (`Record`). Neither shows its content."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

__all__ = ["Record", "Row"]


class Record(NamedTuple):
    """One text, or a pair of texts, and the number of its label.

    Guarantees:
        ``repr`` and ``str`` show neither text nor label, so a record that lands in a log or a traceback
        tells nothing.
    """

    text: str
    second: str | None = None
    label: int | None = None

    def __repr__(self) -> str:
        texts = "one text" if self.second is None else "two texts"
        return f"Record({texts}, {'no label' if self.label is None else 'labelled'})"


class Row(NamedTuple):
    """The fields of one row, and where the row stands, for errors: ``train.tsv, line 17``."""

    place: str
    fields: Mapping[str, object]

    def __repr__(self) -> str:
        return f"Row({self.place}, {len(self.fields)} fields)"
