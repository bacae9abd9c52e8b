"""The cheapest real part runs, and measures all that it is held to."""

from __future__ import annotations

import time
from typing import Any

import pytest

from benchmarks.board import Board
from benchmarks.parts import PARTS, growth


def grown() -> Board:
    """The part, at tiny sizes."""
    board, part = Board(smoke=True), PARTS["growth"]
    board.begin(part)
    part.run(board)
    board.end()
    return board


@pytest.mark.slow
def test_growth_measures_every_slope_it_is_held_to() -> None:
    board, part = grown(), PARTS["growth"]
    found = {row["name"]: row["value"] for row in board.measurements}
    assert found.keys() == part.limits.keys()
    assert None not in found.values()
    assert set(board.charts) == {"simulated noise", "released noise"}


@pytest.mark.slow
def test_a_release_that_is_quadratic_in_the_batch_misses_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    def quadratic(hidden: Any, mechanism: Any, *, bits: int) -> None:
        until = time.process_time() + 5e-5 * len(hidden) ** 2
        while time.process_time() < until:
            pass

    monkeypatch.setattr(growth, "release_batch", quadratic)
    verdict = {row["name"]: row["ok"] for row in grown().measurements}
    assert not verdict["released_slope_in_batch"]
    assert verdict["released_slope_in_n"]
