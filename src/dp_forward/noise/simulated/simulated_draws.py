"""Simulated draws in torch: seeded, fast, on the device of the data. For training and experiments only.

Floating-point noise is not safe to release (docs/adr/0002): nothing here can be put on the wire.

Every draw comes from the sanitizer's own generator, never from torch's global one: a trainer that seeds all
its processes alike must not make them draw the same noise.
"""

import secrets
from typing import Any

import torch
from scipy.special import ndtr
from torch import Tensor
from torch.autograd.function import once_differentiable

from dp_forward.errors import refuse_if
from dp_forward.noise.bounding import SHRINK, axes_of
from dp_forward.privacy import Factor, KaryResponse, MatrixGaussian, NormBound, PrivUnit

_AHEAD = 4096
"""Signals drawn at once: a step on a GPU waits for launches, and they depend on no text."""


class Generators:
    """One random stream per device, started from a seed and the rank of this process.

    Edges:
        Without a seed the stream starts from operating-system entropy. Ranks of one distributed run draw
        different noise from one seed.
    """

    def __init__(self, seed: int | None) -> None:
        self.seed = seed
        self._streams: dict[torch.device, torch.Generator] = {}
        self._signals: dict[torch.device, tuple[PrivUnit, Tensor, float]] = {}

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

    def normal(self, like: Tensor, sigma: float = 1.0) -> Tensor:
        """Independent N(0, sigma^2), shaped like ``like``."""
        return torch.empty_like(like).normal_(0.0, sigma, generator=self.on(like.device))

    def uniform(self, size: int, device: torch.device) -> Tensor:
        """Independent uniforms in (0, 1], in float64."""
        return 1 - torch.rand(size, generator=self.on(device), device=device, dtype=torch.float64)

    def signals(self, mechanism: PrivUnit, size: int, device: torch.device) -> tuple[Tensor, float]:
        """``sigma / norm * s`` for so many releases, drawn ahead and each used once; and sigma."""
        kept = self._signals.get(device)
        if kept is None or kept[0] is not mechanism or len(kept[1]) < size:
            kept = (mechanism, _draw_signals(mechanism, max(size, _AHEAD), self, device), mechanism.sigma)
        _, ahead, sigma = kept
        self._signals[device] = (mechanism, ahead[size:], sigma)
        return ahead[:size], sigma


def _rank() -> int:
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank()
    return 0


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


def _draw_signals(mechanism: PrivUnit, size: int, generators: Generators, device: torch.device) -> Tensor:
    # s: N(0, 1) above t with probability p, else below; in float64, by inverse CDF.
    t, uniform = mechanism.threshold, generators.uniform(size, device)
    above = -torch.special.ndtri(uniform * float(ndtr(-t)))
    below = torch.special.ndtri(uniform * float(ndtr(t)))
    in_cap = generators.uniform(size, device) <= mechanism.cap_probability
    return (torch.where(in_cap, above.clamp(min=t), below) * (mechanism.sigma / mechanism.bound.norm)).float()


def draw_privunit(bounded: Tensor, mechanism: PrivUnit, generators: Generators) -> Tensor:
    """``norm / m * V`` with ``V = s x + (I - x x^T) G``, per text or per row."""
    over = len(axes_of(mechanism.bound))
    releases = bounded.shape[:-over]
    signals, sigma = generators.signals(mechanism, releases.numel(), bounded.device)
    signals, noise = signals.reshape(*releases, *[1] * over), generators.normal(bounded, sigma)
    noisy: Tensor = _Mixed.apply(bounded, noise, signals, mechanism.bound)  # type: ignore[no-untyped-call]
    return noisy


class _Mixed(torch.autograd.Function):
    """``noise + h b`` with ``h = signal - <b, noise> / |b|^2``.

    The gradient is ``h g - noise <b, g> / |b|^2``: the noise counts as a constant, its part along b does not.
    b is a hair shorter than its norm, by a known factor.
    """

    @staticmethod
    def forward(ctx: Any, bounded: Tensor, noise: Tensor, signals: Tensor, bound: NormBound) -> Tensor:
        ctx.bound, ctx.inverse = bound, 1 / (bound.norm * SHRINK) ** 2
        along = (bounded * noise).sum(dim=axes_of(bound), keepdim=True)
        share = torch.sub(signals, along, alpha=ctx.inverse)
        ctx.save_for_backward(bounded, noise, share)
        return torch.addcmul(noise, share, bounded)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        bounded, noise, share = ctx.saved_tensors
        along = (gradient * bounded).sum(dim=axes_of(ctx.bound), keepdim=True)
        found = torch.addcmul(share * gradient, along, noise, value=-ctx.inverse)
        return found, None, None, None


def draw_response(bounded: Tensor, mechanism: KaryResponse, generators: Generators) -> Tensor:
    """A one-hot row for each row of K scores: its decision, by randomized response; the gradient is zero."""
    rule, remedy = f"have a score for each of {mechanism.labels} labels", "Use a front that ends in K scores."
    refuse_if(bounded.shape[-1] != mechanism.labels, "hidden", rule, bounded.shape[-1], remedy)
    decided = bounded.detach().argmax(dim=-1)
    size, device, kinds = decided.numel(), bounded.device, mechanism.labels
    kept = (generators.uniform(size, device) <= mechanism.keep).reshape(decided.shape)
    # One of the others: 1 .. K-1 places on from the decision, all alike.
    away = (generators.uniform(size, device) * (kinds - 1)).ceil().long().clamp(min=1)
    answers = torch.where(kept, decided, (decided + away.reshape(decided.shape)) % kinds)
    # Zero times the scores: a front that trains beside other losses stays in the graph.
    return torch.nn.functional.one_hot(answers, kinds) + 0.0 * bounded
