"""Result of an attack: its success beside chance, its interval, and the ceiling that the promise allows."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from scipy.stats import binomtest

from dp_forward.errors import refuse_if

__all__ = ["AttackResult", "exact_interval"]


def exact_interval(right: int, trials: int) -> tuple[float, float]:
    """Clopper and Pearson's 95 % interval for ``right`` of ``trials``, whatever the true share is."""
    found = binomtest(right, trials).proportion_ci(method="exact")
    return float(found.low), float(found.high)


def require_texts(name: str, texts: int) -> None:
    """Refuse fewer than 20 texts: their interval says nothing."""
    refuse_if(texts < 20, name, "be 20 texts or more", texts, "An interval needs more of them.")


@dataclass(frozen=True)
class AttackResult:
    """One ``attack`` on one target in so many ``trials``, with further ``details``.

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

    @classmethod
    def from_counts(
        cls, attack: str, right: int, trials: int, *, chance: float, ceiling: float | None, **details: Any
    ) -> Self:
        """The result of ``right`` guesses out of ``trials``, with the exact interval."""
        low, high = exact_interval(right, trials)
        return cls(attack, right / trials, chance, low, high, trials, ceiling, details)

    @property
    def within_ceiling(self) -> bool:
        """False only where the success is above the ceiling beyond chance: the promise is broken."""
        return self.ceiling is None or self.low <= self.ceiling

    def as_dict(self) -> dict[str, Any]:
        """For JSON, with its details."""
        plain = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "details"}
        return {**plain, "within_ceiling": self.within_ceiling, **self.details}
