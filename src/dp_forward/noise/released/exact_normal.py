r"""Exactly rounded Gaussians from operating-system entropy.

``rounded_normal`` returns round(Z), Z ~ N(0, scale^2), by inverse CDF on *infinitely long* uniform numbers of
which it reads as many bits as it needs. One bit is the sign; the others are the digits of V in [0, 1), and

.. math:: |\mathrm{round}(Z)| = \#\{k \ge 0 : V < E_k\}, \qquad
          E_k = P[|Z| > k + 1/2] = \mathrm{erfc}\big((k + 1/2) / (\sqrt2\,\mathrm{scale})\big) .

A word of b digits says only that V lies in ``[v, v + 1) / 2^b``. Two steps decide the cell:

1. *Float*: ``t = scale * ndtri(1 - V/2)`` in float64, with a bound on all that can be wrong with it: the
   word's width, the rounding of v and the error of ndtri. By the mean value theorem and the hazard rate
   ``phi / Q >= 0.79``, a relative error r of the tail probability moves z by at most ``r / 0.79``. If the
   widened interval lies within one cell, that cell is right, whatever the digits to come.
2. *Integers*: else ``v`` is compared with ``floor(2^b E_k)``, computed in integers with both ends of every
   operation rounded outwards. Equal means that b digits cannot tell: 64 more are drawn, and so on.

Guarantees:
    P[k] is ``Phi((k + 1/2)/scale) - Phi((k - 1/2)/scale)`` to within 2^-400 for every k, if the entropy is
    uniform and scipy's ndtri is right to 2^-44 (about 256 units in the last place; Cephes states 7.2e-16 as
    its peak error, a test measures it against 60 digits). The 2^-400: after 450 digits the search ends.
Edges:
    Time depends on the noise alone: about one draw in 10^13 / scale needs step 2 (0.2 ms).
"""

import math
import os
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from dp_forward.errors import refuse_if
from dp_forward.privacy import checks

__all__ = ["Entropy", "rounded_normal"]

Entropy = Callable[[int], bytes]
"""``entropy(n)`` gives n fresh, secret, uniform bytes."""

LARGEST_SCALE = 2.0**32
NDTRI_ERROR = 2.0**-44
"""What the relative error of ndtri is taken to be; the measured one is a hundred times smaller."""

_FLAT_ERROR = 2.0**-50
"""The error of z near zero, where u is near 1/2 and only its absolute error counts."""
_FEW = 16
"""A word below this says too little about its tail for the mean value argument."""
_MORE = 64
_LONGEST = 450
_BLOCK = 1 << 16

Bounds = tuple[int, int]


def rounded_normal(
    size: int | tuple[int, ...], *, scale: float, entropy: Entropy = os.urandom, word_bits: int = 64
) -> NDArray[np.int64]:
    """Independent draws of round(Z), Z ~ N(0, scale^2).

    ``word_bits`` (sign included) is how much of each first word is used; a shorter word changes nothing in
    the distribution, only how often more digits are drawn.
    """
    scale = checks.positive("scale", scale, remedy="It is sigma / step.")
    refuse_if(scale > LARGEST_SCALE, "scale", f"be at most {LARGEST_SCALE:g}", scale, "Use a coarser grid.")
    word_bits = checks.count("word_bits", word_bits, at_least=2, remedy="Use 64.")
    refuse_if(word_bits > 64, "word_bits", "be at most 64", word_bits, "Use 64.")
    shape = (size,) if isinstance(size, int) else size
    total = checks.count("size", math.prod(shape), at_least=0, remedy="Use a shape.")
    draws = np.empty(total, dtype=np.int64)
    for start in range(0, total, _BLOCK):
        block = draws[start : start + _BLOCK]
        block[:] = _block(len(block), scale, entropy, word_bits)
    return draws.reshape(shape)


def fresh_bytes(entropy: Entropy, size: int) -> bytes:
    """Exactly ``size`` bytes, or an error: too little entropy is never stretched."""
    data = entropy(size)
    refuse_if(len(data) != size, "entropy", f"give {size} bytes when asked", len(data), "Use os.urandom.")
    return data


def _block(size: int, scale: float, entropy: Entropy, word_bits: int) -> NDArray[np.int64]:
    words = np.frombuffer(fresh_bytes(entropy, 8 * size), dtype="<u8") >> np.uint64(64 - word_bits)
    digits = word_bits - 1
    negative = (words >> np.uint64(digits)).astype(bool)
    words = words & np.uint64((1 << digits) - 1)
    centre = words.astype(np.float64) + 0.5
    z = -ndtri(centre * 2.0 ** -(digits + 1))
    t = scale * z
    slack = scale * _error(z, centre)
    nearest = np.rint(t)
    decided = (np.abs(t - nearest) + slack < 0.5) & (centre > _FEW)
    draws = nearest.astype(np.int64)
    for i in np.flatnonzero(~decided):
        draws[i] = _refined(int(words[i]), digits, scale, entropy)
    return np.where(negative, -draws, draws)


def _error(z: NDArray[np.float64], centre: NDArray[np.float64]) -> NDArray[np.float64]:
    """How far ``z`` may lie from the z of any V in the word around ``centre`` (v + 1/2)."""
    return NDTRI_ERROR * z + _FLAT_ERROR + 2.0 / centre


def _refined(word: int, digits: int, scale: float, entropy: Entropy) -> int:
    """The cell of a word that the float step left open, with more digits where they are needed."""
    while True:
        low, high = _bracket(word, digits, scale)
        if low == high:
            return low
        if high - low == 1:
            edge = threshold(low, scale, digits)
            if word != edge:
                return high if word < edge else low
        if digits >= _LONGEST:
            return low
        word = (word << _MORE) | int.from_bytes(fresh_bytes(entropy, _MORE // 8), "little")
        digits += _MORE


def _bracket(word: int, digits: int, scale: float) -> Bounds:
    """The least and the largest cell that a word can lie in; far apart where it says too little."""
    centre = float(word) + 0.5
    z = -float(ndtri(math.ldexp(centre, -digits - 1)))
    if word < _FEW:
        return math.floor(z * scale), math.ceil(z * scale) + 2
    slack = scale * (NDTRI_ERROR * z + _FLAT_ERROR + 2.0 / centre)
    return max(0, round(scale * z - slack)), max(0, round(scale * z + slack))


@lru_cache(maxsize=4096)
def threshold(k: int, scale: float, digits: int) -> int:
    """``floor(2^digits * P[|Z| > k + 1/2])``, exactly, for Z ~ N(0, scale^2)."""
    x = (k + Fraction(1, 2)) / Fraction(scale)
    if x * x >= 2 * digits:
        return 0  # erfc(x / sqrt 2) <= exp(-x^2 / 2) <= e^-digits < 2^-digits
    for guard in (64, 256, 1024):
        low, high = _erfc_bounds(x, digits + guard)
        if low >> guard == high >> guard:
            break
    return low >> guard


def _erfc_bounds(x: Fraction, bits: int) -> Bounds:
    r"""Integers around ``2^bits erfc(x / sqrt 2)``.

    ``erf(x / sqrt 2) = sqrt(2/pi) e^{-y} (x + x^3/3 + x^5/15 + ...)`` with ``y = x^2/2``: both series have
    positive terms, so nothing cancels and rounding down (up) every step gives a lower (upper) bound.
    """
    first = x.numerator << bits
    odd_low, odd_high = series_bounds((first // x.denominator, _up(first, x.denominator)), x * x, 3)
    exp_low, exp_high = series_bounds((1 << bits, 1 << bits), x * x, 2)
    root_low, root_high = _root_of_two_over_pi(bits)
    erf_low = root_low * odd_low // exp_high
    erf_high = _up(root_high * odd_high, exp_low)
    return (1 << bits) - erf_high, (1 << bits) - erf_low


def series_bounds(first: Bounds, square: Fraction, divisor: int) -> Bounds:
    """Bounds on the sum of terms with ratios ``square / divisor, square / (divisor + 2), ...``."""
    low, high = first
    sum_low, sum_high = first
    top, bottom = square.numerator, square.denominator
    # Once the ratio is at most 1/2, the terms left out sum to no more than the last one.
    while high > 1 or 2 * top > bottom * (divisor - 2):
        low = low * top // (bottom * divisor)
        high = _up(high * top, bottom * divisor)
        sum_low, sum_high = sum_low + low, sum_high + high
        divisor += 2
    return sum_low, sum_high + high


def _up(numerator: int, denominator: int) -> int:
    return -(-numerator // denominator)


@lru_cache(maxsize=64)
def _root_of_two_over_pi(bits: int) -> Bounds:
    """Integers around ``2^bits sqrt(2/pi)``."""
    (five_low, five_high), (big_low, big_high) = _arctan_inverse(5, bits), _arctan_inverse(239, bits)
    pi_low, pi_high = 16 * five_low - 4 * big_high, 16 * five_high - 4 * big_low
    doubled = 2 << 3 * bits
    return math.isqrt(doubled // pi_high), math.isqrt(_up(doubled, pi_low)) + 1


def _arctan_inverse(n: int, bits: int) -> Bounds:
    """Integers around ``2^bits arctan(1/n)``; every term is off by less than 2, and they alternate."""
    total, power, count = 0, (1 << bits) // n, 0
    while power:
        term = power // (2 * count + 1)
        total += -term if count % 2 else term
        power //= n * n
        count += 1
    return total - 2 * count - 2, total + 2 * count + 2
