"""`make bench`: everything, in one run, with limits on ratios.

python -m benchmarks [--only PART...] [--json OUT] [--smoke] [--no-goals]
python -m benchmarks figure [--json IN]

A run of all parts writes results/bench.json, draws docs/figures/bench-*.svg and fills the tables of
docs/benchmarks.md. With --json the result goes where it says, and the figures beside it. A part or a smoke
run writes nothing without --json, so that it never stands where a whole run should. The part `speed` takes
minutes and runs only by its name.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from benchmarks.board import SCHEMA, Board, missed, read, table, write
from benchmarks.goals import say
from benchmarks.report import ROOT, provenance

RESULT = ROOT / "results" / "bench.json"
FIGURE = ROOT / "docs" / "figures" / "bench"
WHOLE = ("proof", "released", "growth", "corpus", "register", "reading", "steps", "service")
"""What a whole run is made of."""
NAMES = (*WHOLE, "speed")
LIBRARIES = ("numpy", "scipy", "torch", "transformers", "opacus", "dp-accounting", "starlette", "uvicorn")


def main(arguments: list[str] | None = None) -> int:
    """Measure, write, draw, judge; the exit code is 1 where a limit is missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", nargs="?", choices=("run", "figure"), default="run")
    parser.add_argument("--json", type=Path, metavar="FILE", help="the result [results/bench.json]")
    parser.add_argument("--only", nargs="+", choices=NAMES, metavar="PART", help=", ".join(NAMES))
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, to see that it runs; never judged")
    parser.add_argument("--no-goals", action="store_true", help="measure only; missed limits are no failure")
    given = parser.parse_args(arguments)
    if given.what == "figure":
        render(given.json or RESULT)
        return 0
    record = measure(tuple(given.only or WHOLE), smoke=given.smoke)
    whole = not given.only and not given.smoke
    target = given.json or (RESULT if whole else None)
    print(table(record))
    spent = ", ".join(f"{name} {found:.0f}" for name, found in record["part_seconds"].items())
    print(f"\n{record['seconds']:.0f} s ({spent})")
    if target is not None:
        write(record, target)
        render(target)
    if given.smoke:
        print("a smoke run: the sizes say nothing about limits")
    for name in [] if given.smoke else missed(record):
        print(f"missed: {name}")
    return exit_code(record, judge=not (given.no_goals or given.smoke))


def measure(names: tuple[str, ...], *, smoke: bool) -> dict[str, Any]:
    """The record of these parts; one that breaks is noted, and the others still run."""
    from benchmarks.parts import PARTS

    board = Board(smoke=smoke)
    errors: dict[str, str] = {}
    taken: dict[str, float] = {}
    began, load = time.perf_counter(), os.getloadavg()
    for name in names:
        part = PARTS[name]
        say(f"{name}: {part.asks}")
        board.begin(part)
        start = time.perf_counter()
        try:
            part.run(board)
        except Exception as error:
            traceback.print_exc()
            errors[name] = type(error).__name__
        board.end()
        taken[name] = time.perf_counter() - start
    return {
        "schema": SCHEMA,
        "command": "python -m benchmarks",
        "parts": list(names),
        "smoke": smoke,
        "seed": 0,
        "seconds": time.perf_counter() - began,
        "part_seconds": taken,
        "load_before": load[0],
        **provenance(LIBRARIES),
        "measurements": board.measurements,
        "charts": board.charts,
        "errors": errors,
    }


def render(source: Path) -> None:
    """The figures of a result; for the result of this repository, the tables of its page too."""
    from benchmarks.figure import draw
    from benchmarks.tables import fill

    record = read(source)
    ours = source.resolve() == RESULT
    for drawn in draw(record, FIGURE if ours else source.with_suffix("")):
        say(f"drawn: {drawn}")
    if ours:
        fill("docs/benchmarks.md")


def exit_code(record: dict[str, Any], *, judge: bool) -> int:
    """A part that broke always fails; a missed limit where it is judged."""
    return 1 if record["errors"] or (judge and missed(record)) else 0


if __name__ == "__main__":
    sys.exit(main())
