"""Tables as cells with a row and a column, each filled by jobs or by a formula.

A cell never holds a number that somebody typed. It holds the jobs whose results fill it, or a function of
`dp_forward.privacy` that computes it; a cell whose jobs were not run is shown as "not run".
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

from reproduction.jobs import Job

__all__ = ["Cell", "Chart", "Derived", "Found", "Known", "Table", "Value"]

Found = Mapping[str, Mapping[str, Any]]
"""What finished jobs found, by digest."""
Known = Callable[[], float | str]
Derived = Callable[[Sequence[Mapping[str, Any]]], float | str | None]
_NUMBER: Final = re.compile(r"\d+(?:\.\d+)?")


@dataclass(frozen=True)
class Value:
    """What a cell shows: a mean over those of its jobs (seeds) that were run, or what a formula says.

    It is None where nothing was run. ``low`` and ``high`` are the 95 % interval of a single job, where it
    has one.
    """

    value: float | str | None
    parts: tuple[float, ...] = ()
    low: float | None = None
    high: float | None = None
    missing: int = 0
    """Jobs (seeds) that are not there yet."""

    @property
    def run(self) -> bool:
        """Whether all of it is there."""
        return self.value is not None and not self.missing

    @property
    def number(self) -> float | None:
        """The value where it is a number."""
        return self.value if isinstance(self.value, float) else None


@dataclass(frozen=True)
class Cell:
    """One number of a table.

    ``metric`` is the name of a number in the results of ``jobs``; a dot goes inside ("privunit.seconds").
    ``known`` is a formula alone; ``derived`` a formula of what the jobs found, such as how many records
    there were: what it proves is then about these very runs. ``printed`` says where the paper printed its
    own number: table, row and column of `reproduction/printed.json`. ``priority`` is the order in which cells
    with the paper's settings are worth running, from 1; all others have 0.
    """

    row: str
    column: str
    jobs: tuple[Job, ...] = ()
    metric: str = "accuracy"
    known: Known | None = field(default=None, compare=False)
    derived: Derived | None = field(default=None, compare=False)
    digits: int = 3
    printed: tuple[str, ...] | None = None
    priority: int = 0

    def value(self, found: Found) -> Value:
        """What it shows, given the results by digest."""
        if self.known is not None:
            return Value(self.known())
        results = [found[job.digest] for job in self.jobs if job.digest in found]
        missing = len(self.jobs) - len(results)
        if self.derived is not None:
            return Value(self.derived(results) if results else None, missing=missing)
        parts = [(result, part) for result in results if (part := _inside(result, self.metric)) is not None]
        if not parts:
            return Value(None, missing=missing)
        numbers = tuple(float(part) for _, part in parts)
        mean = statistics.fmean(numbers)
        if len(parts) > 1:
            return Value(mean, numbers, missing=missing)
        # An accuracy names the ends of its interval after itself; an attack has one interval only.
        inside, _, last = self.metric.rpartition("success")
        prefix = inside if not last and self.metric.endswith("success") else f"{self.metric}_"
        low, high = (_inside(parts[0][0], prefix + end) for end in ("low", "high"))
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

    @cached_property
    def rows(self) -> list[str]:
        """Row names in order."""
        return list(dict.fromkeys(cell.row for cell in self.cells))

    @cached_property
    def columns(self) -> list[str]:
        """Column names in order: by their numbers where these are all that differs, else as they come."""
        names = list(dict.fromkeys(cell.column for cell in self.cells))
        found = [_NUMBER.findall(name) for name in names]
        if len({_NUMBER.sub("", name) for name in names}) != 1 or any(len(numbers) != 1 for numbers in found):
            return names
        return sorted(names, key=lambda name: float(_NUMBER.findall(name)[0]))

    def at(self, row: str, column: str) -> Cell | None:
        """The cell there; None where the table is empty."""
        return self._places.get((row, column))

    @cached_property
    def _places(self) -> dict[tuple[str, str], Cell]:
        return {(cell.row, cell.column): cell for cell in self.cells}

    def number(self, row: str, column: str, found: Found) -> float | None:
        """The number of a cell that must be there; None where it was not run."""
        cell = self.at(row, column)
        if cell is None:
            raise KeyError(f"{self.name}: {row}, {column}")  # the table was changed and its reader was not
        return cell.value(found).number

    def points(self, row: str, found: Found) -> list[tuple[str, float, float, float]]:
        """(column, number, low, high) of a row's cells that were run, to be drawn as a line."""
        points = []
        for cell in (cell for column in self.columns if (cell := self.at(row, column)) is not None):
            value = cell.value(found)
            if (middle := value.number) is not None:
                low, high = (middle if end is None else end for end in (value.low, value.high))
                points.append((cell.column, middle, min(low, middle), max(high, middle)))
        return points

    def counts(self, found: Found) -> tuple[int, int]:
        """How many cells are measured (not computed), and how many of them were run."""
        measured = [cell for cell in self.cells if cell.jobs]
        return len(measured), sum(cell.value(found).run for cell in measured)

    def jobs(self, only: Iterable[str] = (), *, priority: int | None = None) -> list[Job]:
        """The jobs of its cells: of those whose "row, column" holds all these words; of one priority."""
        words = [word.lower() for word in only]
        chosen = [
            cell
            for cell in self.cells
            if all(word in f"{cell.row}, {cell.column}".lower() for word in words)
            and priority in (None, cell.priority)
        ]
        return [job for cell in chosen for job in cell.jobs]


def _inside(result: Mapping[str, Any] | None, path: str) -> float | None:
    place: Any = result
    for name in path.split("."):
        place = place.get(name) if isinstance(place, Mapping) else None
    return place if isinstance(place, int | float) else None
