"""A user's own data: the task that a file, or columns in memory, describe.

Columns are found by their usual names, or given. Labels are any 2 to 1000 words or numbers; they are read
from the training part in one pass, sorted (numbers by value), and are public with the task. A source without
a `validation` or `test` part gives up a share of its training records, which is thereby declared public.

    task = task_of({"task": "tickets", "data": {"tickets": "tickets.csv"}})
    task, texts = encode_texts(["where is my parcel?", ...], ["delivery", ...], FixedLength(tokenizer, 64))

Guarantees:
    Memory grows by about a hundred bytes for every record that has an `id`, and not otherwise.
    An error names the file and the line, never a text or a label that stands there.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from hashlib import blake2b
from itertools import chain, islice
from pathlib import Path
from typing import Any, Final

from dp_forward.data import records
from dp_forward.data.encoded_texts import EncodedTexts
from dp_forward.data.row_files import Row, is_data_file, suffix_of
from dp_forward.data.sources import absolute_source, is_path, open_source, source_name, splits_of
from dp_forward.data.tasks import SPLITS, TASKS, Task, find_task, label_word, suggest_task, task_name
from dp_forward.data.tokens import FixedLength
from dp_forward.errors import InvalidInput, refuse_if

__all__ = ["columns_of", "encode_texts", "name_of_source", "name_task", "task_from_labels", "task_of"]

_NOT_IN_A_NAME: Final = re.compile(r"[^A-Za-z0-9_.-]+")
MOST_LABELS, _FEWEST_RECORDS, _LONGEST_LABEL = 1000, 5, 200
_HEAD = 1000
_VALIDATION_SHARE: Final = 0.1  # how much is split off where a source has nothing else to measure on


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
        rule = "be a file of records"
        refuse_if(path.suffix == ".toml", "data", rule, path.name, "A plan is for dpf finetune --plan.")
        if path.is_file() and not is_data_file(path):
            raise InvalidInput("data", "be CSV, TSV, JSONL, JSON or Parquet", path.name, "Convert it.")
        rule, found = f"be a file, a folder, hf:NAME or one of {', '.join(TASKS)}", repr(source[-80:])
        refuse_if(not path.exists(), "data", rule, found, suggest_task(source) or "Check the path.")
    name = name_of_source(source)
    rule, remedy = "have another name than a built-in task", f"or --task {name}, if it is that."
    refuse_if(name in TASKS, "data", rule, source_name(source), f"Give it one: --task NAME; {remedy}")
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
    ``label_column``, ``header``, ``labels``, ``validation_share``, ``seed``, ``unlabelled`` (they may lack).
    """
    name = task_name(str(settings["task"]))
    source = (settings.get("data") or {}).get(name)
    if name in TASKS:
        return TASKS[name] if source is None else replace(TASKS[name], source=str(source))
    if source is None:
        find_task(name)  # refuses it
    draft = Task(
        name=name,
        text_fields=tuple(settings.get("text_column") or ()),
        label_field=settings.get("label_column") or "",
        labels=tuple(settings.get("labels") or ()),
        source=str(source),
        own=True,
        unlabelled=tuple(SPLITS) if settings.get("unlabelled") else (),
        header=settings.get("header") is not False,
        validation_share=settings.get("validation_share") or 0.0,
        split_seed=int(settings.get("seed") or 0),
    )
    whole = draft.text_fields and draft.label_field and draft.labels
    return draft if whole and settings.get("validation_share") is not None else _infer(draft, settings)


def _infer(draft: Task, settings: Mapping[str, Any]) -> Task:
    rows = open_source(draft, "train", draft.source)
    head = list(islice(rows, _HEAD))
    refuse_if(not head, "data", "hold records", f"none in {source_name(draft.source)}", "Fill the file.")
    task = _find_columns(draft, head, named="text_column" in settings)
    if not task.labels:
        task = replace(task, labels=_order_labels(_survey(task, chain(head, rows)), source_name(task.source)))
    splits = splits_of(task, task.source)
    if is_path(task.source) and not splits and "split" in head[0].fields:
        for split in ("validation", "test"):
            splits |= {split} if next(open_source(task, split, task.source), None) else set()
    share = settings.get("validation_share")
    if share is None:
        share = 0.0 if splits else _VALIDATION_SHARE
    return replace(task, splits=("train", *sorted(splits)), validation_share=share)


def _find_columns(draft: Task, head: list[Row], *, named: bool) -> Task:
    """The task with its columns; ``named``: a caller can name them."""
    first = head[0]
    texts, label = draft.text_fields, draft.label_field
    if not draft.header and not texts and not label and len(first.fields) == 2:
        # The column with fewer different values is the label; a text is rarely there twice.
        kinds = {name: len({row.fields.get(name) for row in head}) for name in first.fields}
        if len(set(kinds.values())) == 2:
            label, text = sorted(kinds, key=lambda name: kinds[name])
            return replace(draft, text_fields=(text,), label_field=label)
    if not texts:
        texts = (records.find_column(first, "text", known=(label,), head=head, named=named),)
    if not label and not draft.unlabelled:
        label = records.find_column(first, "label", known=texts, head=head, named=named)
    for name, option in (*((text, "text") for text in texts), (label, "label")):
        if name and name not in first.fields:
            rule = f"have the column that {option}_column names"
            shown = records.columns_shown(first, known=(*texts, label), head=head)
            raise first.wrong(rule, shown, "Name one of these.")
    return replace(draft, text_fields=texts, label_field=label)


def _survey(task: Task, rows: Iterable[Row]) -> Iterator[tuple[str, str]]:
    """The label of every row and where it stands; its texts are there, and its id is its own."""
    ids = set[bytes]()
    for row in rows:
        for name in task.text_fields:
            records.text_of(task, row, name)  # refuses what is no text
        value = records.field_of(task, row, task.label_field)
        word = label_word(value)
        if word is None:
            found = "an empty one" if value is None or not str(value).strip() else f"a {type(value).__name__}"
            raise row.wrong(f"hold a label in `{task.label_field}`", found, "Fill in or remove the row.")
        if "id" in row.fields:
            digest = blake2b(str(row.fields["id"]).encode("utf-8", "replace"), digest_size=8).digest()
            if digest in ids:
                remedy = "A record that is there twice is released twice: remove it, or rename the column."
                raise row.wrong("have a different `id` in every row", "one again", remedy)
            ids.add(digest)
        yield word, row.place


def _order_labels(
    found: Iterable[tuple[str, str]], source: str, *, name: str = "data", fewest: int = _FEWEST_RECORDS
) -> tuple[str, ...]:
    """The labels in order, numbers by value, else words; ``found`` are those of all records, and where."""
    counts, firsts = Counter[str](), dict[str, str]()
    for word, place in found:
        if word not in firsts:
            remedy = "Check which column holds the labels."
            rule = f"have at most {MOST_LABELS} labels"
            refuse_if(len(firsts) == MOST_LABELS, name, rule, f"one more at {place}", remedy)
            rule, got = f"have printable labels of at most {_LONGEST_LABEL} letters", f"another at {place}"
            refuse_if(len(word) > _LONGEST_LABEL or not word.isprintable(), name, rule, got, remedy)
            firsts[word] = place
        counts[word] += 1
    got = f"one label in all {counts.total()} records of {source}"
    refuse_if(len(counts) < 2, "data", "have two labels or more", got, "There is nothing to tell apart.")
    rare = [word for word, number in counts.items() if number < fewest]
    if rare:
        first = min(rare, key=lambda word: counts[word])
        got = f"{counts[first]} of a label, first at {firsts[first]}"
        got += f", and {len(rare) - 1} more such labels" if len(rare) > 1 else ""
        remedy = "Add records, or remove or merge the label."
        raise InvalidInput("data", f"have {fewest} records of every label", got, remedy)
    try:
        return tuple(sorted(counts, key=float))
    except ValueError:
        return tuple(sorted(counts))


def task_from_labels(labels: Iterable[object], *, fewest: int = _FEWEST_RECORDS) -> Task:
    """The task of a column of labels in memory: words or numbers, in order, each in ``fewest`` records."""

    def words() -> Iterator[tuple[str, str]]:
        for number, label in enumerate(labels):
            word, place = label_word(label), f"record {number}"
            if word is None:
                rule = "be a word or a number each"
                raise InvalidInput("labels", rule, f"none at {place}", "Fill them in.")
            yield word, place

    ordered = _order_labels(words(), "the labels", name="labels", fewest=fewest)
    return Task(name="records", text_fields=("text",), labels=ordered, source="", own=True)


def encode_texts(
    texts: Any, labels: Any, tokens: FixedLength, *, task: Task | None = None
) -> tuple[Task, EncodedTexts]:
    """Texts and labels in memory, as `columns_of` takes them, to a task and token ids.

    Args:
        labels: None for texts without any; the task must then be known.
        task: whose labels are meant; by default `task_from_labels`.
    """
    texts, labels = columns_of(texts, labels)
    refuse_if(task is None and labels is None, "labels", "be given", None, "Or say the task.")
    task = task or task_from_labels(labels or ())
    return task, EncodedTexts.from_records(_records(task, texts, labels), tokens)


def columns_of(texts: Any, labels: Any = None) -> tuple[list[Any], list[Any] | None]:
    """Texts and labels as lists: of lists, numpy arrays and pandas columns, or of a `datasets.Dataset`.

    The columns of a data set are found by name, or ``labels`` names one. Its declared labels become words.
    """
    names = getattr(texts, "column_names", None)
    if isinstance(names, list):
        row = Row("the data set", dict.fromkeys(names))
        column = labels if isinstance(labels, str) else ""
        text = records.find_column(row, "text", known=(column,))
        if labels is None:
            column = records.find_column(row, "label", known=(text,), may_lack=True)
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


def _records(task: Task, texts: list[Any], labels: list[Any] | None) -> Iterator[records.Record]:
    for number, text in enumerate(texts):
        row = Row(f"record {number}", {})
        label = None if labels is None else records.check_label(task, row, labels[number], name="labels")
        yield records.Record(records.check_text(row, text, "text", name="texts"), None, label)
