"""An honest system is refuted as often as is said, by few draws too; by standard errors it would not be."""

import math

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import norm

from dp_forward.audit import findings
from dp_forward.audit.findings import REFUTED_FROM
from dp_forward.audit.released_bytes import REFUTING, audit_released, false_alarm_rate
from dp_forward.privacy import NoiseSpec
from reference_samplers import signal

FALSE_ALARM = float(norm.sf(REFUTED_FROM))
"""How often an honest system is refuted by one finding: 2.9e-7."""
RUNS = 200_000
SEEN_FROM = 3.0
SAID = float(norm.sf(SEEN_FROM))
SLACK = 4 * math.sqrt(SAID / RUNS)
"""Of a share that is measured in so many runs: four of its deviations."""


def _passes(z, low: float, high: float) -> float:
    """Where a rising z passes what is looked at."""
    return float(brentq(lambda value: z(value) - SEEN_FROM, low, high, xtol=1e-9))


@pytest.mark.parametrize("mu", [0.4, 1.7, 8.0])
@pytest.mark.parametrize("draws", [16, 40])
def test_the_distance_of_few_honest_draws_refutes_as_often_as_said(mu: float, draws: int) -> None:
    rng, freedom = np.random.default_rng(1), 2 * draws - 2
    means = mu + math.sqrt(2 / draws) * rng.standard_normal(RUNS)
    honest = means / np.sqrt(rng.chisquare(freedom, RUNS) / freedom)
    edge = _passes(lambda found: findings.distance_z(found, mu, first=draws, second=draws), mu, mu + 40)
    assert np.mean(honest > edge) == pytest.approx(SAID, abs=SLACK)
    error = math.sqrt(2 / draws + mu * mu / (4 * draws))
    assert np.mean(honest > mu + SEEN_FROM * error) > SAID + 2 * SLACK, "the control: a standard error"


def test_a_distance_that_is_too_large_is_refuted_by_few_draws_and_by_many() -> None:
    assert findings.distance_z(2 * 1.7, 1.7, first=64, second=64) > 4
    assert findings.distance_z(1.05 * 1.7, 1.7, first=20_000, second=20_000) > 4
    assert findings.distance_z(1e12, 1.7, first=16, second=16) > 30


def test_what_does_not_speak_against_a_claim_is_at_z_zero() -> None:
    assert findings.distance_z(0.0, 1.7, first=16, second=16) == 0
    assert findings.mean_z(1e-3, 1.0) == findings.weak_noise_z(4.0, 1000) == 0
    assert math.copysign(1, findings.z_of(1.0)) == 1, "no -0.0"
    assert math.isnan(findings.z_of(math.nan)), "a broken measurement still refutes"
    assert 0 < findings.z_of(0.4999) < 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [1.0, 8.0, 16.0])
def test_few_honest_vectors_of_privunit_refute_no_more_often_than_said(epsilon: float) -> None:
    mechanism = NoiseSpec(mechanism="privunit", epsilon=epsilon).build()
    p, t, trials, runs = mechanism.cap_probability, mechanism.threshold, 32, 50_000
    levels = (math.log(p / norm.sf(t)), math.log((1 - p) / norm.cdf(t)))
    settings = {"threshold": t, "log_levels": levels, "tau": 0.0}
    rng = np.random.default_rng(2)
    sums = signal(mechanism, runs * trials, rng).reshape(runs, trials).sum(axis=1)
    middle = trials * mechanism.scale
    high = _passes(lambda total: findings.cap_sum_z(total, trials, **settings), middle, 3 * middle + 40)
    low = -_passes(lambda total: findings.cap_sum_z(-total, trials, **settings), -middle, 80)
    refuted = np.mean((sums > high) | (sums < low))
    assert 0 < refuted <= SAID, "it is a bound, and no empty one"
    error = float(sums.std())
    if epsilon > 1:  # a share near 1/2 is as good as normal; one near 1 has a long lower tail
        assert np.mean(abs(sums - middle) > norm.isf(SAID / 2) * error) > 1.5 * SAID, "the control"
    assert findings.cap_sum_z(8000 * 1.2 * mechanism.scale, 8000, **settings) > 4
    assert findings.cap_sum_z(8000 * 0.8 * mechanism.scale, 8000, **settings) > 4


def test_few_honest_squares_refute_as_often_as_said() -> None:
    rng, n, m = np.random.default_rng(3), 10, 14
    first, second = rng.chisquare(n, RUNS) / n, rng.chisquare(m, RUNS) / m
    low = -_passes(lambda ratio: findings.weak_noise_z(-ratio, n), -1.0, -1e-3)
    assert np.mean(first < low) == pytest.approx(SAID, abs=SLACK)

    def unlike(quotient: float) -> float:
        return findings.unlike_noise_z(quotient, 1.0, freedom=(n, m))

    high, low = _passes(unlike, 1.5, 1e3), 1 / _passes(lambda quotient: unlike(1 / quotient), 1.5, 1e3)
    quotients = first / second
    assert np.mean((quotients > high) | (quotients < low)) == pytest.approx(SAID, abs=SLACK)
    apart = abs(first - second) / math.sqrt(2 / n + 2 / m)
    assert np.mean(apart > SEEN_FROM) > SAID + 2 * SLACK, "the control: one tail, and a standard error"


def test_hits_and_means_are_exact() -> None:
    assert norm.sf(findings.share_z(9, 10, 0.5)) == pytest.approx(11 / 1024, rel=1e-9)
    for hits in (9, 1):
        assert norm.sf(findings.share_off_z(hits, 10, 0.5, times=3)) == pytest.approx(66 / 1024, rel=1e-9)
    assert norm.sf(findings.mean_z(-2.5, 1.0)) == pytest.approx(2 * norm.sf(2.5), rel=1e-9)


@pytest.mark.parametrize("mechanism", ["matrix-gaussian", "privunit"])
def test_all_chances_of_the_audit_of_a_run_add_up_to_less_than_one_in_ten_thousand(mechanism: str) -> None:
    """Three audits with a floor each; besides, the noise of threads and forks, and the ids of frames."""
    audit = audit_released(NoiseSpec(mechanism=mechanism).build(), draws=16)
    by_chance = sum(finding.z is not None for finding in audit.findings)
    assert by_chance == 6
    others = [findings.Finding("ids", 0.5, 0.5, 0.0), findings.Finding("forks", 0.0, 0.0, 0.0)]
    rate = false_alarm_rate([audit] * 3, [*others, findings.Finding("sizes", 1.0, 1.0)])
    assert rate == pytest.approx(3 * (by_chance * FALSE_ALARM + (1 - REFUTING)) + 2 * FALSE_ALARM)
    assert rate < 1e-4
    response = NoiseSpec(mechanism="k-ary-response", columns=3).build()
    assert sum(finding.z is not None for finding in audit_released(response, draws=16).findings) == 3


def test_the_audit_of_few_draws_uses_the_exact_law() -> None:
    audit = audit_released(NoiseSpec(mechanism="matrix-gaussian").build(), draws=16)
    assert audit.mu_measured is not None
    exact = findings.distance_z(audit.mu_measured, audit.mu_claimed or 0.0, first=16, second=16)
    assert audit.z == pytest.approx(exact, abs=1e-9)
