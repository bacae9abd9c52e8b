r"""The paper's settings, read twice: what it calls them, and what they are worth.

The paper bounds a matrix to norm C. Its text calibrates with sensitivity 2C, its experiments with C. Every
run here is planned with the epsilon that is *proved* (sensitivity 2C) for the noise that the experiments
would use, so no run carries a promise that does not hold; the tables print the paper's name for it beside.

    8 in its tables  ->  sigma = C / B(8, delta)  ->  epsilon 19.1 is proved

Paper: its central epsilons come from a subsampled Gaussian with rate 1/N over kN steps. `TRANSLATION` holds
the noise that this gives (delta 1e-5, k = 3), relative to the sensitivity; `privacy.shuffling.paper_estimate`
derives it, and no theorem stands behind it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from decimal import ROUND_CEILING, Context, Decimal
from functools import lru_cache
from types import MappingProxyType
from typing import Final

from scipy.special import ndtr

from dp_forward.privacy import MVG, TEXT, Budget, PaperReading, calibrate, curve, normalise

__all__ = [
    "DELTA",
    "LABEL_EPSILON",
    "RECORDS",
    "TRANSLATION",
    "classical_epsilon",
    "gaussian_ceiling",
    "mvg_epsilon",
    "pure_ceiling",
    "real_epsilon",
    "real_epsilon_of",
    "round_up",
]

DELTA: Final = 1e-5
_SIX_DIGITS_UP: Final = Context(prec=6, rounding=ROUND_CEILING)
LABEL_EPSILON: Final = 2.197
"""A label is kept with probability 0.9 (two labels)."""
RECORDS: Final[Mapping[str, int]] = MappingProxyType({"sst2": 67_349, "imdb": 25_000, "qqp": 363_846})
"""Training records of the paper's tasks."""
TRANSLATION: Final[Mapping[str, Mapping[float, float]]] = MappingProxyType(
    {
        "sst2": MappingProxyType({1.0: 0.4593, 3.0: 0.3953, 8.0: 0.3194}),
        "imdb": MappingProxyType({1.0: 0.4942, 3.0: 0.4196, 8.0: 0.3358}),
        "qqp": MappingProxyType({1.0: 0.4115, 3.0: 0.3609, 8.0: 0.2961}),
    }
)
"""Task -> what the paper calls the central epsilon -> sigma over the sensitivity."""


@lru_cache(maxsize=256)
def real_epsilon(paper_epsilon: float) -> float:
    """What is proved for the noise that the paper calls ``paper_epsilon`` per text (or per token)."""
    reading = PaperReading.for_budget(Budget(paper_epsilon, DELTA), bound=normalise(1.0))
    return round_up(reading.real.epsilon)


@lru_cache(maxsize=256)
def real_epsilon_of(sigma: float, *, sensitivity: float) -> float:
    """What is proved for one release with this noise on a matrix of norm 1, so at distance 2.

    ``sigma`` is relative to the ``sensitivity`` that somebody assumed: 1 in the experiments, 2 by the text
    and the proof.
    """
    return round_up(curve.epsilon(DELTA, 2.0 / (sigma * sensitivity)))


def classical_epsilon(paper_epsilon: float) -> float:
    """What is proved for the classical Gaussian noise at sensitivity C; its own formula is no proof here."""
    sigma = math.sqrt(2 * math.log(1.25 / DELTA)) / paper_epsilon
    return real_epsilon_of(sigma, sensitivity=1.0)


@lru_cache(maxsize=64)
def mvg_epsilon(epsilon: float, *, rows: int, columns: int) -> float:
    """What the exact curve proves for the noise that MVG's own theorem asks for: far less than its own."""
    made = calibrate(MVG, Budget(epsilon, DELTA), bound=normalise(1.0), unit=TEXT, rows=rows, columns=columns)
    return round_up(curve.epsilon(DELTA, made.mu))


def round_up(epsilon: float) -> float:
    """To six digits, never down: a plan should be readable, and its promise must hold."""
    rounded = float(_SIX_DIGITS_UP.create_decimal(Decimal(epsilon)))
    return rounded if rounded >= epsilon else math.nextafter(rounded, math.inf)


def gaussian_ceiling(accuracy: float, epsilon: float, *, sensitivity: float) -> float:
    """The best accuracy through Gaussian noise of two classes at opposite points, at most 2C apart.

    A release tells on which side it lies with probability r = Phi(mu / 2), mu = 2C / sigma; whoever has the
    true class with probability a is then right with a r + (1 - a)(1 - r). It is a ceiling for two equally
    frequent classes; where one is more frequent, always naming that one may beat it. ``sensitivity`` 1 is
    that of the authors' experiments, where r = Phi(B); 2 is the right one, where r = Phi(B / 2).
    """
    half = curve.largest_mu(epsilon, DELTA) / sensitivity
    return _through(accuracy, float(ndtr(half)))


def pure_ceiling(accuracy: float, epsilon: float) -> float:
    """The same for any pure-LDP mechanism, also for two equally frequent classes: r = e^eps / (1 + e^eps)."""
    return _through(accuracy, 1 / (1 + math.exp(-epsilon)))


def _through(accuracy: float, kept: float) -> float:
    return accuracy * kept + (1 - accuracy) * (1 - kept)
