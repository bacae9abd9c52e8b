r"""PrivUnit on the integer grid: the rounded ideal release, and nothing else.

What is drawn. ``W = round(8 V)``, entry by entry, for the ideal real vector

.. math:: V = s\,x + (I - x x^T)\,G = G + (s - \langle x, G\rangle)\,x .

Proof of the promise.

1. *x is exact.* The normalised vector is put on integers k (a function of the hidden matrix; NaN, Inf and
   zeros have their fixed places), and x *is* ``k / |k|``: of length 1 in exact arithmetic, never a float.
2. *s and G are exact.* They are real numbers, inverse CDFs of uniform numbers with infinitely many digits
   (`exact_normal`): ``Q(|G_j|) = U_j / 2`` with a sign, and ``Q(s) = U Q(t)`` or ``Q(-s) = U Q(-t)`` as an
   exact coin (`coins`) with the mechanism's own log-odds falls. t and the log-odds are the floats as they
   are. So V has the density for which `privacy.privunit` proves pure epsilon, at every real point.
3. *W is a function of V.* It is computed in float64 with a bound on everything that can be wrong with every
   entry. Where an entry of 8 V comes closer to a half than that bound, 64 more digits of *every* uniform
   number are read, and V is enclosed in integers (`quantiles`), again and again until all cells are certain.

Post-processing costs nothing: W, clamped and scaled, has the mechanism's epsilon with no numerical slack.

The bound of the float pass, for u = 2^-53, a = max |G_j| and e = what `exact_normal` allows for the worst G_j
(2^-44 a + 2^-50 + the width of the rarest word):

* ``<x, G>``: each G_j is off by e, each x_j by 3u of itself, each product by u; sums of at most 64 terms in
  each of L levels are off by 64 L u, in whatever order they are made. The sum of |x_j| is at most sqrt(D),
  so the total is at most ``sqrt(D) (e + (64 L + 16) u a)``.
* ``c = s - <x, G>``: that, and the error of s.
* ``V_i = G_i + c x_i``: at most ``e + 2ua + |x_i| (error of c + 8u|c|)``.

Guarantees:
    The law of W is that of round(8 V) to within 2^-380 (reading ends after 450 digits), on what
    `exact_normal` rests on: uniform entropy, and scipy's ndtri right to 2^-44.
Edges:
    A float pass leaves something open with a probability X of about 10^-11 D: 4 in 10^9 for 384 entries, a
    few in 10^6 for 128 x 768. Step 3 then takes about 0.1 ms per entry, which a watch can see.
    *What is claimed about time.* All else is vector arithmetic whose length does not depend on the hidden
    matrix. Whether step 3 runs depends on how near 8 V is to a half, and, as "near" is one public number plus
    |x_i| times another, a little on x itself. Whoever sees W *and* that pause has at most (epsilon,
    (1 + e^epsilon) X), because the pause is no more likely than X whatever the text. Nothing is claimed
    about caches and the like, nor about the time of the front.
Paper: not in it.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from dp_forward.errors import InvalidInput
from dp_forward.noise.released.coins import coins, words
from dp_forward.noise.released.exact_normal import NDTRI_ERROR, Entropy
from dp_forward.noise.released.quantiles import LEAST_PRECISION, quantile, twice_tail
from dp_forward.privacy import PrivUnit, normalise_rows

PER_UNIT = 8
"""Cells per unit of V: rounding adds 1/768 of the variance."""

_LENGTH = 2.0**30
"""How long the integer vectors are: squares are then summed exactly, and the least peak is not lost."""
_U = 2.0**-53
_FLAT_ERROR = 2.0**-50
_FEW = 16
_SUMMED = 64
_LONGEST = 450
_MORE = 64
_FURTHEST_IN_INT8 = 10.0
_UNIT = normalise_rows(1.0)

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


def privunit_step(mechanism: PrivUnit, bits: int) -> float:
    """``norm / m / 8``: multiples of it are unbiased for the bounded matrix, as a `Sanitizer`'s are."""
    # An entry can be as large as s, which lies just above t; int8 holds 15.9.
    if bits == 8 and mechanism.threshold > _FURTHEST_IN_INT8:
        rule = f"be at most {_FURTHEST_IN_INT8:g} for 8 bits"
        raise InvalidInput("threshold", rule, mechanism.threshold, "Use bits=16.")
    return mechanism.sigma / PER_UNIT


def draw_privunit(mechanism: PrivUnit, vectors: Floats, entropy: Entropy) -> Integers:
    """One release of each row."""
    law = Law(mechanism.threshold, mechanism.cap_log_odds)
    return rounded_privunit(directions(vectors), law=law, entropy=entropy)


@dataclass(frozen=True, slots=True)
class Law:
    """The law of s: N(0, 1) above t with these log-odds, else below."""

    threshold: float
    cap_log_odds: float


def directions(vectors: Floats) -> Integers:
    """Each row as an integer vector k that is never 0; ``k / |k|`` is the direction that is released."""
    whole = np.rint(_UNIT.apply(vectors) * _LENGTH).astype(np.int64)
    whole[~whole.any(axis=1), 0] = 1
    return whole


def rounded_privunit(whole: Integers, *, law: Law, entropy: Entropy, word_bits: int = 64) -> Integers:
    """``round(8 V)`` for each row of integers; see the module. A shorter word only asks for more digits."""
    rows, width = whole.shape
    in_cap = coins(rows, log_odds=law.cap_log_odds, entropy=entropy)
    along = words(entropy, rows) >> np.uint64(64 - word_bits)
    noise = (words(entropy, rows * width).view("<i8") >> np.int64(64 - word_bits)).reshape(rows, width)
    s, s_error = _signal(along, in_cap, law, word_bits)
    nearest, decided = _nearest(whole, noise, s, s_error, word_bits - 1)
    for i in np.flatnonzero(~decided.all(axis=1)):
        numbers = _Numbers(noise[i].tolist(), int(along[i]), bool(in_cap[i]), law, word_bits)
        still_open = np.flatnonzero(~decided[i])
        nearest[i, still_open] = _refined(whole[i].tolist(), still_open.tolist(), numbers, entropy)
    return nearest


def _signal(
    along: NDArray[np.uint64], in_cap: NDArray[np.bool_], law: Law, digits: int
) -> tuple[Floats, Floats]:
    """s in float64, and how far it may be off; infinitely far where a word says too little."""
    centre = along.astype(np.float64) + 0.5
    inside, outside = _tail(law.threshold), _tail(-law.threshold)
    tail = np.minimum(centre * 2.0**-digits * np.where(in_cap, inside, outside), 1 - _U)
    z = -ndtri(tail)
    density = np.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)
    # The mean value theorem: an error of the tail moves z by that over the density nearby.
    error = NDTRI_ERROR * np.abs(z) + _FLAT_ERROR + 1.25 * tail * (0.5 / centre + 2.0**-50) / density
    vague = (centre < _FEW) | (error * (np.abs(z) + 1) > 2.0**-5)
    return np.where(in_cap, z, -z), np.where(vague, np.inf, error)


@lru_cache(maxsize=64)
def _tail(t: float) -> float:
    """Q(t) to two units in the last place."""
    bits = _places(t)
    return twice_tail(t, bits) / (2 << bits)


def _places(t: float) -> int:
    """How many bits of Q(t) hold 64 significant ones."""
    return 80 + int(0.75 * t * t)


def _nearest(
    whole: Integers, noise: Integers, s: Floats, s_error: Floats, digits: int
) -> tuple[Integers, NDArray[np.bool_]]:
    """The float pass: the cell of every entry, and whether it is certain."""
    width = whole.shape[1]
    unit = whole / np.sqrt(np.sum(whole * whole, axis=1, keepdims=True).astype(np.float64))
    # A negative word counts down from -1: its complement holds the digits, the sign is the sign.
    centre = (noise ^ (noise >> np.int64(63))).astype(np.float64)
    centre += 0.5
    rarest = centre.min(axis=1)
    centre *= 2.0 ** -(digits + 1)
    g: Floats = ndtri(centre)
    largest = -g.min(axis=1)
    np.copysign(g, noise, out=g)
    total, levels = _summed(unit * g)
    c = s - total
    # Every |error| below is an upper bound; the factor at the end covers the rounding of these very lines.
    g_error = NDTRI_ERROR * largest + _FLAT_ERROR + 2.0 / rarest
    c_error = s_error + math.sqrt(width) * (g_error + (_SUMMED * levels + 16) * _U * largest)
    flat = PER_UNIT * 1.125 * (g_error + 2 * _U * largest)
    steep = PER_UNIT * 1.125 * (c_error + 8 * _U * np.abs(c))
    flat[rarest < _FEW] = np.inf
    v = unit * c[:, None]
    v += g
    v *= PER_UNIT
    cells = np.rint(v)
    v -= cells
    np.abs(v, out=v)
    margin = np.abs(unit, out=unit)
    with np.errstate(invalid="ignore"):  # infinity times 0 is NaN, which is never certain
        margin *= steep[:, None]
    margin += flat[:, None]
    v += margin
    return cells.astype(np.int64), v < 0.5


def _summed(terms: Floats) -> tuple[Floats, int]:
    """The sum of each row, in levels of at most 64 terms each, and how many levels that took."""
    levels = 0
    while (width := terms.shape[1]) > 1:
        whole = width - width % _SUMMED
        sums = terms[:, :whole].reshape(len(terms), -1, _SUMMED).sum(axis=2)
        if whole < width:
            sums = np.concatenate([sums, terms[:, whole:].sum(axis=1, keepdims=True)], axis=1)
        terms, levels = sums, levels + 1
    return terms[:, 0], levels


@dataclass(slots=True)
class _Numbers:
    """The uniform numbers of one vector, as far as they have been read."""

    noise: list[int]
    along: int
    in_cap: bool
    law: Law
    digits: int
    """Of ``along``; a word of noise has one less, and a sign."""

    def read_on(self, entropy: Entropy) -> None:
        along, *noise = words(entropy, 1 + len(self.noise)).tolist()
        self.along = (self.along << _MORE) | along
        self.noise = [(first << _MORE) | more for first, more in zip(self.noise, noise, strict=True)]
        self.digits += _MORE

    @property
    def precision(self) -> int:
        # One Newton step from a float is right to about 84 places: enough for the first round.
        return max(LEAST_PRECISION, self.digits - 48)

    def normals(self) -> list[tuple[int, int | None]]:
        """G and its errors, in units of 2^-precision."""
        bits, precision = self.digits, self.precision
        found = []
        for word in self.noise:
            size, error = quantile(2 * max(word, ~word) + 1, slack=1, bits=bits, precision=precision)
            found.append((size if word >= 0 else -size, error))
        return found

    def signal(self) -> tuple[int, int | None]:
        """s and its error, in units of 2^-precision: ``2 Q(+-s) = U 2 Q(+-t)``."""
        t = self.law.threshold if self.in_cap else -self.law.threshold
        places = _places(t) + self.digits
        tail = twice_tail(t, places)
        number, bits = (2 * self.along + 1) * tail, places + self.digits + 1
        slack = tail + 2 * self.along + 2
        above = number <= 1 << bits
        number = number if above else (2 << bits) - number
        size, error = quantile(number, slack=slack, bits=bits, precision=self.precision)
        return (size if above == self.in_cap else -size), error


def _refined(whole: list[int], still_open: list[int], numbers: _Numbers, entropy: Entropy) -> list[int]:
    """The cells that the float pass left open, with as many digits as they need."""
    while True:
        numbers.read_on(entropy)
        last = numbers.digits >= _LONGEST
        cells = _enclosed(whole, still_open, numbers, last)
        if cells is not None:
            return cells


def _enclosed(whole: list[int], still_open: list[int], numbers: _Numbers, last: bool) -> list[int] | None:
    """The cells as integers say; None where they cannot tell. The last time they are taken as they are."""
    found = [numbers.signal(), *numbers.normals()]
    known = [error for _, error in found if error is not None]
    errors = [0] * len(found) if last else known
    if len(errors) < len(found):
        return None
    (s, *g), (s_error, *g_errors) = [value for value, _ in found], errors
    precision, square = numbers.precision, sum(k * k for k in whole)
    places = precision + _MORE
    root = math.isqrt(square << 2 * places)
    along = sum(k * value for k, value in zip(whole, g, strict=True))
    along_error = sum(abs(k) * error for k, error in zip(whole, g_errors, strict=True))
    cells = []
    for i in still_open:
        k = whole[i]
        value = g[i] + (s * k << places) // root - along * k // square
        # Two floors and a root that is short by less than one: four units cover them.
        error = g_errors[i] + (s_error * abs(k) << places) // root + along_error * abs(k) // square + 6
        low, high = (_cell(end, precision) for end in (value - error, value + error))
        if low != high and not last:
            return None
        cells.append(_cell(value, precision))
    return cells


def _cell(value: int, precision: int) -> int:
    """``round(8 V)`` of a value in units of 2^-precision."""
    return (PER_UNIT * value + (1 << (precision - 1))) >> precision
