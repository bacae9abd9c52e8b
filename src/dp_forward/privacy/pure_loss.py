r"""Privacy loss of pure mechanisms: three levels, their exact composition, and the map that follows.

PrivUnit and randomized response have the same shape: against the worst neighbour the privacy loss
``ln p(out | x) / p(out | x')`` is +epsilon with probability ``mass``, -epsilon with probability
``mass e^-epsilon``, and 0 otherwise. Seen from the other side it is the same, so the pair is symmetric.
Hence for one release

.. math:: \delta(\varepsilon') = \mathrm{mass}\,\bigl(1 - e^{\varepsilon' - \varepsilon}\bigr)_+ .

Over k releases the losses add, so their distribution is a finite convolution: exact, and free of
delta at ``k epsilon``.

Guarantees:
    The pair dominates every pair of neighbours at every level at once (for PrivUnit: antipodal
    vectors have disjoint caps; for randomized response: all pairs of labels look alike), so its k-fold
    product dominates k releases (dominating pairs compose: Zhu, Dong and Wang 2022).
"""

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from dp_forward.errors import InvalidInput
from dp_forward.privacy import checks
from dp_forward.privacy.mechanism import Mechanism
from dp_forward.privacy.rounding import decimal_up
from dp_forward.privacy.solve import last_safe

_MOST_COPIES = 4096
"""Beyond this many copies the convolution is not worth it; plain addition is used (still proved)."""
_ROUNDING = 1e-11  # relative slack for the sums and products behind a convolution of `_MOST_COPIES` copies


@dataclass(frozen=True, slots=True)
class ThreeLevelLoss:
    """The loss of ``copies`` independent releases, each +-epsilon or 0 with the given mass."""

    epsilon: float
    mass: float
    copies: int = 1
    cap: float | None = None
    """For `shuffling.blanket`: how much of the blanket lies where an input's density is e^epsilon times that
    elsewhere; None where the mechanism is not of that kind."""

    def __post_init__(self) -> None:
        checks.nonnegative("epsilon", self.epsilon, remedy="Use 0 or more.")
        checks.count("copies", self.copies, remedy="Count every release.")
        if not 0 < self.mass * (1 + math.exp(-self.epsilon)) <= 1 + 1e-9:
            rule = "leave room for its mirror"
            raise InvalidInput("mass", rule, self.mass, "It is the weight of +epsilon.")
        if self.cap is None:
            return
        if not 0 < self.cap <= 1:
            raise InvalidInput("cap", "lie in (0, 1]", self.cap, "Use None where it is not known.")
        # A cap that is too small for the mass would make the blanket too large, and its bound too small.
        apart = self.mass * (math.exp(-self.epsilon) - self.cap * math.expm1(-self.epsilon))
        room = min(self.cap * (1 + 1e-9), (1 - self.cap) * (1 + 1e-9) + 1e-15)
        if self.epsilon > 0 and not apart <= room:
            rule = f"hold the mass {self.mass!r} of +epsilon, and leave room for its mirror"
            raise InvalidInput("cap", rule, self.cap, "Use None where it is not known.")

    @property
    def total(self) -> float:
        """The pure epsilon of all copies; as in `Charge.pure`, a float stands for its shortest decimal."""
        return decimal_up(self.copies * Fraction(repr(self.epsilon)))

    def atoms(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The total loss and its probabilities, the losses in steps of epsilon."""
        down = self.mass * math.exp(-self.epsilon)
        once = np.array([down, max(0.0, 1 - self.mass - down), self.mass])
        weights = np.array([1.0])
        for bit in bin(self.copies)[2:]:
            weights = np.convolve(weights, weights)
            if bit == "1":
                weights = np.convolve(weights, once)
        steps = np.arange(-self.copies, self.copies + 1)
        return np.asarray(steps * self.epsilon, dtype=np.float64), weights

    def delta(self, epsilon: float) -> float:
        """The delta proved at ``epsilon``, rounded up."""
        if epsilon >= self.total:
            return 0.0
        if self.copies > _MOST_COPIES:
            return 1.0
        losses, weights = self.atoms()
        above = losses > epsilon
        gaps = -np.expm1(epsilon - losses[above])
        return min(1.0, float(weights[above] @ gaps) * (1 + _ROUNDING))

    def epsilon_at(self, delta: float) -> float:
        """The epsilon proved at ``delta``, rounded up; `total` for delta = 0."""
        if delta == 0 or self.copies > _MOST_COPIES:
            return self.total
        return last_safe(lambda e: delta - self.delta(e), safe=self.total, unsafe=0.0)


class PureNoise(Mechanism):
    """Anything whose privacy loss is +-epsilon or 0."""

    loss: ThreeLevelLoss
    """The loss of all releases together; set when the object is made."""
    shown_delta = 0.0

    def epsilon(self, delta: float = 0.0) -> float:
        return self.loss.epsilon_at(checks.delta(delta, zero=True))

    def delta(self, epsilon: float) -> float:
        return self.loss.delta(checks.nonnegative("epsilon", epsilon, remedy="Use 0 or more."))

    def own_guess_rate(self) -> float:
        """What the best attacker reaches against this very mechanism, of two: (1 + delta(0)) / 2."""
        return (1 + self.delta(0.0)) / 2

    @property
    def pure_losses(self) -> tuple[ThreeLevelLoss, ...]:
        return (self.loss,)
