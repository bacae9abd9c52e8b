"""From the options of a verb to a mechanism of `dp_forward.privacy`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from dp_forward.cli.options import HowBounded, MechanismName
from dp_forward.errors import InvalidInput
from dp_forward.privacy import (
    MVG,
    AnalyticGaussian,
    Budget,
    ClassicalGaussian,
    MatrixGaussian,
    Mechanism,
    NormBound,
    Prior,
    PrivUnit,
    RandomizedResponse,
    ResponseWithPrior,
    Unit,
    calibrate,
    parse_unit,
)
from dp_forward.privacy.noise_spec import DEFAULT_DELTA

__all__ = ["MechanismRequest", "delta_of", "is_pure", "name_assumptions"]

_PURE = (MechanismName.PRIVUNIT, MechanismName.RANDOMIZED_RESPONSE)


def is_pure(name: MechanismName) -> bool:
    """Whether this mechanism needs no delta."""
    return name in _PURE


def delta_of(delta: float | None, name: MechanismName) -> float:
    """The budget's delta: as given, or the usual one of the mechanism."""
    if delta is not None:
        return delta
    return 0.0 if is_pure(name) else DEFAULT_DELTA


def name_assumptions(assumptions: Iterable[str]) -> str:
    """What a guarantee rests on, as a sentence."""
    return "It rests on: " + "; ".join(assumptions) + "."


@dataclass(frozen=True, slots=True, kw_only=True)
class MechanismRequest:
    """The options that decide a mechanism, as they were typed."""

    mechanism: MechanismName
    unit_text: str = "text"
    norm: float = 1.0
    how: HowBounded = HowBounded.NORMALISE
    releases: int = 1
    rows: int | None = None
    columns: int | None = None
    labels: int | None = None
    prior: str | None = None
    threshold: float | None = None
    cap_probability: float | None = None

    @property
    def unit(self) -> Unit:
        """What is protected."""
        return parse_unit(self.unit_text)

    @property
    def bound(self) -> NormBound:
        """Whole-matrix for a text, row by row for tokens and phrases."""
        over = "row" if self.unit.tokens is not None else "matrix"
        rows = self.rows if over == "row" else None
        return NormBound(self.norm, self.how.value, over, rows)  # type: ignore[arg-type]

    def for_budget(self, budget: Budget) -> Mechanism:
        """The least noise that meets the budget."""
        self._refuse_stray_options()
        match self.mechanism:
            case MechanismName.RANDOMIZED_RESPONSE:
                return self._response(budget)
            case MechanismName.PRIVUNIT:
                chosen = {"threshold": self.threshold, "cap_probability": self.cap_probability}
                return self._calibrate(PrivUnit, budget, **chosen)
            case MechanismName.CLASSICAL_GAUSSIAN:
                # Naming it is asking for it: from epsilon 1 on the object carries no guarantee.
                if self.releases != 1:
                    raise InvalidInput(
                        "releases", "be 1 for the classical formula", self.releases, "Use gaussian."
                    )
                return ClassicalGaussian.baseline(budget, sensitivity=self.bound.sensitivity(self.unit))
            case MechanismName.MVG:
                return self._mvg(budget)
            case MechanismName.GAUSSIAN:
                return self._calibrate(AnalyticGaussian, budget)
            case MechanismName.MATRIX_GAUSSIAN:
                return self._calibrate(MatrixGaussian, budget)

    def for_sigma(self, sigma: float, delta: float) -> AnalyticGaussian | MatrixGaussian:
        """The Gaussian mechanism with this noise."""
        sensitivity = self.bound.sensitivity(self.unit)
        if self.mechanism is MechanismName.GAUSSIAN:
            return AnalyticGaussian(sigma, sensitivity, self.releases, delta)
        if self.mechanism is MechanismName.MATRIX_GAUSSIAN:
            return MatrixGaussian(sigma, sensitivity, releases=self.releases, at_delta=delta)
        raise InvalidInput("sigma", "go with gaussian or matrix-gaussian", self.mechanism, "Use --epsilon.")

    def _calibrate(self, kind: type[Mechanism], budget: Budget, **more: Any) -> Mechanism:
        made: Mechanism = calibrate(
            kind, budget, bound=self.bound, unit=self.unit, releases=self.releases, **more
        )
        return made

    def _mvg(self, budget: Budget) -> Mechanism:
        if self.rows is None or self.columns is None:
            raise InvalidInput("rows and cols", "be given for mvg", "nothing", "Try --rows 128 --cols 768.")
        return self._calibrate(MVG, budget, rows=self.rows, columns=self.columns)

    def _response(self, budget: Budget) -> Mechanism:
        if self.prior is not None:
            prior = Prior.public(_numbers(self.prior), where="--prior, declared public by the user")
            if self.labels not in (None, len(prior.weights)):
                raise InvalidInput(
                    "labels", f"fit the prior's {len(prior.weights)}", self.labels, "Leave it out."
                )
            return calibrate(ResponseWithPrior, budget, prior=prior, releases=self.releases)
        if self.labels is None:
            raise InvalidInput("labels", "be given for randomized response", None, "Try --labels 2.")
        return calibrate(RandomizedResponse, budget, labels=self.labels, releases=self.releases)

    def _refuse_stray_options(self) -> None:
        """An option that would be ignored is a misunderstanding; say so."""
        only_for = {
            "threshold": (self.threshold, MechanismName.PRIVUNIT),
            "cap-probability": (self.cap_probability, MechanismName.PRIVUNIT),
            "prior": (self.prior, MechanismName.RANDOMIZED_RESPONSE),
        }
        for name, (value, owner) in only_for.items():
            if value is not None and self.mechanism is not owner:
                raise InvalidInput(name, f"go with {owner}", value, f"Use --mechanism {owner}.")


def _numbers(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise InvalidInput(
            "prior", "be numbers with commas between", repr(text), "Try --prior 0.7,0.2,0.1."
        ) from None
