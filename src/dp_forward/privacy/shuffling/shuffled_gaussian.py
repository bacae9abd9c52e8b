r"""Gaussian releases through a shuffler: what the clones prove once delta is paid for.

Gaussian noise is no pure mechanism, but at every ``e0`` it is ``(e0, delta0)``-LDP with the exact
``delta0 = delta_local(e0)``. Feldman, McMillan and Talwar (2021, Theorem 3.8) carry the clones
over at a price:

.. math:: \delta_{total}(\varepsilon) = \delta_{clones}(\varepsilon; e_0)
          + (e^{\varepsilon} + 1)(1 + e^{-e_0} / 2)\, N\, \delta_0(e_0).

Every ``e0`` is allowed, so the least total counts. The price holds ``N delta0``: ``e0`` must be so
large that the noise of one release is broken with probability far below ``delta / N``, and at that
``e0`` hardly anybody is a clone. At every sigma of the paper nothing is gained; with much more
noise something is.

A user's releases count as one bundle here. Shuffling every round by itself is post-processing of
shuffling the bundles, so the bound covers both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dp_forward.privacy import checks, curve
from dp_forward.privacy.shuffling.clones import Clones
from dp_forward.privacy.solve import last_safe

__all__ = [
    "Curve",
    "amplified_epsilon",
    "curve_epsilon",
    "record_curve",
    "response_probabilities",
    "shuffled_gaussian_epsilon",
]

Floats = NDArray[np.float64]
Curve = Callable[[Floats], Floats]
"""An exact privacy curve: epsilons, of any sign, to deltas that are never too small."""

_SHARES: Final = tuple(10.0 ** (-step / 4) for step in range(25))
"""How much of delta may go into the price: quarter decades, flat enough around the best one."""

_SMALLEST: Final = 1e-290


def response_probabilities(label_epsilon: float, labels: int) -> tuple[float, float]:
    """Randomized response: the chance to keep a label, and to become one given other label."""
    away = math.exp(-label_epsilon)
    total = 1 + (labels - 1) * away
    return 1 / total, away / total


def record_curve(*, mu: float, label_epsilon: float | None = None, labels: int = 2, draws: int = 1) -> Curve:
    """The exact local curve of a Gaussian text and ``draws`` randomized-response labels.

    The privacy loss of the labels is ``m * label_epsilon`` with a known probability for each
    whole ``m`` between ``-draws`` and ``draws``; given ``m`` the Gaussian curve is shifted by it.

    Guarantees:
        Rounded up by more than the float error of `curve.hockey_stick`.
    """
    if label_epsilon is None:
        shifts: Floats = np.zeros(1)
        weights: Floats = np.ones(1)
    else:
        keep, other = response_probabilities(label_epsilon, labels)
        weights = np.ones(1)
        for _ in range(draws):
            weights = np.asarray(np.convolve(weights, [other, (labels - 2) * other, keep]), dtype=np.float64)
        shifts = label_epsilon * np.arange(-draws, draws + 1, dtype=np.float64)
    rounded_up = 1 + 4 * curve.LOG_SLACK

    def delta(epsilon: Floats) -> Floats:
        total = np.zeros(np.shape(epsilon))
        for shift, weight in zip(shifts, weights, strict=True):
            total += weight * curve.hockey_stick(epsilon - shift, mu)
        return total * rounded_up

    return delta


def curve_epsilon(delta: float, local_delta: Curve) -> float:
    """The least epsilon at which a curve has come down to ``delta``, rounded up."""

    def slack(epsilon: float) -> float:
        reached = float(local_delta(np.array([epsilon]))[0])
        return math.log(delta / reached) if reached > 0 else math.inf

    high = 1.0
    while slack(high) < 0:
        high *= 2
    return last_safe(slack, safe=high, unsafe=0.0)


def _candidates(delta: float, users: int, local_delta: Curve) -> Iterator[tuple[float, float]]:
    """Pairs ``(e0, delta0)``, from the cheapest e0 on whose price can be met at all."""
    for share in _SHARES:
        target = share * delta / (2 * users)
        if target < _SMALLEST:
            return
        local = curve_epsilon(target, local_delta)
        if local > 0:
            yield local, float(local_delta(np.array([local]))[0])


def amplified_epsilon(delta: float, *, users: int, local_delta: Curve) -> float | None:
    """The least central epsilon proved for shuffled releases with this local curve.

    Guarantees:
        The total delta was evaluated at the returned epsilon and is at most ``delta``.
    Edges:
        None where no ``e0`` beats the epsilon that already holds without a shuffler.
    """
    unshuffled = curve_epsilon(delta, local_delta)
    best = unshuffled
    for local, paid in _candidates(delta, users, local_delta):
        price = (1 + math.exp(-local) / 2) * users * paid
        pair = Clones.of(local_epsilon=local, users=users, log_tail=math.log(delta) - 18)

        def slack(epsilon: float, price: float = price, pair: Clones = pair) -> float:
            total = pair.delta(epsilon) + (math.exp(min(epsilon, 700.0)) + 1) * price
            return math.log(delta / total)

        # The total is convex in epsilon, so below a point that holds it breaks only once. It may
        # fail at a large epsilon and hold at a smaller one, for the price grows with e^epsilon.
        first = 0.999 * best
        starts = [first * 0.5**halving for halving in range(8 if best == unshuffled else 1)]
        start = next((point for point in starts if slack(point) >= 0), None)
        if start is not None:
            best = last_safe(slack, safe=start, unsafe=0.0, tolerance=1e-7)
    return best if best < unshuffled else None


def shuffled_gaussian_epsilon(delta: float, *, mu: float, users: int) -> float | None:
    """The least central epsilon proved for shuffled Gaussian releases of ``mu``, rounded up.

    Guarantees:
        Holds for replace-one neighbours and any attacker who sees the shuffled releases.
    Edges:
        None means "no amplification is proved": the local epsilon of ``curve.epsilon(delta, mu)``
        is then the best central one. So it is at every sigma of the paper.
    """
    delta = checks.delta(delta, zero=False)
    mu = checks.positive("mu", mu, remedy="Pass sensitivity / sigma.")
    users = checks.count("users", users, remedy="Pass the number of people who are shuffled.")
    return amplified_epsilon(delta, users=users, local_delta=record_curve(mu=mu))
