"""The ceilings: reached where theory says so, and never passed by the best attacker there is."""

import math

import numpy as np
import pytest

from dp_forward.attacks.ceiling import attribute_ceiling
from dp_forward.errors import InvalidInput
from dp_forward.privacy import TEXT, TOKEN, AnalyticGaussian, KaryResponse, NoiseSpec, normalise

PRIORS = (1e-4, 0.01, 0.1, 0.25, 0.5, 0.75, 0.999)


def _gaussian(sigma: float) -> AnalyticGaussian:
    return AnalyticGaussian(sigma, normalise(1.0).sensitivity(TEXT))


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0, 8.0])
@pytest.mark.parametrize("labels", [2, 4, 50])
def test_randomized_response_reaches_its_ceiling(epsilon: float, labels: int) -> None:
    found = attribute_ceiling(KaryResponse(epsilon, labels), 1 / labels)
    assert found == pytest.approx(math.exp(epsilon) / (math.exp(epsilon) + labels - 1), rel=1e-9)


@pytest.mark.parametrize("epsilon", [0.5, 2.0, 8.0])
def test_two_candidates_have_the_guess_rate(epsilon: float) -> None:
    gaussian = NoiseSpec(mechanism="matrix-gaussian", epsilon=epsilon).build()
    assert attribute_ceiling(gaussian, 0.5) == pytest.approx(gaussian.guess_rate(), rel=1e-9)
    assert attribute_ceiling(gaussian, 0.5) >= gaussian.guess_rate()
    pure = NoiseSpec(mechanism="privunit", epsilon=epsilon).build()
    assert attribute_ceiling(pure, 0.5) == pytest.approx(pure.own_guess_rate(), rel=1e-9)
    assert attribute_ceiling(pure, 0.5) <= pure.guess_rate()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["privunit", "matrix-gaussian"])
@pytest.mark.parametrize("epsilon", [0.3, 2.0, 8.0])
def test_a_pure_bound_and_the_prior_enclose_it_and_it_grows_concavely(name: str, epsilon: float) -> None:
    mechanism = NoiseSpec(mechanism=name, epsilon=epsilon).build()
    found = [attribute_ceiling(mechanism, prior) for prior in PRIORS]
    assert all(prior <= ceiling <= 1 for prior, ceiling in zip(PRIORS, found, strict=True))
    assert found == sorted(found)
    slopes = np.diff(found) / np.diff(PRIORS)
    assert (np.diff(slopes) <= 1e-9).all()
    if name == "privunit":
        odds = [math.exp(epsilon) * p / (math.exp(epsilon) * p + 1 - p) for p in PRIORS]
        assert all(ceiling <= bayes * (1 + 1e-9) for ceiling, bayes in zip(found, odds, strict=True))


@pytest.mark.parametrize("values", [2, 3, 10, 100])
@pytest.mark.parametrize("sigma", [0.7, 1.5, 4.0])
def test_the_best_attacker_on_a_simplex_stays_below_and_breaks_twice_the_noise(
    values: int, sigma: float
) -> None:
    """Texts whose matrices lie as far from each other as the bound lets many of them: a simplex."""
    rng = np.random.default_rng(values)
    centred = np.eye(values) - 1 / values
    points = centred / np.linalg.norm(centred, axis=1, keepdims=True)
    truth = rng.integers(values, size=20_000)
    seen = points[truth] + sigma * rng.standard_normal((len(truth), values))
    success = float(np.mean(np.argmax(seen @ points.T, axis=1) == truth))
    error = 4 * math.sqrt(success * (1 - success) / len(truth))
    assert success - error <= attribute_ceiling(_gaussian(sigma), 1 / values)
    if values == 2:  # there the ceiling is exact, so a claim of twice the noise is refuted
        assert success - error > attribute_ceiling(_gaussian(2 * sigma), 1 / values)


def test_nothing_is_promised_about_a_text_per_token_or_without_noise() -> None:
    per_token = NoiseSpec(mechanism="privunit", epsilon=1.0, unit="token", rows=8).build()
    assert per_token.unit == TOKEN
    classical = NoiseSpec(mechanism="classical-gaussian", epsilon=4.0).build()
    assert [attribute_ceiling(m, 0.3) for m in (None, per_token, classical)] == [1.0, 1.0, 1.0]


def test_a_certain_guess_needs_no_release() -> None:
    assert attribute_ceiling(NoiseSpec(epsilon=1.0).build(), 1.0) == 1.0


@pytest.mark.parametrize("prior", [0.0, -0.1, 1.1, math.nan])
def test_a_prior_that_is_none_is_refused(prior: float) -> None:
    with pytest.raises(InvalidInput, match="prior"):
        attribute_ceiling(None, prior)
