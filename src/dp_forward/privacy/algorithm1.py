r"""Algorithm 1 of the paper: the same root, found the paper's way.

The paper (after Balle and Wang, Algorithm 1) splits on the sign of ``epsilon`` at
:math:`\delta_0 = \Phi(0) - e^{\varepsilon}\,\Phi(-\sqrt{2\varepsilon})` and searches

* for :math:`\delta \ge \delta_0` the largest v with :math:`g^+(v) \le \delta`, and then
  :math:`\alpha = \sqrt{1 + v/2} - \sqrt{v/2}`;
* else the smallest u with :math:`g^-(u) \le \delta`, and then
  :math:`\alpha = \sqrt{1 + u/2} + \sqrt{u/2}`,

where :math:`g^{\pm}(w) = \Phi(\pm\sqrt{\varepsilon w}) - e^{\varepsilon}\,\Phi(-\sqrt{\varepsilon (w + 2)})`.

Then ``B = sqrt(2 epsilon) / alpha``. It is kept as a cross-check of `curve.largest_mu`, written as
the paper writes it except that ``e^epsilon Phi(.)`` goes through the logarithm. It shares no code
with `curve`.

Edges:
    A cross-check, not a calibrator: it answers to about 1e-9 for epsilon up to 20 and
    delta >= 1e-12 and cancels beyond, which is why the package does not use it.
Paper: Algorithm 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from scipy.special import log_ndtr, ndtr

from dp_forward.privacy import checks

__all__ = ["algorithm_1"]

_BISECTIONS = 200


def algorithm_1(epsilon: float, delta: float) -> float:
    """``B(epsilon, delta)`` as Algorithm 1 of the paper finds it."""
    epsilon = checks.epsilon(epsilon)
    delta = checks.delta(delta, zero=False)

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
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
