r"""The two-point audit: does a sampler keep the promise of the mechanism it claims to be?

Take the two inputs that the promise finds hardest to hide, draw many releases of each, and measure how
far apart they really are. A sampler with too little noise is refuted; an honest one is not.

* *Gaussian*: seen where the claimed noise is N(0, I) and along the difference, the releases of the two inputs
  are N(0, 1) and N(mu, 1). Measured is ``(mean difference) / (pooled standard deviation)``.
* *PrivUnit*: the share of releases in the cap of their input is p, and across the input the noise has
  variance 1. A larger share, or less variance, is a broken promise.
* *Randomized response*: the share of true labels is the keep probability.

All z-scores are one-sided: only what favours the attacker refutes. They come from the exact law of each
statistic (`laws`), so that they mean the same for few draws as for many.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dp_forward.audit import laws
from dp_forward.privacy import MatrixGaussian, PrivUnit, RandomizedResponse
from dp_forward.privacy.checks import count

__all__ = ["TwoPointAudit", "audit_gaussian", "audit_privunit", "audit_response"]

REFUTED_FROM = 4.0
"""Standard errors beyond which a promise counts as refuted: an honest one passes 99.997 % of the time, and
99.99 % where the worse of two measurements counts."""

Floats = NDArray[np.float64]
Sampler = Callable[[Floats, np.random.Generator], Floats]


@dataclass(frozen=True, slots=True)
class TwoPointAudit:
    """What was claimed, what was measured, and how many standard errors lie between."""

    what: str
    claimed: float
    measured: float
    z: float

    @property
    def refuted(self) -> bool:
        """Whether the promise is broken beyond chance."""
        return self.z > REFUTED_FROM


def audit_gaussian(
    claim: MatrixGaussian,
    sampler: Sampler,
    first: Floats,
    second: Floats,
    *,
    draws: int,
    rng: np.random.Generator,
) -> TwoPointAudit:
    """Measure mu between the releases of two *bounded* matrices and compare it with the claim.

    ``sampler`` draws one release of a bounded matrix. The claim is the mu that the claimed noise gives to
    this very pair, so that any pair can be audited; the worst one lies at the full sensitivity.
    """
    draws = count("draws", draws, at_least=2, remedy="Use a few thousand.")
    difference = claim.whiten(first - second)
    mu = float(np.linalg.norm(difference))
    direction = difference / mu
    scores = [
        np.array([np.sum(claim.whiten(sampler(x, rng)) * direction) for _ in range(draws)])
        for x in (first, second)
    ]
    spread = math.sqrt((scores[0].var(ddof=1) + scores[1].var(ddof=1)) / 2)
    measured = float(scores[0].mean() - scores[1].mean()) / spread
    return TwoPointAudit("mu", mu, measured, laws.distance_z(measured, mu, first=draws, second=draws))


def audit_privunit(
    claim: PrivUnit, sampler: Sampler, hidden: Floats, *, draws: int, rng: np.random.Generator
) -> TwoPointAudit:
    """Measure the cap share and the noise across the input; report the worse of the two.

    ``sampler`` draws one raw vector V of a matrix.
    """
    draws = count("draws", draws, at_least=2, remedy="Use a few thousand.")
    x = np.ravel(claim.bound.apply(hidden))
    x = x / np.linalg.norm(x)
    raw = np.stack([np.ravel(sampler(hidden, rng)) for _ in range(draws)])
    along = raw @ x
    p = claim.cap_probability
    hits = int(np.sum(along >= claim.threshold))
    in_cap = TwoPointAudit("cap share", p, hits / draws, laws.share_z(hits, draws, p))
    freedom = draws * (len(x) - 1)
    across = float(np.sum(raw * raw) - np.sum(along * along)) / freedom
    noise = TwoPointAudit("variance across", 1.0, across, laws.weak_noise_z(across, freedom))
    return max(in_cap, noise, key=lambda audit: audit.z)


def audit_response(
    claim: RandomizedResponse,
    sampler: Callable[[NDArray[np.int64], np.random.Generator], NDArray[np.int64]],
    *,
    draws: int,
    rng: np.random.Generator,
) -> TwoPointAudit:
    """Measure how often the true label is answered."""
    draws = count("draws", draws, at_least=2, remedy="Use a few thousand.")
    truth = np.arange(draws) % claim.labels
    kept = int(np.sum(sampler(truth, rng) == truth))
    return TwoPointAudit("kept labels", claim.keep, kept / draws, laws.share_z(kept, draws, claim.keep))
