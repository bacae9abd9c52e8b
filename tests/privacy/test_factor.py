"""The two sides of matrix noise."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dp_forward.errors import InvalidInput
from dp_forward.privacy import UNIFORM, Factor, from_covariance, from_factor, from_weights


def _dense(size: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.standard_normal((size, size)) + size * np.eye(size)


def test_a_covariance_is_what_its_factor_squares_to() -> None:
    a = _dense(5, 1)
    sigma = a @ a.T
    factor = from_covariance(sigma)
    assert factor.entries is not None
    assert np.allclose(factor.entries @ factor.entries.T, sigma)
    assert factor.log_determinant() == pytest.approx(0.5 * np.linalg.slogdet(sigma)[1])


@pytest.mark.slow
@given(size=st.integers(2, 8), seed=st.integers(0, 10**6), window=st.integers(1, 8))
def test_the_gain_bounds_what_the_inverse_does_on_any_window(size: int, seed: int, window: int) -> None:
    matrix = _dense(size, seed)
    factor = from_factor(matrix)
    gain = factor.gain(window)
    rng = np.random.default_rng(seed)
    start = int(rng.integers(0, max(1, size - window + 1)))
    x = np.zeros(size)
    x[start : start + window] = rng.standard_normal(len(x[start : start + window]))
    assert np.linalg.norm(np.linalg.solve(matrix, x)) <= gain * np.linalg.norm(x) * (1 + 1e-12)
    assert gain <= factor.gain() * (1 + 1e-9)


def test_the_gain_is_reached() -> None:
    matrix = _dense(6, 9)
    inverse = np.linalg.inv(matrix)
    assert from_factor(matrix).gain() == pytest.approx(1 / np.linalg.svd(matrix)[1][-1])
    assert from_factor(matrix).gain(1) == pytest.approx(np.linalg.norm(inverse, axis=0).max())
    assert from_weights([0.5, 2.0]).gain() == pytest.approx(2.0)
    assert UNIFORM.gain() == 1.0


@pytest.mark.parametrize(
    "factor", [UNIFORM, from_weights([1.0, 2.0, 3.0]), from_factor(_dense(3, 2))], ids=str
)
def test_applying_and_undoing_a_factor_changes_nothing(factor: Factor) -> None:
    x = np.arange(6.0).reshape(3, 2)
    assert np.allclose(factor.left_inverse(factor.left(x)), x)
    assert np.isfinite(factor.log_determinant())


@pytest.mark.parametrize(
    ("make", "value", "rule"),
    [
        (from_weights, [1.0, 0.0], "above 0"),
        (from_weights, [1.0, -1.0], "above 0"),
        (from_weights, [[1.0]], "axes"),
        (from_weights, [1.0, float("nan")], "finite"),
        (from_weights, ["a"], "numbers"),
        (from_weights, [1.0, 1e-13], "invertible"),
        (from_factor, np.ones((2, 3)), "square"),
        (from_factor, np.ones((3, 3)), "invertible"),
        (from_covariance, np.ones((2, 3)), "square"),
        (from_covariance, [[1.0, 0.5], [0.4, 1.0]], "symmetric"),
        (from_covariance, [[1.0, 2.0], [2.0, 1.0]], "positive definite"),
        (from_covariance, np.ones((3, 3)), "positive definite"),
        (from_covariance, [[1.0, np.inf], [np.inf, 1.0]], "finite"),
        (Factor, np.ones((2, 2, 2)), "square"),
    ],
)
def test_singular_and_misshapen_factors_are_refused(make, value, rule: str) -> None:
    with pytest.raises(InvalidInput, match=rule):
        make(value)


def test_a_factor_must_fit_the_matrix() -> None:
    with pytest.raises(InvalidInput, match="act on 4"):
        from_weights([1.0, 2.0]).fit("row_factor", 4)
    UNIFORM.fit("row_factor", 4)
    assert UNIFORM.size is None
