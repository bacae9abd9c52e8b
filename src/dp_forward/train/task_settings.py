"""The settings of a plan that say which records it is about.

``task`` is a name: a built-in one, or that of a user's own data, whose place ``data`` says. A file, a folder
or ``hf:NAME`` in the place of the name stands for both::

    Plan(task="tickets.csv", ...)  ==  Plan(task="tickets", data={"tickets": "/where/it/is/tickets.csv"}, ...)

The columns, the labels and the share that is split off to measure on are found in the data where they are not
given (`data.own_data`), and belong to the effective plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, Self

from dp_forward.errors import InvalidInput
from dp_forward.train.plan_base import COUNT_OR_ZERO, PlanBase, setting

if TYPE_CHECKING:  # loads torch, which `--help` does without
    from dp_forward.data.tasks import Task

__all__ = ["TaskSettings"]


def _check_share(name: str, value: float) -> None:
    if not 0 <= value <= 0.5:
        raise InvalidInput(name, "lie in 0 to 0.5", value, "Use 0.1.")


@dataclass(frozen=True, kw_only=True)
class TaskSettings(PlanBase):
    """Which records a plan is about; see the module."""

    task: str = setting(
        help="sst2, imdb, qqp, rotten-tomatoes; or a name for DATA [the file's].",
        group="usual",
        missing="Name your data, or try rotten-tomatoes.",
    )
    text_column: tuple[str, ...] | None = setting(
        None, "The column of texts; given twice, of pairs [by its name].", "usual"
    )
    label_column: str | None = setting(None, "The column of labels [by its name].", "usual")
    header: bool = setting(True, "Whether a CSV or TSV file begins with the names of its columns.", "usual")
    labels: tuple[str, ...] | None = setting(None, "The labels, in order [those of the training part].")
    validation_share: float | None = setting(
        None,
        "Share of the training records to measure on, thereby declared public [0.1 where there is no split].",
        "advanced",
        _check_share,
    )
    evaluation_split: str = setting("validation", 'What it is measured on; "" for nothing.', "advanced")
    seed: int = setting(0, "Of everything but released noise.", "advanced", COUNT_OR_ZERO)
    data: Mapping[str, str] = setting(
        dict, "Where a task's files lie; can be given several times.", "usual", decides=False
    )

    def __post_init__(self) -> None:
        from dp_forward.data.own_data import name_task
        from dp_forward.data.tasks import TASKS, Task, task_name

        task: object = self.task
        if isinstance(task, Task):
            self._take(task)
        # One spelling of a task: what a front has seen is noted, and compared, by name.
        name = task_name(self.task)
        if name not in TASKS and name not in self.data:
            name, source = name_task(self.task)
            if source is not None:
                object.__setattr__(self, "data", {**self.data, name: source})
        object.__setattr__(self, "task", name)
        for column in ("text_column", "labels"):
            value = getattr(self, column)
            if value is not None:
                object.__setattr__(self, column, (value,) if isinstance(value, str) else tuple(value))
        for other in self.data:
            # Places of other tasks may be there too; a misspelt one would have this task read from elsewhere.
            close = get_close_matches(other, [*TASKS, name], n=1)
            if other not in TASKS and other != name and close:
                rule, remedy = "name a known task", f"Did you mean {close[0]}?"
                raise InvalidInput("data", rule, repr(other[:40]), remedy)
        for setting_name, idle in {"text_column": None, "label_column": None, "header": True}.items():
            given = getattr(self, setting_name)
            if name in TASKS and given != idle:
                rule, remedy = f"be left out for {name}", "Its columns are known."
                raise InvalidInput(setting_name, rule, given, remedy)
        if self.text_column is not None and not 1 <= len(self.text_column) <= 2:
            raise InvalidInput("text_column", "be one or two", len(self.text_column), "Two make a pair.")
        super().__post_init__()

    def _take(self, task: Task) -> None:
        """Take over what a task object says."""
        from dp_forward.data.tasks import TASKS

        if not task.own and task.name in TASKS:
            object.__setattr__(self, "task", task.name)
            return
        columns = {"text_column": task.text_fields, "label_column": task.label_field, "labels": task.labels}
        known = {"task": task.name, "data": {task.name: task.source, **self.data}}
        for name, value in {**known, **columns}.items():
            object.__setattr__(self, name, value)

    def find_task(self) -> Task:
        """The task; what the plan leaves open is read from the data."""
        from dp_forward.data.own_data import task_of

        return task_of(self.as_dict())

    def with_data(self) -> Self:
        """The plan with everything that the data says; a built-in task says nothing new."""
        task = self.find_task()
        if not task.own:
            return self
        split = self.evaluation_split
        if "validation" not in task.splits and "test" in task.splits and not task.validation_share:
            split = "test" if split == "validation" else split
        return replace(
            self,
            text_column=task.text_fields,
            label_column=task.label_field,
            labels=task.labels,
            validation_share=task.validation_share,
            evaluation_split=split,
        )
