"""The best guess among M candidates and between two of them: proved, reached, and never passed."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import ndtr, ndtri
from scipy.stats import multivariate_normal

from dp_forward.errors import InvalidInput, Unproved
from dp_forward.noise.released.released_matrix import release_batch
from dp_forward.privacy import (
    MVG,
    TEXT,
    AnalyticGaussian,
    Budget,
    Deployment,
    KaryResponse,
    MatrixGaussian,
    Mechanism,
    PrivUnit,
    RandomizedResponse,
    calibrate,
    compose,
    normalise,
)
from dp_forward.privacy.mechanism import guess_ceiling, least_ceiling
from reference_samplers import sample

DRAWS = 6_000


def _channel_delta(rows: np.ndarray, epsilon: float) -> float:
    """The hockey stick of the worst ordered pair of rows."""
    pairs = itertools.permutations(rows, 2)
    return max(float(np.maximum(one - math.exp(epsilon) * other, 0).sum()) for one, other in pairs)


def _simplex(corners: int) -> np.ndarray:
    """Unit vectors that lie as far from each other as so many can."""
    centred = np.eye(corners) - 1 / corners
    return centred / np.linalg.norm(centred, axis=1, keepdims=True)


def _released(mechanism: Mechanism, points: np.ndarray, draws: int = DRAWS) -> np.ndarray:
    """``draws`` real releases of each point [points, draws, width]."""
    hidden = np.repeat(points, draws, axis=0)[:, None]
    made = release_batch(hidden, mechanism)
    return np.stack([one.as_floats()[0] for one in made]).reshape(len(points), draws, -1)


def _share_low(right: np.ndarray) -> float:
    """The share of right guesses, less four standard errors."""
    return float(right.mean() - 4 * right.std() / math.sqrt(right.size))


@given(seed=st.integers(0, 2**32 - 1), candidates=st.integers(2, 6), outputs=st.integers(2, 8))
def test_no_channel_passes_the_ceiling_of_its_own_curve(seed: int, candidates: int, outputs: int) -> None:
    rows = np.random.default_rng(seed).dirichlet(np.full(outputs, 0.5), size=candidates)
    best = rows.max(axis=0).sum() / candidates  # the likeliest candidate for every output
    assert best <= least_ceiling(lambda e: _channel_delta(rows, e), candidates) + 1e-12
    for epsilon in (0.0, 0.5, 3.0):
        assert best <= guess_ceiling(epsilon, _channel_delta(rows, epsilon), candidates) + 1e-12


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0, 9.0])
@pytest.mark.parametrize("candidates", [2, 3, 100, 10_000])
def test_randomized_response_reaches_it_so_no_smaller_one_holds(epsilon: float, candidates: int) -> None:
    reached = RandomizedResponse(epsilon, candidates).keep
    found = guess_ceiling(epsilon, 0.0, candidates)
    assert reached <= found <= reached * (1 + 1e-12)
    assert guess_ceiling(0.99 * epsilon, 0.0, candidates) < reached, "the control"
    assert guess_ceiling(epsilon, 0.0, candidates + 1) < reached, "the control"
    adds = guess_ceiling(epsilon, 1e-3, candidates) - found
    assert 0 < adds < 1e-3


def test_a_delta_that_always_tells_is_counted() -> None:
    """With chance delta it tells all, else nothing: epsilon 0, and success is delta + (1 - delta)/M."""
    for candidates in (2, 5, 1000):
        success = 0.01 + 0.99 / candidates
        assert success <= guess_ceiling(0.0, 0.01, candidates) <= success * (1 + 1e-12)


@pytest.mark.parametrize("mu", [0.05, 0.5, 1.666, 4.0])
@pytest.mark.parametrize("candidates", [2, 3, 10, 100, 10_000])
def test_gaussian_noise_meets_its_trade_off_function(mu: float, candidates: int) -> None:
    """The least over epsilon is where success is Phi(Phi^-1(alpha) + mu) at alpha = (1 - success)/(M - 1)."""
    found = AnalyticGaussian(1.0, mu).guess_rate(candidates)
    alpha = (1 - found) / (candidates - 1)
    assert found == pytest.approx(float(ndtr(ndtri(alpha) + mu)), rel=1e-6)
    assert found >= float(ndtr(ndtri(alpha) + mu)) * (1 - 1e-12)
    if candidates == 2:
        assert float(ndtr(mu / 2)) <= found <= float(ndtr(mu / 2)) * (1 + 1e-11)


@pytest.mark.slow
@pytest.mark.parametrize("candidates", [2, 3, 6])
@pytest.mark.parametrize("epsilon", [2.0, 8.0])
def test_the_best_guess_at_real_gaussian_releases_stays_below(candidates: int, epsilon: float) -> None:
    made = calibrate(MatrixGaussian, Budget(epsilon, 1e-5), bound=normalise(), unit=TEXT)
    points = _simplex(candidates)
    seen = _released(made, points)
    right = np.argmax(seen @ points.T, axis=2) == np.arange(candidates)[:, None]
    assert _share_low(right) <= made.guess_rate(candidates)
    claimed = MatrixGaussian(4 * made.sigma, made.sensitivity).guess_rate(candidates)
    assert _share_low(right) > claimed, "the control: four times the noise is refuted"


@pytest.mark.slow
@pytest.mark.parametrize("candidates", [2, 3, 6])
def test_the_best_guess_at_real_privunit_releases_stays_below(candidates: int) -> None:
    made = calibrate(PrivUnit, Budget(4.0), bound=normalise(), unit=TEXT)
    points = _simplex(candidates)
    inside = _released(made, points) @ points.T >= made.threshold * made.sigma
    # Of the candidates in whose cap it lies any one is as likely; of none, any of all.
    level = np.where(inside.any(axis=2, keepdims=True), inside, True)
    right = level[np.arange(candidates), :, np.arange(candidates)] / level.sum(axis=2)
    assert _share_low(right) <= made.guess_rate(candidates)
    low = calibrate(PrivUnit, Budget(1.0), bound=normalise(), unit=TEXT)
    assert _share_low(right) > low.guess_rate(candidates), "the control"


def test_every_mechanism_has_a_guess_rate_that_falls_with_the_candidates() -> None:
    gaussian = calibrate(MatrixGaussian, Budget(4.0, 1e-5), bound=normalise(), unit=TEXT)
    both = compose(gaussian, RandomizedResponse(1.0, 3))
    mvg = calibrate(MVG, Budget(4.0, 1e-5), bound=normalise(), unit=TEXT, rows=4, columns=4)
    sampled = Deployment(gaussian, sampled=50).own_releases
    for made in (gaussian, both, mvg, sampled, KaryResponse(2.0, 3), compose(RandomizedResponse(1.0, 2))):
        rates = [made.guess_rate(candidates) for candidates in (2, 3, 10, 1000)]
        assert rates == sorted(rates, reverse=True)
        assert all(rate > 1 / m for rate, m in zip(rates, (2, 3, 10, 1000), strict=True))
    assert mvg.guess_rate(10) == mvg.exact.guess_rate(10)
    # e^4 / (e^4 + 99)
    assert KaryResponse(4.0, 2).guess_rate(100) == pytest.approx(0.35546098713)


@pytest.mark.parametrize("candidates", [1, 0, -3, 2.0, True])
def test_less_than_two_candidates_are_refused(candidates) -> None:
    with pytest.raises(InvalidInput, match="candidates"):
        KaryResponse(1.0, 2).guess_rate(candidates)


@given(epsilon=st.floats(0.01, 12), prior=st.floats(1e-6, 1 - 1e-6), labels=st.integers(2, 50))
def test_the_posterior_bounds_are_reached_by_randomized_response(
    epsilon: float, prior: float, labels: int
) -> None:
    made = KaryResponse(epsilon, labels)
    law = made.transition()
    posterior = prior * law[0] / (prior * law[0] + (1 - prior) * law[1])  # text 0 against text 1
    low, high = Deployment(made).guarantee().posterior(prior)
    assert low <= posterior.min() * (1 + 1e-10)  # what the keeping of labels is rounded by
    assert posterior.max() <= high * (1 + 1e-10)
    assert (low, high) == pytest.approx((posterior.min(), posterior.max()), rel=1e-9)
    narrow = Deployment(KaryResponse(0.9 * epsilon, labels)).guarantee().posterior(prior)
    assert narrow[0] > posterior.min(), "the control"
    assert narrow[1] < posterior.max(), "the control"


def test_the_posterior_of_one_of_many_is_the_best_guess_and_gaussian_noise_has_none() -> None:
    pure = Deployment(calibrate(PrivUnit, Budget(4.0), bound=normalise(), unit=TEXT)).guarantee()
    for candidates in (2, 100, 10_000):
        assert pure.posterior(1 / candidates)[1] == pytest.approx(pure.mechanism.guess_rate(candidates))
    gaussian = calibrate(MatrixGaussian, Budget(4.0, 1e-5), bound=normalise(), unit=TEXT)
    with pytest.raises(Unproved, match="belief"):
        Deployment(gaussian).guarantee().posterior(0.5)
    with pytest.raises(InvalidInput, match="prior"):
        pure.posterior(1.0)


def test_the_promise_in_context_is_rounded_up() -> None:
    promised = Deployment(KaryResponse(4.0, 2)).guarantee()
    assert promised.in_context(2) == "Before: 1 of 2 candidates, 50 %. After: at most 98.3 %."
    assert promised.in_context(100) == "Before: 1 of 100 candidates, 1 %. After: at most 35.6 %."
    assert promised.in_context(10_000) == "Before: 1 of 10,000 candidates, 0.01 %. After: at most 0.544 %."


@pytest.mark.parametrize("epsilon", [1.0, 4.0])
@pytest.mark.parametrize("threshold", [None, 0.3, -0.5])
@pytest.mark.parametrize("cosine", [-1.0, -0.4, 0.0, 0.7, 1.0])
def test_privunit_between_two_vectors_is_its_total_variation(
    epsilon: float, threshold: float | None, cosine: float
) -> None:
    made = PrivUnit.for_budget(Budget(epsilon), threshold=threshold)
    t, p, q = made.threshold, made.cap_probability, float(ndtr(made.threshold))
    both = multivariate_normal([0, 0], [[1, cosine], [cosine, 1]], allow_singular=True).cdf([-t, -t])
    variation = (1 - q - float(both)) * (p / (1 - q) - (1 - p) / q)
    pair = np.array([[1.0, 0.0]]), np.array([[cosine, math.sqrt(1 - cosine**2)]]) * 3
    assert made.success_between(*pair) == pytest.approx((1 + variation) / 2, abs=2e-5)
    assert made.success_between(*pair) <= made.own_guess_rate() + 1e-12
    if cosine == -1 and t >= 0:
        assert made.success_between(*pair) == pytest.approx(made.own_guess_rate())


@pytest.mark.slow
def test_the_best_test_between_two_releases_is_right_as_often_as_said() -> None:
    points, rng = np.array([[1.0, 0, 0, 0], [0.6, 0.8, 0, 0]]), np.random.default_rng(5)
    privunit = calibrate(PrivUnit, Budget(4.0), bound=normalise(), unit=TEXT)
    gaussian = calibrate(MatrixGaussian, Budget(8.0, 1e-5), bound=normalise(), unit=TEXT)
    for made in (privunit, gaussian):
        ideal = np.stack([[sample(made, point, rng)[0] for _ in range(DRAWS)] for point in points])
        for seen, lost in ((ideal, 0.0), (_released(made, points), 0.03)):
            along = seen @ points.T
            score = along >= made.threshold * made.sigma if made is privunit else along
            ahead = (score[..., 0] * 1.0 - score[..., 1]) * np.array([[1], [-1]])
            right = (ahead > 0) + 0.5 * (ahead == 0)
            error, said = 4 * right.std() / math.sqrt(right.size), made.success_between(*points)
            # The integers of a release are rounded, which hides a little more and never less.
            assert said - lost - error <= right.mean() <= said + error
        assert made.success_between(*points) < made.guess_rate()


def test_between_two_decisions_it_is_the_total_variation_of_their_answers() -> None:
    for labels in (2, 4, 77):
        made, scores = KaryResponse(2.0, labels), np.eye(labels)
        law = made.transition()
        expected = (1 + float(np.abs(law[0] - law[1]).sum()) / 2) / 2
        assert made.success_between(scores[:1], scores[1:2]) == pytest.approx(expected)
        assert made.success_between(scores[:1], 5 * scores[:1]) == 0.5


def test_between_two_matrices_gaussian_noise_goes_by_their_distance() -> None:
    made = AnalyticGaussian(2.0, 2.0)
    assert made.success_between([[1.0, 0.0]], [[-1.0, 0.0]]) == pytest.approx(made.guess_rate())
    assert made.success_between([[1.0]], [[0.0]]) == pytest.approx(float(ndtr(0.25)))


@given(epsilon=st.floats(0.1, 8), labels=st.integers(2, 20), decided=st.floats(0, 1))
def test_the_accuracy_of_answers_follows_from_that_of_decisions(
    epsilon: float, labels: int, decided: float
) -> None:
    made = KaryResponse(epsilon, labels)
    law = made.transition()
    assert made.accuracy(decided) == pytest.approx(decided * law[0, 0] + (1 - decided) * law[1, 0])
    assert made.accuracy(1 / labels) == pytest.approx(1 / labels)
