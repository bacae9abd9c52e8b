"""Argument checks: what each one refuses, in one line with name, rule, value and remedy."""

import math

import numpy as np
import pytest

from dp_forward.errors import InvalidInput
from dp_forward.privacy import checks

NO_NUMBERS = ["1", None, True, [1.0], np.array([1.0, 2.0])]
REFUSED = {
    "positive": (
        lambda value: checks.positive("it", value, remedy="Fix it."),
        [0, -1.0, math.nan, math.inf, *NO_NUMBERS],
    ),
    "nonnegative": (
        lambda value: checks.nonnegative("it", value, remedy="Fix it."),
        [-1e-300, math.nan, math.inf, *NO_NUMBERS],
    ),
    "probability": (
        lambda value: checks.probability("it", value, remedy="Fix it."),
        [0, 1, -0.1, 1.1, math.nan, *NO_NUMBERS],
    ),
    "epsilon": (lambda value: checks.epsilon(value, name="it"), [0, -1, math.nan, math.inf, *NO_NUMBERS]),
    "delta": (lambda value: checks.delta(value, zero=False, name="it"), [0, 1, -1e-9, math.nan, *NO_NUMBERS]),
    "delta or 0": (
        lambda value: checks.delta(value, zero=True, name="it"),
        [1, -1e-9, math.nan, *NO_NUMBERS],
    ),
    "count": (lambda value: checks.count("it", value, remedy="Fix it."), [0, -1, 2.0, 2.5, *NO_NUMBERS]),
    "count from 2": (lambda value: checks.count("it", value, at_least=2, remedy="Fix it."), [1]),
    "finite_array": (
        lambda value: checks.finite_array("it", value, ndim=1),
        [[], [[1.0]], 1.0, [math.nan], [math.inf], ["x"], object()],
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_breaks_the_rule_is_refused_in_one_line(name: str) -> None:
    check, values = REFUSED[name]
    for value in values:
        with pytest.raises(InvalidInput) as refused:
            check(value)
        said = str(refused.value)
        assert said.startswith("`it` must ")
        assert "; got " in said
        assert "\n" not in said


def test_what_keeps_the_rule_is_returned_as_a_plain_number() -> None:
    assert checks.positive("it", np.float32(0.5), remedy="") == 0.5
    assert checks.nonnegative("it", 0, remedy="") == 0.0
    assert checks.delta(0, zero=True) == 0.0
    assert type(checks.count("it", np.int64(3), remedy="")) is int


def test_an_array_is_copied_and_cannot_be_written() -> None:
    own = np.ones(3)
    checked = checks.finite_array("it", own, ndim=1)
    own[0] = 7
    assert checked.tolist() == [1, 1, 1]
    assert not checked.flags.writeable
