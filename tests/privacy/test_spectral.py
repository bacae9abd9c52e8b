"""The certified largest singular value."""

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dp_forward.privacy.spectral import spectral_norm_upper


def test_it_is_never_below_the_true_value_in_50_digits() -> None:
    rng = np.random.default_rng(5)
    for shape in [(1, 1), (3, 7), (12, 5), (9, 9)]:
        matrix = rng.standard_normal(shape) * 10 ** rng.uniform(-5, 5)
        with mp.workdps(50):
            true = max(mp.svd_r(mp.matrix(matrix.tolist()), compute_uv=False))
        found = mp.mpf(spectral_norm_upper(matrix))
        assert true <= found <= true * (1 + mp.mpf("1e-9"))


@pytest.mark.slow
@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 2**32))
def test_no_direction_is_stretched_further(rows: int, columns: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    matrix = rng.standard_normal((rows, columns))
    bound = spectral_norm_upper(matrix)
    x = rng.standard_normal((columns, 50))
    assert (np.linalg.norm(matrix @ x, axis=0) <= bound * np.linalg.norm(x, axis=0) * (1 + 1e-14)).all()


def test_power_iteration_would_have_been_too_low() -> None:
    """Negative control: the usual estimate lies below the truth, ours does not."""
    rng = np.random.default_rng(6)
    u, _ = np.linalg.qr(rng.standard_normal((60, 60)))
    v, _ = np.linalg.qr(rng.standard_normal((60, 60)))
    matrix = (u * np.concatenate([[1.0, 0.999], np.full(58, 0.99)])) @ v.T
    x = rng.standard_normal(60)
    for _ in range(20):
        x = matrix.T @ (matrix @ x)
        x /= np.linalg.norm(x)
    assert np.linalg.norm(matrix @ x) < 1.0
    assert spectral_norm_upper(matrix) >= 1.0


def test_zero_and_tiny_matrices_have_their_norm() -> None:
    assert spectral_norm_upper(np.zeros((2, 3))) == 0.0
    assert spectral_norm_upper(np.full((2, 2), 1e-200)) == pytest.approx(2e-200)
