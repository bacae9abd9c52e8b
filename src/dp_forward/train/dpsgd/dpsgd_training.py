"""DP-SGD with Opacus, the baseline: the same task and report as `finetune`, another promise.

It hides whether a record was in the training set from whoever sees the trained weights. It does not hide the
texts from whoever trains, and it does nothing for a query at inference, which is sent raw. `statement_of`
says so in words, and every outcome carries them.

    plan = DpSgdPlan(task="sst2", epsilon=8.0, mode="ghost")
    report = run_dpsgd(plan, folder=Path("base"))        # base/model is an ordinary checkpoint

Guarantees:
    ``epsilon`` is what Opacus's accountant says of the steps that were taken, those before an interruption
    included, and is at most the epsilon asked for.
Edges:
    A folder that holds the checkpoint of another run is refused, and so is a second start without ``resume``.
Paper: the DP-SGD rows of its tables (Section 6); ours uses Opacus 1.6.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dp_forward.data import FixedLength
from dp_forward.data.encoded import EncodedTexts
from dp_forward.data.tasks import find_task
from dp_forward.errors import InvalidInput
from dp_forward.privacy.rounding import shown_up
from dp_forward.progress import Progress, counter
from dp_forward.split.device import device_of
from dp_forward.split.load_model import load_model
from dp_forward.train.dpsgd.accounting import (
    Accountant,
    as_replace_one,
    epsilon_of,
    noise_multiplier_for,
    sampling,
)
from dp_forward.train.dpsgd.dpsgd_checkpoint import (
    Checkpoint,
    load_checkpoint,
    restore,
    save_checkpoint,
    weights_digest,
)
from dp_forward.train.dpsgd.dpsgd_plan import DpSgdPlan
from dp_forward.train.dpsgd.private_optimizer import PrivateTraining, make_private, set_trainable
from dp_forward.train.evaluation import Accuracy, accuracy_of, commonest_share
from dp_forward.train.inputs import load_tokenizer, read_texts
from dp_forward.train.memory import peak_memory_mib, start_counting_memory
from dp_forward.train.provenance import provenance
from dp_forward.train.report import spoken, write_report
from dp_forward.train.run_folder import RunFolder

__all__ = ["DpSgdOutcome", "run_dpsgd", "statement_of", "train_dpsgd"]

_STAGE = "dp-sgd"


@dataclass(frozen=True, kw_only=True)
class DpSgdOutcome:
    """What a run gave: ``history`` has step, epoch, loss and accuracy for each epoch.

    The losses are computed from raw training records and are not covered by the promise.
    """

    history: list[dict[str, float]]
    epsilon: float
    noise_multiplier: float
    sample_rate: float
    steps: int
    peak_memory_mib: float
    statement: str
    model: Any = field(repr=False)
    """The trained model, an ordinary one: no hooks, LoRA merged."""


def run_dpsgd(
    plan: DpSgdPlan, *, folder: Path, resume: bool = False, progress: Progress | None = None
) -> dict[str, Any]:
    """Train with DP-SGD, write RUN/model (an ordinary checkpoint) and the report; returns the report."""
    with RunFolder.opened(folder, plan.as_dict(), plan.digest(), resume=resume) as place:
        if place.complete:
            return place.report
        started = time.perf_counter()
        tokenizer = load_tokenizer(plan.model)
        train = _read(plan, "train", plan.train_limit, tokenizer, progress)
        evaluation = _read(plan, plan.evaluation_split, plan.evaluation_limit, tokenizer, progress)
        model: Any = load_model(plan.model, labels=len(find_task(plan.task).labels))
        # A checkpoint may be stored in half precision; weights that train are kept in float32.
        model.to(device_of(), torch.float32)
        checkpoints = place.checkpoints("dpsgd")
        outcome = train_dpsgd(
            model,
            train,
            evaluation,
            plan,
            folder=checkpoints,
            resume=checkpoints.exists(),
            progress=progress,
        )
        outcome.model.save_pretrained(place.path / "model")
        tokenizer.save_pretrained(place.path / "model")
        report = _report(
            plan, outcome, train=train, evaluation=evaluation, seconds=time.perf_counter() - started
        )
        write_report(report, place)
        return report


def train_dpsgd(
    model: Any,
    train: EncodedTexts,
    evaluation: EncodedTexts,
    plan: DpSgdPlan,
    *,
    folder: Path | None = None,
    resume: bool = False,
    progress: Progress | None = None,
    accountant: Accountant = "prv",
) -> DpSgdOutcome:
    """Train ``model``, whose own weights change, with DP-SGD on ``train``; accuracy is on ``evaluation``.

    With a ``folder`` every epoch is stored there; ``resume`` takes up the last one.
    """
    for name, records in (("train", train), ("evaluation", evaluation)):
        _check_labels(name, records, labels=int(model.config.num_labels))
    rate, per_epoch = sampling(len(train), plan.batch)
    run = {
        "settings": {**plan.deciding(), "accountant": accountant},
        "model_digest": "" if folder is None else weights_digest(model),
        "records": len(train),
    }
    earlier = None if folder is None else _earlier(folder, run, resume=resume)
    noise = noise_multiplier_for(
        plan.epsilon,
        delta=plan.delta,
        sample_rate=rate,
        steps=plan.epochs * per_epoch,
        accountant=accountant,
    )
    torch.manual_seed(plan.seed + (earlier.steps if earlier else 0))
    trained = set_trainable(model, plan.trainable, lora_rank=plan.lora_rank)
    private = _private(trained, train, plan, noise, accountant)
    if len(private.loader) != per_epoch:
        raise InvalidInput("opacus", f"draw {per_epoch} batches an epoch", len(private.loader), "Use 1.6.")
    if earlier is not None:
        restore(earlier, private, trained)
    history = list(earlier.history) if earlier else []
    start_counting_memory(private.device)

    for epoch in range(len(history) + 1, plan.epochs + 1):
        loss = _epoch(private, plan, progress)
        _check_finite(trained)
        accuracy = float(_right_answers(private.module, evaluation).mean())
        history.append({"step": private.steps, "epoch": epoch, "loss": loss, "accuracy": accuracy})
        if progress is not None:
            numbers = {"loss": loss, "accuracy": accuracy}
            progress(_STAGE, private.steps, plan.epochs * per_epoch, numbers)
        if folder is not None:
            save_checkpoint(folder, run, private, trained, history)

    spent = epsilon_of(
        private.accountant.history, delta=plan.delta, accountant=accountant, near=plan.epsilon
    )
    steps, module = private.steps, private.remove_hooks()
    return DpSgdOutcome(
        history=history,
        epsilon=spent,
        noise_multiplier=noise,
        sample_rate=rate,
        steps=steps,
        peak_memory_mib=peak_memory_mib(private.device),
        statement=statement_of(
            plan, epsilon=spent, noise_multiplier=noise, steps=steps, records=len(train), accountant=accountant
        ),
        model=module.merge_and_unload() if plan.trainable == "lora" else module,
    )


def statement_of(
    plan: DpSgdPlan,
    *,
    epsilon: float,
    noise_multiplier: float,
    steps: int,
    records: int,
    accountant: Accountant = "prv",
) -> str:
    """The promise of a run in plain words, with what it does not cover."""
    twice, more = as_replace_one(epsilon, plan.delta)
    rate, _ = sampling(records, plan.batch)
    lines = [
        f"Central DP of one training record (its text and label together) against whoever sees the trained "
        f"weights: ({shown_up(epsilon)}, {shown_up(plan.delta)}) when one record is added or removed, by "
        f"Opacus's {accountant} accountant for {steps} steps at sampling rate {rate:.6g} with noise "
        f"multiplier {noise_multiplier:.6g} and clipping at {plan.clip_norm:g}.",
        f"For one record replaced by another, the relation of our other central numbers, this proves "
        f"({shown_up(twice)}, {shown_up(more, 3)}).",
        "Not protected: whoever trains sees every text and label raw. A query at inference is sent raw, "
        "without noise. The training losses in the history come from raw records and are not covered.",
        "Assumed: the number of records, the sampling rate and the number of steps are public.",
    ]
    if plan.delta * records > 1:
        lines.append(f"Mind that delta is above 1 / {records}, the number of records: that is weak.")
    lines.append(
        "The noise came from an ordinary generator in float32: good for an experiment, not for weights "
        "that an attacker will study."
    )
    return " ".join(lines)


def _read(
    plan: DpSgdPlan, split: str, limit: int | None, tokenizer: Any, progress: Progress | None
) -> EncodedTexts:
    return read_texts(
        find_task(plan.task),
        split,
        FixedLength(tokenizer, plan.rows),
        source=plan.data.get(plan.task),
        limit=limit,
        progress=counter(progress, f"reading {plan.task} {split}"),
    )


def _private(
    trained: Any, train: EncodedTexts, plan: DpSgdPlan, noise: float, accountant: Accountant
) -> PrivateTraining:
    weights = [parameter for parameter in trained.parameters() if parameter.requires_grad]
    return make_private(
        trained,
        train,
        optimizer=torch.optim.AdamW(weights, lr=plan.learning_rate, weight_decay=0.0),
        mode=plan.mode,
        batch=plan.batch,
        noise_multiplier=noise,
        clip_norm=plan.clip_norm,
        accountant=accountant,
    )


def _epoch(private: PrivateTraining, plan: DpSgdPlan, progress: Progress | None) -> float:
    """One pass of Poisson batches; the mean loss."""
    private.module.train()
    total, texts = torch.zeros((), device=private.device), 0
    shown = private.steps
    with private.parts(plan.micro_batch) as parts:
        for part in parts:
            loss, size = private.step(part)
            total, texts = total + loss, texts + size
            if progress is not None and private.steps > shown:
                shown = private.steps
                progress(_STAGE, shown, plan.epochs * len(private.loader), {})
    return float(total) / max(1, texts)


@torch.inference_mode()
def _right_answers(model: Any, texts: EncodedTexts) -> NDArray[np.float64]:
    """1 for each text that the model is right about, else 0; DP-SGD adds no noise to a query."""
    model.eval()
    device, right = next(model.parameters()).device, []
    for start in range(0, len(texts), 64):
        batch = texts.batch(range(start, min(start + 64, len(texts))))
        labels = batch.pop("labels")
        logits = model(**{name: value.to(device) for name, value in batch.items()}).logits
        right.append((logits.argmax(dim=-1).cpu() == labels).double())
    return torch.cat(right).numpy()


def _check_labels(name: str, records: EncodedTexts, *, labels: int) -> None:
    found = records.labels
    if found is None:
        raise InvalidInput(name, "give input_ids, attention_mask and labels", "no labels", "Encode it.")
    if int(found.min()) < 0 or int(found.max()) >= labels:
        rule = f"lie in 0 to {labels - 1}, the labels of the model's head"
        raise InvalidInput(f"{name} labels", rule, "another", "Load the model with num_labels of the task.")


def _check_finite(trained: Any) -> None:
    if not all(bool(torch.isfinite(p).all()) for p in trained.parameters() if p.requires_grad):
        raise InvalidInput("weights", "stay finite", "NaN or Inf", "Use a smaller learning_rate.")


def _earlier(folder: Path, run: dict[str, Any], *, resume: bool) -> Checkpoint | None:
    """The checkpoint to resume from, if it is this run's."""
    found = load_checkpoint(folder)
    if found is None:
        return None
    if not resume:
        raise InvalidInput("folder", "be new", "one that holds a run", "Resume it, or use another folder.")
    for name, value in run.items():
        if found.run[name] != value:
            rule = f"hold a run with the same {name}"
            raise InvalidInput("folder", rule, "another", "Use the plan, data and model it has.")
    return found


def _report(
    plan: DpSgdPlan, outcome: DpSgdOutcome, *, train: EncodedTexts, evaluation: EncodedTexts, seconds: float
) -> dict[str, Any]:
    accuracy: Accuracy = accuracy_of(_right_answers(outcome.model, evaluation)[:, None])
    statements = {
        "queries": "NOT protected: they are sent as they are, and no noise is added at inference.",
        "training_texts": outcome.statement,
        "labels": "part of the record that DP-SGD protects.",
    }
    training = {
        "notion": "central DP, one record added or removed",
        "epsilon": outcome.epsilon,
        "delta": plan.delta,
        "noise_multiplier": outcome.noise_multiplier,
        "sample_rate": outcome.sample_rate,
        "steps": outcome.steps,
        "assumptions": [
            "whoever trains is trusted: the texts are seen raw",
            "batches are Poisson samples, as Opacus's accountant assumes",
        ],
    }
    return {
        "accuracy": accuracy.mean,
        "accuracy_low": accuracy.low,
        "accuracy_high": accuracy.high,
        "accuracy_without_noise": accuracy.mean,
        "accuracy_of_commonest_label": commonest_share(evaluation.labels),
        "draws": 1,
        "texts": accuracy.texts,
        "training_records": len(train),
        "regime": "dp-sgd",
        "guarantee": {
            "regime": "dp-sgd",
            "queries": None,
            "training": training,
            "labels": None,
            "statements": statements,
            "statement": " ".join(spoken(statements)),
        },
        "notes": find_task(plan.task).notes,
        "seconds": seconds,
        "peak_memory_mib": outcome.peak_memory_mib,
        "plan": {"mechanism": f"dp-sgd ({plan.mode})", **plan.as_dict()},
        "plan_digest": plan.digest(),
        "stages": {_STAGE: {"history": outcome.history, "peak_memory_mib": outcome.peak_memory_mib}},
        "provenance": provenance(),
    }
