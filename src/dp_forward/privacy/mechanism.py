"""Base class of all mechanisms (noise, privacy map, promise), and the budget they are calibrated for.

A mechanism answers for *all* the releases it covers (``releases`` of one input). It draws none: floating
point noise is not safe to release (docs/adr/0002).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from dp_forward.errors import refuse_if
from dp_forward.privacy import checks
from dp_forward.privacy.rounding import nudge_up, shown_up
from dp_forward.privacy.units import Unit

if TYPE_CHECKING:
    from dp_forward.privacy.charge import Charge
    from dp_forward.privacy.pure_loss import ThreeLevelLoss


def guess_ceiling(epsilon: float, delta: float, candidates: int = 2) -> float:
    r"""The most success at naming which of M equally likely candidates was released, rounded up.

    .. math:: s \;\le\; \frac{e^{\varepsilon} + (M - 1)\,\delta}{e^{\varepsilon} + M - 1}

    Proof. Let any two candidates be neighbours of an (epsilon, delta)-DP mechanism, P_j the law of what is
    seen for candidate j, and g any guess, randomized or not. Write ``a_ij = P_j[g = i]``; for each j they sum
    to at most 1 over i, and ``s = sum_i a_ii / M``. For i != j, ``a_ii <= e^epsilon a_ij + delta``. Summed
    over all M (M - 1) such pairs,

    .. math:: (M - 1) M s \;\le\; e^{\varepsilon} \sum_j \sum_{i \ne j} a_{ij} + M (M - 1) \delta
              \;\le\; e^{\varepsilon} M (1 - s) + M (M - 1) \delta ,

    and this solved for s is the bound. Delta adds less than delta. Randomized response among M labels
    reaches the bound at delta = 0. Whatever else was seen must not depend on which candidate it was.
    """
    checks.count("candidates", candidates, at_least=2, remedy="A guess needs two or more.")
    if epsilon == delta == 0:
        return 1 / candidates
    others = (candidates - 1) * math.exp(-epsilon)
    return min(1.0, nudge_up((1 + others * delta) / (1 + others)))


def least_ceiling(delta: Callable[[float], float], candidates: int) -> float:
    """The least `guess_ceiling` that a curve of delta proves; whichever epsilon was looked at, it holds.

    As a function of ``e^epsilon`` it is a convex function over a line, so it has one valley; for two
    candidates and a symmetric curve that lies at epsilon = 0.
    """

    def ceiling(epsilon: float) -> float:
        return guess_ceiling(epsilon, delta(epsilon), candidates)

    low, high = 0.0, 0.0 if candidates == 2 else math.log(candidates) + 20.0
    for _ in range(48 if high else 0):
        third = (high - low) / 3
        if ceiling(low + third) <= ceiling(high - third):
            high -= third
        else:
            low += third
    return min(ceiling(0.0), ceiling(low))


@dataclass(frozen=True, slots=True)
class Budget:
    """A wanted (epsilon, delta); what was proved is a `Guarantee`. Gaussian noise needs a delta."""

    epsilon: float
    delta: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", checks.epsilon(self.epsilon))
        object.__setattr__(self, "delta", checks.delta(self.delta, zero=True))

    def positive_delta(self, mechanism: str) -> float:
        """The delta, for a mechanism that cannot do without."""
        remedy = "Use something below 1 / number of records, such as 1e-5, or PrivUnit (delta 0)."
        refuse_if(self.delta == 0, "delta", f"be above 0 for {mechanism}", 0.0, remedy)
        return self.delta


class Mechanism(ABC):
    """What every mechanism promises; see the module docstring."""

    name: ClassVar[str]
    """The name on the command line."""
    releases: int = 1
    """How many releases of one input it answers for."""

    @abstractmethod
    def epsilon(self, delta: float = 0.0) -> float:
        """The least epsilon proved at ``delta`` for all releases, rounded up."""

    @abstractmethod
    def delta(self, epsilon: float) -> float:
        """The least delta proved at ``epsilon`` for all releases, rounded up."""

    def guess_rate(self, candidates: int = 2) -> float:
        """The best guess of any attacker who sees all releases, among so many equally likely candidates.

        Pure mechanisms: what follows from epsilon alone. That is also the most that an attacker may believe
        in one candidate after *any* release (`Guarantee.posterior`).
        """
        pure = self.epsilon(0.0)
        if math.isfinite(pure):
            return guess_ceiling(pure, 0.0, candidates)
        return least_ceiling(self.delta, candidates)

    @property
    @abstractmethod
    def unit(self) -> Unit | None:
        """What the promise covers; None for a bare distance between inputs."""

    @property
    @abstractmethod
    def assumptions(self) -> tuple[str, ...]:
        """What the promise rests on besides the arithmetic."""

    @property
    @abstractmethod
    def shown_delta(self) -> float:
        """The delta at which `repr` states the promise."""

    @property
    def scope(self) -> str:
        """For whom the promise holds: 'per text', 'per text over 3 releases', ..."""
        return f"per {self.unit}{self._over}"

    @property
    def _over(self) -> str:
        return "" if self.releases == 1 else f" over {self.releases} releases"

    @property
    def gaussian_mu(self) -> float:
        """The mu of the Gaussian part of the releases; 0 where there is none."""
        return 0.0

    @property
    def pure_losses(self) -> tuple[ThreeLevelLoss, ...]:
        """The losses of the pure parts of the releases; empty where there are none."""
        return ()

    def charge(self) -> Charge:
        """What all the releases cost in a ledger: mu^2 and pure epsilon, each rounded up."""
        from dp_forward.privacy.charge import Charge

        charges = [Charge.pure(loss.total) for loss in self.pure_losses if loss.total > 0]
        if self.gaussian_mu > 0:
            charges.append(Charge.gaussian(self.gaussian_mu))
        return sum(charges[1:], start=charges[0]) if charges else Charge(0, 0)

    @property
    def guaranteed(self) -> bool:
        """Whether a theorem covers this object as it was asked for."""
        return True

    def promise(self, delta: float | None = None) -> str:
        """'(2.0, 1e-05)-LDP per text': the guarantee at a delta (`shown_delta`), rounded up."""
        if not self.guaranteed:
            return "no guarantee"
        delta = self.shown_delta if delta is None else delta
        epsilon = shown_up(self.epsilon(delta))
        numbers = f"({epsilon}, {shown_up(delta)})" if delta else epsilon
        return f"{numbers}-{'DP' if self.unit is None else 'LDP'} {self.scope}"
