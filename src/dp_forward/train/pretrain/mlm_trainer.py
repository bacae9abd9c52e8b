"""One phase of masked-LM training on the Hugging Face Trainer, which can be stopped and resumed."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import nn
from torch.utils.data import DataLoader, SequentialSampler

from dp_forward.progress import Progress
from dp_forward.split.device import pick_device
from dp_forward.train.pretrain.masked_lm import score_masked_tokens_only
from dp_forward.train.pretrain.masking import IGNORED, MaskedBlocks, Masking
from dp_forward.train.pretrain.pretrain_plan import PretrainPlan
from dp_forward.train.training_loop import last_checkpoint

if TYPE_CHECKING:
    from transformers import Trainer, TrainingArguments

__all__ = ["Phase", "masked_loss", "newest_checkpoint", "train_phase"]

_WRITTEN = ("model.safetensors", "optimizer.pt", "scheduler.pt", "trainer_state.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """What is trained for how long, and where its checkpoints lie."""

    name: str
    folder: Path
    steps: int
    learning_rate: float
    plan: PretrainPlan


def train_phase(
    model: nn.Module,
    blocks: NDArray[np.int32],
    masking: Masking,
    phase: Phase,
    *,
    progress: Progress | None = None,
) -> list[dict[str, Any]]:
    """Train to the phase's number of steps, from its last complete checkpoint; the losses by step.

    Guarantees:
        A step that a checkpoint holds is not taken again, and the items of later steps are those that a run
        without a stop would have seen. The noise of a resumed run is drawn anew.
    """
    start = newest_checkpoint(phase.folder)
    if start is not None:
        state = json.loads((start / "trainer_state.json").read_text(encoding="utf-8"))
        if state["global_step"] >= phase.steps:
            # Not strict: a tied tensor is stored under one of its names.
            loaded = model.load_state_dict(load_file(start / "model.safetensors"), strict=False)
            assert not loaded.unexpected_keys, "a checkpoint of another model"
            return _losses(phase.name, state["log_history"])
    arguments = _arguments(phase)
    per_step = arguments.train_batch_size * arguments.world_size
    items = MaskedBlocks(
        blocks, masking, seed=(phase.plan.seed, *phase.name.encode()), items=phase.steps * per_step
    )
    trainer = _trainer(model, arguments, items, phase, progress)
    with score_masked_tokens_only(model):
        trainer.train(resume_from_checkpoint=None if start is None else str(start))
    return _losses(phase.name, trainer.state.log_history)


def newest_checkpoint(folder: Path) -> Path | None:
    """The newest checkpoint that a phase can be resumed from."""
    return last_checkpoint(folder, needs=_WRITTEN)


@torch.no_grad()
def masked_loss(model: nn.Module, items: MaskedBlocks, *, batch: int) -> float:
    """The mean masked-LM loss per masked token, in evaluation mode."""
    device = pick_device()
    was_training = model.training
    model.to(device).eval()
    total, tokens = 0.0, 0
    with score_masked_tokens_only(model):
        for some in DataLoader(items, batch_size=batch):
            masked = int((some["labels"] != IGNORED).sum())
            total += masked * float(model(**{name: value.to(device) for name, value in some.items()}).loss)
            tokens += masked
    model.train(was_training)
    return total / tokens


def _arguments(phase: Phase) -> TrainingArguments:
    from transformers import TrainingArguments

    plan = phase.plan
    return TrainingArguments(
        output_dir=str(phase.folder),
        max_steps=phase.steps,
        per_device_train_batch_size=plan.batch,
        learning_rate=phase.learning_rate,
        weight_decay=0.01,
        warmup_steps=phase.steps // 20,
        lr_scheduler_type="linear",
        bf16=plan.bf16,
        use_cpu=not torch.cuda.is_available(),
        seed=plan.seed,
        logging_steps=max(1, phase.steps // 100),
        save_strategy="steps",
        save_steps=plan.save_every,
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
    progress: Progress | None,
) -> Trainer:
    from transformers import PrinterCallback, Trainer, TrainerCallback

    class InOrder(Trainer):
        """The items come shuffled; a second shuffle would only cost memory."""

        def _get_train_sampler(self, *_: Any, **__: Any) -> Any:
            return SequentialSampler(items)

    class ShowProgress(TrainerCallback):
        loss: float | None = None

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            self.loss = (logs or {}).get("loss", self.loss)

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if progress is not None and state.is_world_process_zero:
                numbers = {} if self.loss is None else {"loss": self.loss}
                progress(phase.name, state.global_step, phase.steps, numbers)

    trainer = InOrder(model=model, args=arguments, train_dataset=items, callbacks=[ShowProgress()])
    trainer.remove_callback(PrinterCallback)  # it would write to stdout, where results go
    return trainer


def _losses(phase: str, log: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"phase": phase, "step": row["step"], "loss": row["loss"]} for row in log if "loss" in row]
