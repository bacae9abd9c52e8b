"""Progress on stderr: bars on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

__all__ = ["Bars"]

_EVERY = 10.0
"""Seconds between two lines of one stage where there is no terminal."""


class Bars:
    """Call it with (stage, done, total, numbers); a total of 0 means that it is not known.

    Edges:
        Shows counts, losses and accuracies; never a text.
    """

    def __init__(self) -> None:
        console = Console(stderr=True)
        self._bars = None
        if console.is_terminal:
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
            self._bars = Progress(
                *columns, TimeRemainingColumn(), TextColumn("{task.fields[more]}"), console=console
            )
        self._stages: dict[str, TaskID] = {}
        self._said: dict[str, float] = {}

    def __enter__(self) -> Bars:
        if self._bars is not None:
            self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bars is not None:
            self._bars.stop()

    def __call__(self, stage: str, done: int, total: int, numbers: Mapping[str, float]) -> None:
        more = " ".join(
            f"{name} {value:.4g}" for name, value in numbers.items() if name not in ("step", "epoch")
        )
        if self._bars is None:
            self._line(stage, done, total, more)
            return
        if stage not in self._stages:
            self._stages[stage] = self._bars.add_task(stage, total=total or None, more="")
        task = self._stages[stage]
        if more:
            self._bars.update(task, completed=done, total=total or None, more=more)
        else:
            self._bars.update(task, completed=done, total=total or None)

    def _line(self, stage: str, done: int, total: int, more: str) -> None:
        now = time.monotonic()
        due = now - self._said.get(stage, now - _EVERY / 2) >= _EVERY
        if not (due or more or (total and done == total)):
            self._said.setdefault(stage, now - _EVERY / 2)
            return
        self._said[stage] = now
        out_of = f" of {total}" if total else ""
        print(f"{stage}: {done}{out_of} {more}".rstrip(), file=sys.stderr, flush=True)  # noqa: T201
