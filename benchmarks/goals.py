"""A result file that grows as a benchmark runs, and the goals that its numbers are held against."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.report import ROOT, provenance


class Results:
    """Sections of numbers, written to disk after each one; then the goals, met or missed."""

    def __init__(self, path: Path, *, command: str, libraries: Sequence[str], smoke: bool) -> None:
        self._path = path
        self._record: dict[str, Any] = {
            "command": command,
            "smoke": smoke,
            "complete": False,
            **provenance(libraries),
            "load_before": os.getloadavg()[0],
            "goals": {},
        }

    @property
    def record(self) -> dict[str, Any]:
        """What has been put so far."""
        return self._record

    def put(self, section: str, values: Any) -> None:
        """One section, printed and written."""
        self._record[section] = values
        print(f"\n{section}")
        _show(values)
        self._write()

    def add(self, section: str, row: dict[str, Any]) -> None:
        """One more row of a section that is a list."""
        if section not in self._record:
            self._record[section] = []
            print(f"\n{section}")
        self._record[section].append(row)
        _show([row])
        self._write()

    def goal(self, name: str, value: float, rule: str, met: bool) -> None:
        """One number against its goal, in words."""
        self._record["goals"][name] = {"value": value, "rule": rule, "met": bool(met)}
        self._write()

    def close(self, *, judge: bool) -> int:
        """The table of goals, and the exit code."""
        goals = self._record["goals"]
        self._record["complete"] = True
        self._write()
        print("\ngoals")
        for name, goal in goals.items():
            print(f"  {name:42} {goal['value']:>14.6g}   {goal['rule']:22} {'' if goal['met'] else 'MISSED'}")
        print(f"\nwritten to {self._path}")
        return 1 if judge and not all(goal["met"] for goal in goals.values()) else 0

    def _write(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        draft = self._path.with_suffix(".new")
        draft.write_text(json.dumps(self._record, indent=2) + "\n", encoding="utf-8")
        draft.replace(self._path)


def _show(values: Any, indent: str = "  ") -> None:
    rows = values if isinstance(values, list) else [values]
    for row in rows:
        if not isinstance(row, dict):
            print(f"{indent}{row}")
            continue
        if isinstance(values, list):
            print(indent + "  ".join(f"{key} {_short(value)}" for key, value in row.items()), flush=True)
            continue
        for key, value in row.items():
            print(f"{indent}{key:36} {_short(value)}")


def _short(value: Any) -> str:
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def arguments(description: str, name: str) -> argparse.ArgumentParser:
    """What every benchmark with goals understands."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--json", type=Path, default=ROOT / "results" / f"{name}.json", metavar="OUT")
    parser.add_argument("--smoke", action="store_true", help="small numbers, to see that it runs")
    parser.add_argument("--no-goals", action="store_true", help="measure only; missed goals are no failure")
    return parser


def say(what: str) -> None:
    """Progress, on stderr."""
    print(what, file=sys.stderr, flush=True)


@contextmanager
def on_cores(cores: set[int]) -> Iterator[None]:
    """This process on these cores only, where the system can do that."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores & before or before)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
