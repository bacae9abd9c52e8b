r"""Noise check: does the spread of a payload fit the noise that it claims?

It finds the client that forgot its noise.

In units of the noise's deviation a release is ``y = a + z + r``: the bounded matrix a, noise z, and rounding
with every ``|r_i| <= step / (2 sigma) = u <= 1/16``. For a few fixed projections P of rank k (all entries,
each row, the mean of each column) ``|P y|`` must lie between two limits, which hold for *every* text:

* *Gaussian.* ``|P z|^2`` is chi-square with k degrees. With the signal it is noncentral, which is only larger
  (in the stochastic order), and ``|P a| <= A``. So with chi-square quantiles l and h,

  .. math:: \sqrt{l} - |P r| \le |P y| \le \sqrt{h} + A + |P r| .

* *PrivUnit.* The density of V is at most ``R = max(p/(1-q), (1-p)/q)`` times that of N(0, I), whatever x is.
  An event of probability r/R under N(0, I) has at most r under V: central quantiles, and no signal. By row,
  the rows are independent vectors with an R each, so this is used for single rows only. The length of a whole
  vector has a better lower limit: ``|V|^2 = s^2 + |G - <x, G> x|^2``, the latter chi-square with D - 1; that
  of n rows together, chi-square with D - n.

``|P r|`` is at most ``u sqrt(k)`` for entries as they are, ``u sqrt(rows * width)`` for means of columns.

*Clamping* matters with int8 alone. With L the largest integer: if no ``|z_i|`` passes L, which fails with
``2 D Q(L)`` at most, clamping moves an entry by no more than ``|a_i|``. Then A counts twice, and the lower
limits hold as they are. For PrivUnit: if no ``|V_i|`` passes L (``2 D Q(L) R``), nothing is clamped.
Where so many entries cross that ``M = 2 D Q(L)`` is no longer rare, one entry may pass L, up to L' with
``2 D Q(L') = 1e-11``: all limits are moved outwards by L' - L, and two such entries have less than M^2 / 2.

*Scores.* Where too few numbers cross for one release to tell, several do. A bounded matrix without noise is
never longer than ``B = |a| + |r|``. An honest release is that short with a probability of at most p, whatever
its text and whatever came before: under Gaussian noise by the central chi-square (of D - n degrees for n
vectors of PrivUnit), for one vector of PrivUnit by its own law, ``s^2 + chi^2_{D-1} <= (B + |P r|)^2``,
summed over s from above. A sender of whose releases every second lacks its noise is short with (1 + p) / 2.
The likelihood ratio of a release under that and under honesty is ``e = (1 + p) / (2 p)`` if it is short and
1/2 if not, and honest ones have ``E[e] <= 1`` given all before. A score adds up log e, is never below 0, and
refuses at log A. By induction its exponential is at most ``max(1, R_i)`` with ``R_i = (1 + R_{i-1}) e_i``,
and ``R_i + n - i`` is a supermartingale from n: so (Ville) n honest releases reach A with n / A at most.
A is 1e15: among a million honest releases of a sender a refusal has 1e-9.

*K-ary response* has no spread: one entry is 1 and the others are 0 (`OneHotCheck`). No score tells there: any
row of decisions is what honest answers to some texts look like, and the server does not know the texts.

Guarantees:
    An honest release is refused with a probability of at most `NoiseCheck.false_refusals`, which is below
    1e-9: a union bound over all tests and clamping, with every quantile checked by its own tail. A score adds
    1e-9 for every million releases of a sender, if all that is counted together is honest.
    A client that never adds noise is refused at its `frames`-th release in a process at the latest, if it is
    counted by itself. Honest releases that are counted with it delay that, each by the log 2 that it takes
    off the score, and reset nothing: where ``gain`` is above log 2, one of them for each of its own does not
    hide it.
Edges:
    Below about 60 entries one release does not tell; then scores are kept, in memory only: in each process,
    at each epsilon, and for each user, or where users are not known for each address (of IPv6: its /64), of
    the last 4,096 that had one. Behind a proxy all have one address. `frames` is None where 1,000 releases do
    not tell. A retry counts once while its id is among the last 65,536 of short releases.
    It is no defence against a client that lies: noise can be faked, and who fakes it harms nobody but
    himself. An answer of K-ary response looks like a bare decision, so there only a client that sends its
    scores is found. It reads what the server was given anyway, so it costs no privacy.
Paper: not in it.
"""

import logging
import math
import threading
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammainc, gammaincc, gammainccinv, gammaincinv, log_ndtr, ndtr, ndtri

from dp_forward.errors import InvalidInput
from dp_forward.privacy import KaryResponse, Mechanism, NormBound, PrivUnit
from dp_forward.service.server.request_limits import Refused

_log = logging.getLogger("dp_forward.service")

MOST_FALSE_REFUSALS: Final = 1e-9
_FOR_TESTS: Final = 4e-10  # what the tests may use up; the rest is left for clamping
_SAFE: Final = 1e-6
"""How far a quantile is moved outwards, relatively: far beyond its error, far below what matters."""
_RARE: Final = 1e-11
_SMALLEST: Final = 1e-290
_LIMIT: Final = math.log(1e15)  # that of a score
_MOST_FRAMES: Final = 1000
_MOST_SENDERS, _MOST_IDS = 4096, 1 << 16  # remembered


@dataclass(frozen=True, slots=True)
class Limits:
    """Where ``|P y|`` must lie, and how often an honest one does not, at most."""

    low: float
    high: float
    rate: float


@dataclass(frozen=True)
class NoiseCheck:
    """The test for one shape and one mechanism; made once, run for every frame."""

    rows: int
    per_deviation: float  # step / sigma
    whole: Limits
    each_row: Limits | None
    column_means: Limits | None
    clamped: float  # the probability that clamping matters
    frames: int | None  # the bounded matrix itself is refused the so-manieth time; None: never
    bare: float  # without noise no matrix is longer
    gain: float  # what a release as short as that adds to a score
    scores: OrderedDict[str, float] = field(default_factory=OrderedDict, compare=False, repr=False)
    """Those above 0, by sender."""
    _ids: OrderedDict[bytes, None] = field(default_factory=OrderedDict, compare=False, repr=False)
    _lock: Any = field(default_factory=threading.Lock, compare=False, repr=False)

    @classmethod
    def of(cls, mechanism: Mechanism, *, shape: tuple[int, int], step: float, bits: int) -> Self:
        """The test for releases of this mechanism, with this step, in these bits."""
        rows, width = shape
        pure, sigma = isinstance(mechanism, PrivUnit), getattr(mechanism, "sigma", None)
        bound = getattr(mechanism if pure else getattr(mechanism, "sensitivity", None), "bound", None)
        if not isinstance(sigma, float) or not isinstance(bound, NormBound):
            raise InvalidInput("mechanism", "be one that is released", mechanism.name, "Use privunit.")
        by_row, unit, length = bound.over == "row", step / sigma, bound.norm / sigma
        log_ratio = _log_ratio(mechanism) if isinstance(mechanism, PrivUnit) else 0.0
        signal = 0.0 if pure else length * (2 if bits == 8 else 1)
        beyond, clamped = _clamping(rows * width, ((1 << (bits - 1)) - 1) * unit, log_ratio)
        vectors, rounding = math.sqrt(rows) if by_row else 1.0, 0.5 * unit * (1 + 1e-6)
        of_row, of_all = rounding * math.sqrt(width), rounding * math.sqrt(rows * width)
        apart = pure and by_row and rows > 1  # the ratio of all rows together is no use
        tests = 1 if rows == 1 else 2 if apart else 3
        limits = partial(_limits, log_ratio=log_ratio, beyond=beyond, rate=_FOR_TESTS / (2 * tests))
        joint = partial(limits, signal=signal * vectors, rounding=of_all)
        many = (rows if by_row else 1) if pure else None
        whole = joint(rows * width, log_ratio=math.inf if apart else log_ratio, vectors=many)
        by_one = partial(limits, width, signal=signal, rounding=of_row, times=rows)
        row = by_one(vectors=1 if apart else None) if tests > 1 else None
        mean = joint(width) if tests > 2 else None
        # Without noise the length is the bound's, but for the rounding.
        bare = length * vectors + of_all
        tells = whole.low > bare or (row is not None and by_row and row.low > length + of_row)
        rate = clamped + _short_rate(mechanism, rows * width, many or 0, bare + of_all + beyond)
        gain = math.log((1 + rate) / (2 * rate)) if 0 < rate < 1 else 0.0
        late = gain * _MOST_FRAMES < _LIMIT
        frames = 1 if tells else None if late else max(2, math.ceil(_LIMIT / gain))
        check = cls(rows, unit, whole, row, mean, clamped, frames, bare, gain)
        if not check.false_refusals < MOST_FALSE_REFUSALS:
            rule = f"hold {rows} x {width} entries without clamping"
            raise InvalidInput("bits", rule, bits, "Use bits=16 for so many.")
        return check

    @property
    def false_refusals(self) -> float:
        """At most so often is an honest release refused."""
        tests = (self.whole, self.each_row, self.column_means)
        return self.clamped + sum(limits.rate for limits in tests if limits is not None)

    def __call__(self, values: NDArray[Any], request: bytes = b"", sender: str = "") -> None:
        """Nothing for a spread that fits; else `Refused` with the code no_noise or too_much_noise."""
        exact = values.astype(np.int64)
        by_row = np.sum(exact * exact, axis=1)
        if self.frames is not None and self.frames > 1:
            short = math.sqrt(by_row.sum()) * self.per_deviation <= self.bare
            self._count(short, request, sender)
        self._compare(self.whole, np.sum(by_row, keepdims=True), "matrix")
        self._compare(self.each_row, by_row, "row")
        if self.column_means is not None:
            means = np.sum(exact, axis=0).astype(np.float64)
            self._compare(self.column_means, np.sum(means * means, keepdims=True) / self.rows, "mean")

    def _count(self, short: bool, request: bytes, sender: str) -> None:
        with self._lock:  # records are read in threads
            change = -math.log(2) if not short else 0.0 if request in self._ids else self.gain
            score = min(max(0.0, self.scores.pop(sender, 0.0) + change), _LIMIT)
            if score:
                self.scores[sender] = score
            if short:
                self._ids[request] = None
            for memory, most in ((self.scores, _MOST_SENDERS), (self._ids, _MOST_IDS)):
                if len(memory) > most:
                    memory.popitem(last=False)
        if short and score == _LIMIT:
            raise Refused("no_noise", "Too many releases are as short as they would be without noise.")

    def _compare(self, limits: Limits | None, squares: NDArray[Any], what: str) -> None:
        if limits is None:
            return
        lengths = np.sqrt(squares.astype(np.float64)) * self.per_deviation
        if lengths.min() < limits.low:
            raise Refused("no_noise", f"The {what} has too little spread for the noise that it claims.")
        if lengths.max() > limits.high:
            code = "no_noise" if what == "mean" else "too_much_noise"
            raise Refused(code, f"The {what} has a spread that the noise it claims does not have.")


@dataclass(frozen=True, slots=True)
class OneHotCheck:
    """The test for K-ary response: refuses no honest release, and cannot tell an answer from a decision."""

    frames: None = None
    false_refusals: float = 0.0

    def __call__(self, values: NDArray[Any], request: bytes = b"", sender: str = "") -> None:
        """Nothing for a row with one 1 and else 0; else `Refused` with the code no_noise."""
        if np.count_nonzero(values) != 1 or values.max() != 1:
            raise Refused("no_noise", "An answer among K labels is one 1, and 0 in all other places.")


def noise_check(
    mechanism: Mechanism, *, shape: tuple[int, int], step: float, bits: int
) -> NoiseCheck | OneHotCheck:
    """The test for releases of this mechanism."""
    if isinstance(mechanism, KaryResponse):
        return OneHotCheck()
    return NoiseCheck.of(mechanism, shape=shape, step=step, bits=bits)


def warn_if_blind(checks: Iterable[NoiseCheck | OneHotCheck]) -> None:
    """Log when a client without noise is noticed late, or perhaps never."""
    frames = [check.frames for check in checks]
    if None in frames:
        _log.warning("so few numbers cross that a client without noise may not be noticed")
    elif (latest := max(filter(None, frames))) > 1:
        _log.warning("a client without noise is noticed after %d releases", latest)


def _short_rate(mechanism: Mechanism, degrees: int, vectors: int, reach: float) -> float:
    """At most how often an honest release, before its rounding, is no longer than ``reach``."""
    if not isinstance(mechanism, PrivUnit) or vectors != 1:
        return float(gammainc(0.5 * (degrees - vectors), reach**2 / 2)) * (1 + _SAFE)
    t, (inside, outside) = mechanism.threshold, mechanism.log_levels
    ends = np.union1d(np.linspace(-reach, reach, 2001), [0.0, min(max(t, -reach), reach)])
    low, high = ends[:-1], ends[1:]
    mass = np.where(low >= 0, ndtr(-low) - ndtr(-high), ndtr(high) - ndtr(low))
    density = np.exp(np.where(low >= t, inside, outside))
    rest = reach**2 - np.minimum(abs(low), abs(high)) ** 2  # the largest of each interval
    return float(np.sum(mass * density * gammainc(0.5 * (degrees - 1), rest / 2))) * (1 + _SAFE)


def _log_ratio(mechanism: PrivUnit) -> float:
    """log R: how much denser than N(0, I) a raw vector can be."""
    return max(0.0, *mechanism.log_levels) + 1e-9


def _limits(
    degrees: int,
    *,
    signal: float,
    rounding: float,
    log_ratio: float,
    beyond: float,
    rate: float,
    times: int = 1,
    vectors: int | None = None,
) -> Limits:
    """The limits of a projection of rank ``degrees``, looked at ``times`` times; each end at ``rate`` in all.

    ``vectors`` is for the length of whole vectors of PrivUnit: how many there are.
    """
    each = rate / times
    high, above = _quantile(degrees, each, log_ratio, upper=True)
    free, ratio = (degrees, log_ratio) if vectors is None else (degrees - vectors, 0.0)
    low, below = _quantile(free, each, ratio, upper=False)
    low = math.sqrt(low) - rounding - beyond
    if low <= 0:
        low, below = 0.0, 0.0
    return Limits(low, math.sqrt(high) + signal + rounding + beyond, (below + above) * times)


def _quantile(degrees: int, rate: float, log_ratio: float, *, upper: bool) -> tuple[float, float]:
    """A limit of a chi-square, and the rate at which honest ones lie beyond it.

    A root-finder's result is checked by the tail itself, and given up where it is on the wrong side.
    """
    invert, integrate = (gammainccinv, gammaincc) if upper else (gammaincinv, gammainc)
    none = (math.inf if upper else 0.0, 0.0)
    tail = rate * math.exp(-min(log_ratio, 700.0))
    if tail < _SMALLEST or degrees < 1:
        return none
    limit = 2 * float(invert(0.5 * degrees, tail)) * (1 + _SAFE if upper else 1 - _SAFE)
    beyond = float(integrate(0.5 * degrees, limit / 2))
    return (limit, beyond * math.exp(log_ratio)) if beyond <= tail else none


def _clamping(entries: int, largest: float, log_ratio: float) -> tuple[float, float]:
    """How far beyond the largest integer one entry may lie, and how rarely that is not enough."""
    expected = math.exp(min(0.0, math.log(2 * entries) + float(log_ndtr(-largest)) + log_ratio))
    if expected <= _RARE or log_ratio > 0:
        return 0.0, expected
    return float(-ndtri(_RARE / (2 * entries))) * (1 + _SAFE) - largest, expected**2 / 2 + _RARE
