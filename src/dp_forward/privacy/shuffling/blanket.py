r"""Amplification by shuffling: the privacy blanket of PrivUnit, randomized response and their products.

The lemma (Balle, Bell, Gascon and Nissim 2019, Lemma 5.1). Let ``R_x >= gamma omega`` for every input x, with
a distribution omega, the blanket. N users send one release each through a shuffler, the replaced one
included. With ``M ~ Bin(N, gamma)`` and independent ``Y_i ~ omega``, replacing x by x' costs at most

.. math:: \delta(\varepsilon) \le \frac{1}{\gamma N}\, E\Big[\Big(\sum_{i \le M} L_i\Big)_+\Big],\qquad
          L_i = \frac{R_x(Y_i) - e^\varepsilon R_{x'}(Y_i)}{\omega(Y_i)}.

Proof. Each of the N - 1 others draws from omega with probability gamma, whatever the input, and else from
what is left of R. Hand the attacker the latter releases, and the number m of the former. The other m + 1, in
random order, have the density ``prod omega(y_j)`` times the mean of ``R_x(y_i) / omega(y_i)``, so given m the
divergence is ``E[(L_1 + ... + L_{m+1})_+] / (m + 1)``. Since ``C(N-1, m) gamma^m / (m+1)`` is ``C(N, m+1)
gamma^(m+1) / (gamma N)``, the mean over ``m ~ Bin(N-1, gamma)`` is the right side.

*Two levels.* Relative to omega, the densities here are ``a = gamma e^eps0`` on a set that belongs to the
input (its cap, of mass c) and ``b = gamma`` elsewhere, so ``gamma = 1 / (1 + c (e^eps0 - 1))``. PrivUnit:
omega is N(0, I), ``c = 1 - Phi(t)``. K-ary response: omega is uniform, ``c = 1/K``. Subset selection of d
among K: omega is uniform over subsets, ``c = d/K``.

*The worst pair.* Let s be the mass of x's cap outside that of x' (and the other way round: equal masses).
Then L is A (x's cap only), B (that of x' only), C (both) or D (neither) with masses s, s, c - s, 1 - c - s.
Times any ``V, V' >= 0`` (the densities of independent further factors, on which one conditions),
``A + B = C + D``, ``A - C = e^eps (a - b) V' >= 0`` and ``A - D = (a - b) V >= 0``. So a larger s moves equal
mass from C and D to A and B: a mean-preserving spread. Convex order survives independent sums of a random
number of terms, so the bound grows with s, factor by factor: opposite inputs are the worst (PrivUnit:
``s = min(c, 1 - c)``), and two different labels (``s = c``; for subsets ``c (K - d) / (K - 1)``). A label
outside the top k of a prior is answered by a mixture of the k rows, in which the bound is convex. A larger
eps0 with the same c is worse, too: the smaller one is a mixture of it with omega. The pair (x, x') is
exchangeable, as two caps have one mass, so the bound is that of both directions.

*Products.* A text and its label, several rows, several fresh releases in one bundle: densities, blankets and
gammas multiply. Shuffling the releases one by one is post-processing of shuffling the bundles.

How it is computed. A user who does not draw from the blanket adds 0. So ``delta <= E[(Z_1 + ... + Z_N)_+] /
N`` with independent Z: 0 with probability 1 - gamma, else ``X - e^eps X'``, where X and X' are e to the sum
of the epsilons whose caps hold the draw. Few values. Each is split between its neighbours on a grid with its
mean kept, again a mean-preserving spread, hence never too small. The N-fold sum is one power of a Fourier
transform, tilted by ``e^(theta Z)`` with theta at the minimum of the moment function: the sum then lies
around 0, where delta is decided, and rounding is small relative to delta, however small that is.

Guarantees:
    Every step is on the safe side. Values are rounded up; what lies above the window (Chernoff) and the
    rounding of the transform are added to delta; what wraps around only adds; masses are right to 5e-14, and
    ``e^(5e-14 N)`` is paid for it. The slack: the grid costs about 5e-4 of ``log(1 / delta)`` (where
    `_MOST_POINTS` allow it), that is 2.5e-4 of epsilon among many and up to 1e-3 of it among few hundred or
    at a local epsilon above 5; the search ends within 1e-4; all else is far below.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

import numpy as np

from dp_forward.privacy import checks
from dp_forward.privacy.pure_loss import ThreeLevelLoss
from dp_forward.privacy.shuffling.local_curve import Curve, Floats
from dp_forward.privacy.shuffling.sampler import sampler_epsilon
from dp_forward.privacy.solve import last_safe, log_gap

_MOST_LOCAL, _MOST_CAP, _MOST_ATOMS = 30.0, 0.99, 4096
"""Beyond: nobody hides another, what lies outside a cap is not known to `_MASSES`, and it takes too long."""
ROUNDS: Final = "Use 1 for a single batch, or the number of batches that each user has a release in."
_MOST_USERS: Final = 10**9  # more are not counted: fewer are on the safe side
_LEAST_POINTS, _MOST_COARSE, _MOST_POINTS = 2**12, 2**16, 2**20
_COARSE, _FINE = 5e-3, 5e-4
"""The share by which the grid may raise the variance, for finding a place and for the answer."""
_OUTSIDE: Final = 20.0  # minus the logarithm of the tilted chance to lie above the window, or below
_MASSES, _VALUES, _DIFFERENCE = 5e-14, 2e-14, 1e-15
"""Relative errors of a mass and of a value, absolute one of the difference of two masses."""
_ROUNDING, _LOST, _TINY = 2.0**-49, 1e-35, 1e-300
"""Of a transform, per frequency; a power of a frequency that counts as 0; what underflows."""


@dataclass(frozen=True)
class Blanket:
    """What one of ``users`` releases adds at the worst pair: ``first - e^epsilon second``, or nothing."""

    first: Floats
    second: Floats
    chances: Floats
    nothing: float
    users: int
    local: float

    @classmethod
    def of(cls, losses: Sequence[ThreeLevelLoss], *, users: int) -> Self | None:
        """The product of these parts; None where a cap is not known, or the product too large."""
        losses = [loss for loss in losses if loss.epsilon > 0]
        sizes = math.prod((loss.copies + 1) ** 2 for loss in losses)
        total = math.fsum(loss.total for loss in losses)
        if sizes > _MOST_ATOMS or total > _MOST_LOCAL:
            return None
        logs, chances, log_gamma = np.zeros((2, 1)), np.ones(1), 0.0
        for loss in losses:
            if loss.cap is None or loss.cap > _MOST_CAP:
                return None
            levels, masses = _atoms(loss, loss.cap)
            logs = (logs[:, :, None] + levels[:, None]).reshape(2, -1)
            chances = np.outer(chances, masses).ravel()
            log_gamma -= loss.copies * math.log1p(loss.cap * math.expm1(loss.epsilon))
        first, second = np.exp(logs)
        chances = chances * math.exp(log_gamma)
        return cls(first, second, chances, -math.expm1(log_gamma), min(users, _MOST_USERS), total)

    def delta(self, epsilon: float, *, spread: float = _FINE) -> float:
        """The bound at ``epsilon``, rounded up, on a grid that raises the variance by this share at most."""
        values = np.append(self.first - math.exp(epsilon) * self.second, 0.0)
        values += _VALUES * np.append(self.first + math.exp(epsilon) * self.second, 0.0)
        chances = np.append(self.chances, self.nothing)
        local = float(chances @ np.maximum(values, 0.0)) * (1 + 1e-11)
        if epsilon >= self.local or local == 0:
            return 0.0
        with np.errstate(all="ignore"):
            value = _positive_part(values, chances, self.users, spread) / self.users
        if not math.isfinite(value):  # beyond what floats hold
            return min(1.0, local)
        # (sum)_+ is at most the sum of the parts: nobody to hide among costs the local delta.
        return min(1.0, local, value * math.exp(_MASSES * self.users) * (1 + 1e-11) + _TINY)


def _atoms(loss: ThreeLevelLoss, cap: float) -> tuple[Floats, Floats]:
    """Under the blanket: the logarithms of both densities over gamma, and their masses."""
    # A larger s is worse, so it may be rounded up.
    mass = loss.mass * math.exp(-loss.epsilon) * (1 + cap * math.expm1(loss.epsilon))
    apart = min(cap, 1 - cap, mass * (1 + 1e-11))
    masses = np.ones((1, 1))
    for _ in range(loss.copies):
        neither, one, both = (
            weight * masses for weight in (1 - cap - apart + _DIFFERENCE, apart, cap - apart + _DIFFERENCE)
        )
        masses = np.pad(neither, (0, 1)) + np.pad(both, (1, 0))
        masses += np.pad(one, ((1, 0), (0, 1))) + np.pad(one, ((0, 1), (1, 0)))
    return np.asarray(loss.epsilon * np.indices(masses.shape).reshape(2, -1), np.float64), masses.ravel()


def _log_moments(values: Floats, chances: Floats, orders: Floats) -> Floats:
    exponents = np.multiply.outer(orders, values)
    top = exponents.max(axis=-1)
    return np.asarray(top + np.log(np.exp(exponents - top[..., None]) @ chances))


def _lowest_moment(values: Floats, chances: Floats) -> float:
    """The order, 0 or more, at which ``E e^(order Z)`` is least: there the tilted mean is 0."""

    def mean(order: float) -> float:
        return float((chances * values) @ np.exp(order * values - (order * values).max()))

    high = 1 / float(np.abs(values).max())
    while mean(high) < 0:
        high *= 2
    return last_safe(mean, safe=high, unsafe=0.0, tolerance=1e-3)


def _window(values: Floats, chances: Floats, tilt: float, users: int) -> tuple[float, float, float]:
    """Two ends that hold the tilted sum, an order that bounds what lies above; only accuracy hangs on it."""
    weights = chances * np.exp(tilt * values - (tilt * values).max())
    deviation = math.sqrt(users * float(weights @ values**2) / float(weights.sum()))
    steps = np.geomspace(0.3, 30, 21) / deviation
    centre = _log_moments(values, chances, np.array(tilt))
    above, below = (
        (_OUTSIDE + users * (_log_moments(values, chances, tilt + sign * steps) - centre)) / steps
        for sign in (1, -1)
    )
    order = tilt + float(steps[np.argmin(above)])
    low = max(-float(below.min()), users * min(0.0, float(values.min())))
    return low, max(min(float(above.min()), users * float(values.max())), 1 / order), order


def _positive_part(values: Floats, chances: Floats, users: int, spread: float) -> float:
    """``E[(Z_1 + ... + Z_users)_+]``, rounded up."""
    tilt = _lowest_moment(values, chances)
    low, high, order = _window(values, chances, tilt, users)
    points, most = _LEAST_POINTS // 2, _MOST_POINTS if spread <= _FINE else _MOST_COARSE
    weights = chances * np.exp(tilt * values - (tilt * values).max())
    # What rounding costs is about users * tilt^2 * raised / 2 in log(delta), of which this is a share.
    exponent = max(1.0, -users * float(_log_moments(values, chances, np.array(tilt))))
    second = float(weights @ values**2)
    cost = users * tilt**2 * second / float(weights.sum()) / 2
    allowed, raised = spread * second / max(1.0, cost / exponent), math.inf
    while raised > allowed and points < most:
        points *= 2
        step = (high - low) / (points - 4)
        places = values / step + 4e-16 * np.abs(values / step)  # rounded up; exact from here on
        whole = np.floor(places)
        rest = places - whole
        raised = step * step * float(weights @ (rest * (1 - rest)))
    index = np.concatenate((whole, whole + 1)).astype(np.int64)
    masses = np.concatenate((chances * (1 - rest), chances * rest))
    on_grid = np.asarray(step * index, np.float64)
    log_tilted, log_above = _log_moments(on_grid, masses, np.array([tilt, order]))
    circle, tilted = np.zeros(points), masses * np.exp(tilt * on_grid - log_tilted)
    np.add.at(circle, index % points, tilted)
    power, rounding = _power(circle, users)
    last = math.floor(low / step) + points - 1
    above = np.arange(1, last + 1)
    # One exponent: of two factors one may underflow where the other is cut. Cut at 300, `rounding` alone
    # makes the result larger than any local delta.
    gains = above * np.exp(np.minimum(users * log_tilted - tilt * step * above, 300.0))
    inside = max(0.0, float(power[above % points] @ gains)) + rounding * float(np.linalg.norm(gains))
    # Above the window: x <= H e^(order (x - H)) for x >= H, as order * H >= 1.
    log_beyond = math.log(step * last) + users * log_above - order * step * last
    beyond = 0.0 if last >= users * int(index.max()) else math.exp(min(log_beyond, 700.0))
    return step * inside + beyond


def _power(circle: Floats, users: int) -> tuple[Floats, float]:
    """The ``users``-fold sum on the circle, and the Euclidean norm of its rounding error (see `sampler`)."""
    frequencies = np.fft.rfft(circle)
    kept = np.abs(frequencies) > _LOST ** (1 / users)
    power = np.zeros_like(frequencies)
    power[kept] = np.exp(users * np.log(frequencies[kept]))
    norm = math.sqrt(2 * float((np.abs(power) ** 2).sum()) / circle.size)
    return np.fft.irfft(power, circle.size), _ROUNDING * (users + 64) * norm + _LOST


def blanket_epsilon(
    delta: float, *, losses: Sequence[ThreeLevelLoss], users: int, rounds: int = 1
) -> float | None:
    """The least central epsilon that the blanket proves at ``delta`` for such releases, rounded up.

    With ``rounds``, each user sends a fresh one in each of so many batches, which are composed exactly.

    Guarantees:
        The bound was evaluated at the result and is at most ``delta``, or the result is the local epsilon.
    Edges:
        None where the blanket is not known, or no blanket hides anybody; see `Blanket.of`.
    """
    delta = checks.delta(delta, zero=True)
    users = checks.count("users", users, remedy="Pass the number of people who are shuffled together.")
    rounds = checks.count("rounds", rounds, remedy=ROUNDS)
    blanket = Blanket.of(losses, users=users)
    if blanket is None or delta == 0 or blanket.local == 0:
        return None
    if rounds > 1:
        curve = batch_curve(blanket, delta=delta / rounds)
        return sampler_epsilon(delta, users=1, steps=rounds, local_delta=curve)

    def slack(epsilon: float, spread: float) -> float:
        return log_gap(delta, blanket.delta(epsilon, spread=spread))

    near = last_safe(lambda e: slack(e, _COARSE), safe=blanket.local, unsafe=0.0, tolerance=1e-3)
    if near > 0.999 * blanket.local:
        return near  # nothing to gain by a finer grid
    return last_safe(lambda e: slack(e, _FINE), safe=near, unsafe=0.99 * near, tolerance=5e-5)


def batch_curve(blanket: Blanket, *, delta: float) -> Curve:
    """The curve of one batch at every epsilon from 0 on, never too small, for composing.

    A divergence is convex in ``e^epsilon``, so chords between points of it, or above it, lie above it. The
    points end where the curve has come down to a share of ``delta`` that does not matter.
    """

    def slack(epsilon: float) -> float:
        return math.log(1e-10 * delta) - math.log(blanket.delta(epsilon, spread=_COARSE) + _TINY)

    end = last_safe(slack, safe=blanket.local, unsafe=0.0, tolerance=1e-2)
    nodes = np.append(np.linspace(0.0, end, 96), blanket.local)
    heights = np.minimum.accumulate([blanket.delta(node, spread=_COARSE / 3) for node in nodes])
    places = np.expm1(nodes)

    def curve(epsilon: Floats) -> Floats:
        inside = np.expm1(np.minimum(epsilon, blanket.local))
        return np.asarray(np.interp(inside, places, heights) * (1 + 1e-12))

    return curve
