r"""MVG, the matrix-variate Gaussian mechanism of Chanyaswad et al. (CCS 2018): a baseline.

Its theorem: with n x d outputs of Frobenius norm at most gamma, sensitivity S, ``r = min(n, d)`` and
generalised harmonic numbers ``H_r``, ``H_{r,1/2}``, the noise is (epsilon, delta)-DP if

.. math:: P := \|s(\Sigma^{-1})\|_2 \,\|s(\Psi^{-1})\|_2 \;\le\;
          \frac{(-\beta + \sqrt{\beta^2 + 8\alpha\varepsilon})^2}{4\alpha^2},

    alpha = (H_r + H_{r,1/2}) gamma^2 + 2 H_r gamma S
    beta  = 2 (nd)^{1/4} H_r S zeta(delta)
    zeta  = 2 sqrt(-nd ln delta) - 2 ln delta + nd

(s(.) the vector of singular values). beta is about 1e7 here, so the root is taken in its conjugate
form ``4 epsilon^2 / (beta + sqrt(beta^2 + 8 alpha epsilon))^2 * 4``, which does not cancel. Solved
for epsilon the condition is simply ``epsilon = (alpha P + beta sqrt(P)) / 2``.

Unimodal: the columns are independent (Psi = I), the rows get precisions
``s_i(Sigma^-1) = sqrt(theta_i) P / sqrt(d)`` with shares ``theta_i`` of the precision budget that
sum to 1; `for_budget` takes equal ones.

The noise this asks for is enormous (variance above 1e8 where the matrix Gaussian needs 1.44): the
theorem is loose, not the noise weak. `exact` gives the same noise its exact curve.

Paper: Theorem 4, a baseline; S = 2C.
"""

import math
from dataclasses import dataclass, field
from typing import ClassVar, Self

import numpy as np

from dp_forward.errors import InvalidInput
from dp_forward.privacy import checks
from dp_forward.privacy.bounds import Sensitivity
from dp_forward.privacy.factor import Factor, Floats
from dp_forward.privacy.gaussian import GaussianNoise
from dp_forward.privacy.matrix import MatrixGaussian
from dp_forward.privacy.mechanism import Budget
from dp_forward.privacy.rounding import nudge_up


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class MVG(GaussianNoise):
    """Unimodal MVG with one standard deviation per row (``deviations``), for matrices of so many ``columns``.

    ``largest_norm`` is the most that the Frobenius norm of a bounded matrix can be.

    Guarantees:
        `epsilon` and `delta` state what the MVG theorem proves. k releases compose by the basic
        theorem, ``(k epsilon, k delta)``, because the MVG theorem says nothing better. Guess rate,
        charge and composition use the exact `mu` of the noise, which is never worse.
    """

    name: ClassVar[str] = "mvg"

    deviations: Floats
    columns: int
    largest_norm: float
    sensitivity: Sensitivity
    releases: int = 1
    at_delta: float = 1e-5
    sigma: float = field(init=False)
    """The smallest standard deviation of a row (that of every row for equal shares)."""
    mu: float = field(init=False)
    exact: MatrixGaussian = field(init=False)

    def __post_init__(self) -> None:
        deviations = checks.finite_array("deviations", self.deviations, ndim=1)
        checks.count("columns", self.columns, remedy="It is the hidden width d.")
        checks.positive("largest_norm", self.largest_norm, remedy="Take it from bound.radius().")
        object.__setattr__(self, "deviations", deviations)
        object.__setattr__(self, "sigma", float(deviations.min()))
        object.__setattr__(self, "sensitivity", Sensitivity.of(self.sensitivity))
        exact = MatrixGaussian(
            1.0, self.sensitivity, Factor(deviations), releases=self.releases, at_delta=self.at_delta
        )
        object.__setattr__(self, "exact", exact)
        object.__setattr__(self, "mu", exact.mu)

    @classmethod
    def for_budget(
        cls,
        budget: Budget,
        *,
        sensitivity: Sensitivity,
        rows: int,
        columns: int,
        largest_norm: float | None = None,
        releases: int = 1,
    ) -> Self:
        """The least noise that the MVG theorem allows for this budget, the same in every row."""
        rows = checks.count("rows", rows, remedy="It is the fixed public length n.")
        delta = budget.positive_delta("MVG")
        if largest_norm is None:
            if sensitivity.bound is None:
                raise InvalidInput("largest_norm", "be given without a bound", None, "Pass bound= and unit=.")
            largest_norm = sensitivity.bound.radius()
        wanted = budget.epsilon / checks.count("releases", releases, remedy="Count releases.")
        # Any deviations will do to build the object whose constants give the allowed precision.
        draft = cls(np.ones(rows), columns, largest_norm, sensitivity, releases, delta)
        # Aimed a little below delta: near 1 the curve is flat, and noise alone leaves no room for rounding.
        alpha, beta = draft._alpha(), draft._beta_per_zeta() * draft._zeta(delta / releases * (1 - 1e-9))
        root = 4 * wanted / (beta + math.sqrt(beta * beta + 8 * alpha * wanted))
        precision = root * root
        variances = math.sqrt(columns) / (np.sqrt(np.full(rows, 1 / rows)) * precision)
        deviations = np.sqrt(variances) * (1 + 1e-10)
        return cls(deviations, columns, largest_norm, sensitivity, releases, delta)

    @property
    def rows(self) -> int:
        """n."""
        return len(self.deviations)

    @property
    def precision(self) -> float:
        """``P``, the product of the two precision norms."""
        return nudge_up(math.sqrt(self.columns * float(np.sum(self.deviations**-4.0))))

    def _alpha(self) -> float:
        first, half = _harmonics(min(self.rows, self.columns))
        gamma, s = self.largest_norm, self.sensitivity.value
        return (first + half) * gamma**2 + 2 * first * gamma * s

    def _beta_per_zeta(self) -> float:
        first, _ = _harmonics(min(self.rows, self.columns))
        return 2 * math.sqrt(math.sqrt(self.rows * self.columns)) * first * self.sensitivity.value

    def _zeta(self, delta: float) -> float:
        size, log_tail = self.rows * self.columns, -math.log(delta)
        return 2 * math.sqrt(size * log_tail) + 2 * log_tail + size

    def epsilon(self, delta: float = 0.0) -> float:
        if delta == 0:
            return math.inf
        zeta = self._zeta(checks.delta(delta, zero=False) / self.releases)
        precision = self.precision
        once = (self._alpha() * precision + self._beta_per_zeta() * zeta * math.sqrt(precision)) / 2
        return nudge_up(self.releases * once)

    def delta(self, epsilon: float) -> float:
        once = checks.nonnegative("epsilon", epsilon, remedy="Use 0 or more.") / self.releases
        precision, size = self.precision, self.rows * self.columns
        zeta = (2 * once - self._alpha() * precision) / (self._beta_per_zeta() * math.sqrt(precision))
        if zeta <= size:
            return 1.0
        # 2 y^2 + 2 sqrt(nd) y + nd = zeta with y^2 = -ln delta, in conjugate form.
        gap = zeta - size
        y = gap / (math.sqrt(size) + math.sqrt(size + 2 * gap))
        return min(1.0, self.releases * math.exp(-y * y) * (1 + 1e-10))


def _harmonics(r: int) -> tuple[float, float]:
    """``H_r`` and ``H_{r,1/2}``."""
    k = np.arange(1, r + 1, dtype=np.float64)
    return float(np.sum(1 / k)), float(np.sum(1 / np.sqrt(k)))
