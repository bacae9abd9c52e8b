"""A user's own data: the task that a file, or columns in memory, describe.

Columns are found by their usual names, without case, or given. Labels are any 2 to 1000 words or numbers;
they are read from the training part in one pass, sorted (numbers by value), and are public with the task.
A source without a `validation` or `test` part gives up a share of its training records for it
(`records.split_by_label`), which is thereby declared public.

    task = task_of({"task": "tickets", "data": {"tickets": "tickets.csv"}})
    task, texts = encode_texts(["where is my parcel?", ...], ["delivery", ...], FixedLength(tokenizer, 64))

Guarantees:
    Memory grows by 8 bytes for every record that has an `id`, and not otherwise.
    An error names the file and the line, never a text or a label that stands there.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from difflib import get_close_matches
from hashlib import blake2b
from itertools import chain, islice
from pathlib import Path
from typing import Any, Final

import numpy as np

from dp_forward.data.columns import columns_shown, find_column, has_column
from dp_forward.data.encoded_texts import EncodedTexts
from dp_forward.data.records import Record, text_of
from dp_forward.data.row_files import Row, is_data_file, suffix_of
from dp_forward.data.sources import absolute_source, is_path, open_source, source_name, splits_of
from dp_forward.data.tasks import SPLITS, TASKS, Task, find_task, label_word, task_name
from dp_forward.data.tokens import FixedLength
from dp_forward.errors import InvalidInput
from dp_forward.progress import Count

__all__ = ["columns_of", "encode_texts", "name_of_source", "name_task", "task_from_labels", "task_of"]

_NOT_IN_A_NAME: Final = re.compile(r"[^A-Za-z0-9_.-]+")
_MOST_LABELS, _FEWEST_RECORDS, _LONGEST_LABEL = 1000, 5, 200
_HEAD = 1000
VALIDATION_SHARE: Final = 0.1
"""How much is split off where a source has nothing else to measure on."""


def name_task(source: str) -> tuple[str, str | None]:
    """The name of a task and, for a user's own, its source; ``source`` is a built-in name, a path or hf:NAME.

    A file is named by its stem, or by its folder where the stem only says a split.

    Edges:
        A built-in name wins over a folder of that name, which ``./NAME`` means.
    """
    if task_name(source) in TASKS:
        return task_name(source), None
    path = Path(source).expanduser().absolute()
    if is_path(source):
        if path.suffix == ".toml":
            raise InvalidInput("data", "be a file of records", path.name, "Name a plan with --plan.")
        if path.is_file() and not is_data_file(path):
            raise InvalidInput("data", "be CSV, TSV, JSONL, JSON or Parquet", path.name, "Convert it.")
        if not path.exists():
            close = get_close_matches(source.lower(), TASKS, n=1)
            remedy = f"Did you mean {close[0]}?" if close else "Check the path."
            rule = f"be a file, a folder, hf:NAME or one of {', '.join(TASKS)}"
            raise InvalidInput("data", rule, repr(source[-80:]), remedy)
    name = name_of_source(source)
    if name in TASKS:
        rule, found = "have another name than a built-in task", source_name(source)
        remedy = f"Give it one: --task NAME; or --task {name}, if it is that."
        raise InvalidInput("data", rule, found, remedy)
    return name, absolute_source(source)


def name_of_source(source: str) -> str:
    """What records of a source are called: by the stem of a file, a folder, or the last part of hf:NAME."""
    if not is_path(source):
        last = source.removeprefix("hf:").partition(":")[0].rstrip("/").rpartition("/")[2]
    else:
        path = Path(source).expanduser().absolute()
        last = path.name
        if suffix_of(path):
            last = last[: len(last.lower().removesuffix(".gz")) - len(suffix_of(path))]
        if last.lower() in chain.from_iterable(SPLITS.values()):
            last = path.parent.name
    return task_name(_NOT_IN_A_NAME.sub("-", last).strip("-.") or "own")


def task_of(settings: Mapping[str, Any]) -> Task:
    """The task that the settings of a plan describe; what they leave open is read from the data.

    Settings: ``task`` (a name) and ``data`` (name -> source), and for a user's own task ``text_column``,
    ``label_column``, ``header``, ``labels``, ``validation_share`` and ``seed``; with ``unlabelled``, labels
    may lack. Where all are given, nothing is read.
    """
    name = task_name(str(settings["task"]))
    source = (settings.get("data") or {}).get(name)
    if name in TASKS:
        return TASKS[name] if source is None else replace(TASKS[name], source=str(source))
    if source is None:
        find_task(name)  # refuses it
    header = settings.get("header")
    draft = Task(
        name=name,
        text_fields=tuple(settings.get("text_column") or ()),
        label_field=settings.get("label_column") or "",
        labels=tuple(settings.get("labels") or ()),
        source=str(source),
        own=True,
        unlabelled=tuple(SPLITS) if settings.get("unlabelled") else (),
        header=True if header is None else header,
        validation_share=settings.get("validation_share") or 0.0,
        split_seed=int(settings.get("seed") or 0),
    )
    whole = draft.text_fields and draft.label_field and draft.labels
    return draft if whole and settings.get("validation_share") is not None else _infer(draft, settings)


def _infer(draft: Task, settings: Mapping[str, Any]) -> Task:
    rows = open_source(draft, "train", draft.source)
    head = list(islice(rows, _HEAD))
    if not head:
        raise InvalidInput("data", "hold records", f"none in {source_name(draft.source)}", "Fill the file.")
    task = _find_columns(draft, head)
    if not task.labels:
        found = _Survey(task)
        for row in chain(head, rows):
            found.add(row)
        task = replace(task, labels=found.labels())
        found.check_ids()
    splits = splits_of(task, task.source)
    if is_path(task.source) and not splits and "split" in head[0].fields:
        for split in ("validation", "test"):
            splits |= {split} if next(open_source(task, split, task.source), None) else set()
    share = settings.get("validation_share")
    if share is None:
        share = 0.0 if splits else VALIDATION_SHARE
    return replace(task, splits=("train", *sorted(splits)), validation_share=share)


def _find_columns(draft: Task, head: list[Row]) -> Task:
    first = head[0]
    texts, label = draft.text_fields, draft.label_field
    if not draft.header and not texts and not label and len(first.fields) == 2:
        # The column with fewer different values is the label; a text is rarely there twice.
        kinds = {name: len({row.fields.get(name) for row in head}) for name in first.fields}
        if len(set(kinds.values())) == 2:
            label, text = sorted(kinds, key=lambda name: kinds[name])
            return replace(draft, text_fields=(text,), label_field=label)
    if not texts:
        texts = (find_column(first, "text", known=(label,), head=head),)
    if not label and not draft.unlabelled:
        label = find_column(first, "label", known=texts, head=head)
    for name, option in (*((text, "text") for text in texts), (label, "label")):
        if name and name not in first.fields:
            rule = f"have the column that --{option}-column names"
            shown = columns_shown(first, known=(*texts, label), head=head)
            raise _wrong(rule, shown, first, "Name one of these.")
    return replace(draft, text_fields=texts, label_field=label)


class _Survey:
    """One pass over the training part: texts are there, how many records every label has, and the ids."""

    def __init__(self, task: Task) -> None:
        self.task, self.counts, self.firsts = task, dict[str, int](), dict[str, str]()
        self.ids = array("Q")

    def add(self, row: Row) -> None:
        if self.task.label_field not in row.fields:
            raise _wrong(f"have the column `{self.task.label_field}`", "none", row, "Fill it in.")
        for name in self.task.text_fields:
            text_of(self.task, row, name)  # refuses what is no text
        value = row.fields[self.task.label_field]
        word = label_word(value)
        if word is None:
            found = "an empty one" if value is None or not str(value).strip() else f"a {type(value).__name__}"
            remedy = "Fill in or remove the row."
            raise _wrong(f"hold a label in `{self.task.label_field}`", found, row, remedy)
        if word not in self.counts:
            if len(self.counts) == _MOST_LABELS:
                rule, found = f"have at most {_MOST_LABELS} labels", "one more"
                raise _wrong(rule, found, row, "Name the column of labels: --label-column NAME.")
            if len(word) > _LONGEST_LABEL or not word.isprintable():
                rule = f"have printable labels of at most {_LONGEST_LABEL} letters"
                raise _wrong(rule, "another", row, "Name the column of labels: --label-column NAME.")
            self.firsts[word] = row.place
        self.counts[word] = self.counts.get(word, 0) + 1
        if "id" in row.fields:
            self.ids.append(_hash(row.fields["id"]))

    def labels(self) -> tuple[str, ...]:
        """The labels in order, each with enough records."""
        return order_labels(self.counts, self.firsts, source_name(self.task.source))

    def check_ids(self) -> None:
        """Refuse an id that is there twice, by the line of the second."""
        ids = np.frombuffer(self.ids, dtype=np.uint64)
        _, first = np.unique(ids, return_index=True)
        if len(first) == len(ids):
            return
        again = np.setdiff1d(np.arange(len(ids)), first)[0]
        rows = (row for row in open_source(self.task, "train", self.task.source) if "id" in row.fields)
        place = next(islice(rows, int(again), None)).place
        remedy = "A record that is there twice is released twice: remove it, or rename the column."
        raise InvalidInput("data", "have a different `id` in every row", f"one again at {place}", remedy)


def order_labels(
    counts: Mapping[str, int], firsts: Mapping[str, str], place: str, *, fewest: int = _FEWEST_RECORDS
) -> tuple[str, ...]:
    """The labels in order: numbers by value, else words; too few of them or of their records is refused."""
    if len(counts) < 2:
        found = f"one label in all {sum(counts.values())} records of {place}"
        raise InvalidInput("data", "have two labels or more", found, "There is nothing to tell apart.")
    rare = [word for word, number in counts.items() if number < fewest]
    if rare:
        first = min(rare, key=lambda word: counts[word])
        found = f"{counts[first]} of a label, first at {firsts.get(first, place)}"
        found += f", and {len(rare) - 1} more such labels" if len(rare) > 1 else ""
        remedy = "Add records, or remove or merge the label."
        raise InvalidInput("data", f"have {fewest} records of every label", found, remedy)
    try:
        return tuple(sorted(counts, key=float))
    except ValueError:
        return tuple(sorted(counts))


def _hash(value: object) -> int:
    return int.from_bytes(blake2b(str(value).encode("utf-8", "replace"), digest_size=8).digest(), "big")


def _wrong(rule: str, got: str, row: Row, remedy: str) -> InvalidInput:
    return InvalidInput("data", rule, f"{got} at {row.place}", remedy)


def task_from_labels(
    labels: Iterable[object], *, name: str = "records", fewest: int = _FEWEST_RECORDS
) -> Task:
    """The task of a column of labels in memory: words or numbers, in order, each in ``fewest`` records."""
    counts: dict[str, int] = {}
    firsts: dict[str, str] = {}
    for number, label in enumerate(labels):
        word = label_word(label)
        if word is None:
            found = f"none at record {number}"
            raise InvalidInput("labels", "be a word or a number each", found, "Fill them in.")
        counts[word] = counts.get(word, 0) + 1
        firsts.setdefault(word, f"record {number}")
        if len(counts) > _MOST_LABELS:
            found = f"one more at record {number}"
            raise InvalidInput("labels", f"be at most {_MOST_LABELS} different ones", found, "Check them.")
    ordered = order_labels(counts, firsts, "the labels", fewest=fewest)
    return Task(name=name, text_fields=("text",), labels=ordered, source="", own=True)


def encode_texts(
    texts: Any, labels: Any, tokens: FixedLength, *, task: Task | None = None, progress: Count | None = None
) -> tuple[Task, EncodedTexts]:
    """Texts and labels in memory, as `columns_of` takes them, to a task and token ids.

    Args:
        labels: None for texts without any; the task must then be known.
        task: whose labels are meant; by default `task_from_labels`.
    """
    texts, labels = columns_of(texts, labels)
    if task is None:
        if labels is None:
            raise InvalidInput("labels", "be given", None, "Or say the task.")
        task = task_from_labels(labels)
    return task, EncodedTexts.from_records(_records(task, texts, labels), tokens, progress=progress)


def columns_of(texts: Any, labels: Any = None) -> tuple[list[Any], list[Any] | None]:
    """Texts and labels as lists: of lists, numpy arrays and pandas columns, or of a `datasets.Dataset`.

    The columns of a data set are found by name; ``labels`` may be the name of one. Its declared labels become
    words.
    """
    names = getattr(texts, "column_names", None)
    if isinstance(names, list):
        row = Row("the data set", dict.fromkeys(names))
        column = labels if isinstance(labels, str) else ""
        text = find_column(row, "text", known=(column,))
        if labels is None and has_column(row, "label"):
            column = find_column(row, "label", known=(text,))
        if column:
            words = getattr(texts.features.get(column), "names", None)
            labels = [words[value] if words else value for value in texts[column]]
        texts = texts[text]
    elif isinstance(texts, str) or not hasattr(texts, "__len__"):
        raise InvalidInput("texts", "be a list or a column of texts", type(texts).__name__, "Give several.")
    if labels is not None and len(labels) != len(texts):
        found = f"{len(labels)} for {len(texts)} texts"
        raise InvalidInput("labels", "be one for every text", found, "Give as many.")
    return list(texts), None if labels is None else list(labels)


def _records(task: Task, texts: list[Any], labels: list[Any] | None) -> Iterator[Record]:
    for number, text in enumerate(texts):
        if not isinstance(text, str) or not text.strip():
            found = "an empty one" if isinstance(text, str) else f"a {type(text).__name__}"
            rule, remedy = "be strings that are not blank", "Fill in or remove it."
            raise InvalidInput("texts", rule, f"{found} at record {number}", remedy)
        known = None if labels is None else task.label_of(labels[number])
        if labels is not None and known is None:
            rule, found = f"be of the {len(task.labels)} known ones", f"another at record {number}"
            raise InvalidInput("labels", rule, found, "Check them.")
        yield Record(str(text), None, known)
