"""The only place where a bound meets a draw.

*Simulated* noise (`Sanitizer`, and `ProjectedSanitizer` for the joint release of Q, K and V) is for training
and experiments: plain tensors, seeded, on any device. *Released* noise (`release`) is drawn on an integer
grid from operating-system entropy; `Released` and `ReleasedLabels` are types of their own, the only ones that
`serialise` takes.
"""

from dp_forward.noise.released.released_label import ReleasedLabels, release_labels
from dp_forward.noise.released.released_matrix import Released, dequantise, release, release_batch, serialise
from dp_forward.noise.simulated.projected import ProjectedSanitizer
from dp_forward.noise.simulated.sanitizer import Sanitizer

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
