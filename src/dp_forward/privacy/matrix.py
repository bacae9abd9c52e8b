r"""The analytic matrix Gaussian mechanism (aMGM): noise with row and column covariance.

``Z = sigma U G V^T`` with G i.i.d. N(0, 1): row covariance ``Sigma = sigma^2 U U^T`` (n x n),
column covariance ``Psi = V V^T`` (d x d).

Proof of the promise: ``M -> U^-1 M V^-T / sigma`` is a public bijection, so releasing ``f + Z`` is
releasing ``U^-1 f V^-T / sigma + G``, plain Gaussian noise of scale 1 on a matrix whose neighbours
lie at distance

.. math:: \mu \;=\; \sup_\Delta \|U^{-1} \Delta V^{-T}\|_F / \sigma
          \;\le\; S\,\cdot\,\mathrm{gain}(U)\,\cdot\,\mathrm{gain}(V) / \sigma ,

and its curve is exactly that of `curve` at mu. With ``gain = 1/sigma_min`` this is Theorem 6's
condition ``sigma_min(U) sigma_min(V) >= S / B(epsilon, delta)``: always sufficient, and necessary
when the differences fill the Frobenius ball. At token level only rows change, so ``max_i ||U^-1 e_i||``
replaces ``1/sigma_min(U)``.

The density is

.. math:: p(Z) = (2\pi)^{-nd/2}\,|\Sigma|^{-d/2}\,|\Psi|^{-n/2}\,
          e^{-\frac12 \mathrm{tr}(\Psi^{-1} Z^T \Sigma^{-1} Z)}

(Equation 2 of the paper has the two exponents the other way round; nothing there rests on it).

Paper: Definition 5, Theorem 6 (whose "only if" needs such differences), Algorithm 1, Lemma 3.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from dp_forward.errors import InvalidInput
from dp_forward.privacy import checks, curve
from dp_forward.privacy.bounds import Sensitivity
from dp_forward.privacy.factor import UNIFORM, Factor, Floats
from dp_forward.privacy.gaussian import GaussianNoise, settle
from dp_forward.privacy.mechanism import Budget
from dp_forward.privacy.rounding import nudge_up, shown_up

__all__ = ["MatrixGaussian"]


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class MatrixGaussian(GaussianNoise):
    """Matrix Gaussian noise ``sigma U G V^T`` with its exact curve; uniform unless shaped.

    Guarantees:
        `mu` is computed from U, V, sigma and the sensitivity when the object is made, rounded up,
        so no instance promises more than its noise gives. See the module docstring for the proof.
    """

    name: ClassVar[str] = "matrix-gaussian"

    sigma: float
    sensitivity: Sensitivity
    row_factor: Factor = UNIFORM
    column_factor: Factor = UNIFORM
    releases: int = 1
    at_delta: float = 1e-5
    mu: float = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "sensitivity", Sensitivity.of(self.sensitivity))
        window = self.sensitivity.window
        size = self.row_factor.size
        if window is not None and size is not None and window > size:
            raise InvalidInput(
                "row_factor", f"act on at least {window} rows", size, "Check the fixed length n."
            )
        gain = self.row_factor.gain(window) * self.column_factor.gain()
        settle(self, sigma=self.sigma, gain=gain)

    @classmethod
    def for_budget(
        cls,
        budget: Budget,
        *,
        sensitivity: Sensitivity,
        releases: int = 1,
        row_factor: Factor = UNIFORM,
        column_factor: Factor = UNIFORM,
    ) -> MatrixGaussian:
        """The least overall scale ``sigma`` for the given shape of the noise."""
        delta = budget.positive_delta("Gaussian noise")
        at_one = cls(1.0, sensitivity, row_factor, column_factor, releases, delta)
        sigma = nudge_up(at_one.mu / curve.largest_mu(budget.epsilon, delta))
        return cls(sigma, sensitivity, row_factor, column_factor, releases, delta)

    def noise(self, rows: int, columns: int, rng: np.random.Generator) -> Floats:
        """One reference draw of Z."""
        self.row_factor.fit("row_factor", rows)
        self.column_factor.fit("column_factor", columns)
        shaped = self.row_factor.left(rng.standard_normal((rows, columns)))
        return self.sigma * self.column_factor.left(shaped.T).T

    def _noise(self, shape: tuple[int, ...], rng: np.random.Generator) -> Floats:
        rows, columns = shape
        return self.noise(rows, columns, rng)

    def whiten(self, difference: ArrayLike) -> Floats:
        """``U^-1 difference V^-T / sigma``: the same thing seen where the noise is N(0, I)."""
        matrix = checks.finite_array("difference", difference, ndim=2)
        self.row_factor.fit("row_factor", matrix.shape[0])
        self.column_factor.fit("column_factor", matrix.shape[1])
        half = self.row_factor.left_inverse(matrix)
        return self.column_factor.left_inverse(half.T).T / self.sigma

    def log_density(self, noise: ArrayLike) -> float:
        """The log density of Z at ``noise``: |Sigma| to the d/2, |Psi| to the n/2."""
        white = self.whiten(noise)
        rows, columns = len(white), white.size // len(white)
        log_det_row = self.row_factor.log_determinant() + rows * math.log(self.sigma)
        log_det_column = self.column_factor.log_determinant()
        constant = -0.5 * white.size * math.log(2 * math.pi)
        volume = columns * log_det_row + rows * log_det_column
        return constant - volume - 0.5 * float(np.sum(white * white))

    def __repr__(self) -> str:
        shape = "".join(
            f", {side}={factor}"
            for side, factor in (("rows", self.row_factor), ("columns", self.column_factor))
            if factor.entries is not None
        )
        return f"MatrixGaussian(sigma={shown_up(self.sigma)}{shape}) -> {self.promise()}"
