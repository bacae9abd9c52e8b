r"""Composition of several releases of one input: text and label, or different mechanisms.

* Gaussian releases add mu^2. Exact.
* Pure releases add epsilon.
* Gaussian and pure releases together: the loss of the pure ones takes finitely many values, so the
  composed curve is a finite mixture of Gaussian curves,

  .. math:: \delta(\varepsilon) = \sum_l P[L = l]\; \delta_{\mu}(\varepsilon - l),

  because ``H_{e^eps}(P1 x P2 || Q1 x Q2) = E_{P2}[H_{e^{eps - L2}}(P1 || Q1)]``. For one randomized label:
  ``p d(eps - eps2) + q d(eps + eps2) + (1 - p - q) d(eps)``. Exact too.

Guarantees:
    Each part's pair of worst neighbours dominates all its pairs at every level, so the product
    dominates the composition (Zhu, Dong and Wang 2022), also when later releases are chosen after
    seeing earlier ones.

Paper: Section 3.3 (epochs), and Theorem 2 (text and label), which adds the two epsilons.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dp_forward.errors import InvalidInput, refuse_if
from dp_forward.privacy import checks, curve
from dp_forward.privacy.mechanism import Mechanism
from dp_forward.privacy.pure_loss import ThreeLevelLoss
from dp_forward.privacy.rounding import nudge_up
from dp_forward.privacy.solve import last_safe
from dp_forward.privacy.units import LABEL, RECORD, TEXT, Unit

_MOST_ATOMS = 4096
_ROUNDING = 1e-11


def compose(*mechanisms: Mechanism) -> Composition:
    """All these ``mechanisms`` applied to one input, each with its own fresh noise.

    Parts that protect the same unit protect it together; a text and its label make a record.

    >>> from dp_forward.privacy import NoiseSpec, RandomizedResponse
    >>> compose(NoiseSpec(epsilon=8.0).build(), RandomizedResponse(1.0, labels=2))
    Composition(PrivUnit + RandomizedResponse) -> 9.0-LDP per record, 2 mechanisms together
    """
    return Composition(mechanisms)


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Composition(Mechanism):
    """A composition of mechanisms (``parts``) with its exact curve."""

    name: ClassVar[str] = "composition"

    parts: tuple[Mechanism, ...]
    unit: Unit | None = field(init=False)
    mu: float = field(init=False)
    pure_losses: tuple[ThreeLevelLoss, ...] = field(init=False)

    def __post_init__(self) -> None:
        refuse_if(not self.parts, "mechanisms", "be at least one", 0, "Pass what is released.")
        if not all(part.guaranteed for part in self.parts):
            rule = "all carry a guarantee"
            raise InvalidInput("mechanisms", rule, "a baseline", "Use the analytic Gaussian.")
        mu = math.sqrt(math.fsum(part.gaussian_mu**2 for part in self.parts))
        losses = itertools.chain(*(part.pure_losses for part in self.parts))
        object.__setattr__(self, "mu", nudge_up(mu) if mu else 0.0)
        object.__setattr__(self, "pure_losses", tuple(losses))
        object.__setattr__(self, "unit", _common_unit({part.unit for part in self.parts}))

    @property
    def pure_total(self) -> float:
        """The sum of the pure parts' epsilons."""
        total = math.fsum(loss.total for loss in self.pure_losses)
        return nudge_up(total) if len(self.pure_losses) > 1 else total

    def delta_curve(self, epsilon: ArrayLike) -> NDArray[np.float64]:
        """delta at every real epsilon, for the accountants; without slack."""
        eps = np.atleast_1d(np.asarray(epsilon, dtype=np.float64))
        # The total loss of the pure parts and its probabilities.
        levels, weights = np.array([0.0]), np.array([1.0])
        for loss in self.pure_losses:
            more, mass = loss.atoms()
            levels = (levels[:, None] + more).ravel()
            weights = (weights[:, None] * mass).ravel()
        if self.mu == 0:
            above = np.maximum(0.0, -np.expm1(np.minimum(0.0, eps[:, None] - levels)))
            return np.asarray(above @ weights)
        return np.asarray(curve.hockey_stick(np.subtract.outer(eps, levels), self.mu) @ weights)

    @property
    def _exact(self) -> bool:
        """Whether the mixture is small enough to be summed."""
        return math.prod(2 * loss.copies + 1 for loss in self.pure_losses) <= _MOST_ATOMS

    def delta(self, epsilon: float) -> float:
        checks.nonnegative("epsilon", epsilon, remedy="Use 0 or more.")
        if self.mu == 0 and epsilon >= self.pure_total:
            return 0.0
        if not self._exact:
            if self.mu == 0 or epsilon < self.pure_total:
                return 1.0
            return curve.delta(epsilon - self.pure_total, self.mu)
        return min(1.0, float(self.delta_curve(epsilon)[0]) * (1 + _ROUNDING))

    def epsilon(self, delta: float = 0.0) -> float:
        checks.delta(delta, zero=True)
        if delta == 0:
            return self.pure_total if self.mu == 0 else math.inf
        if not self.pure_losses:
            return curve.epsilon(delta, self.mu)
        high = nudge_up(self.pure_total + (curve.epsilon(delta, self.mu) if self.mu else 0.0))
        if not self._exact:
            return high
        return last_safe(lambda e: delta - self.delta(e), safe=high, unsafe=0.0)

    @property
    def assumptions(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(itertools.chain(*(part.assumptions for part in self.parts))))

    @property
    def shown_delta(self) -> float:
        return 0.0 if self.mu == 0 else max(part.shown_delta for part in self.parts)

    @property
    def scope(self) -> str:
        # Without a unit the promise is about a distance, and each part has its own: none may go unsaid.
        bare = dict.fromkeys(part.scope for part in self.parts if part.unit is None)
        what = " and ".join(bare) if self.unit is None else f"per {self.unit}"
        return f"{what}, {len(self.parts)} mechanisms together"

    @property
    def gaussian_mu(self) -> float:
        return self.mu

    def __repr__(self) -> str:
        names = " + ".join(type(part).__name__ for part in self.parts)
        return f"Composition({names}) -> {self.promise()}"


def _common_unit(units: set[Unit | None]) -> Unit | None:
    if len(units) == 1:
        return next(iter(units))
    if units <= {TEXT, LABEL, RECORD}:
        return RECORD
    if units == {None, LABEL}:
        return None
    rule, remedy = "protect one unit, or a text and its label", "Bound all parts for the same unit."
    raise InvalidInput("mechanisms", rule, " and ".join(sorted(str(unit) for unit in units)), remedy)
