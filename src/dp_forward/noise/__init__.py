"""Bound and noise for hidden matrices and labels.

bounding    the norm bound, in torch
simulated/  `Sanitizer`, and `ProjectedSanitizer` for the joint release of Q, K and V: for training and
            experiments; plain tensors, seeded, on any device
released/   `release`: drawn on an integer grid from operating-system entropy; `Released` and `ReleasedLabels`
            are types of their own, the only ones that `serialise` takes
"""

from dp_forward.noise.released.released_label import ReleasedLabels, release_labels
from dp_forward.noise.released.released_matrix import Released, dequantise, release, release_batch, serialise
from dp_forward.noise.simulated.sanitizer import ProjectedSanitizer, Sanitizer

__all__ = [
    "ProjectedSanitizer",
    "Released",
    "ReleasedLabels",
    "Sanitizer",
    "dequantise",
    "release",
    "release_batch",
    "release_labels",
    "serialise",
]
