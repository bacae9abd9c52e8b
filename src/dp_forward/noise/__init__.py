"""The only place where a bound meets a draw.

*Simulated* noise (`Sanitizer`, and `ProjectedSanitizer` for the joint release of Q, K and V) is for training
and experiments: plain tensors, seeded, on any device. *Released* noise (`release`) is drawn on an integer
grid from operating-system entropy; a `Released` is a type of its own, the only one that `serialise` takes.
"""

from dp_forward.noise.projected import ProjectedSanitizer
from dp_forward.noise.released import Released, release, serialise
from dp_forward.noise.sanitizer import Sanitizer

__all__ = ["ProjectedSanitizer", "Released", "Sanitizer", "release", "serialise"]
