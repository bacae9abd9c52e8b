"""Directed rounding: what is promised, charged or printed is never better than the truth."""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Context
from fractions import Fraction

__all__ = ["nudge_up", "shown_down", "shown_up"]

_ULPS = 4


def nudge_up(value: float) -> float:
    """A few units in the last place above ``value``: covers the rounding of a short formula."""
    return value + _ULPS * math.ulp(value) if math.isfinite(value) else value


def shown_up(value: float, digits: int = 6) -> str:
    """``value`` with ``digits`` significant digits, rounded up: '3.98763', '8.0', '1e-05'.

    Edges:
        A float stands for its shortest decimal, so 1e-5 reads '1e-05' although the float lies a little above.
        7.99999999999 reads '8.0', and 8.00000000001 reads '8.00001'.
    """
    if not math.isfinite(value):
        return str(value)
    return repr(float(Context(prec=digits, rounding=ROUND_CEILING).create_decimal(repr(float(value)))))


def shown_down(value: float, digits: int = 6) -> str:
    """``value`` with ``digits`` significant digits, rounded down: for what an attack has shown."""
    if not math.isfinite(value):
        return str(value)
    return repr(float(Context(prec=digits, rounding=ROUND_FLOOR).create_decimal(repr(float(value)))))


def decimal_up(exact: Fraction) -> float:
    """The least float whose shortest decimal is not below ``exact``: 3/10 is 0.3."""
    nearest = float(exact)
    return nearest if Fraction(repr(nearest)) >= exact else math.nextafter(nearest, math.inf)


def _float_up(exact: Fraction) -> float:
    """The least float that is not below ``exact``."""
    nearest = float(exact)
    return math.nextafter(nearest, math.inf) if Fraction(nearest) < exact else nearest


def root_up(exact: Fraction) -> float:
    """A float whose exact square is not below ``exact``."""
    root = math.sqrt(_float_up(exact))
    return root if Fraction(root) ** 2 >= exact else math.nextafter(root, math.inf)
