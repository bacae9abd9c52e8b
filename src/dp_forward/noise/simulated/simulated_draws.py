"""Simulated draws in torch: seeded, fast, on the device of the data. For training and experiments only.

Floating-point noise is not safe to release (docs/adr/0002): nothing here can be put on the wire.

Every draw comes from the sanitizer's own generator, never from torch's global one: a trainer that seeds all
its processes alike must not make them draw the same noise.
"""

from __future__ import annotations

import secrets

import torch
from scipy.special import ndtr
from torch import Tensor

from dp_forward.errors import InvalidInput
from dp_forward.noise.bounding import SHRINK
from dp_forward.privacy import KaryResponse
from dp_forward.privacy.factor import Factor
from dp_forward.privacy.matrix import MatrixGaussian
from dp_forward.privacy.privunit import PrivUnit


class Generators:
    """One random stream per device, started from a seed and the rank of this process.

    Edges:
        Without a seed the stream starts from operating-system entropy. Ranks of one distributed run draw
        different noise from one seed.
    """

    def __init__(self, seed: int | None) -> None:
        self.seed = seed
        self._streams: dict[torch.device, torch.Generator] = {}

    def on(self, device: torch.device) -> torch.Generator:
        """The stream of this device."""
        stream = self._streams.get(device)
        if stream is None:
            start = secrets.randbits(63)
            if self.seed is not None:
                # Far apart, and different from what others do with the same small seed.
                start = (self.seed * 1_000_003 + _rank() * 7_368_787 + 0x5DEECE66D) % 2**63
            stream = self._streams[device] = torch.Generator(device=device).manual_seed(start)
        return stream

    def normal(self, like: Tensor) -> Tensor:
        """Independent N(0, 1), shaped like ``like``."""
        return torch.randn(like.shape, generator=self.on(like.device), device=like.device)

    def uniform(self, size: int, device: torch.device) -> Tensor:
        """Independent uniforms in (0, 1], in float64."""
        numbers = torch.rand(size, generator=self.on(device), device=device, dtype=torch.float64)
        return 1 - numbers


def _rank() -> int:
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank()
    return 0


def add_gaussian(bounded: Tensor, sigma: float, generators: Generators) -> Tensor:
    """``bounded`` with independent N(0, sigma^2) on every entry."""
    return torch.add(bounded, generators.normal(bounded), alpha=sigma)


def add_shaped(bounded: Tensor, mechanism: MatrixGaussian, generators: Generators) -> Tensor:
    """``bounded`` with ``sigma U G V^T``."""
    rows, columns = bounded.shape[-2:]
    mechanism.row_factor.fit("row_factor", rows)
    mechanism.column_factor.fit("column_factor", columns)
    noise = _left(mechanism.row_factor, generators.normal(bounded))
    noise = _left(mechanism.column_factor, noise.transpose(-2, -1)).transpose(-2, -1)
    return torch.add(bounded, noise, alpha=mechanism.sigma)


def _left(factor: Factor, matrix: Tensor) -> Tensor:
    if factor.entries is None:
        return matrix
    entries = torch.tensor(factor.entries, dtype=matrix.dtype, device=matrix.device)
    return entries[:, None] * matrix if entries.ndim == 1 else entries @ matrix


def draw_privunit(bounded: Tensor, mechanism: PrivUnit, generators: Generators) -> Tensor:
    """``norm / m * V`` with ``V = s x + (I - x x^T) G``, per text or per row."""
    over = (-1,) if mechanism.bound.over == "row" else (-2, -1)
    norm = mechanism.bound.norm
    noise = generators.normal(bounded)
    # <x, G> for the unit vector x: the bounded matrix is a hair shorter than its norm, by a known factor.
    along = (bounded * noise).sum(dim=over, keepdim=True) / (norm * SHRINK**2)
    # s: N(0, 1) above t with probability p, else below; in float64, by inverse CDF.
    size, t = along.numel(), mechanism.threshold
    uniform = generators.uniform(size, along.device)
    above = -torch.special.ndtri(uniform * float(ndtr(-t)))
    below = torch.special.ndtri(uniform * float(ndtr(t)))
    in_cap = generators.uniform(size, along.device) <= mechanism.cap_probability
    signal = torch.where(in_cap, above.clamp(min=t), below).to(along.dtype).reshape(along.shape)
    share = (signal - along) * (mechanism.sigma / norm)
    return torch.addcmul(noise * mechanism.sigma, share, bounded)


def draw_response(bounded: Tensor, mechanism: KaryResponse, generators: Generators) -> Tensor:
    """A one-hot row for each row of K scores: its decision, by randomized response; the gradient is zero."""
    if bounded.shape[-1] != mechanism.labels:
        rule = f"have a score for each of {mechanism.labels} labels"
        raise InvalidInput("hidden", rule, bounded.shape[-1], "Use a front that ends in K scores.")
    decided = bounded.detach().argmax(dim=-1)
    size, device, kinds = decided.numel(), bounded.device, mechanism.labels
    kept = (generators.uniform(size, device) <= mechanism.keep).reshape(decided.shape)
    # One of the others: 1 .. K-1 places on from the decision, all alike.
    away = (generators.uniform(size, device) * (kinds - 1)).ceil().long().clamp(min=1)
    answers = torch.where(kept, decided, (decided + away.reshape(decided.shape)) % kinds)
    # Zero times the scores: a front that trains beside other losses stays in the graph.
    return torch.nn.functional.one_hot(answers, kinds) + 0.0 * bounded
