r"""The sensitivity C of the authors' experiments, always next to the proved guarantee.

Two matrices of norm C can lie **2C** apart (take f and -f), and the paper's text says so. Its authors'
experiments calibrated with **C**: what they call epsilon is that of a mu twice as large, and "8" is 19.12. To
compare with their tables one needs their sigmas, so they are offered here, by a separate constructor that
always carries both numbers and prints both.

Paper: Section 3.2 has 2C for a matrix, Appendix A.2 has C for a row. That the experiments used C is inferred:
docs/explanation/errata.md says from what.
"""

from dataclasses import dataclass, field
from typing import Any, Self

from dp_forward.privacy import checks, curve
from dp_forward.privacy.bounds import NormBound
from dp_forward.privacy.deployment import Deployment
from dp_forward.privacy.guarantee import Guarantee
from dp_forward.privacy.matrix import MatrixGaussian
from dp_forward.privacy.mechanism import Budget
from dp_forward.privacy.rounding import nudge_up, shown_up
from dp_forward.privacy.units import TEXT, TOKEN, Unit


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class PaperReading:
    """One noise level ``sigma`` with two epsilons: that of the authors' experiments, and the proved one.

    ``paper_epsilon`` is **not** a guarantee: it is what the authors' local mode (S = C per text, one
    release however many epochs) prints for this sigma. ``real`` is the guarantee.
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
            self.sigma, self.bound.sensitivity(self.unit), releases=self.releases, at_delta=self.delta
        )
        half = self.bound.reach(self.unit) / 2
        paper_epsilon = curve.epsilon(self.delta, nudge_up(half / self.sigma))
        object.__setattr__(self, "paper_epsilon", paper_epsilon)
        object.__setattr__(self, "real", Deployment(honest).guarantee(delta=self.delta))

    @classmethod
    def for_budget(cls, budget: Budget, *, bound: NormBound, unit: Unit = TEXT, releases: int = 1) -> Self:
        """The sigma that the authors' experiments take for this budget, and what it is worth."""
        delta = budget.positive_delta("Gaussian noise")
        checks.count("releases", releases, remedy="Count every fresh release.")
        half = bound.reach(unit) / 2
        sigma = nudge_up(half / curve.largest_mu(budget.epsilon, delta))
        return cls(sigma, bound, unit, releases, delta)

    @property
    def whose_sensitivity(self) -> tuple[str, str]:
        """S = C and S = 2C, each with who says so."""
        if self.bound.over == "row":
            whose = (
                "the paper's appendix" if self.unit == TOKEN else "half of the proof's, which nobody claims"
            )
            return f"S = C ({whose})", "S = 2C (the proof)"
        return "S = C (the authors' experiments)", "S = 2C (the text, and the proof)"

    @property
    def statement(self) -> str:
        """Both numbers, in words."""
        worth, over = self.real.epsilon, "" if self.releases == 1 else f" over {self.releases} releases"
        each = "" if self.releases == 1 else " for each release"
        c, two_c = self.whose_sensitivity
        return (
            f"{c} calls sigma {shown_up(self.sigma)} epsilon {self.paper_epsilon:.4g}{each}. By {two_c} "
            f"it is worth {worth:.4g} at delta {shown_up(self.delta)}{over}: {self.real}"
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
        said = f"by S = C {self.paper_epsilon:.4g}, proved {shown_up(self.real.epsilon)}"
        return f"PaperReading(sigma={shown_up(self.sigma)}: {said})"
