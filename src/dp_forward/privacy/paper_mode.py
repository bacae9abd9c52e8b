r"""The paper's sensitivity convention, always next to the proved guarantee.

The paper bounds the matrix to norm C and then calibrates with sensitivity **C**. Two bounded matrices
can lie **2C** apart (take f and -f), so what it calls epsilon is really the epsilon of a mu twice as
large: its "8" is 19.1. Its sigmas are what its experiments used, so they are offered here, as a
separate constructor that always carries both numbers and prints both.

Paper: the sensitivity of the normalised matrix, and with it every printed epsilon.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from dp_forward.privacy import checks, curve
from dp_forward.privacy.bounds import NormBound
from dp_forward.privacy.deployment import Deployment
from dp_forward.privacy.guarantee import Guarantee
from dp_forward.privacy.matrix import MatrixGaussian
from dp_forward.privacy.mechanism import Budget
from dp_forward.privacy.rounding import nudge_up, shown_up
from dp_forward.privacy.units import TEXT, Unit

__all__ = ["PaperReading"]


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class PaperReading:
    """One noise level with two epsilons: the paper's, and the proved one.

    ``paper_epsilon`` is **not** a guarantee: it is what the paper's convention (S = C per text, one
    release however many epochs) would print for this sigma. ``real`` is the guarantee.
    """

    sigma: float
    bound: NormBound
    unit: Unit = TEXT
    releases: int = 1
    delta: float = 1e-5
    paper_epsilon: float = field(init=False)
    real: Guarantee = field(init=False)

    def __post_init__(self) -> None:
        honest = MatrixGaussian(
            self.sigma,
            self.bound.sensitivity(self.unit),
            releases=self.releases,
            at_delta=self.delta,
        )
        half = self.bound.reach(self.unit) / 2
        paper_epsilon = curve.epsilon(self.delta, nudge_up(half / self.sigma))
        object.__setattr__(self, "paper_epsilon", paper_epsilon)
        object.__setattr__(self, "real", Deployment(honest).guarantee(delta=self.delta))

    @classmethod
    def for_budget(
        cls, budget: Budget, *, bound: NormBound, unit: Unit = TEXT, releases: int = 1
    ) -> PaperReading:
        """The sigma that the paper takes for this budget, and what it is worth."""
        delta = budget.positive_delta("Gaussian noise")
        checks.count("releases", releases, remedy="Count every fresh release.")
        half = bound.reach(unit) / 2
        sigma = nudge_up(half / curve.largest_mu(budget.epsilon, delta))
        return cls(sigma, bound, unit, releases, delta)

    @property
    def statement(self) -> str:
        """Both numbers, in words."""
        over = "" if self.releases == 1 else f" over {self.releases} releases"
        return (
            f"The paper's convention (sensitivity C) calls sigma {shown_up(self.sigma)} epsilon "
            f"{shown_up(self.paper_epsilon)}. Two bounded matrices can lie 2C apart, so the proved "
            f"epsilon is {shown_up(self.real.epsilon)} at delta {shown_up(self.delta)}{over}: {self.real}"
        )

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "sigma": self.sigma,
            "sensitivity": self.bound.reach(self.unit) / 2,
            "paper_epsilon": self.paper_epsilon,
            "real_epsilon": self.real.epsilon,
            "statement": self.statement,
        }

    def __str__(self) -> str:
        return self.statement

    def __repr__(self) -> str:
        return (
            f"PaperReading(sigma={shown_up(self.sigma)}: paper says {shown_up(self.paper_epsilon)}, "
            f"proved {shown_up(self.real.epsilon)})"
        )
