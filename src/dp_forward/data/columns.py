"""Columns of a user's file, found by their usual names without case.

Guarantees:
    An error shows the names of columns only where they look like names, one of them is a usual or a given
    one, and none is a value of its column: a file without a header begins with a record, never to be shown.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final, Literal

from dp_forward.data.row_files import Row
from dp_forward.errors import InvalidInput

Kind = Literal["text", "label"]

_USUAL: Final[Mapping[Kind, str]] = {
    "text": "texts?|sentence|review|body|content|message|comment|document|tweet|post|email",
    "label": "labels?|class|topic|category|target|sentiment|intent|tag|genre",
}
_SHOWN: Final[Mapping[Kind, str]] = {"text": "text, sentence, review", "label": "label, class, topic"}
_OTHERS: Final = "id|idx|index|split|source|title|date|lang|language|rating|score|url"
_LOOKS_LIKE_A_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,31}")


def has_column(row: Row, kind: Kind) -> bool:
    """Whether any column has a usual name of this kind."""
    return any(_is_usual(name, _USUAL[kind]) for name in row.fields)


def find_column(
    row: Row, kind: Kind, *, name: str = "data", known: Sequence[str] = (), head: Sequence[Row] = ()
) -> str:
    """The one column with a usual name of this kind; ``known`` are columns that are something else.

    ``head`` are some more rows, for `columns_shown`.
    """
    found = [column for column in row.fields if _is_usual(column, _USUAL[kind]) and column not in known]
    if len(found) == 1:
        return found[0]
    rule = f"have one column with a usual name of a {kind} ({_SHOWN[kind]}, ...)"
    remedy = f"Name it: --{kind}-column NAME; or --no-header if the file has none."
    got = f"{columns_shown(row, known=known, head=head)} at {row.place}"
    raise InvalidInput(name, rule, got, remedy if name == "data" else f"Rename the one of the {kind}s.")


def columns_shown(row: Row, *, known: Sequence[str] = (), head: Sequence[Row] = ()) -> str:
    """The names of the columns as far as an error may show them; ``head`` are some rows of the file."""
    names = list(row.fields)
    record = any(some.fields.get(name) == name for some in (row, *head) for name in names)
    usual = any(name in known or _is_usual(name, *_USUAL.values(), _OTHERS) for name in names)
    if usual and not record and all(_LOOKS_LIKE_A_NAME.fullmatch(name) for name in names):
        return ", ".join(names[:20])
    return f"{len(names)} columns without a usual name"


def _is_usual(name: str, *patterns: str) -> bool:
    return any(re.fullmatch(pattern, name.strip().lower()) for pattern in patterns)
