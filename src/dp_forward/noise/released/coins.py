r"""Exact coins and exact choices from operating-system entropy.

As in `exact_normal`, a uniform number U in [0, 1) has infinitely many binary digits, of which as many are
read as are needed. After b of them U lies in ``[w, w + 1) / 2^b``.

* ``coins``: ``U < c`` with ``c = 1 / (1 + others e^{-log_odds})``. c is irrational (or, at log_odds 0, a
  fraction); ``floor(2^b c)`` is computed in integers, every operation rounded outwards at both ends. A word
  below it says yes, a word above it says no, and only a word equal to it needs more digits.
* ``choices``: ``floor(n U)``, each of 0..n-1 with probability 1/n; more digits where ``[w, w + 1) n / 2^b``
  holds a whole number inside.

Guarantees:
    The probabilities are exact to within 2^-400, if the entropy is uniform: reading ends after 450 digits.
Edges:
    Time depends on the noise alone; about one number in 2^64 / n is read further than 64 digits.
"""

from fractions import Fraction
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from dp_forward.errors import refuse_if
from dp_forward.noise.released.exact_normal import Entropy, fresh_bytes, series_bounds
from dp_forward.privacy import checks

_WORD = 64
_LONGEST = 450
_MOST_CHOICES = 1 << 32

Words = NDArray[np.uint64]


def words(entropy: Entropy, size: int) -> Words:
    """``size`` fresh words of 64 uniform bits."""
    return np.frombuffer(fresh_bytes(entropy, 8 * size), dtype="<u8")


def coins(size: int, *, log_odds: float, entropy: Entropy, others: int = 1) -> NDArray[np.bool_]:
    """Independent coins that are true with probability ``1 / (1 + others e^-log_odds)``."""
    first = words(entropy, size)
    edge = np.uint64(chance_floor(log_odds, others, _WORD))
    heads = first < edge
    for i in np.flatnonzero(first == edge):
        heads[i] = _long_coin(int(first[i]), log_odds, others, entropy)
    return np.asarray(heads)


def _long_coin(word: int, log_odds: float, others: int, entropy: Entropy) -> bool:
    for digits in range(2 * _WORD, _LONGEST + _WORD, _WORD):
        word = _longer(word, entropy)
        edge = chance_floor(log_odds, others, digits)
        if word != edge:
            return word < edge
    return False


def choices(size: int, *, among: int, entropy: Entropy) -> NDArray[np.int64]:
    """Independent whole numbers, uniform in 0..among-1."""
    among = checks.count("among", among, remedy="There must be something to choose from.")
    refuse_if(among > _MOST_CHOICES, "among", f"be at most {_MOST_CHOICES}", among, "Use fewer labels.")
    first, n = words(entropy, size), np.uint64(among)
    half = np.uint64(32)
    high, low = first >> half, first & np.uint64(0xFFFFFFFF)
    chosen = ((high * n + (low * n >> half)) >> half).astype(np.int64)
    # n w modulo 2^64: a whole number lies inside [n w, n (w + 1)) / 2^64 where less than n is missing.
    for i in np.flatnonzero(first * n > np.uint64((1 << _WORD) - among)):
        chosen[i] = _long_choice(int(first[i]), among, entropy)
    return chosen


def _long_choice(word: int, among: int, entropy: Entropy) -> int:
    for digits in range(2 * _WORD, _LONGEST + _WORD, _WORD):
        word = _longer(word, entropy)
        chosen = word * among >> digits
        if chosen == ((word + 1) * among - 1) >> digits:
            break
    return chosen


def _longer(word: int, entropy: Entropy) -> int:
    return (word << _WORD) | int.from_bytes(fresh_bytes(entropy, _WORD // 8), "little")


@lru_cache(maxsize=256)
def chance_floor(log_odds: float, others: int, digits: int) -> int:
    """``floor(2^digits / (1 + others e^-log_odds))``, exactly."""
    y = Fraction(log_odds)
    if y > digits + others.bit_length():
        return (1 << digits) - 1  # 1 - c < others e^-y < 2^-digits
    if y < -digits:
        return 0  # c < e^y < 2^-digits
    guard = 64
    while True:
        bits = digits + guard
        # e^y = 1 + y + y^2/2 + ...: the ratios of its terms are 2y/2, 2y/4, 2y/6, ...
        bounds = series_bounds((1 << bits, 1 << bits), 2 * abs(y), 2)
        floors = {_chance(e, y >= 0, others, bits) >> guard for e in bounds}
        if len(floors) == 1:
            return floors.pop()
        guard *= 2


def _chance(exp: int, positive: bool, others: int, bits: int) -> int:
    """``floor(2^bits c)`` where ``exp / 2^bits`` stands for e^|log_odds|; monotone in exp."""
    if positive:
        return (exp << bits) // (exp + (others << bits))
    return (1 << 2 * bits) // ((1 << bits) + others * exp)
