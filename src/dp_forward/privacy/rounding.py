"""Rounding that never flatters: a printed epsilon or sigma is at least the true one."""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Context

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
