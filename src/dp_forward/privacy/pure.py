"""Pure mechanisms: the whole privacy map follows from one three-level loss."""

from __future__ import annotations

from scipy.special import expit

from dp_forward.privacy import checks
from dp_forward.privacy.mechanism import Mechanism
from dp_forward.privacy.pure_loss import ThreeLevelLoss

__all__ = ["PureNoise"]


class PureNoise(Mechanism):
    """Anything whose privacy loss is +-epsilon or 0: PrivUnit and randomized response."""

    loss: ThreeLevelLoss
    """The loss of all releases together; set when the object is made."""

    def epsilon(self, delta: float = 0.0) -> float:
        return self.loss.epsilon_at(checks.delta(delta, zero=True))

    def delta(self, epsilon: float) -> float:
        return self.loss.delta(checks.nonnegative("epsilon", epsilon, remedy="Use 0 or more."))

    def guess_rate(self) -> float:
        """The ceiling of every pure mechanism, ``e^eps / (1 + e^eps)``; see `own_guess_rate`."""
        return float(expit(self.loss.total))

    def own_guess_rate(self) -> float:
        """What the best attacker reaches against this very mechanism: (1 + delta(0)) / 2."""
        return (1 + self.delta(0.0)) / 2

    @property
    def shown_delta(self) -> float:
        return 0.0

    @property
    def pure_losses(self) -> tuple[ThreeLevelLoss, ...]:
        return (self.loss,)
