"""The attention mask behind the cut, as in the authors' code: for a table that asks what it is worth.

What crosses then tells the length of every text with certainty, so that no promise per text is left. Nothing
of the package does this.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from dp_forward.split import Split
from dp_forward.train.noisy_model import NoisyModel

__all__ = ["mask_crossing"]


@contextmanager
def mask_crossing(pair: Split) -> Iterator[None]:
    """Train and ask ``pair`` with the mask: rows of padding leave as zeros, which the back leaves out.

    Guarantees: none; see the module. The other rows are noised as ever.
    Edges: for one pair at a time in a process, which has no width maps.
    """
    plain = NoisyModel.add_noise

    def add_noise(self: NoisyModel, hidden: Tensor, *, times: int = 1) -> Tensor:
        noisy = plain(self, hidden, times=times)
        return noisy * _real_rows(hidden).repeat_interleave(len(noisy) // len(hidden), dim=0).unsqueeze(-1)

    def leave_out_padding(_: nn.Module, args: Any, given: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        return args, {**given, "attention_mask": _real_rows(given["inputs_embeds"]).long()}

    NoisyModel.add_noise = add_noise  # type: ignore[method-assign]
    model: nn.Module = pair.back.plain.model  # type: ignore[assignment]
    handle = model.register_forward_pre_hook(leave_out_padding, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()
        NoisyModel.add_noise = plain  # type: ignore[method-assign]


def _real_rows(rows: Tensor) -> Tensor:
    """Which rows are none of padding, those being zero at the cut (`split.Front`)."""
    return (rows != 0).any(dim=-1)
