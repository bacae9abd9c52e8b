"""Slow, obvious second opinions, in high precision, that share no code with the package."""

from __future__ import annotations

import mpmath as mp


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
            if high / low - 1 < mp.mpf("1e-25"):
                break
        return low


def normal_cdf(x: float) -> mp.mpf:
    """Phi in 150 digits, enough for 1 - Phi too."""
    with mp.workdps(150):
        return mp.ncdf(mp.mpf(x))
