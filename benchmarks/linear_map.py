"""Linear map from the rows at a cut back to the rows that the first block reads.

Least squares on public text, with the attacker's own noise where there is any. The gradient attack then fits
at the level of the embeddings, where the nearest solution is easy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from dp_forward.attacks.attack_result import AttackResult
from dp_forward.attacks.inversion.recall import Inversion
from dp_forward.attacks.observations import each_batch
from dp_forward.data import EncodedTexts
from dp_forward.progress import Count
from dp_forward.split.families import FAMILIES
from dp_forward.split.halves import AnyFront, NarrowFront
from reproduction.attacks.gradient import BATCH, fit_tokens, refuse_front

RIDGE = 1e-6


class _Reached(Exception):
    """The first block was about to run."""


def entry_rows(front: AnyFront, inputs: Mapping[str, Tensor]) -> Tensor:
    """The rows that the first block reads: those of the cut `embeddings`, whatever the front's own cut is."""
    plain = front.front if isinstance(front, NarrowFront) else front
    blocks: Any = plain.model.get_submodule(FAMILIES[plain.settings["model_type"]].blocks)
    if len(blocks) == 0:
        found: Tensor = plain(**inputs)
        return found
    caught: list[Tensor] = []

    def catch(_: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        caught.append(args[0] if args else named["hidden_states"])
        raise _Reached

    handle = blocks[0].register_forward_pre_hook(catch, with_kwargs=True)
    try:
        plain(**inputs)
    except _Reached:
        pass
    finally:
        handle.remove()
    return caught[0]


@dataclass(frozen=True, eq=False, repr=False)
class LinearMap:
    """From a row at the cut to the row that the first block read; ``error`` is what it leaves unexplained."""

    weight: Tensor
    offset: Tensor
    error: float
    """Mean square of the difference over that of the rows, on the texts it was learnt from."""

    def __repr__(self) -> str:
        return f"LinearMap({tuple(self.weight.shape)}, error={self.error:.3g})"


def invert_through(found: LinearMap, target: Inversion, *, steps: int = 150) -> AttackResult:
    """The gradient attack at the level of the first block, after a linear map of what was seen."""
    guesses = []
    for seen, tell in target.each_batch(BATCH):
        guesses.append(
            fit_tokens(
                target,
                lambda **inputs: entry_rows(target.front, inputs),
                seen @ found.weight + found.offset,
                target.lengths(seen),
                over=None,
                steps=steps,
                rate=2.0,
                tell=tell,
            )
        )
    name = "gradient after a linear map"
    return target.judge(name, torch.cat(guesses), steps=steps, map_error=found.error)


def fit_linear_map(target: Inversion, public: EncodedTexts, *, progress: Count | None = None) -> LinearMap:
    """Least squares on public text: what would be seen of its rows, against what the first block read."""
    front, device = target.front, target.device
    refuse_front(front)
    width = front.width + 1
    left: Tensor = torch.zeros(width, width, dtype=torch.float64, device=device)
    right: Tensor | None = None
    power = 0.0
    for batch, _ in each_batch(public, 128, progress):
        seen = target.observe(batch)
        inputs = {name: value.to(device) for name, value in batch.items() if name != "labels"}
        with torch.inference_mode():
            wanted = entry_rows(front, inputs)
        text = inputs["attention_mask"] != 0
        x = torch.nn.functional.pad(seen[text].double(), (0, 1), value=1.0)
        y = wanted[text].double()
        left += x.T @ x
        right = x.T @ y if right is None else right + x.T @ y
        power += float(y.square().sum())
    assert right is not None
    ridge = RIDGE * left.diagonal().mean() * torch.eye(width, dtype=torch.float64, device=device)
    solved = torch.linalg.solve(left + ridge, right)
    # |y - xW|^2 = |y|^2 - 2 <W, x'y> + <W, x'x W>
    rest = power - 2 * float((solved * right).sum()) + float((solved * (left @ solved)).sum())
    return LinearMap(solved[:-1].float(), solved[-1].float(), max(0.0, rest) / power)
