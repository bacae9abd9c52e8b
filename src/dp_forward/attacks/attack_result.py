"""What an attack achieved, beside what a coin achieves and what the promise allows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from scipy.stats import beta

from dp_forward.errors import InvalidInput
from dp_forward.privacy.checks import count

__all__ = ["AttackResult", "clopper_pearson"]


def clopper_pearson(right: int, trials: int, *, level: float = 0.95) -> tuple[float, float]:
    """The exact interval of a share: whatever the true one is, it is missed with at most 1 - level."""
    trials = count("trials", trials, remedy="Attack at least one text.")
    if not 0 <= right <= trials:
        raise InvalidInput("right", f"lie in 0 .. {trials}", right, "Count the successes.")
    rest = (1 - level) / 2
    low = float(beta.ppf(rest, right, trials - right + 1)) if right else 0.0
    high = float(beta.ppf(1 - rest, right + 1, trials - right)) if right < trials else 1.0
    return low, high


@dataclass(frozen=True, kw_only=True)
class AttackResult:
    """One attack on one target.

    ``success`` is a share between 0 and 1, ``low`` to ``high`` its 95 % interval, ``chance`` what needs no
    release at all, and ``ceiling`` what the promise allows at most; None where nothing is promised.
    """

    attack: str
    success: float
    chance: float
    low: float
    high: float
    trials: int
    ceiling: float | None = None
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def within_ceiling(self) -> bool:
        """False only where the success is above the ceiling beyond chance: the promise is broken."""
        return self.ceiling is None or self.low <= self.ceiling

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "attack": self.attack,
            "success": self.success,
            "chance": self.chance,
            "low": self.low,
            "high": self.high,
            "trials": self.trials,
            "ceiling": self.ceiling,
            "within_ceiling": self.within_ceiling,
            **self.details,
        }
