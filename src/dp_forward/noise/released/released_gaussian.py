"""Uniform Gaussian noise on the integer grid: how a release of it is drawn. The proof is in `released`."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from dp_forward.noise.released.exact_normal import Entropy, rounded_normal
from dp_forward.noise.released.grid import Grid, Integers, quantise
from dp_forward.privacy import NormBound


@dataclass(frozen=True, slots=True)
class GaussianRelease:
    """How noise of deviation ``sigma`` on a bounded matrix is released: its step, its bound, its draws."""

    sigma: float
    bound: NormBound
    bits: int
    grid: Grid = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "grid", Grid.for_noise(self.sigma, norm=self.bound.norm, bits=self.bits))

    @property
    def step(self) -> float:
        """The step of what leaves, a power of two."""
        return self.grid.step

    def draw(self, vectors: NDArray[np.float64], *, entropy: Entropy) -> Integers:
        """One release of each row: bounded, on integers, with exact noise, on the coarse grid."""
        fine = self.grid.signal_step
        signal = quantise(vectors, bound=replace(self.bound, over="row", rows=None), step=fine)
        signal += rounded_normal(signal.shape, scale=self.sigma / fine, entropy=entropy)
        return self.grid.coarsened(signal)
