r"""Privacy curve of Gaussian noise, accurate for every epsilon and delta.

One number describes Gaussian noise: ``mu = sensitivity / sigma``. Two neighbours then look like
N(0, 1) and N(mu, 1), and the exact privacy curve (Balle and Wang 2018) is

.. math:: \delta(\varepsilon) = \Phi(a) - e^{\varepsilon}\,\Phi(b), \qquad
          a = \mu/2 - \varepsilon/\mu, \quad b = -\mu/2 - \varepsilon/\mu.

Computed as written it cancels from epsilon = 20 on (and then promises too little noise) and
overflows at 709. Here everything is written with Mills' ratio ``M(x) = (1 - Phi(x)) / phi(x)``.
Because ``phi(a) = e^epsilon phi(b)``,

* ``delta     = phi(a) [M(-a) - M(-b)]``, with ``-b = -a + mu``;
* where that difference cancels it is the integral of ``-M'(x) = 1 - x M(x)`` over
  ``[-a, -a + mu]``, a smooth positive function (32-point Gauss-Legendre);
* ``1 - delta = phi(a) [M(a) + M(-b)]`` for ``a > 0``, a sum of positive terms.

Guarantees:
    The relative error of the computed delta stays below `LOG_SLACK` for epsilon in [0, 1000] and
    delta in [1e-300, 1) (tests/privacy/test_curve.py, against 60-digit arithmetic). The functions
    that return a *promise* (`delta`, `epsilon`, `largest_mu`) add that slack on the safe side.

Paper: the analytic Gaussian mechanism and Algorithm 1 (after Balle and Wang, Theorem 8).
"""

import math
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import erfcx, log_ndtr, ndtri

from dp_forward.privacy.solve import last_safe

__all__ = ["epsilon", "hockey_stick", "largest_mu"]

LOG_SLACK: Final = 2e-12
"""An upper bound on the error of `log_delta` where epsilon is at most 1000; it is added, and grown beyond
that range, wherever a promise is returned."""

_CALIBRATION_MARGINS: Final = 100
"""What was calibrated must still hold when it is accounted for, and when a ledger has rounded it up to
its integer units: calibration stays a hundred error margins below the curve."""

_HALF_LOG_2PI: Final = 0.5 * math.log(2 * math.pi)
_SQRT_HALF_PI: Final = math.sqrt(math.pi / 2)
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(32)
_LAPLACE_DEPTH: Final = 30

Floats = NDArray[np.float64]


def _mills(x: Floats) -> Floats:
    """Mills' ratio ``(1 - Phi(x)) / phi(x)``."""
    return np.asarray(_SQRT_HALF_PI * erfcx(x / math.sqrt(2)))


def _minus_mills_slope(x: Floats) -> Floats:
    """``1 - x M(x)``, without cancellation: Laplace's continued fraction from 6 on."""
    near = np.minimum(x, 6.0)
    direct = 1 - near * _mills(near)
    far = np.maximum(x, 6.0)
    tail = far
    for k in range(_LAPLACE_DEPTH, 1, -1):
        tail = far + k / tail
    return np.where(x <= 6, direct, 1 / (1 + far * tail))


def _mills_drop(start: Floats, length: float) -> Floats:
    """``M(start) - M(start + length)`` for a short interval, as an integral of positive terms."""
    points = start[:, None] + 0.5 * length * (_NODES + 1)
    return np.asarray(0.5 * length * (_minus_mills_slope(points) @ _WEIGHTS))


def log_delta(epsilon: ArrayLike, mu: float) -> Floats:
    """The natural logarithm of delta(epsilon; mu) for every ``epsilon >= 0``; -inf for mu = 0."""
    eps = np.atleast_1d(np.asarray(epsilon, dtype=np.float64))
    if mu == 0:
        return np.full(eps.shape, -np.inf)
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        a = mu / 2 - eps / mu
        result = np.full(eps.shape, -np.inf)
        reached = np.isfinite(a)
        log_phi = -0.5 * a * a - _HALF_LOG_2PI

        short = reached & (mu < (1 + np.abs(a)) / 2)
        if short.any():
            result[short] = log_phi[short] + np.log(_mills_drop(-a[short], mu))
        below = reached & ~short & (a <= 0)
        if below.any():
            result[below] = log_phi[below] + np.log(_mills(-a[below]) - _mills(mu - a[below]))
        above = reached & ~short & (a > 0)
        if above.any():
            result[above] = np.log1p(-np.exp(_log_complement(a[above], mu)))
    return result


def _log_complement(a: Floats, mu: float) -> Floats:
    """``log(1 - delta)`` from ``a``: ``Phi(-a) + phi(a) M(mu - a)``, both terms positive."""
    log_phi = -0.5 * a * a - _HALF_LOG_2PI
    return np.asarray(np.logaddexp(log_ndtr(-a), log_phi + np.log(_mills(mu - a))))


def _log_one_minus_delta(epsilon: float, mu: float) -> float:
    return float(_log_complement(np.array([mu / 2 - epsilon / mu]), mu)[0])


def hockey_stick(epsilon: ArrayLike, mu: float) -> Floats:
    """delta(epsilon; mu) for every real epsilon, no slack added: the building block of mixtures.

    For negative epsilon: ``delta(-e) = 1 - e^-e + e^-e delta(e)``, since the pair is symmetric.
    """
    eps = np.atleast_1d(np.asarray(epsilon, dtype=np.float64))
    mirrored = np.exp(log_delta(np.abs(eps), mu))
    return np.where(eps >= 0, mirrored, -np.expm1(np.minimum(eps, 0)) + np.exp(np.minimum(eps, 0)) * mirrored)


def delta(epsilon: float, mu: float) -> float:
    """The least delta that is proved at this epsilon, rounded up; what a float cannot hold is 0."""
    found = float(log_delta(epsilon, mu)[0])
    if found == -math.inf:
        return 0.0
    margin = _rounding(epsilon, mu)
    if found < -math.log(2):
        return math.exp(found + margin)
    return -math.expm1(_log_one_minus_delta(epsilon, mu) - margin)


def _rounding(epsilon: float, mu: float) -> float:
    """How far the logarithms may be off: `LOG_SLACK`, and what the rounding of ``a`` does to phi(a)."""
    ahead, behind = mu / 2, epsilon / mu
    return LOG_SLACK + 1e-15 * abs(ahead - behind) * (ahead + behind)


def _slack(epsilon: float, mu: float, target_delta: float, margins: int = 1) -> float:
    """How far below ``target_delta`` the curve lies, in log units; >= 0 means the promise holds.

    Above one half the comparison is made on ``1 - delta``, where the curve is still steep.
    """
    margin = margins * _rounding(epsilon, mu)
    if target_delta < 0.5:
        return math.log(target_delta) - float(log_delta(epsilon, mu)[0]) - margin
    return _log_one_minus_delta(epsilon, mu) - math.log1p(-target_delta) - margin


def epsilon(delta: float, mu: float) -> float:
    """The least epsilon that is proved at this delta, rounded up; 0 where even that holds."""
    if mu == 0 or _slack(0.0, mu, delta) >= 0:
        return 0.0
    # There a = -(sqrt(2 ln(1/delta)) + 1), so delta(high) <= Phi(a) <= delta e^-1/2 / 2: safe.
    high = mu * mu / 2 + mu * (math.sqrt(-2 * math.log(delta)) + 1)
    return last_safe(lambda e: _slack(e, mu, delta), safe=high, unsafe=0.0)


def largest_mu(epsilon: float, delta: float) -> float:
    """``B(epsilon, delta)``: the largest mu whose curve meets (epsilon, delta), rounded down.

    Guarantees:
        ``delta(epsilon; result) <= delta`` in exact arithmetic.
    Paper: ``B(epsilon, delta)``, the root that Algorithm 1 finds.
    """

    def slack(mu: float) -> float:
        return _slack(epsilon, mu, delta, _CALIBRATION_MARGINS)

    # Two safe starts: delta(epsilon) <= delta(0) = 2 Phi(mu/2) - 1 <= 0.399 mu, and
    # delta(epsilon) <= Phi(a), met where a = -z. From the larger one, grow until the promise breaks.
    z = -float(ndtri(delta))
    root = math.hypot(z, math.sqrt(2 * epsilon))
    by_tail = 2 * epsilon / (root + z) if z > 0 else root - z
    safe = max(2.4 * delta, 0.999 * by_tail)
    unsafe = 1.25 * safe
    while slack(unsafe) >= 0:
        safe, unsafe = unsafe, 1.5 * unsafe
    return last_safe(slack, safe=safe, unsafe=unsafe)
