"""One phase of masked-LM training on the Hugging Face Trainer, which can be stopped and resumed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import nn
from torch.utils.data import DataLoader

from dp_forward.progress import Progress
from dp_forward.split.device import pick_device
from dp_forward.train.pretrain.masked_lm import score_masked_tokens_only
from dp_forward.train.pretrain.masking import IGNORED, MaskedBlocks, Masking
from dp_forward.train.pretrain.pretrain_plan import PretrainPlan
from dp_forward.train.training_loop import last_checkpoint


def train_phase(
    model: nn.Module,
    blocks: NDArray[np.int32],
    masking: Masking,
    plan: PretrainPlan,
    *,
    phase: str,
    steps: int,
    learning_rate: float,
    folder: Path,
    progress: Progress | None = None,
) -> list[dict[str, Any]]:
    """Train for so many steps, from the last complete checkpoint in the ``folder``; the losses by step.

    Guarantees:
        A step that a checkpoint holds is not taken again, and the items of later steps are those that a run
        without a stop would have seen. The noise of a resumed run is drawn anew.
    """
    start = last_checkpoint(folder)
    if start is not None:
        state = json.loads((start / "trainer_state.json").read_text(encoding="utf-8"))
        if state["global_step"] >= steps:
            # Not strict: a tied tensor is stored under one of its names.
            loaded = model.load_state_dict(load_file(start / "model.safetensors"), strict=False)
            assert not loaded.unexpected_keys, "a checkpoint of another model"
            return _losses(phase, state["log_history"])
    arguments = _arguments(plan, steps=steps, learning_rate=learning_rate, folder=folder)
    items = steps * arguments.train_batch_size * arguments.world_size
    trainer = transformers.Trainer(
        model=model,
        args=arguments,
        train_dataset=MaskedBlocks(blocks, masking, seed=(plan.seed, *phase.encode()), items=items),
        callbacks=[] if progress is None else [_ShowProgress(phase, progress)],
    )
    trainer.remove_callback(transformers.PrinterCallback)  # it would write to stdout, where results go
    with score_masked_tokens_only(model):
        trainer.train(resume_from_checkpoint=None if start is None else str(start))
    return _losses(phase, trainer.state.log_history)


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


def _arguments(
    plan: PretrainPlan, *, steps: int, learning_rate: float, folder: Path
) -> transformers.TrainingArguments:
    return transformers.TrainingArguments(
        output_dir=str(folder),
        max_steps=steps,
        per_device_train_batch_size=plan.batch,
        learning_rate=learning_rate,
        weight_decay=0.01,
        warmup_steps=steps // 20,
        lr_scheduler_type="linear",
        bf16=plan.bf16,
        use_cpu=not torch.cuda.is_available(),
        seed=plan.seed,
        # The items come shuffled; a second shuffle would only cost memory.
        train_sampling_strategy="sequential",
        logging_steps=max(1, steps // 100),
        save_strategy="steps",
        save_steps=plan.save_every,
        save_total_limit=2,
        label_names=["labels"],
        remove_unused_columns=False,
        disable_tqdm=True,
        report_to=[],
    )


class _ShowProgress(transformers.TrainerCallback):
    """Reports every step, with the loss that was logged last."""

    def __init__(self, phase: str, progress: Progress) -> None:
        self._phase, self._progress = phase, progress

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.is_world_process_zero:
            losses = [{"loss": row["loss"]} for row in state.log_history if "loss" in row]
            self._progress(self._phase, state.global_step, state.max_steps, losses[-1] if losses else {})


def _losses(phase: str, log: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"phase": phase, "step": row["step"], "loss": row["loss"]} for row in log if "loss" in row]
