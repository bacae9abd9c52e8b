"""Directed rounding: what is promised, charged or printed is never better than the truth.

Whatever is a promise or a cost is printed by `shown_up` or `percent_up` (epsilon, delta, mu, sigma, a guess
rate, a charge), whatever an attack has shown or a budget leaves by `shown_down`. What others' noise is worth
is a measurement, rounded to the nearest. No other format touches such a number: a test looks for them.
"""

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Context
from fractions import Fraction

__all__ = ["brief", "nudge_up", "percent_down", "percent_up", "shown_down", "shown_up"]

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


def brief(shown: str) -> str:
    """A number that `shown_up` or `shown_down` gave, without a zero behind the point: '8' for '8.0'."""
    return shown.removesuffix(".0")


def percent_up(rate: float) -> str:
    """A rate as a percentage, rounded up: '79.8 %', '99.97 %'."""
    return f"{brief(shown_up(min(rate * 100, 100.0), 3 if rate < 0.999 else 4))} %"


def percent_down(rate: float) -> str:
    """A rate as a percentage, rounded down, for what may be expected: '98.2 %', '99.96 %'."""
    return f"{brief(shown_down(rate * 100, 3 if rate < 0.999 else 4))} %"


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
