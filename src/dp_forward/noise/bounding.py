"""The bound in torch: total, per text, in float32, differentiable to the front.

The same function as `privacy.bounds.NormBound.apply`, for batches on any device.

Guarantees:
    For every input, NaN, Inf, denormals, zeros and 1e30 included, in any floating dtype: nothing
    raises, the result is finite, and the norm of each text (or row) is at most C. Every text is bounded
    by itself; no number of one text depends on another.
Edges:
    A zero text becomes a fixed direction when normalising, with a zero gradient; the gradient is
    finite everywhere, and zero where an entry was not. It can be taken once, not twice.

A training step on a GPU waits for launches, not for arithmetic: so lengths are summed in float64, which needs
no scaling against overflow, and the gradient is written out below.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from dp_forward.privacy import NormBound

__all__ = ["apply_bound"]

SHRINK = 1 - 1e-6
"""More than the float32 rounding of every entry."""
_STEEPEST = 1e30
"""A factor that leaves a gradient finite in float32."""


def apply_bound(hidden: Tensor, bound: NormBound) -> Tensor:
    """``hidden`` [batch, rows, width] in float32 within the bound, text by text."""
    inside: Tensor = _Bounded.apply(hidden.to(torch.float32), bound)  # type: ignore[no-untyped-call]
    return inside


def axes_of(bound: NormBound) -> tuple[int, ...]:
    """What is bounded as one vector: a row, or the matrix of a text."""
    return (-1,) if bound.over == "row" else (-2, -1)


class _Bounded(torch.autograd.Function):
    r"""``b = r x`` with ``r = C / |x|``, at most 1 when clipping.

    The derivative of ``C x / |x|`` is symmetric, :math:`r (I - b b^T / C^2)`; of what is not clipped, 1.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, bound: NormBound) -> Tensor:
        clean = torch.nan_to_num(x, nan=0.0, posinf=0.0, neginf=0.0)
        length = torch.linalg.vector_norm(clean, dim=axes_of(bound), keepdim=True, dtype=torch.float64)
        ceiling = bound.norm * SHRINK
        upper = torch.tensor(ceiling, dtype=torch.float64)  # a number by a tensor would be two operations
        if bound.how == "normalise":
            factor = upper / torch.threshold(length, 0.0, torch.inf)  # 0 for a text or row that is zero
        else:
            factor = (upper / length).clamp(max=1.0)
        inside = torch.mul(clean, factor, out=torch.empty_like(clean))
        if bound.how == "normalise":
            # The first unit vector, for every text or row that is zero.
            inside[:, : length.shape[1], :1].add_(factor == 0, alpha=ceiling)
        ctx.bound = bound
        ctx.save_for_backward(inside, factor, clean != x)
        return inside

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        inside, factor, dropped = ctx.saved_tensors
        along = (gradient * inside).sum(dim=axes_of(ctx.bound), keepdim=True)
        if ctx.bound.how == "clip":
            along = along * (factor < 1)
        across = torch.addcmul(gradient, along, inside, value=-1 / (ctx.bound.norm * SHRINK) ** 2)
        found = torch.mul(across, factor.clamp(max=_STEEPEST), out=across)
        return found.masked_fill_(dropped, 0.0), None
