"""The paper's settings, and what is proved for them: never less noise than a promise needs."""

from __future__ import annotations

import math
import sys

import pytest

from dp_forward.privacy import TEXT, Budget, MatrixGaussian, calibrate, curve, normalise
from dp_forward.privacy.shuffling import paper_estimate
from reproduction.tables.paper_sensitivity import (
    DELTA,
    RECORDS,
    TRANSLATION,
    classical_epsilon,
    gaussian_ceiling,
    mvg_epsilon,
    pure_ceiling,
    real_epsilon,
    real_epsilon_of,
    round_up,
)

PAPER_EPSILONS = (1.0, 2.0, 4.0, 8.0, 16.0)


def paper_sigma(epsilon: float) -> float:
    """What the paper draws with at norm 1: its sensitivity is C."""
    return 1 / curve.largest_mu(epsilon, DELTA)


def classical_sigma(epsilon: float) -> float:
    return math.sqrt(2 * math.log(1.25 / DELTA)) / epsilon


def planned_sigma(epsilon: float) -> float:
    """What a run draws with whose plan asks for this epsilon."""
    return calibrate(MatrixGaussian, Budget(epsilon, DELTA), bound=normalise(1.0), unit=TEXT).sigma


def used() -> list[tuple[float, float]]:
    """Every (sigma, epsilon proved for it) that the tables are planned with, MVG aside."""
    pairs = [(paper_sigma(e), real_epsilon(e)) for e in PAPER_EPSILONS]
    pairs += [(classical_sigma(e), classical_epsilon(e)) for e in PAPER_EPSILONS]
    for sigmas in TRANSLATION.values():
        for share in sigmas.values():
            for sensitivity in (1.0, 2.0):
                proved = real_epsilon_of(share, sensitivity=sensitivity)
                pairs.append((share * sensitivity, proved))
    return pairs


def test_eight_of_the_paper_is_nineteen() -> None:
    assert real_epsilon(8.0) == 19.1212


@pytest.mark.parametrize(("sigma", "proved"), used())
def test_what_is_proved_covers_the_noise_and_is_hardly_more(sigma: float, proved: float) -> None:
    """Two texts lie up to 2C apart, so mu = 2 / sigma."""
    exact = curve.epsilon(DELTA, 2 / sigma)
    assert exact <= proved <= exact * (1 + 1e-5)
    assert curve.epsilon(DELTA, 1 / sigma) < 0.7 * proved, (
        "at distance C, as the paper has it, the same noise seems worth far less"
    )


@pytest.mark.parametrize(("sigma", "proved"), used())
def test_a_run_draws_with_the_noise_of_the_paper(sigma: float, proved: float) -> None:
    planned = planned_sigma(proved)
    assert planned <= sigma
    assert planned == pytest.approx(sigma, rel=1e-4)


@pytest.mark.parametrize("columns", [384, 768])
@pytest.mark.parametrize("epsilon", PAPER_EPSILONS)
def test_the_noise_of_mvg_proves_less_than_its_own_epsilon(epsilon: float, columns: int) -> None:
    proved = mvg_epsilon(epsilon, rows=1, columns=columns)
    assert 0 < proved < epsilon


def test_rounding_never_goes_down_and_keeps_six_digits() -> None:
    for value in (19.121149999, 0.1 + 0.2, 1 / 3, 123456.4, 8.0, 1e-9):
        rounded = round_up(value)
        assert value <= rounded <= value * (1 + 1e-5)
    assert round_up(1.2345601) == 1.23457
    assert round_up(8.0) == 8.0


def test_the_ceilings_are_those_of_the_mathematics() -> None:
    right = [gaussian_ceiling(0.897, e, sensitivity=2.0) for e in PAPER_EPSILONS]
    pure = [pure_ceiling(0.897, e) for e in PAPER_EPSILONS]
    assert [round(value, 3) for value in right] == [0.542, 0.579, 0.641, 0.736, 0.839]
    assert [round(value, 3) for value in pure] == [0.683, 0.802, 0.883, 0.897, 0.897]


def test_the_convention_of_the_paper_has_the_ceiling_of_its_proved_epsilon() -> None:
    for epsilon in PAPER_EPSILONS:
        named = gaussian_ceiling(0.9, epsilon, sensitivity=1.0)
        proved = gaussian_ceiling(0.9, real_epsilon(epsilon), sensitivity=2.0)
        assert named == pytest.approx(proved, abs=1e-5)
        assert named > gaussian_ceiling(0.9, epsilon, sensitivity=2.0) + 0.02


def test_a_translated_noise_is_what_the_estimate_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[paper_estimate.__module__], "_SHARE", 0.1)  # a hundredth is enough
    sigma = TRANSLATION["sst2"][1.0]
    estimate = paper_estimate(DELTA, mu=1 / sigma, users=RECORDS["sst2"], epochs=3)
    assert abs(estimate - 1) < 0.01
