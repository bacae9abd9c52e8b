"""The budget: what somebody wants. (What was proved is a `Guarantee`.)"""

from __future__ import annotations

from dataclasses import dataclass

from dp_forward.errors import InvalidInput
from dp_forward.privacy import checks

__all__ = ["Budget"]


@dataclass(frozen=True, slots=True)
class Budget:
    """A wanted (epsilon, delta). Pure mechanisms need no delta; Gaussian noise needs one."""

    epsilon: float
    delta: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", checks.epsilon(self.epsilon))
        object.__setattr__(self, "delta", checks.delta(self.delta, zero=True))

    def positive_delta(self, mechanism: str) -> float:
        """The delta, for a mechanism that cannot do without."""
        if self.delta == 0:
            raise InvalidInput(
                "delta",
                f"be above 0 for {mechanism}",
                0.0,
                "Use something below 1 / number of records, such as 1e-5, or PrivUnit (delta 0).",
            )
        return self.delta
