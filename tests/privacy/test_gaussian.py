"""The analytic and the classical Gaussian."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dp_forward.errors import InvalidInput, Unproved
from dp_forward.privacy import (
    TEXT,
    TOKEN,
    AnalyticGaussian,
    Budget,
    ClassicalGaussian,
    Deployment,
    Sensitivity,
    calibrate,
    normalise,
    normalise_rows,
)
from reference_samplers import sample

BUDGET = Budget(8.0, 1e-5)


def test_sigma_at_the_reference_point() -> None:
    mechanism = calibrate(AnalyticGaussian, BUDGET, bound=normalise(1.0), unit=TEXT)
    assert mechanism.sigma == pytest.approx(1.20046, abs=5e-6)
    assert mechanism.sigma**2 == pytest.approx(1.44, abs=2e-3)


@pytest.mark.parametrize(("epsilon", "sigma"), [(1, 7.461), (2, 3.988), (4, 2.162), (8, 1.200), (16, 0.688)])
def test_the_printed_sigmas(epsilon: float, sigma: float) -> None:
    found = calibrate(AnalyticGaussian, Budget(epsilon, 1e-5), bound=normalise(), unit=TEXT).sigma
    assert found == pytest.approx(sigma, abs=6e-4)


@pytest.mark.parametrize(("epsilon", "rate"), [(1, 0.553), (4, 0.678), (8, 0.798), (16, 0.927)])
def test_the_printed_guess_rates(epsilon: float, rate: float) -> None:
    made = calibrate(AnalyticGaussian, Budget(epsilon, 1e-5), bound=normalise(), unit=TEXT)
    assert made.guess_rate() == pytest.approx(rate, abs=6e-4)


@pytest.mark.slow
@given(epsilon=st.floats(0.1, 50), delta=st.floats(1e-12, 0.1), releases=st.integers(1, 1000))
def test_k_releases_need_root_k_times_the_noise(epsilon: float, delta: float, releases: int) -> None:
    budget = Budget(epsilon, delta)
    one = calibrate(AnalyticGaussian, budget, sensitivity=2.0)
    many = calibrate(AnalyticGaussian, budget, sensitivity=2.0, releases=releases)
    assert many.sigma == pytest.approx(math.sqrt(releases) * one.sigma, rel=1e-12)
    assert many.epsilon(delta) <= epsilon
    assert many.delta(epsilon) <= delta


def test_token_level_needs_no_more_than_text_level() -> None:
    token = calibrate(AnalyticGaussian, BUDGET, bound=normalise_rows(1.0), unit=TOKEN)
    text = calibrate(AnalyticGaussian, BUDGET, bound=normalise(1.0), unit=TEXT)
    assert token.sigma == pytest.approx(text.sigma)
    assert "own token" in token.assumptions[-1]


def test_no_delta_no_finite_epsilon() -> None:
    mechanism = AnalyticGaussian(1.0, Sensitivity(1.0))
    assert mechanism.epsilon() == math.inf
    assert mechanism.assumptions == ()


def test_the_repr_states_the_promise() -> None:
    made = calibrate(AnalyticGaussian, Budget(2.0, 1e-5), bound=normalise(1.0), unit=TEXT)
    assert repr(made) == "AnalyticGaussian(sigma=3.98763) -> (2.0, 1e-05)-LDP per text"
    thrice = AnalyticGaussian(3.98763, Sensitivity(2.0), releases=3)
    assert "DP for inputs at distance 2 over 3 releases" in repr(thrice)


@pytest.mark.parametrize(
    "settings",
    [
        (0.0, Sensitivity(1.0)),
        (-1.0, Sensitivity(1.0)),
        (math.nan, Sensitivity(1.0)),
        (1.0, Sensitivity(1.0), 0),
        (1.0, Sensitivity(1.0), 1, 0.0),
        (1.0, Sensitivity(1.0), 1, 1.5),
        (True, Sensitivity(1.0)),
        ("1", Sensitivity(1.0)),
        (1.0, Sensitivity(1.0), 1.5),
        (1e-308, Sensitivity(1e10)),
    ],
)
def test_impossible_noise_is_refused(settings) -> None:
    with pytest.raises(InvalidInput):
        AnalyticGaussian(*settings)


def test_a_gaussian_without_delta_is_refused() -> None:
    with pytest.raises(InvalidInput, match="delta"):
        calibrate(AnalyticGaussian, Budget(1.0), sensitivity=1.0)


def test_the_classical_formula_is_proved_below_one_only() -> None:
    proved = calibrate(ClassicalGaussian, Budget(0.5, 1e-5), sensitivity=1.0)
    assert proved.sigma == pytest.approx(9.689610525210778)
    assert Deployment(proved).guarantee().epsilon <= 0.5
    with pytest.raises(Unproved, match="below 1"):
        calibrate(ClassicalGaussian, BUDGET, sensitivity=1.0)


def test_beyond_its_theorem_the_classical_formula_carries_no_guarantee() -> None:
    baseline = ClassicalGaussian.baseline(Budget(16.0, 1e-5), sensitivity=1.0)
    assert baseline.sigma == pytest.approx(0.3028003289128368)
    assert repr(baseline).endswith("no guarantee")
    with pytest.raises(Unproved):
        Deployment(baseline).guarantee()
    assert AnalyticGaussian(baseline.sigma, baseline.sensitivity).epsilon(1e-5) > 16


def test_the_classical_formula_knows_one_release_only() -> None:
    with pytest.raises(InvalidInput, match="releases"):
        ClassicalGaussian(Budget(0.5, 1e-5), Sensitivity(1.0), 2)


def test_the_reference_samplers_bound_before_they_add_noise() -> None:
    rng = np.random.default_rng(0)
    huge = np.full((2, 3), 1e30)
    for made in (
        AnalyticGaussian(0.01, normalise(1.0).sensitivity(TEXT)),
        ClassicalGaussian.baseline(Budget(900, 1e-5), sensitivity=normalise(1.0).sensitivity(TEXT)),
    ):
        assert np.abs(sample(made, huge, rng)).max() < 2
    assert sample(AnalyticGaussian(1.0, Sensitivity(1.0)), huge, rng)[0, 0] == pytest.approx(1e30)
