"""The three-level loss of pure mechanisms."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dp_forward.errors import InvalidInput
from dp_forward.privacy.charge import Charge
from dp_forward.privacy.pure_loss import ThreeLevelLoss


def _brute_force(epsilon: float, mass: float, copies: int, at: float) -> float:
    """Sum over all outcomes of (P - e^at Q)+."""
    down = mass * math.exp(-epsilon)
    rest = max(0.0, 1 - mass - down)
    outcomes = [(mass, down), (down, mass), (rest, rest)]
    total = 0.0
    for combination in itertools.product(outcomes, repeat=copies):
        p = math.prod(first for first, _ in combination)
        q = math.prod(second for _, second in combination)
        total += max(0.0, p - math.exp(at) * q)
    return total


@pytest.mark.slow
@given(
    epsilon=st.floats(0.01, 6),
    share=st.floats(0.05, 1),
    copies=st.integers(1, 5),
    at=st.floats(0, 10),
)
def test_the_composed_delta_is_the_sum_over_all_outcomes(
    epsilon: float, share: float, copies: int, at: float
) -> None:
    mass = share / (1 + math.exp(-epsilon))
    found = ThreeLevelLoss(epsilon, mass, copies).delta(at)
    assert found == pytest.approx(_brute_force(epsilon, mass, copies, at), rel=1e-9, abs=1e-14)


@pytest.mark.slow
@given(epsilon=st.floats(0.1, 5), copies=st.integers(1, 50), delta=st.floats(1e-9, 0.1))
def test_epsilon_and_delta_are_inverse_and_safe(epsilon: float, copies: int, delta: float) -> None:
    loss = ThreeLevelLoss(epsilon, 1 / (1 + math.exp(-epsilon)), copies)
    found = loss.epsilon_at(delta)
    assert loss.delta(found) <= delta
    assert found <= loss.total
    assert loss.epsilon_at(0.0) == loss.total == pytest.approx(copies * epsilon)


@pytest.mark.parametrize(("epsilon", "copies", "total"), [(4.0, 2, 8.0), (0.1, 10, 1.0), (0.7, 3, 2.1)])
def test_copies_add_up_as_the_ledger_charges_them(epsilon: float, copies: int, total: float) -> None:
    loss = ThreeLevelLoss(epsilon, 1 / (1 + math.exp(-epsilon)), copies)
    assert loss.total == total == Charge.pure(epsilon).times(copies).pure_epsilon


def test_many_copies_fall_back_to_plain_addition() -> None:
    loss = ThreeLevelLoss(0.1, 0.5, 10_000)
    assert loss.epsilon_at(1e-5) == loss.total == pytest.approx(1000)
    assert loss.delta(999.0) == 1.0
    assert loss.delta(1001.0) == 0.0


@pytest.mark.parametrize("settings", [(-1.0, 0.5), (1.0, 0.0), (1.0, 0.9), (1.0, 0.5, 0), (math.nan, 0.5)])
def test_impossible_losses_are_refused(settings) -> None:
    with pytest.raises(InvalidInput):
        ThreeLevelLoss(*settings)
