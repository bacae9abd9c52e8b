"""One door from a budget to noise."""

import math

import pytest

from dp_forward.errors import InvalidInput
from dp_forward.privacy import (
    AnalyticGaussian,
    Budget,
    MatrixGaussian,
    PrivUnit,
    Sensitivity,
    calibrate,
    normalise,
)


@pytest.mark.parametrize(
    ("epsilon", "delta"),
    [
        (0.0, 1e-5),
        (-1.0, 1e-5),
        (math.nan, 1e-5),
        (math.inf, 1e-5),
        (1.0, 1.0),
        (1.0, -0.1),
        (1.0, math.nan),
        (1.0, 1.5),
        ("x", 0.1),
        (1.0, None),
        (True, 0.1),
    ],
)
def test_an_impossible_budget_is_one_line_with_name_rule_value_and_remedy(epsilon, delta) -> None:
    with pytest.raises(InvalidInput) as caught:
        Budget(epsilon, delta)
    message = str(caught.value)
    assert "\n" not in message
    assert caught.value.name in ("epsilon", "delta")
    assert message.startswith(f"`{caught.value.name}` must ")
    assert "; got " in message
    assert message.endswith(".")


def test_numbers_that_only_look_like_numbers_are_refused() -> None:
    class Odd:
        def __float__(self) -> float:
            raise ValueError("no")

    with pytest.raises(InvalidInput, match="be a number"):
        Budget(Odd())  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="whole number"):
        calibrate(PrivUnit, Budget(1.0), releases=2.5)


def test_what_is_protected_must_be_said_once() -> None:
    budget = Budget(1.0, 1e-5)
    with pytest.raises(InvalidInput, match="bound"):
        calibrate(MatrixGaussian, budget)
    with pytest.raises(InvalidInput, match="left out"):
        calibrate(MatrixGaussian, budget, sensitivity=1.0, bound=normalise(1.0))
    by_number = calibrate(AnalyticGaussian, budget, sensitivity=Sensitivity(2.0))
    by_bound = calibrate(AnalyticGaussian, budget, bound=normalise(1.0))
    assert by_number.sigma == by_bound.sigma


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0, 64.0])
@pytest.mark.parametrize("releases", [1, 3, 100])
def test_what_was_calibrated_accounts_for_at_most_the_budget(epsilon: float, releases: int) -> None:
    budget = Budget(epsilon, 1e-6)
    for kind in (AnalyticGaussian, MatrixGaussian, PrivUnit):
        made = calibrate(kind, budget, bound=normalise(1.0), releases=releases)
        assert made.epsilon(1e-6) <= epsilon
        assert made.delta(epsilon) <= 1e-6
