"""Laws of `Charge`: it only rounds up, and its epsilon is a valid promise."""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dp_forward.errors import InvalidInput
from dp_forward.ledger import Charge
from dp_forward.privacy import curve
from dp_forward.privacy.charge import (
    EPSILON_UNITS_PER_ONE,
    LARGEST_UNITS,
    MU2_UNITS_PER_ONE,
)
from dp_forward.privacy.rounding import _float_up, root_up

sizes = st.floats(min_value=1e-12, max_value=50, allow_nan=False)
units = st.integers(min_value=0, max_value=10**12)


@given(sizes)
def test_pure_charges_are_the_next_whole_unit_in_exact_arithmetic(epsilon: float) -> None:
    exact = Fraction(repr(epsilon)) * EPSILON_UNITS_PER_ONE
    charged = Charge.pure(epsilon).epsilon_units
    assert exact <= charged < exact + 1


@given(sizes)
def test_gaussian_charges_are_the_next_whole_unit_in_exact_arithmetic(mu: float) -> None:
    exact = Fraction(mu) ** 2 * MU2_UNITS_PER_ONE
    charged = Charge.gaussian(mu).mu2_units
    assert exact <= charged < exact + 1


def test_float_multiplication_would_have_rounded_down() -> None:
    # The control: 8.500000000000001e-08 * 1e9 is exactly 85 in floats and a little more in truth.
    assert math.ceil(8.500000000000001e-08 * 1e9) == 85
    assert Charge.pure(8.500000000000001e-08).epsilon_units == 86


@pytest.mark.slow
@given(st.integers(min_value=1, max_value=10**9), st.integers(min_value=1, max_value=1000))
def test_a_decimal_cap_is_filled_exactly_by_its_decimal_parts(units: int, parts: int) -> None:
    each = units / EPSILON_UNITS_PER_ONE
    cap = units * parts / EPSILON_UNITS_PER_ONE
    assert Charge.pure(each).times(parts).epsilon(0.0) <= cap
    assert Charge.pure(each).times(parts + 1).epsilon(0.0) > cap


@pytest.mark.parametrize("delta", [1e-3, 1e-5, 1e-9, 1e-12])
@pytest.mark.parametrize("epsilon", [0.1, 0.5, 1.0, 2.0, 8.0, 16.0, 64.0])
def test_one_release_calibrated_to_the_cap_fits_under_it(epsilon: float, delta: float) -> None:
    mu = curve.largest_mu(epsilon, delta)
    assert Charge.gaussian(mu * (1 + 1e-15)).epsilon(delta) <= epsilon


def test_exact_numbers_are_charged_exactly() -> None:
    assert Charge.pure(0.1).epsilon_units == 100_000_000
    assert Charge.pure(Decimal("0.1")).epsilon_units == 100_000_000
    assert Charge.pure(Fraction(1, 10)).times(10) == Charge.pure(1)
    assert Charge.pure(2.0).epsilon_units == 2 * EPSILON_UNITS_PER_ONE
    assert Charge.gaussian(0.5).mu2_units == MU2_UNITS_PER_ONE // 4


@pytest.mark.slow
@given(units, units, units, units, st.integers(min_value=0, max_value=1000))
def test_charges_add_without_loss(a: int, b: int, c: int, d: int, k: int) -> None:
    assert Charge(a, b) + Charge(c, d) == Charge(a + c, b + d)
    assert Charge(a, b).times(k) == sum((Charge(a, b),) * k, start=Charge())


@pytest.mark.slow
@given(
    st.integers(min_value=0, max_value=10**10),
    st.integers(min_value=0, max_value=10**13),
    st.sampled_from([1e-10, 1e-5, 1e-2, 0.6]),
)
def test_the_promised_point_lies_on_the_safe_side_of_the_curve(pure: int, mu2: int, delta: float) -> None:
    charge = Charge(pure, mu2)
    epsilon = charge.epsilon(delta)
    # The plain formula, with no slack and nearest roundings.
    loss, mu = pure / EPSILON_UNITS_PER_ONE, math.sqrt(mu2 / MU2_UNITS_PER_ONE)
    keep = 1 / (1 + math.exp(-loss))
    gaussian = curve.hockey_stick([epsilon - loss, epsilon + loss], mu) if mu else [0.0, 0.0]
    plain = keep * gaussian[0] + (1 - keep) * gaussian[1]
    assert plain <= delta * (1 + 1e-9)
    assert plain * (1 - 1e-9) <= charge.delta(epsilon) <= delta
    assert epsilon <= Charge(pure).epsilon(delta) + Charge(0, mu2).epsilon(delta) + 1e-9


def test_the_curve_of_a_pure_charge_is_that_of_randomized_response() -> None:
    charge = Charge.pure(2.0)
    assert (charge.delta(2.0), charge.delta(3.0)) == (0.0, 0.0)
    keep = math.exp(2.0) / (1 + math.exp(2.0))
    assert charge.delta(1.0) == pytest.approx(keep * (1 - math.exp(-1.0)))
    assert charge.delta(0.0) == pytest.approx(2 * keep - 1)
    assert Charge().delta(0.0) == 0.0


def test_three_gaussian_releases_cost_what_the_mathematics_says() -> None:
    assert Charge.gaussian(1).times(3).epsilon(1e-5) == pytest.approx(8.385418924, abs=1e-8)


def test_the_mixture_is_a_guarantee_for_randomized_response_and_gaussian_noise() -> None:
    pure, mu, delta = 0.7, 0.5, 1e-5
    epsilon = (Charge.pure(pure) + Charge.gaussian(mu)).epsilon(delta)
    keep = math.exp(pure) / (1 + math.exp(pure))
    exact = keep * curve.hockey_stick(epsilon - pure, mu) + (1 - keep) * curve.hockey_stick(
        epsilon + pure, mu
    )
    assert float(exact[0]) <= delta
    # The control: without the pure part the promise would be false.
    low = Charge.gaussian(mu).epsilon(delta)
    broken = keep * curve.hockey_stick(low - pure, mu) + (1 - keep) * curve.hockey_stick(low + pure, mu)
    assert float(broken[0]) > delta


def test_pure_charges_need_no_delta_and_gaussian_ones_do() -> None:
    assert Charge.pure(2).epsilon(0.0) == 2.0
    assert Charge().epsilon(0.0) == 0.0
    for delta in (0.0, 1e-310):
        with pytest.raises(InvalidInput, match="Gaussian"):
            Charge.gaussian(1).epsilon(delta)
    with pytest.raises(InvalidInput, match="delta"):
        Charge.pure(1).epsilon(1.0)


@pytest.mark.slow
@given(st.fractions(min_value=0, max_value=10**6))
def test_conversions_to_floats_round_to_the_safe_side(exact: Fraction) -> None:
    up = _float_up(exact)
    assert Fraction(up) >= exact
    assert Fraction(math.nextafter(up, -math.inf)) < exact
    assert Fraction(root_up(exact)) ** 2 >= exact
    assert root_up(exact) == pytest.approx(math.sqrt(exact), rel=1e-15)


@pytest.mark.slow
@given(units, units, units, units)
def test_what_is_left_is_what_still_fits(a: int, b: int, c: int, d: int) -> None:
    shares, charged = Charge(a, b), Charge(c, d)
    left = shares.left_by(charged)
    if charged <= shares:
        assert charged + left == shares
        assert not charged + left + Charge(1) <= shares
        assert not charged + left + Charge(0, 1) <= shares
    assert left <= shares


def test_what_does_not_fit_sixty_four_bits_is_refused() -> None:
    assert Charge(LARGEST_UNITS, LARGEST_UNITS).mu2_units == LARGEST_UNITS
    with pytest.raises(InvalidInput, match="64-bit"):
        Charge(LARGEST_UNITS + 1)
    with pytest.raises(InvalidInput, match="64-bit"):
        Charge(0, LARGEST_UNITS) + Charge(0, 1)
    with pytest.raises(InvalidInput, match="64-bit"):
        Charge.pure(1e10)
    with pytest.raises(InvalidInput, match="64-bit"):
        Charge.gaussian(1e200)


@pytest.mark.parametrize("bad", [0, "1"])
def test_what_is_not_a_cost_is_refused(bad: object) -> None:
    with pytest.raises(InvalidInput):
        Charge.pure(bad)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput):
        Charge.gaussian(bad)  # type: ignore[arg-type]


@pytest.mark.parametrize("bad", [-1, 1.5])
def test_units_are_whole_and_not_negative(bad: object) -> None:
    with pytest.raises(InvalidInput):
        Charge(bad)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput):
        Charge(1).times(bad)  # type: ignore[arg-type]


def test_charges_add_to_charges_only() -> None:
    with pytest.raises(TypeError):
        Charge(1) + 1  # type: ignore[operator]


def test_numpy_integers_become_plain_ones() -> None:
    import numpy as np

    assert type(Charge(np.int64(3)).epsilon_units) is int  # type: ignore[arg-type]


def test_the_repr_says_what_it_costs() -> None:
    both = Charge.pure(0.5) + Charge.gaussian(0.5)
    assert repr(both) == "Charge(epsilon=0.5, mu2=0.25)"
    assert (str(both), str(Charge.gaussian(0.5))) == ("epsilon 0.5 and mu 0.5", "mu 0.5")
    assert (str(Charge()), both.as_dict()) == ("epsilon 0.0", {"epsilon": 0.5, "mu": 0.5})
    assert not Charge()
    assert Charge(1)
