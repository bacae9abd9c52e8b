"""Argument checks; every error states name, rule, value and remedy.

Every public constructor of this package runs its numbers through these, so an object that
exists is an object whose numbers make sense.
"""

import math
import operator
from collections.abc import Callable
from typing import SupportsFloat, SupportsIndex

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dp_forward.errors import InvalidInput, refuse_if

__all__ = ["count", "delta", "epsilon", "finite_array", "nonnegative", "positive", "probability"]

_SMALL_DELTA = "Use something below 1 / number of records, such as 1e-5."


def _number(name: str, value: object, rule: str, remedy: str, fits: Callable[[float], bool]) -> float:
    refusal = InvalidInput(name, "be a number", type(value).__name__, remedy)
    if isinstance(value, bool) or not isinstance(value, SupportsFloat):
        raise refusal
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise refusal from None
    refuse_if(not fits(number), name, rule, number, remedy)
    return number


def positive(name: str, value: object, *, remedy: str) -> float:
    """A finite number above zero."""
    return _number(name, value, "be a finite number above 0", remedy, lambda x: 0 < x < math.inf)


def nonnegative(name: str, value: object, *, remedy: str) -> float:
    """A finite number, zero included."""
    return _number(name, value, "be a finite number, 0 or above", remedy, lambda x: 0 <= x < math.inf)


def probability(name: str, value: object, *, remedy: str) -> float:
    """A number strictly between 0 and 1."""
    return _number(name, value, "lie in (0, 1)", remedy, lambda x: 0 < x < 1)


def epsilon(value: object, *, name: str = "epsilon") -> float:
    """A budget's epsilon: finite and above zero."""
    return positive(name, value, remedy="Use something between 0.1 and 16; less is more private.")


def delta(value: object, *, zero: bool, name: str = "delta") -> float:
    """A budget's delta: in (0, 1), or in [0, 1) where ``zero`` is allowed."""
    if not zero:
        return probability(name, value, remedy=_SMALL_DELTA)
    return _number(name, value, "lie in [0, 1)", _SMALL_DELTA, lambda x: 0 <= x < 1)


def count(name: str, value: object, *, at_least: int = 1, remedy: str) -> int:
    """A whole number, at least ``at_least``."""
    refusal = InvalidInput(name, "be a whole number", type(value).__name__, remedy)
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        raise refusal
    try:
        number = operator.index(value)
    except TypeError:  # an array of several numbers
        raise refusal from None
    refuse_if(number < at_least, name, f"be a whole number, {at_least} or more", number, remedy)
    return number


def finite_array(name: str, value: ArrayLike, *, ndim: int) -> NDArray[np.float64]:
    """A private, read-only float64 copy with ``ndim`` axes and only finite entries."""
    try:
        array = np.array(value, dtype=np.float64)
    except (TypeError, ValueError):
        rule = "be an array of numbers"
        raise InvalidInput(name, rule, type(value).__name__, "Pass a NumPy array.") from None
    rule = f"have {ndim} axes and at least one entry"
    refuse_if(array.ndim != ndim or array.size == 0, name, rule, f"shape {array.shape}", "Reshape it.")
    refuse_if(not np.isfinite(array).all(), name, "hold finite numbers only", "NaN or Inf", "Clean it first.")
    array.setflags(write=False)
    return array
