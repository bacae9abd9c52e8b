r"""PrivUnit in its Gaussian form: pure epsilon-LDP for a direction, with a third of the noise.

For a unit vector x in R^D (a normalised matrix, flattened, or one normalised row), draw
``G ~ N(0, I)`` and output

.. math:: V = s\,x + (I - x x^T)\,G,

where s is N(0, 1) conditioned on ``s >= t`` with probability p, else on ``s < t``.

Proof of the promise. Without the conditioning V would be N(0, I). With it, the density of V at v is
that of N(0, I) times ``p / (1 - q)`` if ``<x, v> >= t`` and times ``(1 - p) / q`` if not, ``q = Phi(t)``.
For two inputs the ratio of densities at any v is therefore 1, or ``e^epsilon``, or ``e^-epsilon`` with

.. math:: e^{\varepsilon} = \frac{p}{1-q} \Big/ \frac{1-p}{q},\qquad\text{i.e.}\quad
          \varepsilon = \mathrm{logit}(p) + \mathrm{logit}(q),

whatever D, x, x' and v are: pure epsilon-LDP, delta = 0.

Use. ``E[V] = m x`` with ``m = phi(t) (1 - e^-epsilon) / (e^-epsilon q + 1 - q)``, so ``V / m`` is
unbiased, with noise of about 1/m in every direction. Since ``d ln m / dt = m - t``, the best t for
estimation is the fixed point ``m(t*) = t*``, and there the noise is ``1 / t*``. Any other public t is
as private; a smaller one can serve classification better.

From Bhowmick et al. (2018) and Asi, Feldman and Talwar (2022).

Paper: not in it. DP-Forward's Gaussian at S = 2C needs three times this noise for the same epsilon.
"""

import math
from dataclasses import dataclass, field
from typing import ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import expit, log_expit, log_ndtr, logit, ndtr, ndtri, owens_t

from dp_forward.errors import InvalidInput, refuse_if
from dp_forward.privacy import checks
from dp_forward.privacy.bounds import NormBound, normalise
from dp_forward.privacy.mechanism import Budget
from dp_forward.privacy.pure_loss import PureNoise, ThreeLevelLoss
from dp_forward.privacy.rounding import nudge_up, shown_up
from dp_forward.privacy.solve import last_safe
from dp_forward.privacy.units import TEXT, Unit

_HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)
_FURTHEST = 35.0
_ROUNDING = 1e-13


def mean_scale(epsilon: float, threshold: float) -> float:
    """``m``: the mean of V is m times the unit vector."""
    log_phi = -0.5 * threshold * threshold - _HALF_LOG_2PI
    log_mass = np.logaddexp(float(log_ndtr(threshold)) - epsilon, float(log_ndtr(-threshold)))
    return math.exp(log_phi - float(log_mass)) * -math.expm1(-epsilon)


def best_threshold(epsilon: float) -> float:
    """``t*``, the threshold with the least noise: the fixed point m(t*) = t*."""
    high = math.sqrt(2 * epsilon) + 3
    return last_safe(lambda t: mean_scale(epsilon, t) - t, safe=0.0, unsafe=high)


@dataclass(frozen=True, slots=True, repr=False)
class PrivUnit(PureNoise):
    """PrivUnit with a public ``threshold`` and the log-odds of landing in the cap, for the unit ``protects``.

    Guarantees:
        Pure LDP: `epsilon` is ``cap_log_odds + logit(Phi(threshold))`` per bounded vector, rounded
        up, times the number of vectors that neighbours can differ in, times the releases. The
        log-odds are kept, not p, because p rounds to 1 long before the odds do.
    """

    name: ClassVar[str] = "privunit"

    threshold: float
    cap_log_odds: float
    bound: NormBound = field(default_factory=normalise)
    protects: Unit = TEXT
    releases: int = 1
    loss: ThreeLevelLoss = field(init=False)

    def __post_init__(self) -> None:
        rule, remedy = f"lie within +-{_FURTHEST:g}", "Leave it out for t*."
        refuse_if(not abs(self.threshold) <= _FURTHEST, "threshold", rule, self.threshold, remedy)
        if not isinstance(self.bound, NormBound) or self.bound.how != "normalise":
            raise InvalidInput("bound", "normalise for PrivUnit", str(self.bound), "Use normalise(norm).")
        checks.count("releases", self.releases, remedy="Count every fresh release.")
        odds = self.cap_log_odds
        inside, outside = float(log_ndtr(-self.threshold)), float(log_ndtr(self.threshold))
        once = odds + outside - inside + _ROUNDING * (abs(odds) + abs(inside) + abs(outside))
        once = checks.nonnegative("epsilon", once, remedy="Raise threshold or cap_log_odds.")
        # The most weight the level +epsilon can have: the cap, or what its mirror leaves of it.
        mass = math.exp(float(log_expit(odds)) + min(0.0, outside - inside))
        vectors = self.bound.changed_rows(self.protects) or 1
        cap = float(ndtr(-self.threshold))
        object.__setattr__(self, "loss", ThreeLevelLoss(once, mass, vectors * self.releases, cap))

    @classmethod
    def for_budget(
        cls,
        budget: Budget,
        *,
        bound: NormBound | None = None,
        unit: Unit = TEXT,
        releases: int = 1,
        threshold: float | None = None,
        cap_probability: float | None = None,
    ) -> Self:
        """PrivUnit at the best threshold, at a given one, or for a wanted cap probability."""
        bound = normalise() if bound is None else bound
        copies = checks.count("releases", releases, remedy="Count every fresh release.")
        copies *= bound.changed_rows(unit) or 1
        epsilon = budget.epsilon / copies
        # Four times the slack that `epsilon` adds, so that the promise never passes the budget.
        if threshold is None:
            if cap_probability is None:
                threshold = best_threshold(epsilon)
            else:
                wanted = checks.probability("cap_probability", cap_probability, remedy="Try 0.9.")
                # logit(q) = epsilon - logit(p); through 1 - q, which keeps its digits for large t.
                threshold = -float(ndtri(expit(float(logit(wanted)) - epsilon)))
        elif cap_probability is not None:
            raise InvalidInput("cap_probability", "stand alone", cap_probability, "Leave out threshold.")
        inside, outside = float(log_ndtr(-threshold)), float(log_ndtr(threshold))
        odds = epsilon - (outside - inside)
        odds -= 4 * _ROUNDING * (abs(odds) + abs(inside) + abs(outside) + epsilon)
        return cls(threshold, odds, bound, unit, releases)

    @property
    def cap_probability(self) -> float:
        """p, the probability that the release lies on the side of its input."""
        return float(expit(self.cap_log_odds))

    @property
    def scale(self) -> float:
        """m: the mean of the raw vector V is m times the unit vector."""
        return mean_scale(self.loss.epsilon, self.threshold)

    @property
    def log_levels(self) -> tuple[float, float]:
        """log of the density of V over that of N(0, I), inside the cap and outside."""
        odds, t = self.cap_log_odds, self.threshold
        return float(log_expit(odds) - log_ndtr(-t)), float(log_expit(-odds) - log_ndtr(t))

    @property
    def sigma(self) -> float:
        """``norm / m``: the effective noise per direction of the unbiased release."""
        return nudge_up(self.bound.norm / self.scale)

    def success_between(self, first: ArrayLike, second: ArrayLike) -> float:
        r"""How often the best test names the right one of two vectors, from one release; exact.

        Of what is released, rounded to integers, it is an upper bound.

        The densities of the module differ only where v lies in one cap and not in the other: there by the
        factor e^epsilon. Under N(0, I) that part of one cap has the mass ``r = P[X >= t > Y]`` for a normal
        pair of correlation ``c = <x, x'>``, which is ``2 T(t, sqrt((1 - c) / (1 + c)))`` by Owen's T. So the
        total variation is ``r (p / (1 - q) - (1 - p) / q)``, and success is (1 + total variation) / 2.
        """
        one, other = (np.ravel(vector) / np.linalg.norm(vector) for vector in (first, second))
        near, apart = float(np.linalg.norm(one + other)), float(np.linalg.norm(one - other))
        mass = 2 * float(owens_t(self.threshold, apart / max(near, _ROUNDING)))
        high, low = map(math.exp, self.log_levels)
        return min(1.0, (1 + mass * (high - low)) / 2)

    @property
    def unit(self) -> Unit:
        return self.protects

    @property
    def assumptions(self) -> tuple[str, ...]:
        return self.bound.assumptions

    def __repr__(self) -> str:
        t, p = self.threshold, self.cap_probability
        return f"PrivUnit(sigma={shown_up(self.sigma)}, t={t:.6g}, p={p:.6g}) -> {self.promise()}"
