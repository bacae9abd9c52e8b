"""Several releases of one input together."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dp_forward.errors import InvalidInput
from dp_forward.privacy import (
    MVG,
    RECORD,
    TEXT,
    TOKEN,
    AnalyticGaussian,
    Budget,
    ClassicalGaussian,
    MatrixGaussian,
    PrivUnit,
    RandomizedResponse,
    Sensitivity,
    calibrate,
    compose,
    curve,
    normalise,
    normalise_rows,
)
from dp_forward.privacy.compose import Composition

NINE_TENTHS = math.log(9)


def as_pld(composition: Composition, *, interval: float = 1e-4) -> Any:
    """The composition as dp-accounting's ``PrivacyLossDistribution``, pessimistic (an upper bound)."""
    from dp_accounting.pld import privacy_loss_distribution as pld

    total = pld.identity(value_discretization_interval=interval)
    if composition.mu > 0:
        total = total.compose(
            pld.from_gaussian_mechanism(
                1 / composition.mu, value_discretization_interval=interval, use_connect_dots=True
            )
        )
    for loss in composition.pure_losses:
        down = loss.mass * math.exp(-loss.epsilon)
        rest = max(0.0, 1 - loss.mass - down)
        upper = {0: math.log(loss.mass), 1: math.log(down)}
        lower = {0: math.log(down), 1: math.log(loss.mass)}
        if rest > 0:
            upper[2] = lower[2] = math.log(rest)
        once = pld.from_two_probability_mass_functions(lower, upper, value_discretization_interval=interval)
        total = total.compose(once.self_compose(loss.copies) if loss.copies > 1 else once)
    return total


def _gaussian(epsilon: float, releases: int = 1) -> AnalyticGaussian:
    one = calibrate(AnalyticGaussian, Budget(epsilon, 1e-5), sensitivity=1.0)
    return AnalyticGaussian(one.sigma, Sensitivity(1.0), releases)


# From an independent computation: text at eps1, label at 2.197 (K = 2), three releases.
KNOWN = [
    (0.5, 2.6933915942395434, 3.102156665603181, 7.4835915481619475),
    (2.0, 4.184521220384473, 5.897534672671413, 10.248572457351802),
    (8.0, 10.156774736359072, 17.987524485643398, 22.242578804131075),
]


@pytest.mark.parametrize(("epsilon", "joint", "label_once", "label_fresh"), KNOWN)
def test_text_and_label_together_cost_the_known_values(
    epsilon: float, joint: float, label_once: float, label_fresh: float
) -> None:
    label = RandomizedResponse(NINE_TENTHS, 2)
    assert compose(_gaussian(epsilon), label).epsilon(1e-5) == pytest.approx(joint, rel=1e-9)
    assert compose(_gaussian(epsilon, 3), label).epsilon(1e-5) == pytest.approx(label_once, rel=1e-9)
    fresh = compose(_gaussian(epsilon, 3), RandomizedResponse(NINE_TENTHS, 2, 3))
    assert fresh.epsilon(1e-5) == pytest.approx(label_fresh, rel=1e-9)


@pytest.mark.parametrize(("single", "composed"), [(0.5, 0.9113813123287567), (2.0, 3.7218397581219707)])
def test_three_gaussian_releases_cost_the_known_values(single: float, composed: float) -> None:
    whole = compose(_gaussian(single), _gaussian(single), _gaussian(single))
    assert whole.epsilon(1e-5) == pytest.approx(composed, rel=1e-9)
    assert whole.epsilon(1e-5) == pytest.approx(_gaussian(single, 3).epsilon(1e-5), rel=1e-12)


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(text=st.floats(0.3, 8), label=st.floats(0.2, 4), labels=st.integers(2, 6), delta=st.floats(1e-9, 1e-2))
def test_together_costs_less_than_the_sum_and_more_than_each(
    text: float, label: float, labels: int, delta: float
) -> None:
    first = calibrate(AnalyticGaussian, Budget(text, delta), sensitivity=1.0)
    whole = compose(first, RandomizedResponse(label, labels))
    epsilon = whole.epsilon(delta)
    assert max(text, 0) * (1 - 1e-9) <= epsilon <= (text + label) * (1 + 1e-9)
    assert whole.delta(epsilon) <= delta


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [1.0, 5.0, 12.0])
def test_dp_accounting_confirms_a_gaussian_a_label_and_a_privunit(epsilon: float) -> None:
    text = calibrate(MatrixGaussian, Budget(2.0, 1e-5), bound=normalise(1.0), unit=TEXT)
    again = calibrate(PrivUnit, Budget(1.5), bound=normalise(1.0), unit=TEXT)
    whole = compose(text, again, RandomizedResponse(1.0, 3, 2))
    ours = whole.delta(epsilon)
    theirs = as_pld(whole, interval=1e-4).get_delta_for_epsilon(epsilon)
    assert ours <= theirs * (1 + 1e-6)
    assert theirs == pytest.approx(ours, rel=2e-2, abs=1e-12)


def test_dp_accounting_confirms_a_text_with_its_label() -> None:
    text = calibrate(PrivUnit, Budget(2.0), bound=normalise(1.0), unit=TEXT)
    whole = compose(text, RandomizedResponse(1.0, 3))
    assert whole.unit == RECORD
    assert whole.epsilon() == pytest.approx(3.0)
    for epsilon in (0.5, 1.5, 2.5):
        theirs = as_pld(whole).get_delta_for_epsilon(epsilon)
        assert theirs == pytest.approx(whole.delta(epsilon), rel=1e-2)
    assert 0 < whole.epsilon(1e-3) < 3.0
    assert whole.delta(3.0) == 0.0
    assert whole.guess_rate() == pytest.approx(1 / (1 + math.exp(-3.0)))


def test_a_composition_composes_further() -> None:
    inner = compose(_gaussian(1.0), RandomizedResponse(1.0, 2))
    outer = compose(inner, _gaussian(1.0))
    flat = compose(_gaussian(1.0), _gaussian(1.0), RandomizedResponse(1.0, 2))
    assert outer.epsilon(1e-5) == pytest.approx(flat.epsilon(1e-5), rel=1e-9)
    assert outer.charge() == flat.charge()


def test_the_charge_never_promises_more_than_the_composition() -> None:
    whole = compose(_gaussian(1.0), RandomizedResponse(1.0, 2))
    assert whole.charge().epsilon(1e-5) >= whole.epsilon(1e-5)
    assert whole.guess_rate() == pytest.approx((1 + whole.delta(0.0)) / 2)
    assert whole.epsilon() == math.inf
    assert "2 mechanisms together" in repr(whole)


def test_a_composition_without_a_unit_names_every_distance() -> None:
    near, far = AnalyticGaussian(1.0, Sensitivity(1.0)), AnalyticGaussian(1.0, Sensitivity(5.0))
    said = repr(compose(near, far, RandomizedResponse(1.0, 2)))
    assert "for inputs at distance 1 and for inputs at distance 5, 3 mechanisms together" in said


def test_mvg_composes_with_its_exact_curve() -> None:
    mvg = calibrate(MVG, Budget(8.0, 1e-5), bound=normalise(), unit=TEXT, rows=4, columns=3)
    gaussian = calibrate(MatrixGaussian, Budget(8.0, 1e-5), bound=normalise(), unit=TEXT)
    assert compose(mvg, gaussian).mu == pytest.approx(gaussian.mu, rel=1e-3)


def test_too_many_atoms_fall_back_to_plain_addition() -> None:
    text = calibrate(PrivUnit, Budget(3.0), bound=normalise(), unit=TEXT, releases=100)
    pure = compose(text, RandomizedResponse(0.01, 2, releases=300))
    assert pure.epsilon(1e-5) == pytest.approx(6.0)
    assert pure.delta(5.0) == 1.0
    assert pure.delta(6.1) == 0.0
    gaussian = calibrate(MatrixGaussian, Budget(1.0, 1e-5), bound=normalise(), unit=TEXT)
    mixed = compose(text, gaussian, RandomizedResponse(0.01, 2, releases=300))
    assert mixed.epsilon(1e-5) == pytest.approx(7.0)
    assert mixed.delta(7.0) == pytest.approx(1e-5)
    assert mixed.delta(5.0) == 1.0


@pytest.mark.slow
@settings(deadline=None)
@given(epsilon=st.floats(-5, 20))
def test_the_curve_for_accountants_is_a_privacy_curve(epsilon: float) -> None:
    for whole in (
        compose(_gaussian(2.0), RandomizedResponse(1.0, 3)),
        compose(RandomizedResponse(2.0, 3), RandomizedResponse(0.5, 2)),
    ):
        here, above = whole.delta_curve([epsilon, epsilon + 0.1])
        assert 0 <= above <= here <= 1
        mirrored = 1 - math.exp(-abs(epsilon)) + math.exp(-abs(epsilon)) * whole.delta_curve(abs(epsilon))[0]
        if epsilon < 0:
            assert here == pytest.approx(mirrored, rel=1e-9)
    assert whole.mu == 0
    assert np.ndim(whole.delta_curve(1.0)) == 1


def test_only_parts_with_one_unit_and_a_guarantee_compose() -> None:
    text = calibrate(MatrixGaussian, Budget(1.0, 1e-5), bound=normalise(), unit=TEXT)
    token = calibrate(MatrixGaussian, Budget(1.0, 1e-5), bound=normalise_rows(), unit=TOKEN)
    with pytest.raises(InvalidInput, match="one unit"):
        compose(text, token)
    with pytest.raises(InvalidInput, match="at least one"):
        compose()
    with pytest.raises(InvalidInput, match="guarantee"):
        compose(text, ClassicalGaussian.baseline(Budget(8.0, 1e-5), sensitivity=2.0))
    assert compose(_gaussian(1.0), RandomizedResponse(1.0, 2)).unit is None
    assert compose(text, text).unit == TEXT
    assert compose(text, text).assumptions == text.assumptions
    assert compose(text).epsilon(1e-5) == pytest.approx(curve.epsilon(1e-5, text.mu))
