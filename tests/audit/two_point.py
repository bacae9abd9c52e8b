r"""Two-point audit of a sampler: does it keep the promise of the mechanism it claims to be?

Take the two inputs that the promise finds hardest to hide, draw many releases of each, and measure how far
apart they really are (`claims` has the laws). A sampler with too little noise is refuted; an honest one is
not. All z-scores are one-sided (only what favours the attacker refutes), each by its exact law (`findings`).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dp_forward.audit.findings import Finding, Floats, distance_finding, share_finding, weak_noise_z
from dp_forward.privacy import MatrixGaussian, PrivUnit
from dp_forward.privacy.checks import count
from reference_samplers import whitened

Sampler = Callable[[Floats, np.random.Generator], Floats]


def audit_gaussian(
    claim: MatrixGaussian,
    sampler: Sampler,
    first: Floats,
    second: Floats,
    *,
    draws: int,
    rng: np.random.Generator,
) -> Finding:
    """Measure mu between the releases of two *bounded* matrices and compare it with the claim.

    ``sampler`` draws one release of a bounded matrix. The claim is the mu that the claimed noise gives to
    this very pair, so that any pair can be audited; the worst one lies at the full sensitivity.
    """
    draws = count("draws", draws, at_least=2, remedy="Use a few thousand.")
    difference = whitened(claim, first - second)
    mu = float(np.linalg.norm(difference))
    direction = difference / mu
    scores = [
        np.array([np.sum(whitened(claim, sampler(x, rng)) * direction) for _ in range(draws)])
        for x in (first, second)
    ]
    return distance_finding(scores[0], scores[1], mu)


def audit_privunit(
    claim: PrivUnit, sampler: Sampler, hidden: Floats, *, draws: int, rng: np.random.Generator
) -> Finding:
    """Measure the cap share and the noise across the input; report the worse of the two.

    ``sampler`` draws one raw vector V of a matrix.
    """
    draws = count("draws", draws, at_least=2, remedy="Use a few thousand.")
    x = np.ravel(claim.bound.apply(hidden))
    x = x / np.linalg.norm(x)
    raw = np.stack([np.ravel(sampler(hidden, rng)) for _ in range(draws)])
    along = raw @ x
    in_cap = share_finding(along >= claim.threshold, claim.cap_probability)
    freedom = draws * (len(x) - 1)
    across = float(np.sum(raw * raw) - np.sum(along * along)) / freedom
    noise = Finding("variance across", 1.0, across, weak_noise_z(across, freedom))
    return max(in_cap, noise, key=lambda found: found.z or 0.0)
