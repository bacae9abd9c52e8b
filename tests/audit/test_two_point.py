"""The two-point audit: honest samplers pass, a wrong factor is caught."""

from functools import partial

import numpy as np
import pytest

from audit.response_audit import audit_response
from audit.two_point import audit_gaussian, audit_privunit
from dp_forward.errors import InvalidInput
from dp_forward.privacy import (
    MVG,
    TEXT,
    AnalyticGaussian,
    Budget,
    Factor,
    MatrixGaussian,
    PrivUnit,
    RandomizedResponse,
    calibrate,
    normalise,
)
from reference_samplers import noise, raw_vector, whitened

EPSILONS = [1.0, 8.0, 16.0]
DRAWS = 4000
BOUND = normalise(1.0)
PLUS = BOUND.apply([[1.0, 0.0, 0.0], [0.0, 0.0, 0.0]])


def _claim(name: str, epsilon: float, **shape) -> MatrixGaussian:
    """What the mechanism claims, as the Gaussian noise that it is."""
    budget = Budget(epsilon, 1e-5)
    if name == "mvg":
        return calibrate(MVG, budget, bound=BOUND, unit=TEXT, rows=2, columns=3).exact
    if name == "shaped":
        shape = {"row_factor": Factor([0.5, 2.0]), "column_factor": Factor([1.0, 3.0, 0.2])}
    return calibrate(MatrixGaussian, budget, bound=BOUND, unit=TEXT, **shape)


def _audit(claim: MatrixGaussian, factor: float, seed: int, draws: int = DRAWS, apart: float = 1.0):
    def sampler(x, rng):
        return x + factor * noise(claim, x.shape, rng)

    rng = np.random.default_rng(seed)
    return audit_gaussian(claim, sampler, apart * PLUS, -apart * PLUS, draws=draws, rng=rng)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "epsilon"), [*(("matrix", epsilon) for epsilon in EPSILONS), ("shaped", 8.0), ("mvg", 8.0)]
)
def test_an_honest_gaussian_passes_and_false_ones_are_caught(name: str, epsilon: float) -> None:
    claim = _claim(name, epsilon)
    # A tenth of a small mu takes very many draws to see, of a pair further apart only a few.
    apart = max(1.0, 2 / float(np.linalg.norm(whitened(claim, 2 * PLUS))))
    for distance in {1.0, apart}:
        honest = _audit(claim, 1.0, seed=1, apart=distance)
        assert not honest.refuted
        assert abs(honest.z) < 4
    assert _audit(claim, 0.5, seed=2, apart=apart).refuted, "sensitivity C instead of 2C"
    assert _audit(claim, 0.9, seed=3, draws=2 * DRAWS, apart=apart).refuted, "0.9 sigma"


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", EPSILONS)
def test_an_honest_privunit_passes_and_false_ones_are_caught(epsilon: float) -> None:
    hidden = np.linspace(-1, 1, 24).reshape(2, 12)
    claim = calibrate(PrivUnit, Budget(epsilon), bound=BOUND, unit=TEXT)
    rng = np.random.default_rng(5)
    assert not audit_privunit(claim, partial(raw_vector, claim), hidden, draws=DRAWS, rng=rng).refuted
    doubled = calibrate(PrivUnit, Budget(2 * epsilon), bound=BOUND, unit=TEXT)
    assert audit_privunit(claim, partial(raw_vector, doubled), hidden, draws=DRAWS, rng=rng).refuted

    def less_noise(x, generator):
        raw = raw_vector(claim, x, generator).ravel()
        unit = np.ravel(BOUND.apply(x))
        unit = unit / np.linalg.norm(unit)
        along = raw @ unit
        return along * unit + 0.9 * (raw - along * unit)

    assert audit_privunit(claim, less_noise, hidden, draws=DRAWS, rng=rng).refuted


@pytest.mark.parametrize("epsilon", [1.0, 3.0])
def test_an_honest_response_passes_and_a_false_one_is_caught(epsilon: float) -> None:
    claim = RandomizedResponse(epsilon, 3)
    rng = np.random.default_rng(6)
    assert not audit_response(claim, claim.sample, draws=20_000, rng=rng).refuted
    false = RandomizedResponse(epsilon / 0.9, 3)
    assert audit_response(claim, false.sample, draws=20_000, rng=rng).refuted


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_the_analytic_gaussian_claims_the_same_noise(epsilon: float) -> None:
    analytic = calibrate(AnalyticGaussian, Budget(epsilon, 1e-5), bound=BOUND, unit=TEXT)
    assert analytic.sigma == pytest.approx(_claim("matrix", epsilon).sigma, rel=1e-9)


@pytest.mark.slow
def test_twenty_honest_audits_in_a_row_pass() -> None:
    claim = _claim("matrix", 8.0)
    assert not any(_audit(claim, 1.0, seed=seed, draws=1000).refuted for seed in range(20))


def test_too_few_draws_are_refused() -> None:
    with pytest.raises(InvalidInput, match="draws"):
        _audit(_claim("matrix", 8.0), 1.0, seed=0, draws=1)
