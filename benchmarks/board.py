"""The one record of `make bench`: every number with its limit, which way it points, and whether it holds.

A limit stands on a ratio of two things that were measured in the same run, or on how something grows; so a
slow or a busy machine moves both sides. Absolute times are written down, and judge nothing.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

Direction = Literal["at most", "at least"]
SCHEMA = 1
"""Of the JSON; a reader refuses another one."""


@dataclass(frozen=True, slots=True)
class Limit:
    """What a number is held to, and why it is this much."""

    direction: Direction
    threshold: float
    why: str

    def holds(self, value: float | None) -> bool:
        """Whether the value is on the right side; a missing or undefined one is not."""
        if value is None or not math.isfinite(value):
            return False
        return value <= self.threshold if self.direction == "at most" else value >= self.threshold


def at_most(threshold: float, why: str) -> Limit:
    """The value must not be above."""
    return Limit("at most", threshold, why)


def at_least(threshold: float, why: str) -> Limit:
    """The value must not be below."""
    return Limit("at least", threshold, why)


@dataclass(frozen=True)
class Part:
    """One part of the benchmark: what it answers, its limits, and what measures it."""

    name: str
    asks: str
    limits: Mapping[str, Limit]
    run: Callable[[Board], None]


class Board:
    """Takes the numbers of one part after the other.

    Guarantees:
        Every limit of a part that began has a measurement when it has ended: one that was never put is there
        without a value, and is missed.
    """

    def __init__(self, *, smoke: bool = False) -> None:
        self.smoke = smoke
        self.measurements: list[dict[str, Any]] = []
        self.charts: dict[str, dict[str, Any]] = {}
        self._part: Part | None = None

    def begin(self, part: Part) -> None:
        """Numbers belong to this part from now on."""
        self._part = part

    def put(self, name: str, value: float, unit: str = "") -> None:
        """One number; it is held to the limit of that name, if the part has one."""
        assert self._part is not None
        self._note(self._part, name, float(value) if math.isfinite(value) else None, unit)

    def end(self) -> None:
        """The part is over: what it should have measured and did not is missed."""
        assert self._part is not None
        seen = {row["name"] for row in self.measurements if row["part"] == self._part.name}
        for name in self._part.limits:
            if name not in seen:
                self._note(self._part, name, None, "")
        self._part = None

    def bars(self, title: str, unit: str, values: Mapping[str, float]) -> None:
        """Something to draw: one bar for each name."""
        self.charts[title] = {"kind": "bars", "unit": unit, "values": dict(values)}

    def lines(self, title: str, x: str, y: str, lines: Mapping[str, list[tuple[float, float]]]) -> None:
        """Something to draw: points (x, y) for each name."""
        points = {name: [list(point) for point in found] for name, found in lines.items()}
        self.charts[title] = {"kind": "lines", "x": x, "y": y, "lines": points}

    def _note(self, part: Part, name: str, value: float | None, unit: str) -> None:
        limit = part.limits.get(name)
        self.measurements.append(
            {
                "part": part.name,
                "name": name,
                "value": value,
                "unit": unit,
                "threshold": limit.threshold if limit else None,
                "direction": limit.direction if limit else None,
                "ok": limit.holds(value) if limit else None,
                "why": limit.why if limit else None,
            }
        )


def missed(record: Mapping[str, Any]) -> list[str]:
    """The numbers that broke their limit, and the parts that did not run to their end."""
    failed = [f"{row['part']}: {row['name']}" for row in record["measurements"] if row["ok"] is False]
    return failed + [f"{part}: {error}" for part, error in record["errors"].items()]


def table(record: Mapping[str, Any]) -> str:
    """For the terminal."""
    lines = []
    for part in dict.fromkeys(row["part"] for row in record["measurements"]):
        lines.append(f"\n{part}")
        for row in (row for row in record["measurements"] if row["part"] == part):
            verdict = "  MISSED" if row["ok"] is False and not record["smoke"] else ""
            lines.append(f"  {row['name']:44} {shown(row):>16}  {rule(row):16}{verdict}".rstrip())
    return "\n".join(lines)


def markdown(record: Mapping[str, Any]) -> str:
    """For docs/benchmarks.md: what is held to a limit, with its reason; then what is only written down."""
    lines = ["| part | what | measured | limit | why this limit |", "|---|---|---|---|---|"]
    for row in record["measurements"]:
        if row["threshold"] is not None:
            verdict = "" if row["ok"] else ", **missed**"
            lines.append(
                f"| {row['part']} | {_words(row)} | {shown(row)} | {rule(row)}{verdict} | {row['why']} |"
            )
    lines += ["", "| part | what | measured |", "|---|---|---|"]
    for row in record["measurements"]:
        if row["threshold"] is None:
            lines.append(f"| {row['part']} | {_words(row)} | {shown(row)} |")
    versions = ", ".join(f"{name} {found}" for name, found in record["versions"].items() if found)
    cores = f"{record['cores']} cores ({record['machine']})"
    lines += ["", f"{record['seconds']:.0f} s on {cores}, Python {record['python']}, {versions}."]
    return "\n".join(lines)


def shown(row: Mapping[str, Any]) -> str:
    """A value with its unit."""
    if row["value"] is None:
        return "nothing"
    value = row["value"]
    digits = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return f"{digits} {row['unit']}".strip()


def rule(row: Mapping[str, Any]) -> str:
    """A limit in words; empty where there is none."""
    return "" if row["threshold"] is None else f"{row['direction']} {row['threshold']:g}"


def _words(row: Mapping[str, Any]) -> str:
    return str(row["name"]).replace("_", " ")


def write(record: Mapping[str, Any], path: Path) -> None:
    """All of the file or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(path.name + ".new")
    draft.write_text(json.dumps(record, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    draft.replace(path)


def read(path: Path) -> dict[str, Any]:
    """A record as `write` left it."""
    record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if record.get("schema") != SCHEMA:
        raise SystemExit(f"{path.name} is no result of `python -m benchmarks` of this version; make it again")
    return record
