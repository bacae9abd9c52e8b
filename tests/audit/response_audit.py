"""Audit of a sampler of labels: the share of true labels is the keep probability of randomized response."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from dp_forward.audit.findings import Finding, share_z
from dp_forward.privacy import RandomizedResponse

Labels = NDArray[np.int64]


def audit_response(
    claim: RandomizedResponse,
    sampler: Callable[[Labels, np.random.Generator], Labels],
    *,
    draws: int,
    rng: np.random.Generator,
) -> Finding:
    """Measure how often the true label is answered."""
    truth = np.arange(draws) % claim.labels
    kept = int(np.sum(sampler(truth, rng) == truth))
    return Finding("kept labels", claim.keep, kept / draws, share_z(kept, draws, claim.keep))
