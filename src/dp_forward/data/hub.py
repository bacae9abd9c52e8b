"""Rows of a Hugging Face data set, streamed: ``hf:NAME[:CONFIG]``, where NAME may be a local folder."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dp_forward.data.records import Row
from dp_forward.data.tasks import Task
from dp_forward.errors import InvalidInput

__all__ = ["hub_rows"]


def hub_rows(source: str, *, task: Task, split: str) -> Iterator[Row]:
    """The rows of one split; label numbers become words where the data set declares words that we know.

    Edges:
        Data sets disagree on the order of their labels, so a declared word wins over its number. Where the
        declared words are unknown to the task, the numbers are taken as the task's own.
    """
    name, _, configuration = source.removeprefix("hf:").partition(":")
    remedy = f"Go online, or name your own files: --data {task.name}=PATH."
    try:
        import datasets  # type: ignore[import-untyped,unused-ignore]
    except ImportError:
        raise InvalidInput(
            "data",
            "be readable here",
            f"the Hugging Face data set {name}",
            f'pip install "dp-forward[train]", or name your own files: --data {task.name}=PATH.',
        ) from None
    try:
        data = datasets.load_dataset(name, configuration or None, split=split, streaming=True)
    except Exception as error:
        # The library, the hub and the network each raise their own; a user needs the one line.
        raise InvalidInput(
            "data",
            f"be a Hugging Face data set with the split {split} that can be reached",
            f"{type(error).__name__} for {name}",
            remedy,
        ) from None
    return _rows(data, name=name, task=task, remedy=remedy)


def _rows(data: Any, *, name: str, task: Task, remedy: str) -> Iterator[Row]:
    column, words = _declared_words(data, task)
    rows = iter(data)
    number = 0
    while True:
        try:
            fields = next(rows, None)
        except Exception as error:
            raise InvalidInput(
                "data",
                "be readable to the end",
                f"{type(error).__name__} after row {number} of {name}",
                remedy,
            ) from None
        if fields is None:
            return
        number += 1
        label = fields.get(column)
        if isinstance(label, int) and 0 <= label < len(words):
            fields = {**fields, column: words[label]}
        yield Row(f"{name}, row {number}", fields)


def _declared_words(data: Any, task: Task) -> tuple[str, tuple[str, ...]]:
    """The label column and its declared words, or no words where the task does not know them all."""
    features = data.features or {}
    column = next((name for name in task.names_of(task.label_field) if name in features), task.label_field)
    words = tuple(getattr(features.get(column), "names", None) or ())
    known = all(not word.isdigit() and task.label_of(word) is not None for word in words)
    return column, words if known else ()
