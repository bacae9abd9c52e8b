"""Exact privacy curves of what one user sends: a Gaussian text and randomized-response labels."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.special import betainc

from dp_forward.privacy import curve
from dp_forward.privacy.response import RandomizedResponse
from dp_forward.privacy.solve import last_safe, log_gap

Floats = NDArray[np.float64]
Curve = Callable[[Floats], Floats]
"""An exact privacy curve: epsilons, of any sign, to deltas that are never too small."""


def record_curve(*, mu: float, label_epsilon: float | None = None, labels: int = 2, draws: int = 1) -> Curve:
    """The exact local curve of a Gaussian text and ``draws`` randomized-response labels.

    The privacy loss of the labels is ``m * label_epsilon`` with a known probability for each
    whole ``m`` between ``-draws`` and ``draws``; given ``m`` the Gaussian curve is shifted by it.

    Guarantees:
        Rounded up by more than the float error of `curve.hockey_stick`.
    """
    shifts, weights = np.zeros(1), np.ones(1)
    if label_epsilon is not None:
        shifts, weights = RandomizedResponse(label_epsilon, labels, draws).loss.atoms()
    rounded_up = 1 + 4 * curve.LOG_SLACK

    def delta(epsilon: Floats) -> Floats:
        return np.asarray(curve.hockey_stick(np.subtract.outer(epsilon, shifts), mu) @ weights * rounded_up)

    return delta


def curve_epsilon(delta: float, local_delta: Curve) -> float:
    """The least epsilon at which a curve has come down to ``delta``, rounded up."""

    def slack(epsilon: float) -> float:
        return log_gap(delta, float(local_delta(np.array([epsilon]))[0]))

    high = 1.0
    while slack(high) < 0:
        high *= 2
    return last_safe(slack, safe=high, unsafe=0.0)


def binomial_tail(count: Floats, trials: Floats | float, chance: float) -> Floats:
    """``P[Bin(trials, chance) >= count]``, elementwise, right for every whole ``count``."""
    inside = (count >= 1) & (count <= trials)
    safe_count = np.where(inside, count, 1.0)
    safe_trials = np.where(inside, trials, 1.0)
    inner = betainc(safe_count, safe_trials - safe_count + 1, chance)
    return np.where(inside, inner, np.where(count < 1, 1.0, 0.0))
