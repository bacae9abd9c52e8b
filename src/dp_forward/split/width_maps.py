"""Dimension maps: M1 (d to d') at the end of the front, M2 (d' to d) at the start of the back.

Fewer numbers cross, and a learned M1 puts what matters into few directions, where a direction-preserving
mechanism keeps it. M1 has no bias, so the zeroed rows of padding stay zero; row by row, so a front that
computes each row from its own token still does.

Edges:
    d' = 1 is refused: one number, normalised, is a sign and has no gradient.
Paper: the dimension reduction of the embedding matrix.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from dp_forward.errors import InvalidInput
from dp_forward.privacy.checks import count
from dp_forward.split.halves import Back, Front

__all__ = ["NarrowBack", "NarrowFront", "narrowed"]


class NarrowFront(nn.Module):
    """A front followed by M1."""

    def __init__(self, front: Front, width: int) -> None:
        super().__init__()
        self.front = front
        self.narrow = nn.Linear(front.width, width, bias=False)
        nn.init.orthogonal_(self.narrow.weight)
        self.cut, self.row_local, self.width = front.cut, front.row_local, width
        self.max_rows, self.pads_left = front.max_rows, front.pads_left

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """The narrowed hidden matrix [batch, rows, d']."""
        return self.narrow(self.front(*args, **kwargs))  # type: ignore[no-any-return]


class NarrowBack(nn.Module):
    """M2 followed by a back."""

    def __init__(self, back: Back, width: int) -> None:
        super().__init__()
        self.widen = nn.Linear(width, back.width)
        self.back = back
        self.cut, self.width = back.cut, width

    def forward(self, hidden: Tensor, labels: Tensor | None = None) -> Any:
        """As the back, from the narrow hidden matrix."""
        return self.back(self.widen(hidden), labels=labels)


def narrowed(front: Front, back: Back, width: int) -> tuple[NarrowFront, NarrowBack]:
    """Front and back with maps to ``width`` columns in between; M2 starts as the transpose of M1."""
    width = count("width", width, at_least=2, remedy="One number, normalised, is only a sign.")
    if width >= front.width:
        raise InvalidInput("width", f"be below the hidden width {front.width}", width, "Leave it out.")
    narrow_front, narrow_back = NarrowFront(front, width), NarrowBack(back, width)
    with torch.no_grad():
        narrow_back.widen.weight.copy_(narrow_front.narrow.weight.T)
        narrow_back.widen.bias.zero_()
    return narrow_front, narrow_back
