r"""The folded record: text and label of a record as one unit vector, for one release of both.

Let z be the direction of a text (norm 1, d' columns), y its label among K, and kappa and alpha in (0, 1)
public constants. With ``z' = (sqrt(1 - kappa^2) z, kappa)`` and the label code
``c_y = (sqrt(alpha), sqrt(1 - alpha) h_y)``, where h_1..h_K are the corners of a regular simplex on the unit
sphere of R^(K-1), the folded record is the outer product

.. math:: u = c_y \otimes z' \in R^{K (d' + 1)}.

Promise. ``|c_y| = |z'| = 1``, so u is a unit vector, whatever text and label are. PrivUnit on the unit sphere
is epsilon-LDP between *any* two inputs, so between any two records: text and label are protected together by
one pure epsilon, and nothing about the label is stored beside it.

Use. PrivUnit is unbiased, so the mean of the releases estimates ``E[c_y (x) z']``. Its row of the common part
(times sqrt(alpha)) is the mean of z'; the others are contrasts between labels. The last column is kappa times
the mean of c_y: the shares of the labels. A larger 1 - alpha spends more of the norm on contrasts: one block
per label would be alpha = 1/K.

Edges:
    A text whose direction is not finite, or zero, is folded as the first axis: a release never fails on data.
Paper: not in it.
"""

from dataclasses import dataclass
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import helmert

from dp_forward.errors import InvalidInput
from dp_forward.privacy.checks import count

__all__ = ["FoldedCode", "simplex"]

KAPPA: Final = 0.3
ALPHA: Final = 0.2

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class FoldedCode:
    """The public code for ``labels`` labels and directions of ``width`` columns."""

    labels: int
    width: int

    def __post_init__(self) -> None:
        count("labels", self.labels, at_least=2, remedy="There must be something to choose from.")
        count("width", self.width, remedy="It is the width of the projection.")

    @classmethod
    def of_columns(cls, columns: int, labels: int) -> Self:
        """The code of releases with so many columns."""
        if columns % labels or columns < 2 * labels:
            rule = f"be a multiple of the {labels} labels, two or more for each"
            raise InvalidInput("width", rule, columns, "It is labels * (d' + 1).")
        return cls(labels, columns // labels - 1)

    @property
    def columns(self) -> int:
        """How many columns a folded record has."""
        return self.labels * (self.width + 1)

    def fold(self, directions: NDArray[np.floating], labels: NDArray[np.int64]) -> Floats:
        """Folded records [records, columns] of directions [records, width] and their labels."""
        rows = np.asarray(directions, dtype=np.float64)
        if rows.shape != (len(labels), self.width):
            rule = f"be {len(labels)} x {self.width}"
            raise InvalidInput("directions", rule, rows.shape, "One for each label.")
        if len(labels) and not 0 <= labels.min() <= labels.max() < self.labels:
            raise InvalidInput("labels", f"lie in 0..{self.labels - 1}", "a label outside", "Check the task.")
        with np.errstate(all="ignore"):
            norms = np.linalg.norm(rows, axis=1, keepdims=True)
            sound = np.isfinite(norms) & (norms > 0)
            rows = np.where(sound, rows / norms, np.eye(1, self.width))
        contrasts = np.sqrt(1 - ALPHA) * simplex(self.labels)
        codes = np.concatenate([np.full((self.labels, 1), np.sqrt(ALPHA)), contrasts], axis=1)  # c_y in row y
        lengthened = np.concatenate([np.sqrt(1 - KAPPA**2) * rows, np.full((len(rows), 1), KAPPA)], axis=1)
        folded: Floats = codes[labels][:, :, None] * lengthened[:, None, :]
        return folded.reshape(len(rows), self.columns)

    def unfold(self, mean: Floats) -> tuple[Floats, Floats, Floats]:
        """What the mean of releases [columns] estimates, unbiased.

        The mean of h_y [K - 1], the mean of z [width], and the mean of ``h_y z^T`` [K - 1, width].
        """
        table = np.asarray(mean, dtype=np.float64).reshape(self.labels, self.width + 1)
        inner, stretch = np.sqrt(1 - ALPHA), np.sqrt(1 - KAPPA**2)
        return (
            table[1:, -1] / (inner * KAPPA),
            table[0, :-1] / (np.sqrt(ALPHA) * stretch),
            table[1:, :-1] / (inner * stretch),
        )

    def variances(self, variance: float) -> tuple[float, float, float]:
        """The variance per coordinate of each of these, from that of a coordinate of the mean."""
        stretch = 1 - KAPPA**2
        inner = variance / (1 - ALPHA)
        return inner / KAPPA**2, variance / (ALPHA * stretch), inner / stretch

    def shares(self, corner_mean: Floats) -> Floats:
        """The shares of the labels from the mean of h_y; they sum to 1, and one may be below 0."""
        # h_y . h_z is 1 or -1 / (K - 1), so h_y . mean = (K share_y - 1) / (K - 1).
        return np.asarray(
            1 / self.labels + (self.labels - 1) / self.labels * simplex(self.labels) @ corner_mean
        )


def simplex(corners: int) -> Floats:
    """Corners of a regular simplex on the unit sphere, [corners, corners - 1]; their sum is zero."""
    # Helmert's basis: the same on every machine, where a singular vector could be any other.
    return np.asarray(helmert(corners).T * np.sqrt(corners / (corners - 1)))
