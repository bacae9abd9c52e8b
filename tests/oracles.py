"""Slow, obvious second opinions, in high precision, that share no code with the package."""

from __future__ import annotations

import math
from collections.abc import Callable

import mpmath as mp
from scipy.special import log_ndtr, ndtr


def gaussian_delta(epsilon: float, mu: float, digits: int = 60) -> mp.mpf:
    """Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu), with ``digits`` correct digits beyond cancellation."""
    with mp.workdps(digits + 700 if epsilon > 600 else digits + 400):
        e, m = mp.mpf(epsilon), mp.mpf(mu)
        return +(mp.ncdf(m / 2 - e / m) - mp.exp(e) * mp.ncdf(-m / 2 - e / m))


def gaussian_mu(epsilon: float, delta: float) -> mp.mpf:
    """The root of the Gaussian curve, by bisection in 60 digits."""
    with mp.workdps(60):
        low, high = mp.mpf(delta), mp.mpf(200)
        for _ in range(400):
            middle = mp.sqrt(low * high)
            if gaussian_delta(epsilon, middle) <= mp.mpf(delta):
                low = middle
            else:
                high = middle
            if high / low - 1 < mp.mpf("1e-15"):
                break
        return low


def normal_cdf(x: float) -> mp.mpf:
    """Phi in 150 digits, enough for 1 - Phi too."""
    with mp.workdps(150):
        return mp.ncdf(mp.mpf(x))


def algorithm_1(epsilon: float, delta: float) -> float:
    r"""``B(epsilon, delta)`` as Algorithm 1 of the paper finds it (after Balle and Wang, Algorithm 1).

    It splits on the sign of ``epsilon`` at
    :math:`\delta_0 = \Phi(0) - e^{\varepsilon}\,\Phi(-\sqrt{2\varepsilon})` and searches

    * for :math:`\delta \ge \delta_0` the largest v with :math:`g^+(v) \le \delta`, and then
      :math:`\alpha = \sqrt{1 + v/2} - \sqrt{v/2}`;
    * else the smallest u with :math:`g^-(u) \le \delta`, and then
      :math:`\alpha = \sqrt{1 + u/2} + \sqrt{u/2}`,

    where
    :math:`g^{\pm}(w) = \Phi(\pm\sqrt{\varepsilon w}) - e^{\varepsilon}\,\Phi(-\sqrt{\varepsilon (w + 2)})`.
    Then ``B = sqrt(2 epsilon) / alpha``. Written as the paper writes it, except that ``e^epsilon Phi(.)``
    goes through the logarithm.

    Edges:
        It answers to about 1e-9 for epsilon up to 20 and delta >= 1e-12 and cancels beyond, which is why the
        package does not use it.
    Paper: Algorithm 1.
    """

    def g(sign: int, w: float) -> float:
        tail = math.exp(epsilon + float(log_ndtr(-math.sqrt(epsilon * (w + 2)))))
        return float(ndtr(sign * math.sqrt(epsilon * w))) - tail

    if delta >= g(+1, 0.0):
        v = _turning_point(lambda w: g(+1, w) <= delta)
        alpha = math.sqrt(1 + v / 2) - math.sqrt(v / 2)
    else:
        u = _turning_point(lambda w: g(-1, w) > delta)
        alpha = math.sqrt(1 + u / 2) + math.sqrt(u / 2)
    return math.sqrt(2 * epsilon) / alpha


def _turning_point(holds: Callable[[float], bool]) -> float:
    """The largest w >= 0 at which ``holds``; it holds at 0 and stops holding once."""
    high = 1.0
    while holds(high):
        high *= 2
    low = 0.0
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
