"""The verdict on kills of Ray's workers: it is not given for kills that did not come."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.ray_release import is_sound

SOUND = {"worker_kills": 5, "drawing_kills": 2, "exit_code": 0, "epsilon_in_ledger": 4.0}
SOUND |= {"epsilon_per_record": 4.0, **dict.fromkeys(("records", "charges", "draws", "distinct_releases"), 9)}


def test_all_kills_came_and_each_record_was_charged_and_drawn_once() -> None:
    assert is_sound(SOUND, 9, 5)


@pytest.mark.parametrize(
    "change",
    [
        {"worker_kills": 0},
        {"worker_kills": 4},
        {"drawing_kills": 0},
        {"exit_code": 1},
        {"charges": 10},
        {"draws": 8},
        {"distinct_releases": 8},
        {"epsilon_in_ledger": 8.0},
    ],
    ids=str,
)
def test_anything_else_is_not_sound(change: dict[str, Any]) -> None:
    assert not is_sound(SOUND | change, 9, 5)
