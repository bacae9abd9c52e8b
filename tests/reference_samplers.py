"""Reference draws of every mechanism in NumPy: the law of each as its proof states it, for comparisons.

Floating point noise is not safe to release (docs/adr/0002), so the package has no such function.
"""

import numpy as np
from scipy.special import log_ndtr, ndtri_exp

from dp_forward.privacy import MVG, KaryResponse, MatrixGaussian, PrivUnit
from dp_forward.privacy.factor import Factor


def left(factor: Factor, matrix: np.ndarray) -> np.ndarray:
    """``F matrix``."""
    if factor.entries is None:
        return matrix
    return factor.entries[:, None] * matrix if factor.entries.ndim == 1 else factor.entries @ matrix


def noise(mechanism, shape: tuple[int, int], rng: np.random.Generator) -> np.ndarray:
    """One draw of Gaussian noise: ``sigma U G V^T`` where it is shaped."""
    made = mechanism.exact if isinstance(mechanism, MVG) else mechanism
    drawn = made.sigma * rng.standard_normal(shape)
    if isinstance(made, MatrixGaussian):
        return left(made.column_factor, left(made.row_factor, drawn).T).T
    return drawn


def whitened(mechanism: MatrixGaussian, difference: np.ndarray) -> np.ndarray:
    """``U^-1 difference V^-T / sigma``: the same thing seen where the noise is N(0, I)."""
    factors = (mechanism.row_factor, mechanism.column_factor)
    u, v = (left(factor, np.eye(size)) for factor, size in zip(factors, difference.shape, strict=True))
    return np.linalg.solve(v, np.linalg.solve(u, difference).T).T / mechanism.sigma


def signal(mechanism: PrivUnit, size: int, rng: np.random.Generator) -> np.ndarray:
    """PrivUnit's s: N(0, 1) above t with probability p, else below, by inverse CDF in log space."""
    log_uniform, t = np.log1p(-rng.random(size)), mechanism.threshold
    above, below = -ndtri_exp(log_uniform + log_ndtr(-t)), ndtri_exp(log_uniform + log_ndtr(t))
    return np.where(rng.random(size) < mechanism.cap_probability, np.maximum(above, t), below)


def raw_vector(mechanism: PrivUnit, hidden, rng: np.random.Generator) -> np.ndarray:
    """PrivUnit's V itself, not yet divided by m: one draw per bounded vector."""
    bounded = mechanism.bound.apply(hidden)
    vectors = bounded.reshape(1, -1) if mechanism.bound.over == "matrix" else bounded
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    drawn = rng.standard_normal(unit.shape)
    along = signal(mechanism, len(unit), rng)[:, None]
    across = drawn - np.sum(unit * drawn, axis=1, keepdims=True) * unit
    return (along * unit + across).reshape(bounded.shape)


def sample(mechanism, hidden, rng: np.random.Generator) -> np.ndarray:
    """One release of a matrix: bound (without one it stays as it is), then noise."""
    if isinstance(mechanism, PrivUnit):
        return mechanism.sigma * raw_vector(mechanism, hidden, rng)
    if isinstance(mechanism, KaryResponse):
        answers = mechanism.sample(mechanism.decide(mechanism.bound.apply(hidden)), rng)
        return np.eye(mechanism.labels, dtype=np.int64)[answers]
    bound = mechanism.sensitivity.bound
    bounded = np.array(hidden, dtype=np.float64, ndmin=2) if bound is None else bound.apply(hidden)
    return bounded + noise(mechanism, bounded.shape, rng)
