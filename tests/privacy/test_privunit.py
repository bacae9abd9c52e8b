"""PrivUnit: pure, with a third of the noise."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import expit, log_expit, log_ndtr, logit, ndtr

from dp_forward.errors import InvalidInput
from dp_forward.privacy import (
    TEXT,
    TOKEN,
    Budget,
    PrivUnit,
    calibrate,
    clip,
    normalise,
    normalise_rows,
    phrase,
)
from dp_forward.privacy.privunit import best_threshold, mean_scale
from oracles import normal_cdf
from reference_samplers import raw_vector, sample


def log_density(made: PrivUnit, raw: np.ndarray, hidden: np.ndarray) -> float:
    """The log density of V at ``raw`` when one vector (a matrix, flattened) goes in."""
    v, x = np.ravel(raw), np.ravel(made.bound.apply(hidden))
    normal = -0.5 * float(v @ v) - len(v) * 0.5 * math.log(2 * math.pi)
    if float(x @ v) >= made.threshold * float(np.linalg.norm(x)):
        return normal + float(log_expit(made.cap_log_odds) - log_ndtr(-made.threshold))
    return normal + float(log_expit(-made.cap_log_odds) - log_ndtr(made.threshold))


@pytest.mark.parametrize(
    ("epsilon", "sigma", "threshold"),
    [(1, 2.516, 0.397), (2, 1.271, 0.786), (4, 0.660, 1.516), (8, 0.3646, 2.743), (16, 0.2192, 4.561)],
)
def test_the_printed_noise_and_thresholds(epsilon: float, sigma: float, threshold: float) -> None:
    made = calibrate(PrivUnit, Budget(epsilon), bound=normalise(1.0), unit=TEXT)
    assert made.sigma == pytest.approx(sigma, abs=6e-4)
    assert made.threshold == pytest.approx(threshold, abs=6e-4)
    assert made.sigma == pytest.approx(1 / made.threshold, rel=1e-9)


@pytest.mark.slow
@given(epsilon=st.floats(0.05, 40), share=st.floats(-1.5, 2.0))
def test_no_threshold_has_less_noise_than_the_best_one(epsilon: float, share: float) -> None:
    best = best_threshold(epsilon)
    assert mean_scale(epsilon, best) >= mean_scale(epsilon, share * best) * (1 - 1e-12)


@pytest.mark.slow
@given(epsilon=st.floats(0.05, 100), threshold=st.floats(-3, 12))
def test_the_promise_is_the_density_ratio_in_exact_arithmetic(epsilon: float, threshold: float) -> None:
    import mpmath as mp

    made = calibrate(PrivUnit, Budget(epsilon), bound=normalise(1.0), threshold=threshold)
    with mp.workdps(150):
        q, p = normal_cdf(threshold), 1 / (1 + mp.exp(-mp.mpf(made.cap_log_odds)))
        exact = mp.log(p * q / ((1 - p) * (1 - q)))
        assert exact <= mp.mpf(made.epsilon()) <= mp.mpf(epsilon)
        assert made.epsilon() == pytest.approx(epsilon, rel=1e-9)


@pytest.mark.slow
@given(epsilon=st.floats(0.5, 20), p=st.floats(0.05, 0.999))
def test_a_wanted_cap_probability_is_met(epsilon: float, p: float) -> None:
    made = calibrate(PrivUnit, Budget(epsilon), cap_probability=p)
    assert made.cap_probability == pytest.approx(p, rel=1e-6)
    assert made.epsilon() <= epsilon


@pytest.mark.slow
@settings(max_examples=60)
@given(
    seed=st.integers(0, 10**9), epsilon=st.sampled_from([0.5, 2.0, 8.0, 16.0]), dimension=st.integers(2, 30)
)
def test_the_likelihood_ratio_never_passes_e_to_the_epsilon(
    seed: int, epsilon: float, dimension: int
) -> None:
    rng = np.random.default_rng(seed)
    made = calibrate(PrivUnit, Budget(epsilon), bound=normalise(1.0), unit=TEXT)
    pairs = [(rng.standard_normal(dimension), rng.standard_normal(dimension))]
    pairs.append((pairs[0][0], -pairs[0][0]))
    outputs = [raw_vector(made, x, rng) for x, _ in pairs] + [5 * rng.standard_normal((1, dimension))]
    seen = set()
    for x, y in pairs:
        for v in outputs:
            ratio = log_density(made, v, x) - log_density(made, v, y)
            assert abs(ratio) <= epsilon * (1 + 1e-12)
            seen.add(round(abs(ratio) / epsilon, 6))
    assert seen <= {0.0, 1.0}


@pytest.mark.slow
def test_the_density_integrates_to_one() -> None:
    made = calibrate(PrivUnit, Budget(3.0), bound=normalise(1.0), unit=TEXT)
    rng = np.random.default_rng(0)
    v = rng.standard_normal((20_000, 3))
    x = np.array([1.0, 0, 0])
    normal = -0.5 * np.sum(v * v, axis=1) - 1.5 * math.log(2 * math.pi)
    weights = np.exp(np.array([log_density(made, row, x) for row in v]) - normal)
    assert weights.mean() == pytest.approx(1.0, abs=4 * weights.std() / math.sqrt(len(v)))


@pytest.mark.slow
def test_delta_below_epsilon_is_that_of_antipodal_inputs() -> None:
    """Brute force along the axis: the two inputs differ only there."""
    for threshold in (1.2, -0.4):
        made = calibrate(PrivUnit, Budget(2.0), threshold=threshold)
        s = np.linspace(-12, 12, 2_000_001)
        base = np.exp(-0.5 * s * s) / math.sqrt(2 * math.pi)
        p, q = made.cap_probability, float(ndtr(threshold))
        first = base * np.where(s >= threshold, p / (1 - q), (1 - p) / q)
        second = base * np.where(-s >= threshold, p / (1 - q), (1 - p) / q)
        for at in (0.0, 0.5, 1.5):
            brute = np.sum(np.maximum(0, first - math.exp(at) * second)) * (s[1] - s[0])
            assert made.delta(at) == pytest.approx(brute, rel=1e-4)
        assert made.delta(2.0) == 0.0
        assert made.own_guess_rate() == pytest.approx((1 + made.delta(0.0)) / 2)
        assert made.own_guess_rate() <= made.guess_rate() == pytest.approx(float(expit(2.0)))


def test_rows_and_releases_multiply_the_cost() -> None:
    token = calibrate(PrivUnit, Budget(8.0), bound=normalise_rows(1.0), unit=TOKEN)
    assert token.sigma == pytest.approx(0.3646, abs=1e-4)
    pair = calibrate(PrivUnit, Budget(8.0), bound=normalise_rows(1.0), unit=phrase(2))
    assert pair.sigma == pytest.approx(0.660, abs=1e-3)
    assert pair.epsilon() == pytest.approx(8.0)
    thrice = calibrate(PrivUnit, Budget(6.0), bound=normalise(1.0), releases=3)
    assert thrice.epsilon() == pytest.approx(6.0)
    assert thrice.epsilon() <= 6.0
    assert thrice.sigma == pytest.approx(1.271, abs=1e-3)
    assert thrice.epsilon(1e-3) < 6.0
    assert "over 3 releases" in repr(thrice)


def test_the_norm_scales_the_noise() -> None:
    made = calibrate(PrivUnit, Budget(8.0), bound=normalise(10.0))
    assert made.sigma == pytest.approx(3.646, abs=1e-3)
    assert made.scale == pytest.approx(2.7429, abs=1e-3)


def test_a_tiny_budget_and_a_huge_one_work() -> None:
    for epsilon in (1e-3, 300.0):
        made = calibrate(PrivUnit, Budget(epsilon))
        assert made.epsilon() <= epsilon
        assert math.isfinite(made.sigma)


@pytest.mark.slow
def test_the_samples_are_unbiased_row_by_row() -> None:
    rng = np.random.default_rng(2)
    made = calibrate(PrivUnit, Budget(8.0), bound=normalise_rows(1.0, rows=3), unit=TOKEN)
    hidden = rng.standard_normal((3, 4))
    draws = np.stack([sample(made, hidden, rng) for _ in range(20_000)])
    error = draws.std(axis=0) / math.sqrt(len(draws))
    assert (np.abs(draws.mean(axis=0) - made.bound.apply(hidden)) < 5 * error).all()


@pytest.mark.parametrize(
    "settings",
    [
        {"threshold": math.nan},
        {"threshold": 60.0},
        {"bound": clip(1.0)},
        {"releases": 0},
        {"cap_probability": 1.0},
        {"cap_probability": 0.9, "threshold": 1.0},
        {"sensitivity": 2.0},
    ],
    ids=str,
)
def test_what_privunit_cannot_do_is_refused(settings) -> None:
    with pytest.raises(InvalidInput):
        calibrate(PrivUnit, Budget(2.0), **settings)


def test_log_odds_that_promise_less_than_nothing_are_refused() -> None:
    with pytest.raises(InvalidInput, match="epsilon"):
        PrivUnit(0.0, -1.0)
    assert PrivUnit(1.0, float(logit(0.5))).charge().epsilon(0.0) == pytest.approx(
        float(logit(ndtr(1.0))), rel=1e-6
    )
    assert PrivUnit(1.0, 1.0).unit == TEXT
    assert PrivUnit(1.0, 1.0).assumptions
