"""The front at `encoder.1.qkv`, opened between the rows and their projection into Q, K and V.

The bound of a joint release stands *before* the projection, so the front must give the rows that the
projections read, and the projections follow the bound on the user's side.
"""

from __future__ import annotations

import copy

from torch import nn

from dp_forward.errors import InvalidInput
from dp_forward.split.cut_modules import QkvHead
from dp_forward.split.halves import Front
from dp_forward.split.pair import Split

__all__ = ["opened_at_qkv"]


def opened_at_qkv(pair: Split) -> tuple[Split, nn.ModuleList]:
    """A pair whose front stops at the rows, and the projections that come next.

    Guarantees:
        ``cat([p(rows) for p in projections])`` is what the front gave before; the given pair is untouched.
    """
    if pair.cut.point != "qkv" or not isinstance(pair.front, Front):
        raise InvalidInput("cut", "be encoder.1.qkv, without maps", str(pair.cut), "Split again there.")
    front = copy.deepcopy(pair.front)
    head = next(module for module in front.modules() if isinstance(module, QkvHead))
    projections = head.projections
    head.projections = nn.ModuleList([nn.Identity()])
    front.width = int(_rows_width(projections[0]))
    return Split(front, pair.back), projections


def _rows_width(projection: nn.Module) -> int:
    width = getattr(projection, "in_features", None)
    return int(getattr(projection, "nx", 0) if width is None else width)
