r"""The integer grid on which a release is made.

Two steps, both powers of two:

* ``step``, close below sigma/8, is what leaves: int16 or int8 multiples of it. Rounding to it adds at most
  ``step^2/12 <= sigma^2/768`` = 0.13 % of variance.
* ``signal_step = step / 2^20`` is what the bounded matrix is put on *before* the noise. It must be that fine:
  a matrix of 128 x 768 and norm 1 has entries of about 0.003, where sigma/8 at epsilon 8 is 0.15. Rounded to
  ``step`` at once, every entry of the signal would become 0.

The noise is rounded to the fine grid, then the sum to the coarse one: both are post-processing (`released`).

Guarantees:
    ``quantise`` is total, and its integers q satisfy ``sum(q^2) <= floor((C / signal_step)^2)``, over the
    matrix or over each row as the bound says, checked in exact integer arithmetic.
Edges:
    The signal is truncated towards zero, by less than signal_step per entry: no norm can grow by it.
    int16 holds 32767 steps, at least 2047 sigma: the signal (at most 256 sigma) and 1790 sigma of noise.
    int8 holds 127 steps, at least 7.9 sigma: the signal (at most 2 sigma) and 5.9 sigma of noise. What lies
    beyond is held at the end: post-processing, and rarer than one entry in 10^8.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dp_forward.errors import InvalidInput
from dp_forward.privacy import NormBound, checks

__all__ = ["Grid", "quantise"]

_FINER = 20
_MOST_NORM = 256
"""The largest norm in units of sigma: integers then stay below 2^32 and squares are summed exactly."""
_MOST_NORM_IN_INT8 = 2
"""For int8: the signal must leave room for the noise."""

Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Grid:
    """A pair of steps for one sigma; see the module docstring. Use `for_noise`."""

    step: float

    def __post_init__(self) -> None:
        step = checks.positive("step", self.step, remedy="Use Grid.for_noise().")
        if math.frexp(step)[0] != 0.5 or not 2.0**-120 <= step <= 2.0**100:
            raise InvalidInput("step", "be a power of two in [2^-120, 2^100]", step, "Use Grid.for_noise().")

    @classmethod
    def for_noise(cls, sigma: float, *, norm: float, bits: int = 16) -> Self:
        """The grid for noise of deviation ``sigma`` on a signal of norm ``norm``, in int16 or int8."""
        sigma = checks.positive("sigma", sigma, remedy="Take it from calibrate().")
        if not 2.0**-100 <= sigma <= 2.0**100:
            raise InvalidInput("sigma", "lie in [2^-100, 2^100] for a release", sigma, "Use a norm near 1.")
        if not norm <= _MOST_NORM * sigma:
            rule = f"be at most {_MOST_NORM} sigma for a release"
            raise InvalidInput("norm", rule, norm / sigma, "That hides nothing.")
        if bits == 8 and not norm <= _MOST_NORM_IN_INT8 * sigma:
            rule = f"be at most {_MOST_NORM_IN_INT8} sigma for 8 bits"
            raise InvalidInput("norm", rule, norm / sigma, "Use bits=16.")
        return cls(2.0 ** (math.frexp(sigma)[1] - 4))

    @property
    def signal_step(self) -> float:
        """The step of the signal before the noise."""
        return self.step * 2.0**-_FINER

    def coarsened(self, noisy: Integers) -> Integers:
        """Multiples of signal_step as the nearest multiples of step; `held` puts them into few bits."""
        return (noisy + (1 << (_FINER - 1))) >> _FINER


def held(numbers: Integers, *, bits: int) -> NDArray[np.int16] | NDArray[np.int8]:
    """The numbers in ``bits`` (16 or 8), those beyond the ends at the ends."""
    if bits == 8:
        return np.clip(numbers, -(1 << 7), (1 << 7) - 1).astype(np.int8)
    return np.clip(numbers, -(1 << 15), (1 << 15) - 1).astype(np.int16)


def quantise(hidden: ArrayLike, *, bound: NormBound, step: float) -> Integers:
    """The hidden matrix, bounded, as integer multiples of ``step`` whose norm is checked exactly."""
    bounded = bound.apply(hidden)
    # A power of two divides exactly, so truncation only ever makes an entry smaller.
    whole = np.trunc(bounded / step).astype(np.int64)
    vectors = whole.reshape(1, -1) if bound.over == "matrix" else whole
    return shrunk_to(vectors, largest_square(bound.norm, step)).reshape(whole.shape)


def largest_square(norm: float, step: float) -> int:
    """``floor((norm / step)^2)`` of the two floats as they are."""
    return math.floor((Fraction(norm) / Fraction(step)) ** 2)


def sums_of_squares(vectors: Integers) -> list[int]:
    """The exact sum of squares of each row, for entries up to 2^33 in size."""
    high, low = vectors >> 16, vectors & 0xFFFF
    parts = ((high * high).sum(axis=1), (high * low).sum(axis=1), (low * low).sum(axis=1))
    return [(int(a) << 32) + (int(b) << 17) + int(c) for a, b, c in zip(*parts, strict=True)]


def shrunk_to(vectors: Integers, limit: int) -> Integers:
    """The same rows, those with a sum of squares above ``limit`` scaled down to it in integers.

    ``|q| isqrt(limit) // ceil(sqrt(sum))``: the norm is at most sqrt(limit), as nothing here rounds up.
    Nothing that went through a bound comes here too long; this is what holds if that were ever wrong.
    """
    result = vectors
    for i, square in enumerate(sums_of_squares(vectors)):
        if square > limit:
            result = vectors.copy() if result is vectors else result
            root, length = math.isqrt(limit), math.isqrt(square - 1) + 1
            shorter = [abs(int(q)) * root // length for q in vectors[i]]
            result[i] = np.sign(vectors[i]) * np.array(shorter, dtype=np.int64)
    return result
