"""Progress on stderr, with the time that is left: bars on a terminal, a line now and then elsewhere."""

import math
import time
from collections.abc import Mapping
from typing import Any

import typer
from rich import progress as rich
from rich.console import Console

from dp_forward.cli.output import is_first_process

__all__ = ["Bars"]

_FIRST, _EVERY = 2.0, 5.0  # seconds to the first line of a stage, and between two, without a terminal


class Bars(rich.Progress):
    """A `dp_forward.progress.Progress` for the terminal; a bar for each stage.

    Edges:
        Shows counts, times, losses and accuracies; never a text. A total of 0 means that it is not known.
    """

    def __init__(self) -> None:
        console, more = Console(stderr=True), rich.TextColumn("{task.fields[more]}")
        times = (
            rich.TimeElapsedColumn(),
            rich.TextColumn("elapsed"),
            rich.TimeRemainingColumn(),
            rich.TextColumn("left"),
        )
        columns = (
            rich.TextColumn("{task.description}"),
            rich.BarColumn(),
            rich.MofNCompleteColumn(),
            *times,
            more,
        )
        self._speaks = is_first_process()
        super().__init__(*columns, console=console, disable=not (console.is_terminal and self._speaks))
        self._stages: dict[str, rich.TaskID] = {}
        self._begun: dict[str, tuple[float, int]] = {}
        self._due: dict[str, float] = {}

    def __call__(self, stage: str, done: int, total: int, numbers: Mapping[str, float]) -> None:
        more = " ".join(
            f"{name} {value:.4g}" for name, value in numbers.items() if name not in ("step", "epoch")
        )
        if self.disable:
            if self._speaks:
                self._say(stage, done, total, more)
            return
        if stage not in self._stages:
            self._stages[stage] = self.add_task(stage, total=total or None, more="")
        shown: dict[str, Any] = {"more": more} if more else {}  # the last numbers stay until there are others
        self.update(self._stages[stage], completed=done, total=total or None, **shown)

    def _say(self, stage: str, done: int, total: int, more: str) -> None:
        """A line where one is due, there are numbers, or the stage has ended."""
        now = time.monotonic()
        start, first = self._begun.setdefault(stage, (now, done))
        if now < self._due.setdefault(stage, now + _FIRST) and not more and not 0 < total == done:
            return
        self._due[stage], passed = now + _EVERY, now - start
        times = [f"{_spell(passed)} elapsed"] if passed >= _FIRST else []
        if times and first < done < total:
            times.append(f"about {_spell(passed * (total - done) / (done - first))} left")
        words = [f"{stage}: {done}{f' of {total}' if total else ''}", *times]
        typer.echo(f"{', '.join(words)} {more}".rstrip(), err=True)


def _spell(seconds: float) -> str:
    """A time in whole units, rounded up: 40 s, 3 min, 2 h."""
    for size, unit in ((3600, "h"), (60, "min")):
        if seconds > 2 * size:
            return f"{math.ceil(seconds / size)} {unit}"
    return f"{math.ceil(seconds)} s"
