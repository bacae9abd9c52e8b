r"""Audit findings: a claim, what was measured, and how likely that is for an honest system.

A z-score from a standard error is right for many draws only. With 16 draws of each input the distance of two
honest Gaussians passes its fourth "standard error" fifty times as often as a normal variable does. So each
statistic is compared with its own exact law, and the chance is put back on the scale of z (`z_of`).

* `distance_z`: ``(mean - mean) / pooled deviation`` of N(mu, 1) and N(0, 1) is, times
  ``sqrt(n m / (n + m))``, Student's t with n + m - 2 degrees of freedom and that noncentrality.
* `share_z`, `share_off_z`: hits are binomial.
* `weak_noise_z`, `unlike_noise_z`: sums of squares are chi-squared, their quotient is F.
* `cap_sum_z`: along its input a PrivUnit vector has the cumulant function

  .. math:: K(\theta) = \tfrac{1 + \tau^2}{2} \theta^2 + \log(a \Phi(\theta - t) + b \Phi(t - \theta)),

  tau being the rounding. For any theta of the right sign Markov's inequality says
  ``P[sum over N >= S] <= exp(N K(theta) - theta S)``; the best theta is searched, and any is safe.

Guarantees:
    For an honest system each of these passes a z above 0 with at most the probability of a normal variable.
Edges:
    Where a large and a small value both refute, both tails are paid for. Rounding to the grid is counted as
    normal: what is uniform is lighter in its tails.
"""

import math
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.special import log_ndtr, ndtr
from scipy.stats import binom, chi2, norm
from scipy.stats import f as f_law

__all__ = ["Finding"]

Floats = NDArray[np.float64]

REFUTED_FROM: Final = 5.0
"""Standard errors beyond which a claim counts as refuted: an honest one is, with 2.9e-7 per finding."""

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(100)
_RARE: Final = 40.0  # what is rarer than exp(-40) is not integrated over


@dataclass(frozen=True, slots=True)
class Finding:
    """``z`` counts standard errors on the side that refutes; None where no chance is involved.

    Without chance the claim is refuted as soon as the measured number is another than the claimed one.
    """

    what: str
    claimed: float
    measured: float
    z: float | None = None

    @property
    def refuted(self) -> bool:
        """Whether the claim is broken beyond chance."""
        if self.z is None:
            return self.measured != self.claimed
        return not self.z <= REFUTED_FROM  # NaN refutes: a broken measurement proves nothing

    def as_dict(self) -> dict[str, Any]:
        z = None if self.z is None or not math.isfinite(self.z) else self.z
        return {**asdict(self), "z": z, "refuted": self.refuted}


def z_of(p_value: float) -> float:
    """The one-sided z with this tail, one scale for all tests; 0 where nothing speaks against the claim."""
    return float(norm.isf(min(max(p_value, 1e-300), 0.5))) + 0.0  # never -0.0


def distance_z(measured: float, mu: float, *, first: int, second: int) -> float:
    """How far the distance of two samples, in pooled deviations, lies above what mu explains.

    ``P[T >= t] = E[Phi(nc - t s)]`` with s the pooled deviation, integrated over the law of s^2.
    (SciPy's ``nct.sf`` loses the digits beyond z = 10, at 1,000 draws and more.)
    """
    freedom = first + second - 2
    scale = math.sqrt(first * second / (first + second))
    # A chi-squared variable lies outside of these with probability 2 exp(-_RARE) (Laurent and Massart 2000).
    reach = 2 * math.sqrt(_RARE * freedom)
    edges = np.linspace(max(0.0, freedom - reach), freedom + reach + 2 * _RARE, 13)
    half = np.diff(edges)[:, None] / 2
    squares = (edges[:-1, None] + half * (_NODES + 1)).ravel()
    weights = chi2.pdf(squares, freedom) * (half * _WEIGHTS).ravel()
    return z_of(float(weights @ ndtr(scale * (mu - measured * np.sqrt(squares / freedom)))))


def distance_finding(first: Floats, second: Floats, mu: float) -> Finding:
    """The difference of the means of two samples over their pooled deviation, claimed to be mu."""
    counts = (len(first), len(second))
    squares = (counts[0] - 1) * first.var(ddof=1) + (counts[1] - 1) * second.var(ddof=1)
    pooled = math.sqrt(squares / (sum(counts) - 2))
    measured = float(first.mean() - second.mean()) / max(pooled, 1e-12)
    return Finding("mu", mu, measured, distance_z(measured, mu, first=counts[0], second=counts[1]))


def share_finding(hits: NDArray[np.bool_], p: float) -> Finding:
    """The share of hits in the cap, claimed to be at most p."""
    return Finding("cap share", p, float(hits.mean()), share_z(int(hits.sum()), hits.size, p))


def share_z(hits: int, trials: int, p: float) -> float:
    """How far so many hits lie above what the probability p explains."""
    return z_of(float(binom.sf(hits - 1, trials, p)))


def share_off_z(hits: int, trials: int, p: float, *, times: int = 1) -> float:
    """How far so many hits lie from what p explains, on either side; the largest of ``times`` such tests."""
    tails = (binom.sf(hits - 1, trials, p), binom.cdf(hits, trials, p))
    return z_of(2 * times * float(min(tails)))


def weak_noise_z(ratio: float, freedom: int) -> float:
    """How far a mean square, over its claim, lies below what chance explains."""
    return z_of(float(chi2.cdf(ratio * freedom, freedom)))


def unlike_noise_z(first: float, second: float, *, freedom: tuple[int, int]) -> float:
    """How far the quotient of two mean squares lies from 1, on either side."""
    quotient = first / max(second, 1e-300)
    tails = (f_law.cdf(quotient, *freedom), f_law.sf(quotient, *freedom))
    return z_of(2 * float(min(tails)))


def mean_z(difference: float, error: float) -> float:
    """How far a mean of normal variables lies from its claim, on either side."""
    return z_of(2 * float(norm.sf(abs(difference) / error)))


def cap_sum_z(
    total: float, trials: int, *, threshold: float, log_levels: tuple[float, float], tau: float
) -> float:
    """How far the sum of what lies along so many inputs of PrivUnit is from its claim, on either side."""
    above, below = log_levels

    def cumulant(tilt: float) -> float:
        levels = np.logaddexp(above + log_ndtr(tilt - threshold), below + log_ndtr(threshold - tilt))
        return 0.5 * (1 + tau * tau) * tilt * tilt + float(levels)

    def tail(sign: float) -> float:
        def exponent(size: float) -> float:
            return trials * cumulant(sign * size) - sign * size * total

        found = minimize_scalar(exponent, bounds=(0.0, 30.0), method="bounded", options={"xatol": 1e-6})
        return math.exp(min(0.0, float(found.fun)))

    return z_of(2 * min(tail(1.0), tail(-1.0)))
