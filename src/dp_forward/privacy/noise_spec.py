"""Noise specification: a mechanism by name and settings, as plans and saved fronts store it.

A file cannot hold a mechanism, and it must not hold a sigma: a number that somebody typed is not a proof. It
holds the *specification* (name, budget, unit, bound), and `build` calibrates it anew, checked as always.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Final, Literal, Self

from dp_forward.errors import InvalidInput, refuse_if
from dp_forward.privacy import checks
from dp_forward.privacy.bounds import NormBound
from dp_forward.privacy.calibrate import calibrate
from dp_forward.privacy.gaussian import AnalyticGaussian, ClassicalGaussian
from dp_forward.privacy.matrix import MatrixGaussian
from dp_forward.privacy.mechanism import Budget, Mechanism
from dp_forward.privacy.mvg import MVG
from dp_forward.privacy.privunit import PrivUnit, best_threshold
from dp_forward.privacy.response import ONE_ROW, KaryResponse
from dp_forward.privacy.units import Unit, parse_unit

__all__ = ["DEFAULT_DELTA", "bound_for", "calibrate_by_name"]

_KINDS: Final[Mapping[str, type[Mechanism]]] = {
    kind.name: kind
    for kind in (PrivUnit, KaryResponse, MatrixGaussian, AnalyticGaussian, ClassicalGaussian, MVG)
}
MATRIX_MECHANISMS: Final = tuple(_KINDS)
"""The mechanisms for a hidden matrix, by name."""

DEFAULT_DELTA: Final = 1e-5
"""The delta of Gaussian noise where none is given; pure mechanisms have none."""


def calibrate_by_name(
    name: str, budget: Budget, *, bound: NormBound, unit: Unit, **settings: Any
) -> Mechanism:
    """The least noise of the mechanism with this name; ``settings`` are of `calibrate`.

    Edges: as of `NoiseSpec`. `classical-gaussian` has no settings, and `k-ary-response` ``labels`` alone.
    """
    if name == KaryResponse.name:
        return calibrate(KaryResponse, budget, **settings)
    if name == ClassicalGaussian.name:
        return ClassicalGaussian.baseline(budget, sensitivity=bound.sensitivity(unit), **settings)
    return calibrate(_KINDS[name], budget, bound=bound, unit=unit, **settings)


def bound_for(unit: Unit, *, norm: float, how: Literal["normalise", "clip"], rows: int | None) -> NormBound:
    """Over the whole matrix for a text, row by row for tokens and phrases."""
    over, fixed = ("matrix", None) if unit.tokens is None else ("row", rows)
    return NormBound(norm, how, over, fixed)  # type: ignore[arg-type]


@dataclass(frozen=True, kw_only=True)
class NoiseSpec:
    """Which noise (``mechanism``, by name), for which budget, for a ``unit`` in words (`parse_unit`).

    >>> NoiseSpec(mechanism="privunit", epsilon=8.0).build()
    PrivUnit(sigma=0.364572, t=2.74294, p=0.901023) -> 8.0-LDP per text

    The hidden matrix is normalised or clipped (``how``) to ``norm``.

    Guarantees:
        What `build` makes is calibrated from these settings and nothing else: the same specification makes
        the same mechanism everywhere.
    Edges:
        ``threshold_share`` is PrivUnit's t as a share of t*, the threshold of least noise; every t is as
        private. ``rows`` and ``columns`` are the shape that crosses; only MVG and bounds by row need them,
        and `k-ary-response` its labels as ``columns``: it protects a text, and has no norm of its own.
        `classical-gaussian` outside its theorem makes a mechanism that carries no guarantee.
    """

    mechanism: str = "privunit"
    epsilon: float = 8.0
    delta: float | None = None
    unit: str = "text"
    norm: float = 1.0
    how: Literal["normalise", "clip"] = "normalise"
    threshold_share: float | None = None
    rows: int | None = None
    columns: int | None = None

    def __post_init__(self) -> None:
        if self.mechanism not in MATRIX_MECHANISMS:
            rule = f"be one of {', '.join(MATRIX_MECHANISMS)}"
            raise InvalidInput("mechanism", rule, repr(self.mechanism), "privunit needs the least noise.")
        checks.positive("epsilon", self.epsilon, remedy="Try 8; less is more private.")
        if self.how not in ("normalise", "clip"):
            raise InvalidInput("how", "be normalise or clip", repr(self.how), "Use normalise.")
        pure = self.mechanism in (PrivUnit.name, KaryResponse.name)
        if self.delta is None:
            object.__setattr__(self, "delta", 0.0 if pure else DEFAULT_DELTA)
        elif pure and self.delta != 0:
            raise InvalidInput("delta", f"be left out for {self.mechanism}", self.delta, "It is pure.")
        if self.mechanism == KaryResponse.name:
            self._check_response()
        if self.threshold_share is not None:
            if self.mechanism != PrivUnit.name:
                rule = "go with privunit"
                raise InvalidInput("threshold_share", rule, self.threshold_share, "Leave it out.")
            if not 0 <= self.threshold_share <= 4:
                raise InvalidInput("threshold_share", "lie in [0, 4]", self.threshold_share, "1 means t*.")

    def _check_response(self) -> None:
        if self.columns is None:
            raise InvalidInput("columns", "be the number of labels", None, "It is the width that crosses.")
        checks.count("columns", self.columns, at_least=2, remedy="It is the number of labels.")
        for name, usual in (("unit", "text"), ("norm", 1.0), ("how", "normalise")):
            rule = f"be {usual} for {self.mechanism}"
            refuse_if(getattr(self, name) != usual, name, rule, getattr(self, name), "Leave it out.")

    @property
    def protects(self) -> Unit:
        """What is protected."""
        return parse_unit(self.unit)

    @property
    def bound(self) -> NormBound:
        """Made by `bound_for`; for `k-ary-response` its own, over one row."""
        if self.mechanism == KaryResponse.name:
            return ONE_ROW
        return bound_for(self.protects, norm=self.norm, how=self.how, rows=self.rows)

    @property
    def budget(self) -> Budget:
        """What was asked for."""
        return Budget(self.epsilon, self.delta or 0.0)

    def build(self) -> Mechanism:
        """The least noise of this kind for this budget."""
        settings: dict[str, Any] = {}
        if self.mechanism == KaryResponse.name:
            settings = {"labels": self.columns}
        if self.threshold_share is not None:
            vectors = self.bound.changed_rows(self.protects) or 1
            settings["threshold"] = self.threshold_share * best_threshold(self.epsilon / vectors)
        if self.mechanism == MVG.name:
            rule, remedy = "be known for mvg", "Give the shape that crosses."
            refuse_if(self.rows is None or self.columns is None, "rows and columns", rule, None, remedy)
            settings = {"rows": self.rows, "columns": self.columns}
        return calibrate_by_name(
            self.mechanism, self.budget, bound=self.bound, unit=self.protects, **settings
        )

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, settings: Mapping[str, Any]) -> Self:
        """From JSON; an unknown key is an error, never ignored."""
        known = {field.name for field in fields(cls)}
        unknown = sorted(set(settings) - known)
        refuse_if(unknown, "noise", f"have only the keys {', '.join(sorted(known))}", unknown, "Update.")
        return cls(**settings)
