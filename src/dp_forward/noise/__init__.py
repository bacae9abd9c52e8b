"""Bound and noise for hidden matrices and labels: simulated for training, released for the wire.

`Sanitizer` alone needs torch, and is loaded when it is first used.
"""

from typing import TYPE_CHECKING

from dp_forward.noise.released.released_label import ReleasedLabels, release_labels
from dp_forward.noise.released.released_matrix import Released, dequantise, release, release_batch, serialise
from dp_forward.optional_packages import load_lazily

if TYPE_CHECKING:
    from dp_forward.noise.simulated.sanitizer import Sanitizer as Sanitizer

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

__getattr__, __dir__ = load_lazily(__name__, {"Sanitizer": "dp_forward.noise.simulated.sanitizer"})
