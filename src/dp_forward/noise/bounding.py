"""The bound in torch: total, per text, in float32, differentiable to the front.

The same function as `privacy.bounds.NormBound.apply`, for batches on any device.

Guarantees:
    For every input, NaN, Inf, denormals, zeros and 1e30 included, in any floating dtype: nothing
    raises, the result is finite, and the norm of each text (or row) is at most C. Every text is bounded
    by itself; no number of one text depends on another.
Edges:
    A zero text becomes a fixed direction when normalising, with a zero gradient; the gradient is
    finite everywhere.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dp_forward.privacy.bounds import NormBound

__all__ = ["apply_bound"]

SHRINK = 1 - 1e-6
"""More than the float32 error of a norm over a hundred thousand entries."""


def apply_bound(hidden: Tensor, bound: NormBound) -> Tensor:
    """``hidden`` [batch, rows, width] in float32 within the bound, text by text."""
    x = hidden.to(torch.float32)
    clean = torch.where(torch.isfinite(x), x, torch.zeros_like(x))
    over = (-1,) if bound.over == "row" else (-2, -1)
    # A direction does not change with its length, so the peak may count as a constant.
    peak = torch.linalg.vector_norm(clean.detach(), ord=torch.inf, dim=over, keepdim=True)
    empty = peak == 0
    # By the peak first, against overflow of the squares; then by the length of what is left.
    unit = clean / torch.where(empty, torch.ones_like(peak), peak)
    # Summed as squares: `vector_norm` adds up in one go and loses digits over a hundred thousand entries.
    squares = unit.square().sum(dim=over, keepdim=True)
    length = torch.where(empty, torch.ones_like(squares), squares).sqrt()
    ceiling = bound.norm * SHRINK
    if bound.how == "normalise":
        # The first unit vector, for every text or row that is zero.
        fixed = torch.zeros_like(unit[:1, :1] if bound.over == "row" else unit[:1])
        fixed[0, 0, 0] = 1.0
        return torch.where(empty, ceiling * fixed, unit * (ceiling / length))
    inside = peak.to(torch.float64) * length.detach() <= ceiling
    return torch.where(inside, clean, unit * (ceiling / length))
