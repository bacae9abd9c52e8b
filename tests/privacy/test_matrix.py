"""The matrix Gaussian: it checks its own condition."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dp_forward.errors import InvalidInput
from dp_forward.privacy import (
    TEXT,
    TOKEN,
    AnalyticGaussian,
    Budget,
    Factor,
    LinearImage,
    MatrixGaussian,
    Sensitivity,
    calibrate,
    normalise,
    normalise_rows,
    phrase,
)
from reference_samplers import left, noise, whitened

BUDGET = Budget(8.0, 1e-5)


def test_uniform_noise_is_the_analytic_gaussian() -> None:
    made = calibrate(MatrixGaussian, BUDGET, bound=normalise(1.0), unit=TEXT)
    assert made.sigma == pytest.approx(calibrate(AnalyticGaussian, BUDGET, sensitivity=2.0).sigma)
    assert made.sigma == pytest.approx(1.20046, abs=5e-6)


def test_the_documented_example() -> None:
    made = calibrate(MatrixGaussian, Budget(epsilon=2.0, delta=1e-5), sensitivity=2.0)
    assert made.sigma == pytest.approx(3.98763, abs=1e-5)
    assert made.epsilon(delta=1e-5) == pytest.approx(2.0)
    assert made.delta(epsilon=2.0) == pytest.approx(1e-5)
    text = calibrate(MatrixGaussian, Budget(2.0, 1e-5), bound=normalise(1.0), unit=TEXT)
    assert repr(text) == "MatrixGaussian(sigma=3.98763) -> (2.0, 1e-05)-LDP per text"


def _shapes(seed: int, rows: int, columns: int):
    rng = np.random.default_rng(seed)
    a = rng.standard_normal((rows, rows)) + rows * np.eye(rows)
    return [
        (Factor(rng.uniform(0.5, 2, rows)), Factor(rng.uniform(0.5, 2, columns))),
        (Factor(np.linalg.cholesky(a @ a.T)), Factor(rng.uniform(0.5, 2, columns))),
        (Factor(a), Factor(rng.standard_normal((columns, columns)) + columns * np.eye(columns))),
    ]


@pytest.mark.slow
@settings(max_examples=25)
@given(seed=st.integers(0, 10**6))
def test_no_attainable_difference_is_seen_with_more_than_mu(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for row, column in _shapes(seed, 4, 3):
        made = calibrate(
            MatrixGaussian, BUDGET, bound=normalise(1.0), unit=TEXT, row_factor=row, column_factor=column
        )
        assert made.delta(BUDGET.epsilon) <= BUDGET.delta
        difference = normalise(2.0).apply(rng.standard_normal((4, 3)))
        assert np.linalg.norm(whitened(made, difference)) <= made.mu * (1 + 1e-12)


def test_the_condition_is_tight_in_the_worst_direction() -> None:
    for row, column in _shapes(3, 4, 3):
        made = MatrixGaussian(1.0, normalise(1.0).sensitivity(TEXT), row, column)
        u, v = left(row, np.eye(4)), left(column, np.eye(3))
        worst = 2 * np.outer(np.linalg.svd(u)[0][:, -1], np.linalg.svd(v)[0][:, -1])
        assert np.linalg.norm(whitened(made, worst)) == pytest.approx(made.mu, rel=1e-9)
        half = MatrixGaussian(0.5, made.sensitivity, row, column)
        assert half.mu == pytest.approx(2 * made.mu)


def test_at_token_level_only_rows_change() -> None:
    rng = np.random.default_rng(8)
    row = Factor(rng.standard_normal((6, 6)) + 3 * np.eye(6))
    rows = normalise_rows(1.0, rows=6)
    token = MatrixGaussian(1.0, rows.sensitivity(TOKEN), row)
    inverse = np.linalg.inv(row.entries)
    assert token.mu == pytest.approx(2 * np.linalg.norm(inverse, axis=0).max(), rel=1e-9)
    pair = MatrixGaussian(1.0, rows.sensitivity(phrase(2)), row)
    assert pair.mu > token.mu
    with pytest.raises(InvalidInput, match="at least 7 rows"):
        MatrixGaussian(1.0, normalise_rows(1.0).sensitivity(phrase(7)), row)


def test_a_joint_release_of_q_k_and_v_is_calibrated_by_its_map() -> None:
    weight = np.random.default_rng(1).standard_normal((4, 12))
    joint = calibrate(MatrixGaussian, BUDGET, bound=LinearImage(normalise_rows(1.0), weight), unit=TOKEN)
    plain = calibrate(MatrixGaussian, BUDGET, bound=normalise_rows(1.0), unit=TOKEN)
    assert joint.sigma == pytest.approx(plain.sigma * np.linalg.svd(weight)[1][0], rel=1e-9)


def test_the_density_is_that_of_the_vectorised_gaussian() -> None:
    """The exponents: |Sigma| (n x n) to the d/2, |Psi| (d x d) to the n/2, not the other way round."""
    rng = np.random.default_rng(4)
    for row, column in _shapes(11, 4, 3):
        z = rng.standard_normal((4, 3))
        u, v = 0.7 * left(row, np.eye(4)), left(column, np.eye(3))
        covariance = np.kron(u @ u.T, v @ v.T)
        expected = -0.5 * (
            12 * math.log(2 * math.pi)
            + np.linalg.slogdet(covariance)[1]
            + z.ravel() @ np.linalg.solve(covariance, z.ravel())
        )
        sigma, psi = u @ u.T, v @ v.T

        def density(of_sigma: int, of_psi: int, sigma=sigma, psi=psi, z=z) -> float:
            return -0.5 * (
                12 * math.log(2 * math.pi)
                + of_sigma * np.linalg.slogdet(sigma)[1]
                + of_psi * np.linalg.slogdet(psi)[1]
                + np.trace(np.linalg.solve(psi, z.T @ np.linalg.solve(sigma, z)))
            )

        assert density(3, 4) == pytest.approx(expected, rel=1e-10)
        assert abs(density(4, 3) - expected) > 1e-3


@pytest.mark.slow
def test_the_sampler_has_the_row_and_column_covariance() -> None:
    rng = np.random.default_rng(5)
    row, column = _shapes(12, 3, 2)[1]
    made = MatrixGaussian(0.7, Sensitivity(1.0), row, column)
    draws = np.stack([noise(made, (3, 2), rng).ravel() for _ in range(40_000)])
    u, v = 0.7 * left(row, np.eye(3)), left(column, np.eye(2))
    expected = np.kron(u @ u.T, v @ v.T)
    spread = np.sqrt(np.outer(np.diag(expected), np.diag(expected)) + expected**2) / math.sqrt(len(draws))
    assert (np.abs(draws.T @ draws / len(draws) - expected) < 5 * spread).all()
    transposed = np.kron(v @ v.T, u @ u.T)
    assert (np.abs(draws.T @ draws / len(draws) - transposed) > 5 * spread).any()


def test_its_shape_is_shown() -> None:
    made = MatrixGaussian(1.0, Sensitivity(1.0), Factor([1.0, 2.0]), Factor([1.0, 2.0]))
    assert "rows=diagonal 2, columns=diagonal 2" in repr(made)
