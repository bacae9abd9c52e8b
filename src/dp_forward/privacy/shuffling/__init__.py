"""Central privacy of shuffled or sampled releases: proved upper bounds, attacks, the authors' estimate.

A central epsilon exists only where a trusted part of the deployment hides who sent what. All of it is for
replace-one neighbours: the number of releases is public.

`central_epsilon` is what a user calls. Below it: `blanket`, `clones` and `sampler` (upper bounds, one proof
technique each), `lower_bound` (attacks), `paper_estimate`, `local_curve` (the curve of what one user sends).
"""

from dp_forward.privacy.shuffling.central_epsilon import (
    CentralBound,
    CentralBounds,
    privunit_for_central,
    sampled_gaussian,
    shuffled_gaussian,
    shuffled_mechanism,
)
from dp_forward.privacy.shuffling.clones import shuffled_epsilon
from dp_forward.privacy.shuffling.paper_estimate import paper_estimate
from dp_forward.privacy.shuffling.sampler import sampler_epsilon

__all__ = [
    "CentralBound",
    "CentralBounds",
    "paper_estimate",
    "privunit_for_central",
    "sampled_gaussian",
    "sampler_epsilon",
    "shuffled_epsilon",
    "shuffled_gaussian",
    "shuffled_mechanism",
]
