"""One phase of masked-LM training on the Hugging Face Trainer, which can be stopped and continued."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import nn
from torch.utils.data import DataLoader, SequentialSampler

from dp_forward.split.device import pick_device
from dp_forward.train.pretrain.masked_head import scores_for_hidden_tokens_only
from dp_forward.train.pretrain.masking import IGNORED, MaskedBlocks, Masking
from dp_forward.train.training_loop import last_checkpoint

if TYPE_CHECKING:
    from transformers import Trainer, TrainingArguments

__all__ = ["OnProgress", "Phase", "masked_loss", "newest_checkpoint", "train_phase"]

OnProgress = Callable[[str, int, int, float | None], None]
"""Called after each step with the phase, the step, the number of steps and the last logged loss."""

_WRITTEN = ("model.safetensors", "optimizer.pt", "scheduler.pt", "trainer_state.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """What is trained for how long, and where its checkpoints lie."""

    name: str
    folder: Path
    steps: int
    batch: int
    learning_rate: float
    save_every: int
    bf16: bool
    seed: int


def train_phase(
    model: nn.Module,
    blocks: NDArray[np.int32],
    masking: Masking,
    phase: Phase,
    *,
    on_progress: OnProgress | None = None,
) -> list[dict[str, Any]]:
    """Train to the phase's number of steps, from its last complete checkpoint; the losses by step.

    Guarantees:
        A step that a checkpoint holds is not taken again, and the items of later steps are those that a run
        without a stop would have seen. The noise of a resumed run is drawn anew.
    """
    start = newest_checkpoint(phase.folder)
    state = {} if start is None else _state(start)
    if start is not None and state["global_step"] >= phase.steps:
        # Not strict: a tied tensor is stored under one of its names.
        loaded = model.load_state_dict(load_file(start / "model.safetensors"), strict=False)
        assert not loaded.unexpected_keys, "a checkpoint of another model"
        return _losses(phase.name, state["log_history"])
    arguments = _arguments(phase)
    per_step = arguments.train_batch_size * arguments.world_size
    items = MaskedBlocks(
        blocks, masking, seed=(phase.seed, *phase.name.encode()), items=phase.steps * per_step
    )
    trainer = _trainer(model, arguments, items, phase, on_progress)
    with scores_for_hidden_tokens_only(model):
        trainer.train(resume_from_checkpoint=None if start is None else str(start))
    return _losses(phase.name, trainer.state.log_history)


def newest_checkpoint(folder: Path) -> Path | None:
    """The newest checkpoint that a phase can go on from."""
    return last_checkpoint(folder, needs=_WRITTEN)


@torch.no_grad()
def masked_loss(model: nn.Module, items: MaskedBlocks, *, batch: int) -> float:
    """The mean masked-LM loss per hidden token, in evaluation mode."""
    device = pick_device()
    was_training = model.training
    model.to(device).eval()
    total, tokens = 0.0, 0
    with scores_for_hidden_tokens_only(model):
        for some in DataLoader(items, batch_size=batch):
            hidden = int((some["labels"] != IGNORED).sum())
            total += hidden * float(model(**{name: value.to(device) for name, value in some.items()}).loss)
            tokens += hidden
    model.train(was_training)
    return total / tokens


def _arguments(phase: Phase) -> TrainingArguments:
    from transformers import TrainingArguments

    return TrainingArguments(
        output_dir=str(phase.folder),
        max_steps=phase.steps,
        per_device_train_batch_size=phase.batch,
        learning_rate=phase.learning_rate,
        weight_decay=0.01,
        warmup_steps=phase.steps // 20,
        lr_scheduler_type="linear",
        bf16=phase.bf16,
        use_cpu=not torch.cuda.is_available(),
        seed=phase.seed,
        logging_steps=max(1, phase.steps // 100),
        save_strategy="steps",
        save_steps=phase.save_every,
        save_total_limit=2,
        label_names=["labels"],
        remove_unused_columns=False,
        disable_tqdm=True,
        report_to=[],
    )


def _trainer(
    model: nn.Module,
    arguments: TrainingArguments,
    items: MaskedBlocks,
    phase: Phase,
    on_progress: OnProgress | None,
) -> Trainer:
    from transformers import PrinterCallback, Trainer, TrainerCallback

    class InOrder(Trainer):
        """The items come shuffled; a second shuffle would only cost memory."""

        def _get_train_sampler(self, *_: Any, **__: Any) -> Any:
            return SequentialSampler(items)

    class Progress(TrainerCallback):
        loss: float | None = None

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            self.loss = (logs or {}).get("loss", self.loss)

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if on_progress is not None and state.is_world_process_zero:
                on_progress(phase.name, state.global_step, phase.steps, self.loss)

    trainer = InOrder(model=model, args=arguments, train_dataset=items, callbacks=[Progress()])
    trainer.remove_callback(PrinterCallback)  # it would write to stdout, where results go
    return trainer


def _losses(phase: str, log: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"phase": phase, "step": row["step"], "loss": row["loss"]} for row in log if "loss" in row]


def _state(checkpoint: Path) -> dict[str, Any]:
    try:
        state: dict[str, Any] = json.loads((checkpoint / "trainer_state.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return state
