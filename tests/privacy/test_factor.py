"""The two sides of matrix noise."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dp_forward.errors import InvalidInput
from dp_forward.privacy import UNIFORM, Factor


def _dense(size: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.standard_normal((size, size)) + size * np.eye(size)


@pytest.mark.slow
@given(size=st.integers(2, 8), seed=st.integers(0, 10**6), window=st.integers(1, 8))
def test_the_gain_bounds_what_the_inverse_does_on_any_window(size: int, seed: int, window: int) -> None:
    matrix = _dense(size, seed)
    factor = Factor(matrix)
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
    assert Factor(matrix).gain() == pytest.approx(1 / np.linalg.svd(matrix)[1][-1])
    assert Factor(matrix).gain(1) == pytest.approx(np.linalg.norm(inverse, axis=0).max())
    assert Factor([0.5, 2.0]).gain() == pytest.approx(2.0)
    assert UNIFORM.gain() == 1.0
    assert str(UNIFORM) == "uniform"


@pytest.mark.parametrize(
    ("value", "rule"),
    [
        ([1.0, 0.0], "above 0"),
        ([1.0, -1.0], "above 0"),
        ([1.0, float("nan")], "finite"),
        (["a"], "numbers"),
        ([1.0, 1e-13], "invertible"),
        (np.ones((2, 3)), "square"),
        (np.ones((3, 3)), "invertible"),
        (np.ones((2, 2, 2)), "square"),
    ],
)
def test_singular_and_misshapen_factors_are_refused(value, rule: str) -> None:
    with pytest.raises(InvalidInput, match=rule):
        Factor(value)


def test_a_factor_must_fit_the_matrix() -> None:
    with pytest.raises(InvalidInput, match="act on 4"):
        Factor([1.0, 2.0]).fit("row_factor", 4)
    UNIFORM.fit("row_factor", 4)
    assert UNIFORM.size is None
