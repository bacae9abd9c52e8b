r"""Lattice attack on floating-point noise: which low bits could a draw have had?

A float sampler draws g on the grid of floats and scales it: its noise is one of the floats ``fl(sigma g)``.
For ``sigma = f 2^e`` with f in [1, 2), these leave out a share ``1 - 1/f`` of all floats in every octave from
f up to 2. A sum that falls into a finer octave than its noise has gaps as well, whatever sigma is. So what
was added can be looked at:

* *Gaussian.* ``y = fl(x + fl(sigma g))``, or with one rounding where a machine fuses the two. If no g
  explains an entry y_i under a candidate x, then x was not the input. The true one explains every entry;
  another one would have to fit thousands of times by chance.
* *PrivUnit.* ``y = fl(fl(sigma g) + c x)`` with one unknown c for all entries. Where x_i = 0 the draw stands
  bare. Rows of padding are zero, so this reads off how long a text is, and tells any two texts apart whose
  zeros lie elsewhere.

Both are attacks on an implementation, not on a mechanism: they succeed at any epsilon. Against the integers
of a `Released` they find nothing: those are a function of the ideal real-valued release (`noise.released`).
What is left there is the best attack that the promise allows: the likelihood of the candidates
(`gaussian_likelihood`, `privunit_likelihood`), up to the ceiling that the mechanism states.

`guess` plays the game of two candidates with any of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr
from scipy.stats import binom

from dp_forward.attacks.attack_result import exact_interval
from dp_forward.errors import InvalidInput
from dp_forward.noise import Released
from dp_forward.noise.released.grid import Grid, quantise
from dp_forward.privacy import AnalyticGaussian, MatrixGaussian, NormBound, PrivUnit
from dp_forward.privacy.checks import count

__all__ = [
    "Guesses",
    "Score",
    "gaussian_lattice",
    "gaussian_likelihood",
    "guess",
    "privunit_lattice",
    "privunit_likelihood",
    "unreachable",
    "worst_pair",
]

Matrix = NDArray[Any]
Score = Callable[[Matrix | Released, Matrix], float]
"""How well a candidate (a bounded matrix) explains what was seen; larger is likelier."""

_BEYOND_CHANCE = 1e-4
_NEVER = 1e6
"""What one impossible entry costs a candidate: more than any sum of ordinary logarithms."""


@dataclass(frozen=True, slots=True)
class Guesses:
    """How often an attacker named the right one of two candidates, and how often the best one could."""

    attack: str
    trials: int
    right: int
    success: float
    chance: float
    low: float
    high: float
    """Clopper and Pearson's 95 % interval of the success."""
    ceiling: float
    """By the promise of the mechanism, for any attacker whatever."""

    @property
    def breaks_the_promise(self) -> bool:
        """Whether more was learnt than the promise allows: an honest one says so once in ten thousand."""
        return bool(binom.sf(self.right - 1, self.trials, self.ceiling) < _BEYOND_CHANCE)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def guess(
    candidates: tuple[Matrix, Matrix],
    draw: Callable[[Matrix], Matrix | Released],
    score: Score,
    *,
    attack: str,
    ceiling: float,
    trials: int = 200,
    seed: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> Guesses:
    """A fair coin picks a candidate, ``draw`` releases it, ``score`` names one; ``trials`` times.

    Guarantees:
        The coin and the draw are independent of each other; a tie is decided by another coin.
    Edges:
        ``seed`` is that of the coins alone. ``progress`` is called with the trials so far.
    """
    trials = count("trials", trials, remedy="Use 200.")
    if candidates[0].shape != candidates[1].shape:
        raise InvalidInput(
            "candidates", "have one shape", "two", "Pad both texts to the length n, as a front does."
        )
    rng, right = np.random.default_rng(seed), 0
    for trial in range(trials):
        truth = int(rng.integers(2))
        seen = draw(candidates[truth])
        first, second = (score(seen, candidate) for candidate in candidates)
        named = int(rng.integers(2)) if first == second else int(second > first)
        right += named == truth
        if progress is not None:
            progress(trial + 1)
    low, high = exact_interval(right, trials)
    return Guesses(attack, trials, right, right / trials, 0.5, low, high, ceiling)


def worst_pair(
    bound: NormBound, *, rows: int, width: int, dtype: type = np.float32, seed: int = 0
) -> tuple[Matrix, Matrix]:
    """Two bounded matrices that are as far apart as any, the first with padding in its lower half.

    The upper halves are opposite to each other; the lower half of the second is a thousandth as large. So
    the pair lies at the full sensitivity, and differs in where its zeros are.
    """
    filled = np.random.default_rng(seed).standard_normal((rows, width))
    half = count("rows", rows, at_least=2, remedy="One half is padding.") // 2
    short, long = filled.copy(), -filled
    short[half:], long[half:] = 0, 1e-3 * filled[half:]
    return bound.apply(short).astype(dtype), bound.apply(long).astype(dtype)


def unreachable(noisy: Matrix, candidate: Matrix, *, sigma: float) -> NDArray[np.bool_]:
    """The entries that no float g explains as ``candidate + sigma g``, with two roundings or with one.

    Guarantees:
        None, for the true candidate, in float32 and in float64, for a sampler of either kind. It is enough to
        look two floats to either side of ``y - x``: if the rounding of y leaves room for no more, the true
        noise is among them; else two neighbours among them both round to y, and of two neighbouring floats
        one is reachable, because ``f < 2``.
    Edges:
        All in the dtype of ``noisy``. One rounding is checked for float32 alone, where float64 can tell.
    """
    kind = noisy.dtype.type
    x, scale = candidate.astype(kind), kind(sigma)
    explained = np.zeros(noisy.shape, dtype=bool)
    with np.errstate(over="ignore", invalid="ignore"):
        for noise in _near(noisy - x):
            possible = np.any([scale * g == noise for g in _near(noise / scale)], axis=0)
            explained |= possible & (x + noise == noisy)
        if kind is np.float32:
            wide, scale_wide = x.astype(np.float64), float(scale)
            for g in _near((noisy - x) / scale):
                explained |= (wide + scale_wide * g.astype(np.float64)).astype(np.float32) == noisy
    return np.asarray(~explained)


def _near(x: Matrix) -> list[Matrix]:
    """x and two floats on either side of it."""
    found = [x]
    for side in (np.inf, -np.inf):
        there = x.dtype.type(side)
        found.append(np.nextafter(x, there))
        found.append(np.nextafter(found[-1], there))
    return found


def gaussian_lattice(sigma: float) -> Score:
    """The candidate with fewer impossible entries."""

    def score(seen: Matrix | Released, candidate: Matrix) -> float:
        return -float(np.sum(unreachable(_floats(seen), candidate, sigma=sigma)))

    return score


def privunit_lattice(sigma: float) -> Score:
    r"""The candidate whose zeros hold bare draws, and whose other entries hold shifted ones.

    The log-likelihood of *which entries are reachable*: where x is zero all must be; elsewhere an entry is
    reachable by accident, as often as a float of its size is. ``sigma`` is the mechanism's.
    """
    # The share of reachable floats among all near sigma, seen on floats that know nothing of it.
    probe = (np.random.default_rng(1).standard_normal(20_000) * sigma).astype(np.float32)
    missed = float(np.mean(unreachable(probe, np.zeros_like(probe), sigma=sigma)))
    by_accident, not_so = math.log1p(-missed), math.log(max(missed, 1e-12))

    def score(seen: Matrix | Released, candidate: Matrix) -> float:
        noisy = _floats(seen)
        bare = unreachable(noisy, np.zeros_like(noisy), sigma=sigma)
        zero = candidate == 0
        impossible, shifted = np.sum(bare & zero), np.sum(bare & ~zero)
        fitting = np.sum(~bare & ~zero)
        return float(-_NEVER * impossible + not_so * shifted + by_accident * fitting)

    return score


def gaussian_likelihood(mechanism: MatrixGaussian | AnalyticGaussian) -> Score:
    """The log-likelihood of what was seen: no attacker can do better.

    Of a `Released`, exactly: every integer is a cell of the real line, the outermost two without an end. Of
    floats, by their density.
    """
    sigma, bound = mechanism.sigma, mechanism.sensitivity.bound
    if not isinstance(bound, NormBound):
        raise InvalidInput("mechanism", "have a norm bound", mechanism.name, "Calibrate it with a bound.")

    def score(seen: Matrix | Released, candidate: Matrix) -> float:
        if not isinstance(seen, Released):
            off = (seen.astype(np.float64) - candidate) / sigma
            return -0.5 * float(np.sum(off * off))
        grid = Grid.for_noise(sigma, norm=bound.norm, bits=seen.bits)
        # The signal as it was released: integers on the fine grid, half of whose step belongs to each cell.
        fine = grid.signal_step
        signal = quantise(candidate, bound=bound, step=fine) * fine + fine / 2
        cells = seen.values.astype(np.float64)
        edge = 1 << (seen.bits - 1)
        low = np.where(cells == -edge, -np.inf, ((cells - 0.5) * grid.step - signal) / sigma)
        high = np.where(cells == edge - 1, np.inf, ((cells + 0.5) * grid.step - signal) / sigma)
        return float(np.sum(_log_mass(low, high)))

    return score


def _log_mass(low: Matrix, high: Matrix) -> Matrix:
    """``log(Phi(high) - Phi(low))``, by the tail that does not cancel."""
    flip = low > 0
    a, b = np.where(flip, -high, low), np.where(flip, -low, high)
    upper = log_ndtr(b)
    return np.asarray(upper + np.log1p(-np.exp(log_ndtr(a) - upper)))


def privunit_likelihood(mechanism: PrivUnit) -> Score:
    """The log-likelihood of what was seen, up to what all candidates share.

    The density is that of N(0, I) times one of two constants, by the side of the cap's plane. (A released
    cell that the plane itself crosses is judged by its middle.)
    """

    def score(seen: Matrix | Released, candidate: Matrix) -> float:
        x = candidate.astype(np.float64)
        raw = _floats(seen).astype(np.float64) / mechanism.sigma
        over = -1 if mechanism.bound.over == "row" else None
        along = np.sum(raw * x, axis=over) / np.sqrt(np.sum(x * x, axis=over))
        return float(np.sum(along >= mechanism.threshold))

    return score


def _floats(seen: Matrix | Released) -> Matrix:
    return seen.as_floats() if isinstance(seen, Released) else seen
