"""Bound and noise for hidden matrices and labels: simulated for training, released for the wire."""

from dp_forward.noise.released.released_label import ReleasedLabels, release_labels
from dp_forward.noise.released.released_matrix import Released, dequantise, release, release_batch, serialise
from dp_forward.noise.simulated.sanitizer import Sanitizer

__all__ = [
    "Released",
    "ReleasedLabels",
    "Sanitizer",
    "dequantise",
    "release",
    "release_batch",
    "release_labels",
    "serialise",
]
