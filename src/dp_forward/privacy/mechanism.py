"""Base class of all mechanisms (noise, privacy map, promise), and the budget they are calibrated for.

A mechanism answers for *all* the releases it covers (``releases`` of one input). It draws none: floating
point noise is not safe to release (docs/adr/0002).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from dp_forward.errors import InvalidInput
from dp_forward.privacy import checks
from dp_forward.privacy.rounding import shown_up
from dp_forward.privacy.units import Unit

if TYPE_CHECKING:
    from dp_forward.privacy.charge import Charge
    from dp_forward.privacy.pure_loss import ThreeLevelLoss


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
        if self.delta == 0:
            remedy = "Use something below 1 / number of records, such as 1e-5, or PrivUnit (delta 0)."
            raise InvalidInput("delta", f"be above 0 for {mechanism}", 0.0, remedy)
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

    @abstractmethod
    def guess_rate(self) -> float:
        """The best two-candidate guess rate of any attacker who sees all releases."""

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
