"""Where a ledger stands, as numbers."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Summary"]


@dataclass(frozen=True, slots=True)
class Summary:
    """Where a ledger stands; epsilons at the ledger's delta.

    ``remaining`` is what the cap leaves, ``remaining_today`` what the day leaves; ``per_day`` and
    ``remaining_today`` are None in a ledger without a budget per day. A release must fit both.

    ``unit`` is what every epsilon here protects (text, token, phrase:5, label, record). It is None where that
    is not fixed yet or was never said, and then ``spent`` is a promise about no one unit.
    """

    spent: float
    cap: float
    remaining: float
    delta: float
    releases: int
    pending: int
    delivered: int
    per_day: float | None
    spent_today: float
    remaining_today: float | None
    unit: str | None

    @property
    def usable(self) -> float:
        """What is left now: the lesser of what the cap and the day leave."""
        return self.remaining if self.remaining_today is None else min(self.remaining, self.remaining_today)
