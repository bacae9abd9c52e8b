"""A regressed ratio is caught, a good one passes, and the record says which is which."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from benchmarks.__main__ import NAMES, WHOLE, exit_code, main, measure
from benchmarks.board import SCHEMA, Board, Part, at_least, at_most, markdown, missed, read, table, write

KEYS = {"part", "name", "value", "unit", "threshold", "direction", "ok", "why"}
LIMITS = {"slower": at_most(1.25, "some percent"), "faster": at_least(5, "ten times")}


def record(*, slower: float | None = 1.02, faster: float | None = 11.0, errors: Any = None) -> dict[str, Any]:
    """A record as a run makes it, of a part with two limits."""
    board = Board()
    board.begin(Part("made", "up", LIMITS, lambda board: None))
    board.put("step", 410.0, "ms")
    if slower is not None:
        board.put("slower", slower)
    if faster is not None:
        board.put("faster", faster)
    board.end()
    board.bars("a step", "ms", {"non_private": 400.0, "ours": 410.0, "opacus_hooks": 600.0})
    board.lines("growth", "n", "ms", {"a": [(1, 1.0), (2, 2.1)], "b": [(1, 2.0), (2, 3.9)]})
    made = {"seconds": 1.0, "cores": 2, "machine": "any", "python": "3.11", "versions": {"torch": "2"}}
    return {
        "schema": SCHEMA,
        "smoke": False,
        "measurements": board.measurements,
        "charts": board.charts,
        "errors": errors or {},
        **made,
    }


def test_a_good_run_passes() -> None:
    assert missed(record()) == []
    assert exit_code(record(), judge=True) == 0
    assert missed(record(slower=1.25, faster=5.0)) == []  # a limit itself is kept


@pytest.mark.parametrize(
    "change", [{"slower": 2.04}, {"faster": 4.9}, {"slower": math.nan}, {"faster": None}]
)
def test_a_regressed_or_missing_ratio_fails(change: dict[str, float | None]) -> None:
    name = next(iter(change))
    assert missed(record(**change)) == [f"made: {name}"]
    assert exit_code(record(**change), judge=True) == 1
    assert exit_code(record(**change), judge=False) == 0
    assert "MISSED" in table(record(**change))
    assert "**missed**" in markdown(record(**change))


def test_a_part_that_broke_fails_even_unjudged() -> None:
    broken = record(errors={"made": "ValueError"})
    assert missed(broken) == ["made: ValueError"]
    assert exit_code(broken, judge=False) == 1


def test_every_measurement_says_value_limit_and_verdict(tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    write(record(faster=None), path)
    found = {row["name"]: row for row in read(path)["measurements"]}
    assert all(row.keys() == KEYS for row in found.values())
    assert found["step"] | {"ok": None, "threshold": None, "direction": None} == found["step"]
    assert (found["slower"]["ok"], found["slower"]["direction"]) == (True, "at most")
    assert (found["faster"]["value"], found["faster"]["ok"]) == (None, False)


def test_a_record_of_another_schema_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    path.write_text(json.dumps(record() | {"schema": SCHEMA + 1}), encoding="utf-8")
    with pytest.raises(SystemExit, match="make it again"):
        read(path)


@pytest.mark.slow
def test_the_figure_command_draws_from_a_result(tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    write(record(slower=2.0, faster=None), path)
    assert main(["figure", "--json", str(path)]) == 0
    drawn = {f"bench{of}-{scheme}.svg" for of in ("", "-limits") for scheme in ("light", "dark")}
    assert {path.name for path in tmp_path.iterdir()} == {"bench.json", *drawn}
    assert "opacus hooks" in (tmp_path / "bench-light.svg").read_text(encoding="utf-8")


def test_a_run_notes_provenance_and_goes_on_after_a_broken_part(monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks import parts

    def breaks(board: Board) -> None:
        board.put("slower", 1.0)
        raise ValueError

    quick = Part("released", "?", {"faster": at_least(5, "")}, lambda board: board.put("faster", 4.0))
    broken = {"proof": Part("proof", "?", LIMITS, breaks), "released": quick}
    monkeypatch.setattr(parts, "PARTS", broken)
    found = measure(("proof", "released"), smoke=False)
    assert {"commit", "versions", "machine", "cores", "seed", "part_seconds"} <= found.keys()
    assert missed(found) == ["proof: faster", "released: faster", "proof: ValueError"]


def test_the_command_names_the_parts_that_there_are() -> None:
    from benchmarks.parts import PARTS

    assert set(NAMES) == set(PARTS)
    assert set(NAMES) - set(WHOLE) == {"speed"}  # takes minutes
    assert all(part.limits and all(limit.why for limit in part.limits.values()) for part in PARTS.values())
