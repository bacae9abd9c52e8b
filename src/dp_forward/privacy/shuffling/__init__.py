"""From local to central: what a trusted shuffler or sampler adds, proved, attacked, estimated.

A central epsilon exists only where a trusted part of the deployment hides who sent what. All of it
is for replace-one neighbours: the number of releases is public.
"""

from __future__ import annotations

from dp_forward.privacy.shuffling.central_epsilon import (
    CentralBound,
    CentralReading,
    sampled_gaussian,
    shuffled_gaussian,
    shuffled_pure,
)
from dp_forward.privacy.shuffling.clones import (
    closed_form_epsilon,
    shuffled_delta,
    shuffled_epsilon,
)
from dp_forward.privacy.shuffling.lower_bound import (
    attack_epsilon,
    sampler_attack_epsilon,
    shuffled_pure_lower,
)
from dp_forward.privacy.shuffling.paper_estimate import paper_estimate
from dp_forward.privacy.shuffling.sampler import sampler_delta, sampler_epsilon
from dp_forward.privacy.shuffling.shuffled_gaussian import record_curve, shuffled_gaussian_epsilon

__all__ = [
    "CentralBound",
    "CentralReading",
    "attack_epsilon",
    "closed_form_epsilon",
    "paper_estimate",
    "record_curve",
    "sampled_gaussian",
    "sampler_attack_epsilon",
    "sampler_delta",
    "sampler_epsilon",
    "shuffled_delta",
    "shuffled_epsilon",
    "shuffled_gaussian",
    "shuffled_gaussian_epsilon",
    "shuffled_pure",
    "shuffled_pure_lower",
]
