"""What the plan of a DP-SGD run refuses, and what of it decides a result."""

from dataclasses import replace
from typing import Any

import pytest

from dp_forward.errors import InvalidInput
from dp_forward.train.dpsgd.dpsgd_plan import DpSgdPlan

PLAN = DpSgdPlan(task="sst2", epsilon=1.0)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("mode", "magic"),
        ("epsilon", 0.0),
        ("epsilon", float("inf")),
        ("delta", 1.5),
        ("clip_norm", 0.0),
        ("epochs", 0),
        ("micro_batch", 0),
    ],
)
def test_a_wrong_setting_is_named(name: str, value: Any) -> None:
    with pytest.raises(InvalidInput, match=f"`{name}`"):
        replace(PLAN, **{name: value})


def test_there_is_no_default_for_a_promise() -> None:
    with pytest.raises(InvalidInput, match="`epsilon` must be given"):
        DpSgdPlan.from_dict({"task": "sst2"})


def test_how_many_texts_are_in_memory_at_once_decides_nothing() -> None:
    assert replace(PLAN, micro_batch=4).digest() == PLAN.digest()
    assert replace(PLAN, batch=4).digest() != PLAN.digest()
