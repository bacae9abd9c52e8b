"""Noisy masked-LM pre-training on public text: a back that has learned to read noisy matrices.

The model with its masked-LM head is cut, the mechanism's noise (by default a share of it) sits at the cut in
every step, and the loss is taken behind the back. The halves are then one ordinary checkpoint again::

    report = pretrain(PretrainPlan(corpus="wiki.txt.gz", epsilon=8.0, steps=10_000), folder=Path("noisy"))
    model = load_model("noisy", labels=2)                 # so `dpf finetune --model noisy` takes it

A checkpoint without a head (a sentence encoder) first gets one: phase `head`, without noise. Then comes phase
`noisy`. Both are the Hugging Face Trainer; a run that was stopped anywhere is resumed with ``resume=True``.

Guarantees:
    None for the texts, and none is needed: they are public. What the resulting model later releases for a
    private text is as private as the mechanism used then says, which holds for any fixed front.
Edges:
    The blocks hold no PAD, since the back attends to all rows. Maps to d' columns are not offered: an
    ordinary checkpoint has no place for them. A decoder that is tied to the token table stays so.
Paper: L*_MLM, the noise-aware pre-training.
"""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from torch import nn
from torch.utils.data import DataLoader

from dp_forward.data.fingerprints import note_prints
from dp_forward.data.public_text import pack_blocks, read_public_records
from dp_forward.errors import refuse_if
from dp_forward.ledger.text_register import TextRegister
from dp_forward.noise import Sanitizer
from dp_forward.progress import Progress, is_first_process
from dp_forward.split import Split
from dp_forward.split.device import pick_device
from dp_forward.split.legal_cuts import check_cut
from dp_forward.split.private_model import join
from dp_forward.train import processes
from dp_forward.train.plan import Precision
from dp_forward.train.pretrain import masked_lm
from dp_forward.train.pretrain.pretrain_plan import PretrainPlan
from dp_forward.train.report import provenance
from dp_forward.train.run import RunFolder
from dp_forward.train.training_loop import FitSettings, fit, last_checkpoint, step_of

__all__ = ["pretrain"]

_MOST_HELD_OUT = 256  # blocks: at n = 128 about 5,000 masked tokens, which pins the mean loss to about 0.04


def pretrain(
    plan: PretrainPlan, *, folder: Path, resume: bool = False, progress: Progress | None = None
) -> dict[str, Any]:
    """Train on public text with the noise at the cut; ``folder`` becomes an ordinary checkpoint.

    Returns:
        The report. Losses are means per masked token; the held-out blocks are the end of the corpus. ``loss``
        is the last logged one, None after 0 steps. Those without noise are the ordinary model's. ``before``
        is the start of phase `noisy`. ``seconds`` counts the call that finished the run.
    Edges:
        Refused before anything is written: a family without a masked LM, a cut that leaves no rows, a length
        beyond the model's positions, a mechanism that does not fit the cut, a corpus that is too small. A
        finished run gives its report again.
    """
    began = time.monotonic()
    processes.start_counting_memory()
    transformers.set_seed(plan.seed)
    job = _Job(plan, progress)
    job.check(corpus=not folder.exists())
    with RunFolder.opened(folder, plan, resume=resume) as place:
        if place.complete:
            return place.report
        report = {
            "statement": _statement(plan, job.mechanism),
            **job.train(place),
            "seconds": time.monotonic() - began,
            "peak_memory_mib": max(job.peak_memory_mib, processes.peak_memory_mib()),
            "plan": plan.as_dict(),
            "plan_digest": plan.digest(),
            "provenance": provenance(),
        }
        if is_first_process():
            # Saved aside and then moved, so that a kill leaves no file half written.
            aside = place.checkpoints("result")
            job.start.save(aside)
            for file in sorted(aside.iterdir()):
                file.replace(place.path / file.name)
            place.write_report(report, _markdown(report))
        processes.wait_for_everyone()
        return report


class _Job:
    """One run in progress: the loaded model, the noise, and the rule of masking."""

    def __init__(self, plan: PretrainPlan, progress: Progress | None) -> None:
        self.plan, self.progress, self.peak_memory_mib = plan, progress, 0.0
        self.mechanism = None if plan.noise is None else plan.noise.build()
        self.start = masked_lm.MaskedLM(plan.model)
        check_cut(self.start.model, plan.cut)
        self.masking = masked_lm.Masking(self.start.tokenizer)

    def check(self, *, corpus: bool) -> None:
        """Everything that can be refused before a file is written; the ``corpus`` is read for two blocks."""
        pair = masked_lm.split_tied(self.start.model, self.plan.cut)
        most = pair.front.max_rows
        rule, remedy = f"fit the model's {most} positions", "Use a smaller one."
        refuse_if(most is not None and self.plan.length > most, "length", rule, self.plan.length, remedy)
        # One pass over any block: noise that does not fit the cut shows now, not after an hour.
        with torch.no_grad():
            join(pair, self._noise(1)).eval()(input_ids=torch.full((1, self.plan.length), self.masking.mask))
        if corpus:
            self._pack(most=2, prints=[])

    def train(self, place: RunFolder) -> dict[str, Any]:
        """Train the loaded model in both phases; the numbers of the report."""
        plan, model, steps = self.plan, self.start.model, self.plan.steps
        history: list[dict[str, Any]] = []
        blocks, held_out = self._blocks(place)
        kept = masked_lm.MaskedBlocks(held_out, self.masking, seed=(plan.seed, 2), items=len(held_out))
        head_steps = 0 if self.start.has_head else plan.head_steps
        if head_steps:
            history += self._train_phase("head", model, blocks, place, steps=head_steps)
        pair = masked_lm.split_tied(model, plan.cut)
        before = self._both_losses(pair, kept)
        if steps:
            noise = self._noise(2 * step_of(last_checkpoint(place.checkpoints("noisy"))))
            noisy = masked_lm.NoisyMaskedLM(pair, noise, least_noise=plan.least_noise)
            history += self._train_phase("noisy", noisy, blocks, place, steps=steps)
        after = self._both_losses(pair, kept)
        return {
            "steps": steps,
            "head_steps": head_steps,
            "loss": history[-1]["loss"] if steps and history else None,
            "held_out_loss": after[0],
            "held_out_loss_without_noise": after[1],
            "held_out_loss_before": before[0],
            "held_out_loss_without_noise_before": before[1],
            "blocks": len(blocks),
            "held_out_blocks": len(held_out),
            "history": history,
        }

    def _train_phase(
        self, phase: str, model: nn.Module, blocks: NDArray[np.int32], place: RunFolder, *, steps: int
    ) -> list[dict[str, Any]]:
        """Train for so many steps, from the last complete checkpoint of the phase; the losses by step.

        Guarantees:
            The items are those that a run without a stop would have seen; the noise is drawn anew.
        """
        plan, batch = self.plan, self.plan.batch * processes.process_count()
        seed = (plan.seed, *phase.encode())
        items = masked_lm.MaskedBlocks(blocks, self.masking, seed=seed, items=steps * batch)
        rate = plan.head_learning_rate if phase == "head" else plan.learning_rate
        numbers: Precision = "bf16" if plan.bf16 else "fp32"
        settings = FitSettings(epochs=1.0, batch=batch, learning_rate=rate, seed=plan.seed, precision=numbers)
        arguments = {
            "warmup_steps": steps // 20,
            # The items come shuffled; a second shuffle would only cost memory.
            "train_sampling_strategy": "sequential",
            "logging_steps": max(1, steps // 100),
            "save_strategy": "steps",
            "save_steps": plan.save_every,
            "save_total_limit": 2,
        }
        folder, progress = place.checkpoints(phase), self.progress
        found = fit(model, items, None, settings, stage=phase, folder=folder, progress=progress, **arguments)
        self.peak_memory_mib = max(self.peak_memory_mib, found["peak_memory_mib"])
        return [{"phase": phase, "step": int(row["step"]), "loss": row["loss"]} for row in found["history"]]

    def _blocks(self, place: RunFolder) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Blocks to train on, and held-out blocks."""
        # No more text is read than is used: a corpus may be far larger than the run.
        most = (self.plan.steps + self.plan.head_steps) * self.plan.batch + _MOST_HELD_OUT

        def pack() -> NDArray[np.int32]:
            prints: list[NDArray[np.uint64]] = []
            blocks = self._pack(most=most, prints=prints)
            with TextRegister() as known:
                known.declare("public", np.concatenate(prints))
            return blocks

        blocks = place.stored_array("stages/blocks.npy", pack)
        held_out = min(_MOST_HELD_OUT, max(1, len(blocks) // 50))
        return blocks[:-held_out], blocks[-held_out:]

    def _pack(self, *, most: int, prints: list[NDArray[np.uint64]]) -> NDArray[np.int32]:
        records, length = note_prints(read_public_records(self.plan.corpus), prints), self.plan.length
        texts = (record.text for record in records)
        blocks = pack_blocks(texts, self.start.tokenizer, length=length, most=most)
        rule = f"fill two blocks of {length} tokens, one to train on and one held out"
        refuse_if(len(blocks) < 2, "corpus", rule, len(blocks), "Use more text, or a smaller length.")
        return blocks

    def _noise(self, stream: int) -> Sanitizer | None:
        """The noise in one of its streams: 1 for every evaluation, an even one for each start of training."""
        if self.mechanism is None:
            return None
        return Sanitizer(self.mechanism, seed=self.plan.seed * 1_000_000_007 + stream)

    def _both_losses(self, pair: Split, kept: masked_lm.MaskedBlocks) -> tuple[float, float]:
        """On held-out text: through the noise, and as the ordinary model."""
        noisy = masked_loss(join(pair, self._noise(1)), kept, batch=self.plan.batch)
        return noisy, masked_loss(self.start.model, kept, batch=self.plan.batch)


@torch.no_grad()
def masked_loss(model: nn.Module, items: masked_lm.MaskedBlocks, *, batch: int) -> float:
    """The mean masked-LM loss per masked token, in evaluation mode."""
    device = pick_device()
    was_training = model.training
    model.to(device).eval()
    total, tokens = 0.0, 0
    for some in DataLoader(items, batch_size=batch):
        masked = int((some["labels"] != masked_lm.IGNORED).sum())
        total += masked * float(model(**{name: value.to(device) for name, value in some.items()}).loss)
        tokens += masked
    model.train(was_training)
    return total / tokens


def _statement(plan: PretrainPlan, mechanism: object | None) -> str:
    # Without the mechanism's promise: it is true for a release, and there is none here.
    noise = "no noise" if mechanism is None else f"the noise of {repr(mechanism).split(' -> ')[0]}"
    if mechanism is not None and plan.least_noise < 1:
        noise = f"{plan.least_noise:g} to 1 times {noise}"
    return (
        f"Pre-trained on public text with {noise} at {plan.cut}; the front was trained too. The text is not "
        "protected and need not be: it is public, so training on it costs no privacy. The noise was there to "
        "be learned from; it protects nobody here. What the model releases later is protected by the "
        "mechanism used then."
    )


def _markdown(report: Mapping[str, Any]) -> str:
    numbers = {name: value for name, value in report.items() if isinstance(value, int | float)}
    plan = {name: value for name, value in report["plan"].items() if value is not None}
    lines = ["# Pre-training", "", report["statement"], "", "| | |", "|---|---|"]
    lines += [f"| {name.replace('_', ' ')} | {value:.6g} |" for name, value in numbers.items()]
    lines += ["", "## Plan", "", *(f"* {name}: {value}" for name, value in plan.items())]
    lines += ["", "## Made with", "", *(f"* {name}: {value}" for name, value in report["provenance"].items())]
    return "\n".join(lines) + "\n"
