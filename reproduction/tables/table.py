"""What a table of the paper is here: cells with a row and a column, each filled by runs or by a formula.

A cell never holds a number that somebody typed. It holds the steps whose results fill it, or a function of
`dp_forward.privacy` that computes it; a cell whose steps were not run is shown as "not run".
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from reproduction.jobs import Step

__all__ = ["Cell", "Chart", "Derived", "Known", "Table", "Value"]

Known = Callable[[], float | str]
Derived = Callable[[Sequence[Mapping[str, Any]]], float | str | None]


@dataclass(frozen=True)
class Value:
    """What a cell shows: a mean over those of its steps (seeds) that were run, or what a formula says.

    It is None where nothing was run. ``low`` and ``high`` are the 95 % interval of a single step, where it
    has one.
    """

    value: float | str | None
    parts: tuple[float, ...] = ()
    low: float | None = None
    high: float | None = None
    missing: int = 0
    """Steps (seeds) that are not there yet."""

    @property
    def run(self) -> bool:
        """Whether all of it is there."""
        return self.value is not None and not self.missing


@dataclass(frozen=True)
class Cell:
    """One number of a table.

    ``metric`` is the name of a number in the results of ``steps``; a dot goes inside ("privunit.seconds").
    ``known`` is a formula alone; ``derived`` a formula of what the steps found, such as how many records
    there were: what it proves is then about these very runs.
    """

    row: str
    column: str
    steps: tuple[Step, ...] = ()
    metric: str = "accuracy"
    known: Known | None = field(default=None, compare=False)
    derived: Derived | None = field(default=None, compare=False)
    digits: int = 3

    def value(self, results: Mapping[str, Mapping[str, Any]]) -> Value:
        """What it shows, given the results by digest."""
        if self.known is not None:
            return Value(self.known())
        found = [results[step.digest] for step in self.steps if step.digest in results]
        missing = len(self.steps) - len(found)
        if self.derived is not None:
            return Value(self.derived(found) if found else None, missing=missing)
        parts = [(result, number) for result in found if (number := _inside(result, self.metric)) is not None]
        if not parts:
            return Value(None, missing=missing)
        numbers = tuple(float(number) for _, number in parts)
        mean = statistics.fmean(numbers)
        if len(parts) > 1:
            return Value(mean, numbers, missing=missing)
        low, high = (_end(parts[0][0], self.metric, end) for end in ("low", "high"))
        return Value(mean, numbers, low, high, missing)


@dataclass(frozen=True)
class Chart:
    """How a table is drawn: columns along x, a line for each row; panels side by side.

    ``lines`` maps a panel's title to its rows; ``log`` puts x on a logarithmic scale. Columns that are words
    are set in their order.
    """

    x: str
    y: str
    lines: Mapping[str, tuple[str, ...]]
    log: bool = False


@dataclass(frozen=True)
class Table:
    """A table or figure of the paper: what it asks, and its cells in reading order."""

    name: str
    title: str
    item: str
    """Which item of the paper it stands for, in words."""
    corner: str
    """What rows and columns are, for the head of the first column."""
    cells: tuple[Cell, ...]
    says: tuple[str, ...] = ()
    """What to know when reading it; each a sentence or two."""
    chart: Chart | None = None

    @property
    def rows(self) -> list[str]:
        """Row names in order."""
        return list(dict.fromkeys(cell.row for cell in self.cells))

    @property
    def columns(self) -> list[str]:
        """Column names in order."""
        return list(dict.fromkeys(cell.column for cell in self.cells))

    def at(self, row: str, column: str) -> Cell | None:
        """The cell there; None where the table is empty."""
        return next((cell for cell in self.cells if (cell.row, cell.column) == (row, column)), None)

    def steps(self, only: Iterable[str] = ()) -> list[Step]:
        """The steps of its cells; with ``only``, of cells whose "row, column" holds each of these words."""
        words = [word.lower() for word in only]
        chosen = [c for c in self.cells if all(w in f"{c.row}, {c.column}".lower() for w in words)]
        return [step for cell in chosen for step in cell.steps]


def _end(result: Mapping[str, Any], metric: str, end: str) -> float | None:
    """An end of the interval: an accuracy names it after itself, an attack has one only."""
    return _inside(result, end if metric == "success" else f"{metric}_{end}")


def _inside(result: Mapping[str, Any] | None, path: str) -> float | None:
    place: Any = result
    for name in path.split("."):
        place = place.get(name) if isinstance(place, Mapping) else None
    return place if isinstance(place, int | float) else None
