"""Every sampler draws what it says: right scale accepted; 2/3, 3/2 and a shifted mean rejected."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy.special import ndtr, ndtri

from dp_forward.privacy import (
    MVG,
    TEXT,
    AnalyticGaussian,
    Budget,
    ClassicalGaussian,
    MatrixGaussian,
    Prior,
    PrivUnit,
    RandomizedResponse,
    ResponseWithPrior,
    calibrate,
    clip,
    normalise,
)
from reference_samplers import raw_vector, sample

LIMIT = 4.0
SENSITIVITY = clip(1.0).sensitivity(TEXT)
GAUSSIANS = {
    "analytic": AnalyticGaussian(1.3, SENSITIVITY),
    "matrix": MatrixGaussian(1.3, SENSITIVITY),
    "classical": ClassicalGaussian.baseline(Budget(7.4539, 1e-5), sensitivity=SENSITIVITY),
    "mvg": MVG(np.full(50, 1.3), 400, 1.0, SENSITIVITY),
}


def _z_scores(noise: np.ndarray, sigma: float) -> tuple[float, float, float]:
    """How far mean, variance and the share beyond one sigma lie from N(0, sigma^2), in standard errors."""
    flat = noise.ravel() / sigma
    size = math.sqrt(flat.size)
    beyond = 2 * float(ndtr(-1.0))
    share = (float(np.mean(np.abs(flat) > 1)) - beyond) / math.sqrt(beyond * (1 - beyond))
    return flat.mean() * size, (flat.var() - 1) * size / math.sqrt(2), share * size


@pytest.mark.parametrize("name", GAUSSIANS)
def test_gaussian_noise_has_its_scale_and_no_other(name: str) -> None:
    made = GAUSSIANS[name]
    rng = np.random.default_rng(len(name))
    hidden = np.zeros((50, 400))
    noise = sample(made, hidden, rng) - clip(1.0).apply(hidden)
    assert max(map(abs, _z_scores(noise, made.sigma))) < LIMIT
    for wrong in (2 / 3, 3 / 2):
        assert max(map(abs, _z_scores(noise * wrong, made.sigma))) > LIMIT
    assert max(map(abs, _z_scores(noise + 0.05 * made.sigma, made.sigma))) > LIMIT


def _privunit_z(made: PrivUnit, raw: np.ndarray, x: np.ndarray) -> dict[str, float]:
    along = raw @ x
    count, dimension = raw.shape
    p = made.cap_probability
    caps = (float(np.mean(along >= made.threshold)) - p) / math.sqrt(p * (1 - p) / count)
    mean = (along.mean() - made.scale) / (along.std() / math.sqrt(count))
    squares = float(np.sum(raw * raw) - np.sum(along * along)) / (count * (dimension - 1))
    across = (squares - 1) / math.sqrt(2 / (count * (dimension - 1)))
    return {"cap": caps, "mean": mean, "across": across}


@pytest.mark.slow
@pytest.mark.parametrize(("dimension", "draws"), [(2, 20_000), (8, 20_000), (384, 4_000), (98_304, 300)])
def test_privunit_has_its_cap_share_mean_and_noise_in_every_dimension(dimension: int, draws: int) -> None:
    rng = np.random.default_rng(dimension)
    made = calibrate(PrivUnit, Budget(4.0), bound=normalise(1.0), unit=TEXT)
    hidden = rng.standard_normal(dimension)
    x = hidden / np.linalg.norm(hidden)
    raw = np.stack([raw_vector(made, hidden, rng).ravel() for _ in range(draws)])
    assert max(map(abs, _privunit_z(made, raw, x).values())) < LIMIT
    for wrong in (2 / 3, 3 / 2):
        assert max(map(abs, _privunit_z(made, raw * wrong, x).values())) > LIMIT
    assert abs(_privunit_z(made, raw + 0.5 * x, x)["mean"]) > LIMIT


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [0.5, 4.0, 16.0])
def test_privunit_draws_the_signal_from_its_exact_distribution(epsilon: float) -> None:
    """A Kolmogorov-Smirnov test of s against its CDF; the unconditioned normal must fail it."""
    made = calibrate(PrivUnit, Budget(epsilon), bound=normalise(1.0), unit=TEXT)
    rng = np.random.default_rng(11)
    x = np.array([1.0, 0.0])
    s = np.sort([float(raw_vector(made, x, rng)[0, 0]) for _ in range(8_000)])
    t, p, q = made.threshold, made.cap_probability, float(ndtr(made.threshold))

    def cdf(v: np.ndarray) -> np.ndarray:
        above = (1 - p) + p * (ndtr(v) - q) / (1 - q)
        return np.where(v < t, (1 - p) * ndtr(v) / q, above)

    assert _kolmogorov(s, cdf) < 2.2
    assert _kolmogorov(s, ndtr) > 2.2


def _kolmogorov(ordered: np.ndarray, cdf: Callable[[np.ndarray], np.ndarray]) -> float:
    """sqrt(n) times the largest gap; above 2.2 one time in 8,000."""
    n = len(ordered)
    gaps = cdf(ordered) - np.arange(n) / n
    return math.sqrt(n) * max(float(np.max(np.abs(gaps))), float(np.max(np.abs(gaps - 1 / n))))


@pytest.mark.parametrize(
    "made",
    [
        RandomizedResponse(1.0, 2),
        RandomizedResponse(2.5, 5),
        ResponseWithPrior(1.0, Prior.public([0.5, 0.3, 0.15, 0.05], where="test")),
    ],
    ids=repr,
)
def test_randomized_response_answers_with_its_transition_and_no_other(made) -> None:
    rng = np.random.default_rng(9)
    draws = 60_000

    def worst(expected: np.ndarray, counts: np.ndarray) -> float:
        error = np.sqrt(np.maximum(expected * (1 - expected), 1e-9) / draws)
        return float(np.max(np.abs(counts / draws - expected) / error))

    for label in range(made.labels):
        answers = made.sample(np.full(draws, label), rng)
        counts = np.bincount(answers, minlength=made.labels)
        expected = made.transition()[label]
        assert worst(expected, counts) < LIMIT + 0.5
        flatter = 0.95 * expected + 0.05 / made.labels
        if np.max(np.abs(flatter - expected)) > 1e-3:
            assert worst(flatter, counts) > LIMIT + 0.5


def test_the_statistics_would_notice_a_slightly_wrong_normal() -> None:
    """Control of the controls: a uniform with the right variance fails the share beyond one sigma."""
    rng = np.random.default_rng(0)
    uniform = rng.uniform(-math.sqrt(3), math.sqrt(3), 20_000)
    assert abs(_z_scores(uniform, 1.0)[2]) > LIMIT
    assert abs(_z_scores(ndtri(rng.random(20_000)), 1.0)[2]) < LIMIT
