"""MVG, the baseline with the enormous noise."""

import math

import numpy as np
import pytest

from dp_forward.errors import InvalidInput
from dp_forward.privacy import MVG, TEXT, Budget, MatrixGaussian, Sensitivity, calibrate, normalise
from reference_samplers import sample

BUDGET = Budget(8.0, 1e-5)


def _mvg(**more) -> MVG:
    return calibrate(MVG, BUDGET, bound=normalise(1.0), unit=TEXT, rows=128, columns=768, **more)


@pytest.mark.parametrize(
    ("rows", "columns", "epsilon", "deviation"),
    [
        (128, 768, 0.5, 342245214.8971356),
        (128, 768, 8.0, 21390325.931103192),
        (128, 16, 0.5, 727681.2719045221),
        (248, 6, 16.0, 10471.45428912945),
    ],
)
def test_the_reference_values_at_s_1_gamma_1(
    rows: int, columns: int, epsilon: float, deviation: float
) -> None:
    made = MVG.for_budget(
        Budget(epsilon, 1e-5), sensitivity=Sensitivity(1.0), rows=rows, columns=columns, largest_norm=1.0
    )
    assert made.sigma == pytest.approx(deviation, rel=1e-9)
    assert made.sigma >= deviation


def test_mvg_needs_a_hundred_million_times_the_variance() -> None:
    made = _mvg()
    assert made.sigma**2 > 1e8
    assert made.sigma > 1e6 * calibrate(MatrixGaussian, BUDGET, bound=normalise(1.0), unit=TEXT).sigma


def test_the_theorem_reads_the_same_both_ways() -> None:
    made = _mvg()
    assert made.epsilon(1e-5) == pytest.approx(8.0, rel=1e-9)
    assert made.epsilon(1e-5) <= 8.0
    assert made.delta(8.0) == pytest.approx(1e-5, rel=1e-6)
    assert made.delta(1.0) == 1.0
    assert made.epsilon() == math.inf


def test_the_exact_curve_is_never_worse_than_the_theorem() -> None:
    made = _mvg()
    assert made.exact.epsilon(1e-5) <= made.epsilon(1e-5)
    assert made.guess_rate() == made.exact.guess_rate()
    assert made.gaussian_mu == made.mu == made.exact.mu


def test_it_promises_per_text_what_its_bound_rests_on() -> None:
    made = _mvg()
    assert made.rows == 128
    assert made.unit == TEXT
    assert made.assumptions


def test_several_releases_compose_by_the_basic_theorem() -> None:
    made = _mvg(releases=3)
    assert made.epsilon(1e-5) <= 8.0
    assert made.sigma > _mvg().sigma
    assert "over 3 releases" in repr(made)


def test_without_a_bound_the_largest_norm_must_be_said() -> None:
    with pytest.raises(InvalidInput, match="largest_norm"):
        MVG.for_budget(BUDGET, sensitivity=Sensitivity(1.0), rows=2, columns=3)


def test_a_sample_is_noise_around_the_bounded_matrix() -> None:
    made = MVG(np.array([0.01, 1.0]), 400, 1.0, normalise(1.0).sensitivity(TEXT))
    draw = sample(made, np.zeros((2, 400)), np.random.default_rng(0))
    assert draw[0].std() < 0.2
    assert 0.8 < draw[1].std() < 1.2


@pytest.mark.parametrize("delta", [0.5, 0.7690716566096392, 0.906, 0.9752318481629676, 1 - 1e-6, 1 - 1e-12])
@pytest.mark.parametrize("epsilon", [0.0023, 0.15, 2.4592857256688707, 22.0])
@pytest.mark.parametrize(("rows", "columns"), [(1, 2), (12, 64)])
def test_a_delta_near_one_is_calibrated_too(epsilon: float, delta: float, rows: int, columns: int) -> None:
    """`calibrate` accounts for what it made, and raised an AssertionError here."""
    for releases in (1, 3):
        made = calibrate(
            MVG,
            Budget(epsilon, delta),
            bound=normalise(1.0),
            unit=TEXT,
            rows=rows,
            columns=columns,
            releases=releases,
        )
        assert made.delta(epsilon) <= delta
