"""Progress on stderr: bars on a terminal, a line now and then elsewhere."""

import time
from collections.abc import Mapping
from typing import Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

__all__ = ["Bars"]

_EVERY = 10.0  # seconds between two lines of one stage where there is no terminal


class Bars(Progress):
    """A `dp_forward.progress.Progress` for the terminal; a bar for each stage.

    Edges:
        Shows counts, losses and accuracies; never a text. A total of 0 means that it is not known.
    """

    def __init__(self) -> None:
        console, more = Console(stderr=True), TextColumn("{task.fields[more]}")
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        super().__init__(*columns, more, console=console, disable=not console.is_terminal)
        self._stages: dict[str, TaskID] = {}
        self._said: dict[str, float] = {}

    def __call__(self, stage: str, done: int, total: int, numbers: Mapping[str, float]) -> None:
        more = " ".join(
            f"{name} {value:.4g}" for name, value in numbers.items() if name not in ("step", "epoch")
        )
        if self.disable:
            now = time.monotonic()
            due = now - self._said.get(stage, now - _EVERY / 2) >= _EVERY
            if due or more or (total and done == total):
                self._said[stage] = now
                out_of = f" of {total}" if total else ""
                typer.echo(f"{stage}: {done}{out_of} {more}".rstrip(), err=True)
            self._said.setdefault(stage, now - _EVERY / 2)
            return
        if stage not in self._stages:
            self._stages[stage] = self.add_task(stage, total=total or None, more="")
        shown: dict[str, Any] = {"more": more} if more else {}  # the last numbers stay until there are others
        self.update(self._stages[stage], completed=done, total=total or None, **shown)
