"""One thing that an audit looked at: what was claimed, what was measured, and whether chance explains it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

from scipy.stats import norm

__all__ = ["FALSE_ALARM", "REFUTED_FROM", "Finding", "z_of"]

REFUTED_FROM: Final = 4.0
"""Standard errors beyond which a claim counts as refuted."""

FALSE_ALARM: Final = float(norm.sf(REFUTED_FROM))
"""How often an honest system is refuted by one finding: 3.2e-5."""

_LEAST = 1e-300
_MOST = 0.999


@dataclass(frozen=True, slots=True)
class Finding:
    """``z`` counts standard errors on the side that refutes; None where no chance is involved.

    Without chance the claim is refuted as soon as the measured number is another than the claimed one.
    """

    what: str
    claimed: float
    measured: float
    z: float | None = None

    @property
    def refuted(self) -> bool:
        """Whether the claim is broken beyond chance."""
        if self.z is None:
            return self.measured != self.claimed
        return not self.z <= REFUTED_FROM  # NaN refutes: a broken measurement proves nothing

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        z = None if self.z is None or not math.isfinite(self.z) else self.z
        return {
            "what": self.what,
            "claimed": self.claimed,
            "measured": self.measured,
            "z": z,
            "refuted": self.refuted,
        }


def z_of(p_value: float) -> float:
    """The one-sided z with this tail, so that every kind of test is read on one scale."""
    return float(norm.isf(min(max(p_value, _LEAST), _MOST)))
