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

Paper: Definition 5 (whose density has two exponents the other way round; nothing rests on it), Theorem 6
(whose "only if" needs such differences), Algorithm 1, Lemma 3.
"""

from dataclasses import dataclass, field
from typing import ClassVar, Self

from dp_forward.errors import InvalidInput
from dp_forward.privacy import curve
from dp_forward.privacy.bounds import Sensitivity
from dp_forward.privacy.factor import UNIFORM, Factor
from dp_forward.privacy.gaussian import GaussianNoise, settle
from dp_forward.privacy.mechanism import Budget
from dp_forward.privacy.rounding import nudge_up, shown_up


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class MatrixGaussian(GaussianNoise):
    """Matrix Gaussian noise ``sigma U G V^T`` with its exact curve; uniform unless shaped.

    ``row_factor`` is U and ``column_factor`` V (`Factor`).

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
            rule = f"act on at least {window} rows"
            raise InvalidInput("row_factor", rule, size, "Check the fixed length n.")
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
    ) -> Self:
        """The least overall scale ``sigma`` for the given shape of the noise."""
        delta = budget.positive_delta("Gaussian noise")
        at_one = cls(1.0, sensitivity, row_factor, column_factor, releases, delta)
        sigma = nudge_up(at_one.mu / curve.largest_mu(budget.epsilon, delta))
        return cls(sigma, sensitivity, row_factor, column_factor, releases, delta)

    @property
    def shaped(self) -> bool:
        """Whether some entries get more noise than others, or noise that goes together."""
        return not (self.row_factor.entries is None and self.column_factor.entries is None)

    def __repr__(self) -> str:
        shape = "".join(
            f", {side}={factor}"
            for side, factor in (("rows", self.row_factor), ("columns", self.column_factor))
            if factor.entries is not None
        )
        return f"MatrixGaussian(sigma={shown_up(self.sigma)}{shape}) -> {self.promise()}"
