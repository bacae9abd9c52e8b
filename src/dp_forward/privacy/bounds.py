r"""Norm bounds of the hidden matrix, and the sensitivity that follows from them.

Nothing about a network's hidden matrix is known in advance; after the bound its norm is. With norm C,
whole matrix:

* *normalise* puts the matrix on the sphere of radius C, *clip* into the ball of radius C. Both
  have diameter 2C and any two texts may land on opposite ends, so the sensitivity is **2C** for
  every unit. (So says the paper's text; its authors' experiments used C: see `paper_mode`.)

Row by row, when row i depends on token i alone:

* one token moves one row, from anywhere to anywhere on its sphere: **2C**;
* a phrase of c tokens moves c rows: the squares add, **2C sqrt(c)** (group privacy would say 2Cc);
* a whole text of n rows: **2C sqrt(n)**.

A public linear map W after a row-wise bound (the joint release of Q, K and V) multiplies all of
these by the largest singular value of W; biases cancel.

Guarantees:
    ``apply`` is total. NaN and Inf become 0; a zero matrix (or row) becomes a fixed direction when
    normalising and stays 0 when clipping; no input raises for its values, and the Frobenius norm
    of the result is at most C in exact arithmetic.
Edges:
    The row-wise numbers assume that the front computes each row from its own token. That is so at
    the cuts `embeddings` and `encoder.1.qkv` and nowhere deeper; the guarantee says it.
Paper: Section 3.2 has 2C for a whole matrix; Appendix A.2 has C for a row, which falls short by the factor 2.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dp_forward.errors import InvalidInput, refuse_if
from dp_forward.privacy import checks
from dp_forward.privacy.rounding import brief, nudge_up, shown_up
from dp_forward.privacy.spectral import spectral_norm_upper
from dp_forward.privacy.units import Unit

# A float sum of squares of up to a billion terms is off by far less than this.
_SHRINK = 1 - 1e-13


class Bound(ABC):
    """Base class: maps every hidden matrix into a known set."""

    @abstractmethod
    def reach(self, unit: Unit) -> float:
        """The largest distance between the bounded matrices of two neighbours, rounded up."""

    @abstractmethod
    def radius(self) -> float:
        """The largest Frobenius norm of a bounded matrix, rounded up."""

    @abstractmethod
    def changed_rows(self, unit: Unit) -> int | None:
        """How many consecutive rows two neighbours differ in; None where all of them may."""

    @property
    @abstractmethod
    def assumptions(self) -> tuple[str, ...]:
        """What the sensitivity rests on besides the arithmetic."""

    def sensitivity(self, unit: Unit) -> Sensitivity:
        """The sensitivity of this bound for a unit, as an object that knows where it came from."""
        return Sensitivity(self.reach(unit), self, unit)


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """Largest distance between neighbours, and the bound that proves it.

    Made by a bound (``bound.sensitivity(unit)``) or, at the lowest level, from a bare number, in
    which case the promise is about *inputs at that distance* and names no unit.
    """

    value: float
    bound: Bound | None = None
    unit: Unit | None = None

    def __post_init__(self) -> None:
        checks.positive("sensitivity", self.value, remedy="Take it from bound.sensitivity(unit).")
        if (self.bound is None) != (self.unit is None):
            rule = "name both bound and unit"
            raise InvalidInput("sensitivity", rule, "one of them", "Use bound.sensitivity().")
        if self.bound is not None and self.unit is not None:
            proved = self.bound.reach(self.unit)
            rule = f"be the bound's own {proved}"
            refuse_if(self.value != proved, "sensitivity", rule, self.value, "Do not type it.")

    @classmethod
    def of(cls, value: Sensitivity | float) -> Sensitivity:
        """The same object, or one made from a bare number."""
        return value if isinstance(value, Sensitivity) else cls(value)

    @property
    def window(self) -> int | None:
        """How many consecutive rows neighbours differ in; None where all of them may."""
        return None if self.bound is None or self.unit is None else self.bound.changed_rows(self.unit)

    def __str__(self) -> str:
        shown = brief(shown_up(self.value))
        return shown if self.unit is None else f"{shown} per {self.unit}"


@dataclass(frozen=True, slots=True)
class NormBound(Bound):
    """Normalise or clip (``how``) the whole matrix or each row (``over``) to a Frobenius norm of ``norm``."""

    norm: float
    how: Literal["normalise", "clip"]
    over: Literal["matrix", "row"]
    rows: int | None = None

    def __post_init__(self) -> None:
        checks.positive("norm", self.norm, remedy="Use 1.0; the back learns the scale.")
        if self.how not in ("normalise", "clip"):
            raise InvalidInput("how", "be normalise or clip", self.how, "Use normalise.")
        refuse_if(self.over not in ("matrix", "row"), "over", "be matrix or row", self.over, "Use matrix.")
        if self.rows is not None:
            checks.count("rows", self.rows, remedy="It is the fixed public length n.")

    def changed_rows(self, unit: Unit) -> int | None:
        # A record may be folded into one bounded vector (`noise.folded_record`); a label alone has none.
        if unit.kind == "label" or (unit.kind == "record" and self.over == "row"):
            rule = "lie in the text for a bound"
            raise InvalidInput("unit", rule, unit, "Use text, token or phrase:c.")
        if self.over == "matrix":
            return None
        if unit.tokens is None:
            return self._known_rows(f"the unit {unit}")
        return unit.tokens if self.rows is None else min(unit.tokens, self.rows)

    def _known_rows(self, purpose: str) -> int:
        if self.rows is None:
            remedy = "Give the fixed public length, such as rows=128."
            raise InvalidInput("rows", f"be known for a row-wise bound and {purpose}", None, remedy)
        return self.rows

    def reach(self, unit: Unit) -> float:
        rows = self.changed_rows(unit)
        return 2 * self.norm if rows is None else nudge_up(2 * self.norm * math.sqrt(rows))

    def radius(self) -> float:
        if self.over == "matrix":
            return self.norm
        return nudge_up(self.norm * math.sqrt(self._known_rows("its radius")))

    def apply(self, hidden: ArrayLike) -> NDArray[np.float64]:
        """The bounded matrix, in float64; never raises for the values."""
        matrix = np.array(hidden, dtype=np.float64, ndmin=2)
        if matrix.ndim != 2 or matrix.size == 0:
            raise InvalidInput("hidden", "be one matrix", f"shape {matrix.shape}", "Loop over texts.")
        if self.rows is not None and len(matrix) != self.rows:
            raise InvalidInput("hidden", f"have {self.rows} rows", len(matrix), "Pad to the length n.")
        vectors = matrix.reshape(1, -1) if self.over == "matrix" else matrix
        clean = np.where(np.isfinite(vectors), vectors, 0.0)
        peak = np.max(np.abs(clean), axis=1, keepdims=True)
        nonzero = peak > 0
        # Dividing by the peak first keeps 1e300 from overflowing and 1e-300 from vanishing.
        unit = np.divide(clean, peak, out=np.zeros_like(clean), where=nonzero)
        length = np.sqrt(np.sum(unit * unit, axis=1, keepdims=True))
        unit = np.divide(unit, length, out=unit, where=nonzero)
        if self.how == "normalise":
            unit[~nonzero[:, 0], 0] = 1.0
            return np.asarray(unit * (self.norm * _SHRINK)).reshape(matrix.shape)
        with np.errstate(over="ignore"):
            inside = peak * length <= self.norm * _SHRINK
        return np.where(inside, clean, unit * (self.norm * _SHRINK)).reshape(matrix.shape)

    @property
    def assumptions(self) -> tuple[str, ...]:
        common = "the released matrix has a fixed public number of rows"
        if self.over == "matrix":
            return (common,)
        return (common, "the front computes each row from its own token alone")

    def __str__(self) -> str:
        over = "each row" if self.over == "row" else "the matrix"
        return f"{self.how} {over} to {brief(shown_up(self.norm))}"


@dataclass(frozen=True, slots=True, eq=False)
class LinearImage(Bound):
    """A row-wise bound (``base``) followed by one public linear map ``weight``, such as [W_Q | W_K | W_V].

    Releasing Q, K and V jointly costs one release with sensitivity
    ``2C sqrt(c) sigma_max([W_Q|W_K|W_V])``; three separate ones at full epsilon would cost three.
    (Adding noise to the rows once and computing Q, K, V from the noisy rows is simpler and never
    worse: use the row-wise bound alone for that.)
    """

    base: NormBound
    weight: NDArray[np.float64]
    spectral_norm: float = field(init=False)

    def __post_init__(self) -> None:
        refuse_if(self.base.over != "row", "base", "bound each row", str(self.base), "Use normalise_rows.")
        weight = checks.finite_array("weight", self.weight, ndim=2)
        norm = spectral_norm_upper(weight)
        checks.positive("weight", norm, remedy="A zero map releases nothing.")
        object.__setattr__(self, "weight", weight)
        object.__setattr__(self, "spectral_norm", norm)

    def changed_rows(self, unit: Unit) -> int | None:
        return self.base.changed_rows(unit)

    def reach(self, unit: Unit) -> float:
        return nudge_up(self.base.reach(unit) * self.spectral_norm)

    def radius(self) -> float:
        return nudge_up(self.base.radius() * self.spectral_norm)

    @property
    def assumptions(self) -> tuple[str, ...]:
        return (*self.base.assumptions, "the linear map after the bound is public")

    def __str__(self) -> str:
        (rows, columns), norm = self.weight.shape, brief(shown_up(self.spectral_norm))
        return f"{self.base}, then a public {rows} x {columns} map of norm {norm}"


def normalise(norm: float = 1.0) -> NormBound:
    """The whole matrix onto the sphere of radius ``norm``."""
    return NormBound(norm, "normalise", "matrix")


def clip(norm: float = 1.0) -> NormBound:
    """The whole matrix into the ball of radius ``norm``."""
    return NormBound(norm, "clip", "matrix")


def normalise_rows(norm: float = 1.0, *, rows: int | None = None) -> NormBound:
    """Every row onto the sphere of radius ``norm``; ``rows`` is the fixed public length."""
    return NormBound(norm, "normalise", "row", rows)


def clip_rows(norm: float = 1.0, *, rows: int | None = None) -> NormBound:
    """Every row into the ball of radius ``norm``; ``rows`` is the fixed public length."""
    return NormBound(norm, "clip", "row", rows)
