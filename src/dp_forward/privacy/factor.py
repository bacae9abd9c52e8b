r"""Row and column factors of matrix Gaussian noise, ``Z = sigma U G V^T``, and their privacy cost.

A factor F (U for rows, V for columns) shapes the noise. What it costs is how much its inverse can
stretch a difference between neighbours, ``sup ||F^-1 x|| / ||x||``:

* over all x that is ``1 / sigma_min(F)``;
* over x that live on c consecutive coordinates (token level: c rows change) it is the largest
  spectral norm of c neighbouring columns of ``F^-1``, for c = 1 ``max_i ||F^-1 e_i||``.

Guarantees:
    `gain` is rounded up by more than the rounding errors of the decomposition behind it, and a
    factor that is singular or too close to it is refused.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dp_forward.errors import InvalidInput
from dp_forward.privacy import checks
from dp_forward.privacy.rounding import nudge_up
from dp_forward.privacy.spectral import spectral_norm_upper

_EPS = float(np.finfo(np.float64).eps)
_WORST_CONDITION = 1e12

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Factor:
    """``entries`` is None for the identity of any size (`UNIFORM`), a vector for a diagonal, or a matrix.

    Coordinate i of a diagonal gets noise of standard deviation ``entries[i]``.
    """

    entries: Floats | None = None

    def __post_init__(self) -> None:
        if self.entries is None:
            return
        entries = checks.finite_array("factor", self.entries, ndim=np.ndim(self.entries))
        if entries.ndim == 1:
            if not (entries > 0).all():
                rule = "all be above 0"
                raise InvalidInput("weights", rule, float(entries.min()), "Raise the smallest weight.")
        elif entries.ndim != 2 or entries.shape[0] != entries.shape[1]:
            raise InvalidInput("factor", "be square", f"shape {entries.shape}", "Reshape it.")
        object.__setattr__(self, "entries", entries)
        values = entries if entries.ndim == 1 else np.linalg.svd(entries, compute_uv=False)
        if values.min() * _WORST_CONDITION <= values.max():
            rule = f"be invertible, with condition below {_WORST_CONDITION:g}"
            found = f"singular values {values.min():.3g} to {values.max():.3g}"
            raise InvalidInput("factor", rule, found, "Add a small multiple of the identity.")

    @property
    def size(self) -> int | None:
        """The number of coordinates; None where any number fits."""
        return None if self.entries is None else len(self.entries)

    def fit(self, name: str, size: int) -> None:
        """Raise unless this factor acts on ``size`` coordinates."""
        if self.size not in (None, size):
            raise InvalidInput(name, f"act on {size} coordinates", self.size, "Check the shape.")

    def gain(self, window: int | None = None) -> float:
        """The most that the inverse stretches a vector on ``window`` consecutive coordinates."""
        if self.entries is None:
            return 1.0
        if self.entries.ndim == 1:
            return nudge_up(1 / float(self.entries.min()))
        size = len(self.entries)
        values = np.linalg.svd(self.entries, compute_uv=False)
        if window is None or window >= size:
            # The computed singular values are off by at most a modest multiple of eps * largest.
            return nudge_up(1 / (float(values[-1]) - 8 * size * _EPS * float(values[0])))
        inverse = np.linalg.inv(self.entries)
        slack = 1 + 8 * size * _EPS * float(values[0] / values[-1])
        columns = range(size - window + 1)
        widest = max(spectral_norm_upper(inverse[:, i : i + window]) for i in columns)
        return nudge_up(widest * slack)

    def __str__(self) -> str:
        if self.entries is None:
            return "uniform"
        return f"{'diagonal' if self.entries.ndim == 1 else 'full'} {len(self.entries)}"


UNIFORM = Factor()
"""The identity: every coordinate gets the same, independent noise."""
