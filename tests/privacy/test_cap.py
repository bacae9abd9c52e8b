"""Laws of `Cap`: what is promised holds for its shares, and no larger shares would do."""

from __future__ import annotations

import itertools
from typing import Any

import mpmath as mp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dp_forward.errors import InvalidInput
from dp_forward.privacy import AnalyticGaussian, Budget, calibrate
from dp_forward.privacy.cap import LARGEST_GAUSSIAN_EPSILON, Cap
from dp_forward.privacy.charge import MU2_UNITS_PER_ONE, Charge

POINTS = list(itertools.product([0.5, 2.0, 8.0, 64.0], [1e-12, 1e-5, 0.01, 0.6]))


def exact_delta(shares: Charge, epsilon: float) -> Any:
    """Randomized response beside one Gaussian, with 60 digits and the textbook formula."""
    with mp.workdps(60):
        pure = mp.mpf(shares.epsilon_units) / 10**9
        mu = mp.sqrt(mp.mpf(shares.mu2_units) / MU2_UNITS_PER_ONE)

        def gaussian(eps: Any) -> Any:
            return mp.ncdf(mu / 2 - eps / mu) - mp.exp(eps) * mp.ncdf(-mu / 2 - eps / mu)

        keep = mp.exp(pure) / (1 + mp.exp(pure))
        return keep * gaussian(epsilon - pure) + (1 - keep) * gaussian(epsilon + pure)


@pytest.mark.parametrize(("epsilon", "delta"), POINTS)
@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.95])
def test_shares_are_the_largest_whose_exact_curve_meets_the_promise(
    epsilon: float, delta: float, share: float
) -> None:
    cap = Cap.mixed(Budget(epsilon, delta), pure=share * epsilon)
    assert exact_delta(cap.shares, epsilon) <= delta
    more = Charge(cap.shares.epsilon_units, int(cap.shares.mu2_units * (1 + 1e-8)) + 1)
    assert exact_delta(more, epsilon) > delta
    with pytest.raises(InvalidInput, match="shares"):
        Cap(epsilon, delta, more)
    assert (cap.epsilon, cap.delta) == (epsilon, delta)


@pytest.mark.parametrize(("epsilon", "delta"), POINTS)
def test_releases_that_were_calibrated_to_the_cap_fill_it(epsilon: float, delta: float) -> None:
    budget = Budget(epsilon, delta)
    cap = Cap.gaussian(budget)
    for releases in (1, 3, 10):
        made = calibrate(AnalyticGaussian, budget, sensitivity=2.0, releases=releases)
        once = AnalyticGaussian(made.sigma, made.sensitivity).charge()
        assert once.times(releases) <= cap.shares
        assert not once.times(releases) + Charge.gaussian(0.001 * cap.shares.mu + 1e-7) <= cap.shares


@pytest.mark.slow
@given(
    st.integers(min_value=0, max_value=10**10),
    st.integers(min_value=1, max_value=10**15),
    st.sampled_from([1e-10, 1e-5, 1e-2, 0.6, 1 - 1e-9]),
)
def test_every_charge_is_a_cap_of_its_own(pure: int, mu2: int, delta: float) -> None:
    """Made and checked by two ways of computing the curve, which may differ in the last digit."""
    cap = Cap.of(Charge(pure, mu2), delta)
    assert cap.shares.delta(cap.epsilon) <= delta


@pytest.mark.parametrize("records", [1, 2, 7])
def test_a_cap_in_the_proportion_of_a_charge_holds_whole_releases(records: int) -> None:
    record = Charge.pure(2.197) + Charge.gaussian(0.3)
    exact = Cap.of(record.times(records), 1e-5)
    assert exact.shares == record.times(records)
    assert exact_delta(exact.shares, exact.epsilon) <= 1e-5
    assert Cap.like(record, Budget(exact.epsilon, 1e-5)).shares == record.times(records)
    less = Cap.like(record, Budget(0.999 * exact.epsilon, 1e-5)).shares
    assert record.times(records - 1) <= less
    assert not record.times(records) <= less
    assert less.epsilon_units / record.epsilon_units == pytest.approx(less.mu2_units / record.mu2_units)


def test_the_kind_follows_from_the_charge() -> None:
    budget = Budget(8.0, 1e-5)
    assert Cap.like(Charge.pure(1.0), budget) == Cap.pure(8.0) == Cap(8.0, 0.0, Charge.pure(8.0))
    assert Cap.like(Charge.gaussian(1.0), budget) == Cap.gaussian(budget)
    assert Cap.of(Charge.pure(3.0), 1e-5) == Cap.pure(3.0)
    assert Cap.of(Charge.gaussian(1.0), 1e-5).shares == Charge.gaussian(1.0)
    assert (str(Cap.pure(8.0)), str(Cap.gaussian(budget))) == ("8.0-DP", "(8.0, 1e-05)-DP")


def test_a_pure_cap_is_exact_and_as_large_as_wanted() -> None:
    for epsilon in (1e-9, 0.1, 0.3, 1000.0, 1e6, 9e9):
        assert Cap.pure(epsilon).shares == Charge.pure(epsilon)
    assert Cap.pure(1.9999999999).shares == Charge(1_999_999_999), "rounded down"


def test_two_shares_cost_more_than_either_and_less_than_their_sum() -> None:
    # What a ledger of schema version 2 let happen: pure to the cap, and Gaussian to the cap.
    both = Cap.pure(8.0).shares + Cap.gaussian(Budget(8.0, 1e-5)).shares
    assert 15.9 < both.epsilon(1e-5) < 16.0
    assert both.delta(8.0) > 0.5


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: Cap.pure(0.0), "epsilon"),
        (lambda: Cap.pure(1e-10), "1e-9 or more"),
        (lambda: Cap.pure(1e10), "64-bit"),
        (lambda: Cap.gaussian(Budget(8.0)), "delta"),
        (lambda: Cap.gaussian(Budget(8.0, 1e-310)), "delta"),
        (lambda: Cap.gaussian(Budget(LARGEST_GAUSSIAN_EPSILON + 1, 1e-5)), "at most 1000"),
        (lambda: Cap.like(Charge(1, 1), Budget(1001.0, 1e-5)), "at most 1000"),
        (lambda: Cap.of(Charge.gaussian(60.0), 1e-5), "at most 1000"),
        (lambda: Cap.mixed(Budget(8.0, 1e-5), pure=8.0), "below the epsilon of the cap"),
        (lambda: Cap.mixed(Budget(8.0, 1e-5), pure=-1.0), "pure"),
        (lambda: Cap(8.0, 1e-5, Charge.pure(8.0)), "be 0 without a Gaussian share"),
        (lambda: Cap(8.0, 0.0, Charge.gaussian(0.1)), "delta"),
        (lambda: Cap(8.0, 0.0, Charge.pure(8.1)), "shares"),
        (lambda: Cap(8.0, 0.0, Charge()), "hold something"),
    ],
)
def test_what_is_no_promise_is_refused(make: Any, match: str) -> None:
    with pytest.raises(InvalidInput, match=match):
        make()
