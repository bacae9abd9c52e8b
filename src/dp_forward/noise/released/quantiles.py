r"""Quantiles of the normal law in integers, with a proved error: what a draw falls back on.

``quantile`` finds z with ``2 Q(z) = V``, Q the upper tail, for a V known up to a slack. One Newton step from
z0 is ``d = (2 Q(z0) - V) / 2 phi(z0)``, with Q(z0) exact in integers (`exact_normal.threshold`) and phi in
float64 (right to 2^-40).

Proof of the error. Let r be the largest possible ``|2 Q(z0) - V|`` and ``R = 1.1 r / 2 phi(z0)``. If
``(z0 + R) R <= 1/32``, then phi changes by a factor of at most ``e^(1/32) < 1.04`` within R of z0, so 2 Q
changes there by more than r on either side: the root lies within R. By the mean value theorem it lies at
``z0 + (2 Q(z0) - V) / 2 phi(xi)``, which differs from ``z0 + d`` by at most ``|d| (e^((z0 + R) R) - 1)``
and by ``1.04 / 2 phi(z0)`` times what is unknown of V. Nothing here rests on the accuracy of the start.
"""

import math
from fractions import Fraction

from scipy.special import ndtri

from dp_forward.noise.released.exact_normal import threshold

LEAST_PRECISION = 64
_START = 60
"""Binary places of the first z0: more than a float has, fewer than any precision."""
_PHI_ERROR = 2.0**-40
_SMALL = 2.0**-5
_LEAST_TAIL = 2.0**-1000
"""Below this the start is wrong, and the check says so."""
_TINY = 2.0**-900


def quantile(number: int, *, slack: int, bits: int, precision: int) -> tuple[int, int | None]:
    """z and its error in units of 2^-precision, where ``2 Q(z)`` lies within slack of number, over 2^bits.

    ``number`` lies in 0..2^bits, so z is about 0 or above. The error is None where the slack is too large
    for the proof: then z is a guess. ``precision`` is at least `LEAST_PRECISION`.
    """
    z = -float(ndtri(max(number / (2 << bits), _LEAST_TAIL)))
    # 2 phi(z) is at least 2^-depth: so many more places are needed for its quotients.
    working = max(bits, precision + int(0.7214 * z * z) + 10)
    places, k = _START, int(z * 2.0**_START)
    wanted = number << (working - bits)
    unknown = (slack << (working - bits)) + 1
    while True:
        z = (k + 0.5) / (1 << places)
        slope = _scaled(math.sqrt(2 / math.pi) * math.exp(-0.5 * z * z), working)
        step = ((threshold(k, 2.0**places, working) - wanted) << precision) // slope
        spread = (unknown << precision) // slope + 1
        found = ((2 * k + 1) << (precision - places - 1)) + step
        reach = 1.1 * ((abs(step) + spread + 2) / (1 << precision))
        if (z + reach) * reach > _SMALL:
            return found, None
        curved = int(abs(step) * (1.1 * (z + reach) * reach + _PHI_ERROR)) + 1
        if curved <= max(4, spread):
            return found, curved + spread + spread // 16 + 3
        places, k = precision - 1, max(0, found >> 1)


def _scaled(value: float, bits: int) -> int:
    """``2^bits value`` for a value whose own exponent is above -bits, also where a float would overflow."""
    mantissa, exponent = math.frexp(value)
    return int(math.ldexp(mantissa, 53)) << (bits + exponent - 53)


def twice_tail(x: float, bits: int) -> int:
    """An integer n with ``n <= 2^bits * 2 Q(x) <= n + 1``."""
    if x == 0:
        return 1 << bits
    if abs(x) < _TINY:
        outside = (1 << bits) - 1  # 1 - |x| < 2 Q(|x|) < 1, and |x| < 2^-bits
    else:
        # `threshold` is about (k + 1/2) / scale; an odd number over a power of two is of that form.
        odd, under = Fraction(abs(x)).as_integer_ratio()
        twos = (odd & -odd).bit_length() - 1
        outside = threshold((odd >> twos) >> 1, 2.0 ** (under.bit_length() - 2 - twos), bits)
    return outside if x > 0 else (2 << bits) - outside - 1
