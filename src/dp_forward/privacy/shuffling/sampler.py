r"""Upper bound for fresh releases drawn by an anonymous sampler, the theorem nearest to the paper.

In every step a trusted sampler draws one of ``users`` people uniformly, with replacement, and
passes her fresh release on without her name. Replacing one record changes a step only when its
owner is drawn, with chance ``q = 1 / users``, so (Balle, Barthe and Gaboardi 2018, for
replace-one neighbours)

.. math:: \delta_{step}(\varepsilon) = q\, \delta_{local}\big(\ln(1 + (e^\varepsilon - 1) / q)\big),
          \qquad \delta_{step}(-\varepsilon) = 1 - e^{-\varepsilon}
          + e^{-\varepsilon} \delta_{step}(\varepsilon),

the second because the relation is symmetric. A curve dominates a mechanism; its privacy loss
distribution composes by convolution (Zhu, Dong and Wang 2022).

How it is computed. With ``x = e^epsilon`` the curve is ``max(1 - x, 0)`` plus a part of size
``q``. Connecting its dots on a grid (Doroshenko et al. 2022) gives a distribution that dominates
it; the masses are second differences, so only the small part is differenced (differencing the
whole curve, as general-purpose code does, leaves noise of 1e-16 / interval in each of a million
masses, a million times over). Before the Fourier transform the masses are tilted by ``e^(t loss)``
so that the bulk of the composition lies where delta is decided: rounding is then small relative to
delta, however small delta is.

Everything cut off is added to delta: the loss beyond the grid, the tail beyond the window
(Chernoff), and the rounding of the transform. What wraps around only adds.
"""

import math
from dataclasses import dataclass
from typing import Final, Self

import numpy as np

from dp_forward.privacy import checks
from dp_forward.privacy.shuffling.local_curve import Curve, Floats
from dp_forward.privacy.solve import last_safe, log_gap

_POINTS: Final = 2**20
_COARSE_POINTS: Final = 4096
_CUT: Final = 1e-7  # the share of delta that each of the two cuts may use up
_ROUNDING: Final = 2.0**-49
"""Sixteen half-ulps: more than a transform of two million points loses per frequency."""
_LOG_OUTSIDE: Final = math.log(1e-12)
_MOST_LOSS: Final = 1e5
_SMALLEST: Final = 1e-280


@dataclass(frozen=True)
class _Step:
    """One step: mass ``up[i]`` at loss ``i * interval``, its mirror at minus that, ``beyond``."""

    interval: float
    up: Floats
    beyond: float

    @classmethod
    def on_grid(cls, local_delta: Curve, *, users: int, reach: float, points: int) -> Self:
        """Connect the dots of the step's curve at multiples of ``reach / points``."""
        interval = reach / points
        losses = interval * np.arange(points + 1)
        # In pieces, because a curve may need many times the memory of its argument.
        pieces = np.array_split(losses, 1 + losses.size // 2**15)
        delta = np.concatenate([_step_delta(piece, users, local_delta) for piece in pieces])
        drops = delta[:-1] - delta[1:]
        after = np.append(drops[1:] / math.expm1(interval), 0.0)
        up = np.maximum(drops / -math.expm1(-interval) - after, 0.0)
        return cls(interval, up, float(delta[-1]))

    @property
    def losses(self) -> Floats:
        return np.asarray(self.interval * np.arange(1, self.up.size + 1))

    @property
    def centre(self) -> float:
        """The mass at loss 0: what is left."""
        return max(0.0, 1 - self.beyond - float(self.up @ (1 + np.exp(-self.losses))))

    def log_moments(self, orders: Floats) -> Floats:
        """``ln E e^(order * loss)`` over the finite losses."""
        losses, down = self.losses, self.up * np.exp(-self.losses)

        def log_moment(order: float) -> float:
            gain = self.up @ np.expm1(order * losses) + down @ np.expm1(-order * losses)
            if gain - self.beyond > -0.5:
                return math.log1p(gain - self.beyond)  # 1 + something small, kept small
            return math.log(self.centre + self.up @ np.exp(order * losses) + down @ np.exp(-order * losses))

        return np.array([log_moment(order) for order in orders])


def _step_delta(epsilon: Floats, users: int, local_delta: Curve) -> Floats:
    """The step's curve at ``epsilon >= 0``; e^epsilon is never formed where it could overflow."""
    near = np.log1p(np.expm1(np.minimum(epsilon, 1.0)) * users)
    far = epsilon + math.log(users) + np.log1p(-(1 - 1 / users) * np.exp(-epsilon))
    return np.asarray(local_delta(np.where(epsilon < 1, near, far)) / users)


def _reach(local_delta: Curve, *, users: int, allowed: float) -> float:
    """A loss beyond which one step keeps at most ``allowed``, or `_MOST_LOSS`."""

    def slack(epsilon: float) -> float:
        return log_gap(allowed, float(_step_delta(np.array([epsilon]), users, local_delta)[0]))

    # A step's loss can be as small as 1 / users, so the search starts there.
    high = 1e-3 / users
    while slack(high) < 0 and high < _MOST_LOSS:
        high *= 2
    return last_safe(slack, safe=high, unsafe=0.5 * high, tolerance=1e-2)


@dataclass(frozen=True)
class _Composed:
    """The composition: masses at losses above 0, the size of their errors, what was cut off."""

    losses: Floats
    masses: Floats
    roundings: Floats
    cut: float

    def delta(self, epsilon: float) -> float:
        start = int(np.searchsorted(self.losses, epsilon, side="right"))
        gains = -np.expm1(epsilon - self.losses[start:])
        # Cauchy and Schwarz: the errors weigh no more than the two norms multiplied.
        error = float(np.linalg.norm(self.roundings[start:] * gains))
        return min(1.0, self.cut + error + max(0.0, float(self.masses[start:] @ gains)))


def _window(step: _Step, *, reach: float, steps: int, delta: float) -> tuple[float, float, float, float]:
    """Chernoff's bound on a coarse step says where the composition meets ``delta``.

    Returned are a tilt, two losses that hold the tilted composition, and an order for the tail.
    The tilt is the strongest, up to the one that centres the composition there, that does not
    make the window more than twice as wide as it must be: a few large losses, once tilted, may
    pile up far beyond. Only accuracy hangs on these choices.
    """
    # From orders that suit many small losses to those that suit a single large one.
    above = np.logspace(-5, 2.5, 61) / reach
    orders = np.concatenate((-above[::-1], [0.0], above))
    moments = steps * step.log_moments(orders)
    tails = (moments[62:] - math.log(_CUT * delta)) / above
    needed = float(np.min(tails))
    # The last order stays free, to bound what lies above a window.
    best = 62 + int(np.argmin((moments[62:-1] - math.log(delta)) / above[:-1]))
    narrowest = math.inf
    chosen = (0.0, 0.0, 0.0, 0.0)
    for at in range(61, best + 1):
        ends = (_LOG_OUTSIDE + moments[at] - np.delete(moments, at)) / (orders[at] - np.delete(orders, at))
        low, high = float(np.max(ends[:at])), max(needed, float(np.min(ends[at:])))
        narrowest = min(narrowest, high - low)
        if high - low <= 2 * narrowest:
            chosen = float(orders[at]), low, high, float(above[np.argmin(tails)])
    return chosen


def _tilted_power(step: _Step, tilt: float, steps: int, length: int) -> tuple[Floats, float]:
    """The tilted step, composed ``steps`` times on a circle of at least ``length`` points.

    The second value bounds the Euclidean norm of the rounding error: a frequency of size at most
    1 is wrong by `_ROUNDING`, its power by ``steps`` times that, and a transform keeps the norm.
    """
    log_moment = step.log_moments(np.array([tilt]))[0]
    losses, points = step.losses, step.up.size
    down = step.up * np.exp(-losses)
    size = 1 << (max(length, 2 * points + 1) - 1).bit_length()
    circle = np.zeros(size)
    circle[0] = step.centre * math.exp(-log_moment)
    circle[1 : points + 1] = step.up * np.exp(tilt * losses - log_moment)
    circle[-points:] = (down * np.exp(-tilt * losses - log_moment))[::-1]
    power = np.fft.rfft(circle) ** steps
    rounding = _ROUNDING * (steps + 64) * math.sqrt(float((np.abs(power) ** 2).mean()))
    return np.fft.irfft(power, size), rounding


def _compose(local_delta: Curve, *, users: int, steps: int, delta: float) -> _Composed:
    """Compose ``steps`` steps with the accuracy placed where the composition meets ``delta``."""
    reach = _reach(local_delta, users=users, allowed=_CUT * delta / steps)
    coarse = _Step.on_grid(local_delta, users=users, reach=reach, points=_COARSE_POINTS)
    tilt, low, high, tail_order = _window(coarse, reach=reach, steps=steps, delta=delta)

    interval = max(high - low, reach) / _POINTS
    points = math.ceil(reach / interval)
    step = _Step.on_grid(local_delta, users=users, reach=points * interval, points=points)
    log_tilt, log_tail = steps * step.log_moments(np.array([tilt, tail_order]))
    high = max(high, (log_tail - math.log(_CUT * delta)) / tail_order)
    first, last = math.floor(low / interval), math.ceil(high / interval)
    masses, rounding = _tilted_power(step, tilt, steps, last - first + 1)
    index = np.arange(max(first, 1), first + masses.size)
    untilt = np.exp(np.minimum(log_tilt - tilt * interval * index, 600.0))
    return _Composed(
        losses=np.asarray(interval * index, dtype=np.float64),
        masses=masses[index % masses.size] * untilt,
        roundings=rounding * untilt,
        cut=_CUT * delta - math.expm1(steps * math.log1p(-step.beyond)),
    )


def sampler_epsilon(delta: float, *, users: int, steps: int, local_delta: Curve) -> float:
    """The least central epsilon proved at ``delta`` after ``steps`` draws, rounded up.

    ``local_delta`` is the curve of one release (see `record_curve`): an array of epsilons, of
    any sign, to an array of deltas, none of them below the truth.

    Guarantees:
        The composed delta, with everything that was cut off or rounded, was evaluated at the
        result and is at most ``delta``. Holds for replace-one neighbours.
    Edges:
        ``users = 1`` is plain composition. ``math.inf`` where the local curve itself never
        comes down far enough.
    """
    delta = checks.delta(delta, zero=False)
    users = checks.count("users", users, remedy="Pass the number of people who may be drawn.")
    steps = checks.count("steps", steps, remedy="Pass epochs * users.")
    composed = _compose(local_delta, users=users, steps=steps, delta=max(delta, _SMALLEST))

    def slack(epsilon: float) -> float:
        return math.log(delta / composed.delta(epsilon))

    if slack(composed.losses[-1]) < 0:
        return math.inf
    return last_safe(slack, safe=float(composed.losses[-1]), unsafe=0.0, tolerance=1e-9)
