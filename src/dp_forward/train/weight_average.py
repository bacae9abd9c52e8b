"""A moving average of the weights while they train; in the end it takes their place.

The last weights of a short fine-tuning carry the noise of its last steps. Their moving average carries less,
for one addition per step. It is saved with every checkpoint, so a resumed run ends where it would have.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

__all__ = ["MovingAverage"]

_FILE = "average.safetensors"


class MovingAverage(transformers.TrainerCallback):
    """Keeps ``decay * average + (1 - decay) * weights``; early steps decay faster, to forget the start."""

    def __init__(self, module: nn.Module, *, decay: float) -> None:
        self._module, self._decay = module, decay
        self._average: list[Tensor] = []

    def _weights(self) -> dict[str, nn.Parameter]:
        return {name: value for name, value in self._module.named_parameters() if value.requires_grad}

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        weights = self._weights()
        stored = Path(args.output_dir) / f"checkpoint-{state.global_step}" / _FILE
        if state.global_step and stored.is_file():
            known = load_file(stored)
            self._average = [known[name].to(value.device) for name, value in weights.items()]
        else:
            self._average = [value.detach().clone() for value in weights.values()]

    @torch.no_grad()
    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        decay = min(self._decay, (1 + state.global_step) / (10 + state.global_step))
        torch._foreach_lerp_(self._average, [w.detach() for w in self._weights().values()], 1 - decay)

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.is_world_process_zero:
            place = Path(args.output_dir) / f"checkpoint-{state.global_step}"
            names = self._weights()
            tensors = {
                name: value.cpu().contiguous() for name, value in zip(names, self._average, strict=True)
            }
            draft = place / (_FILE + ".new")
            save_file(tensors, draft)
            draft.replace(place / _FILE)

    @torch.no_grad()
    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        for weight, average in zip(self._weights().values(), self._average, strict=True):
            weight.copy_(average)
