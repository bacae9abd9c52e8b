r"""Cap of a ledger: its promise over all releases, and the shares that keep it."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, Self

from dp_forward.errors import InvalidInput, refuse_if
from dp_forward.privacy import checks
from dp_forward.privacy.charge import EPSILON_UNITS_PER_ONE, LARGEST_UNITS, SMALLEST_DELTA, Charge
from dp_forward.privacy.mechanism import Budget

__all__ = ["LARGEST_GAUSSIAN_EPSILON", "Cap"]

LARGEST_GAUSSIAN_EPSILON: Final = 1000.0
"""The error of `curve` is proved up to this epsilon, so no Gaussian share promises more. Pure shares have no
such limit: they add exactly."""

_PARTS: Final = 10**9  # how finely the charge of one release is scaled to a budget


@dataclass(frozen=True, slots=True)
class Cap:
    r"""A promise ``(epsilon, delta)`` over all releases, and the two shares that they may use up.

    ``shares`` says how much pure epsilon and how much Gaussian mu^2 may be charged in all. Both are fixed
    before the first release and never exchanged. ``shares.epsilon(delta)`` and ``shares.delta(epsilon)`` give
    the whole curve; ``epsilon`` and ``delta`` are the point of it that is printed.

    Guarantees:
        Releases whose pure epsilons sum to at most the pure share and whose mu^2 sum to at most the Gaussian
        share are (epsilon, delta)-DP together, although each may be chosen, left out or stopped on everything
        that was seen before, and in whatever order they come.

        Pure share e. On every transcript the ratio of likelihoods is at most exp of the sum of the epsilons
        on it, so at most exp(e): a filter, and even the running sum is valid at any time (Rogers, Roth,
        Ullman and Vadhan 2016).

        Gaussian share mu^2. Under the first neighbour the loss is a sum of steps ``mu_i^2 / 2 + mu_i Z_i``
        with mu_i chosen on the past: Brownian motion with drift, stopped no later than at time mu^2. Going
        on to that time only adds information, and there the loss is that of one Gaussian with mu (Smith
        and Thakurta 2022). Before it, nothing of that kind holds: at a time that was chosen on what was seen
        the curve of the mu^2 charged so far can be off by more than a factor of ten.

        Both. Each share is an interactive mechanism of its own, e-DP and mu-GDP, with its share fixed
        beforehand. However an adversary interleaves its questions to the two, and chooses them on the answers
        of both, their concurrent composition is no worse than randomized response(e) beside Gaussian(mu)
        (Vadhan and Zhang 2023): ``delta(eps) = p d(eps - e) + (1 - p) d(eps + e)`` with ``p = e^e / (1 +
        e^e)`` and d the curve of mu. A cap on the *sum* of unlike charges is no filter.
    Edges:
        The point is checked when the object is made: shares that promise less than it are refused. A cap
        without a Gaussian share has delta 0. A Gaussian share is limited to `LARGEST_GAUSSIAN_EPSILON` by
        itself.
    """

    epsilon: float
    delta: float
    shares: Charge

    def __post_init__(self) -> None:
        budget, gaussian = Budget(self.epsilon, self.delta), Charge(0, self.shares.mu2_units)
        refuse_if(not self.shares, "shares", "hold something", "nothing", "Use an epsilon of 1e-9 or more.")
        if gaussian and not budget.positive_delta("a Gaussian share") >= SMALLEST_DELTA:
            raise InvalidInput("delta", f"be at least {SMALLEST_DELTA}", self.delta, "Use 1e-5.")
        if gaussian and gaussian.delta(LARGEST_GAUSSIAN_EPSILON) > self.delta:
            rule = f"be at most {LARGEST_GAUSSIAN_EPSILON} for a Gaussian share"
            raise InvalidInput("epsilon", rule, self.epsilon, "Beyond that its curve is not proved.")
        if self.delta and not gaussian:
            raise InvalidInput("delta", "be 0 without a Gaussian share", self.delta, "Leave it out.")
        if self.shares.delta(self.epsilon) > self.delta:
            raise InvalidInput("shares", f"promise ({self.epsilon}, {self.delta})", self.shares, "Use less.")

    @classmethod
    def pure(cls, epsilon: float) -> Self:
        """For pure releases only: delta 0, and as large as it is wanted."""
        return cls(checks.epsilon(epsilon), 0.0, Charge(_units_down(epsilon)))

    @classmethod
    def gaussian(cls, budget: Budget) -> Self:
        """For Gaussian releases only: the greatest mu^2 whose curve meets the budget."""
        return cls.mixed(budget, pure=0.0)

    @classmethod
    def mixed(cls, budget: Budget, *, pure: float) -> Self:
        """A pure share, and the greatest Gaussian share whose curve meets the budget beside it.

        Edges:
            The pure share must be below the budget's epsilon.
        """
        _check_gaussian(budget)
        if checks.nonnegative("pure", pure, remedy="Leave it out for Gaussian releases.") >= budget.epsilon:
            rule = f"be below the epsilon of the cap, {budget.epsilon}"
            raise InvalidInput("pure share", rule, pure, "Leave room for Gaussian releases.")
        share = _units_down(pure) if pure else 0
        most = _greatest(lambda mu2: _holds(share, mu2, budget), LARGEST_UNITS)
        return cls(budget.epsilon, budget.delta, Charge(share, most))

    @classmethod
    def of(cls, charge: Charge, delta: float) -> Self:
        """Exactly this charge, and what its curve promises at ``delta`` (0 where all of it is pure)."""
        delta = delta if charge.mu2_units else 0.0
        # Where delta alone covers the charge its epsilon is 0, and a cap states something above it.
        return cls(max(charge.epsilon(delta), 1 / EPSILON_UNITS_PER_ONE), delta, charge)

    @classmethod
    def like(cls, charge: Charge, budget: Budget) -> Self:
        """For releases of the kind of ``charge``: pure (then delta is 0), Gaussian, or both.

        Where a release costs both (a noisy text with a randomized label), the shares are in the proportion
        of its charge and as large as the budget allows.
        """
        if not charge.mu2_units:
            return cls.pure(budget.epsilon)
        if not charge.epsilon_units:
            return cls.gaussian(budget)
        _check_gaussian(budget)

        def scaled(parts: int) -> tuple[int, int]:
            return charge.epsilon_units * parts // _PARTS, charge.mu2_units * parts // _PARTS

        most = LARGEST_UNITS * _PARTS // max(charge.epsilon_units, charge.mu2_units)
        parts = _greatest(lambda parts: _holds(*scaled(parts), budget), most)
        return cls(budget.epsilon, budget.delta, Charge(*scaled(parts)))

    def __str__(self) -> str:
        numbers = f"({self.epsilon}, {self.delta})" if self.delta else f"{self.epsilon}"
        return f"{numbers}-DP"


def _holds(epsilon_units: int, mu2_units: int, budget: Budget) -> bool:
    return Charge(epsilon_units, mu2_units).delta(budget.epsilon) <= budget.delta


def _check_gaussian(budget: Budget) -> None:
    budget.positive_delta("a Gaussian share")
    if budget.epsilon > LARGEST_GAUSSIAN_EPSILON:
        rule = f"be at most {LARGEST_GAUSSIAN_EPSILON} where there are Gaussian releases"
        raise InvalidInput("epsilon", rule, budget.epsilon, "Beyond that the curve is not proved.")


def _units_down(epsilon: float) -> int:
    """Whole units, rounded down; a float stands for its shortest decimal."""
    return math.floor(Fraction(repr(float(epsilon))) * EPSILON_UNITS_PER_ONE)


def _greatest(holds: Callable[[int], bool], most: int) -> int:
    """The greatest whole number up to ``most`` at which ``holds`` was found true; 0 needs no check."""
    low, high = 0, most + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
