"""From the options of a verb to a mechanism of `dp_forward.privacy`."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from dp_forward import privacy
from dp_forward.cli.options import MechanismName
from dp_forward.cli.plan_options import numbers
from dp_forward.errors import InvalidInput, refuse_if
from dp_forward.privacy.noise_spec import DEFAULT_DELTA, bound_for, calibrate_by_name

RESPONSES = (MechanismName.RANDOMIZED_RESPONSE, MechanismName.KARY_RESPONSE)
"""The mechanisms that answer with one of K labels."""
PURE = (MechanismName.PRIVUNIT, *RESPONSES)  # the mechanisms that need no delta


def delta_of(delta: float | None, name: MechanismName) -> float:
    """The budget's delta: as given, or the usual one of the mechanism."""
    if delta is not None:
        return delta
    return 0.0 if name in PURE else DEFAULT_DELTA


def name_assumptions(assumptions: Iterable[str]) -> str:
    return "It rests on: " + "; ".join(assumptions) + "."


@dataclass(frozen=True, slots=True)
class MechanismRequest:
    """The options that decide a mechanism, as they were typed."""

    mechanism: MechanismName
    unit_text: str = "text"
    norm: float = 1.0
    how: Literal["normalise", "clip"] = "normalise"
    releases: int = 1
    rows: int | None = None
    columns: int | None = None
    labels: int | None = None
    prior: str | None = None
    threshold: float | None = None
    cap_probability: float | None = None

    @property
    def unit(self) -> privacy.Unit:
        return privacy.parse_unit(self.unit_text)

    @property
    def bound(self) -> privacy.NormBound:
        """Whole-matrix for a text, row by row for tokens and phrases."""
        return bound_for(self.unit, norm=self.norm, how=self.how, rows=self.rows)

    def for_budget(self, budget: privacy.Budget) -> privacy.Mechanism:
        only_for = {
            "threshold": (self.threshold, MechanismName.PRIVUNIT),
            "cap-probability": (self.cap_probability, MechanismName.PRIVUNIT),
            "prior": (self.prior, MechanismName.RANDOMIZED_RESPONSE),
        }
        for name, (value, owner) in only_for.items():  # what would be ignored is a misunderstanding
            if value is not None and self.mechanism is not owner:
                raise InvalidInput(name, f"go with {owner}", value, f"Use --mechanism {owner}.")
        if self.mechanism in RESPONSES:
            return self._response(budget)
        own: dict[str, Any] = {"releases": self.releases}
        if self.mechanism is MechanismName.CLASSICAL_GAUSSIAN:
            # Naming it is asking for it: from epsilon 1 on the object carries no guarantee.
            rule = "be 1 for the classical formula"
            refuse_if(self.releases != 1, "releases", rule, self.releases, "Use gaussian.")
            own = {}
        if self.mechanism is MechanismName.PRIVUNIT:
            own |= {"threshold": self.threshold, "cap_probability": self.cap_probability}
        if self.mechanism is MechanismName.MVG:
            if self.rows is None or self.columns is None:
                remedy = "Try --rows 128 --cols 768."
                raise InvalidInput("rows and cols", "be given for mvg", "nothing", remedy)
            own |= {"rows": self.rows, "columns": self.columns}
        return calibrate_by_name(self.mechanism, budget, bound=self.bound, unit=self.unit, **own)

    def for_sigma(self, sigma: float, delta: float) -> privacy.AnalyticGaussian | privacy.MatrixGaussian:
        sensitivity = self.bound.sensitivity(self.unit)
        if self.mechanism is MechanismName.GAUSSIAN:
            return privacy.AnalyticGaussian(sigma, sensitivity, self.releases, delta)
        if self.mechanism is MechanismName.MATRIX_GAUSSIAN:
            return privacy.MatrixGaussian(sigma, sensitivity, releases=self.releases, at_delta=delta)
        raise InvalidInput("sigma", "go with gaussian or matrix-gaussian", self.mechanism, "Use --epsilon.")

    def _response(self, budget: privacy.Budget) -> privacy.Mechanism:
        weights = numbers("prior", self.prior, remedy="Try --prior 0.7,0.2,0.1.")
        if weights is not None:
            prior = privacy.Prior.public(weights, where="--prior, declared public by the user")
            rule = f"fit the prior's {len(weights)}"
            refuse_if(self.labels not in (None, len(weights)), "labels", rule, self.labels, "Leave it out.")
            return privacy.calibrate(privacy.ResponseWithPrior, budget, prior=prior, releases=self.releases)
        refuse_if(self.labels is None, "labels", f"be given for {self.mechanism}", None, "Try --labels 2.")
        decision = self.mechanism is MechanismName.KARY_RESPONSE
        kind = privacy.KaryResponse if decision else privacy.RandomizedResponse
        return privacy.calibrate(kind, budget, labels=self.labels, releases=self.releases)
