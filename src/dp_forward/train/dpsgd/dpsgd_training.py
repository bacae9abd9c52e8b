"""DP-SGD with Opacus, the baseline: the same task and report as `finetune`, another promise.

    plan = DpSgdPlan(task="sst2", epsilon=8.0, mode="ghost")
    report = run_dpsgd(plan, folder=Path("base"))        # base/model is an ordinary checkpoint

Guarantees:
    ``epsilon`` is what Opacus's accountant says of the steps that were taken, those before an interruption
    included, and is at most the epsilon asked for. What was spent is never forgotten: a checkpoint whose
    accountant's history does not fit its number of steps, or whose tensors do not fit their digest, is
    refused, not repaired.
Edges:
    A run is resumed after its last finished epoch, with new noise: the steps lost with the interruption were
    never shown to anyone and are not charged. Opacus's own checkpoints are pickles, which can run code.
Paper: the DP-SGD rows of Tables 5 and 7 to 9; ours uses Opacus 1.6.
"""

import hashlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor

from dp_forward.data import EncodedTexts, FixedLength, Task
from dp_forward.data.tokens import check_vocabulary
from dp_forward.errors import InvalidInput, refuse_if
from dp_forward.ledger.text_register import TextRegister
from dp_forward.privacy.rounding import brief, shown_down, shown_up
from dp_forward.progress import Progress
from dp_forward.split.device import pick_device
from dp_forward.split.halves import note_seen_texts
from dp_forward.split.pretrained import load_model, load_tokenizer
from dp_forward.train.dpsgd.accounting import as_replace_one, epsilon_of, noise_multiplier_for, sampling
from dp_forward.train.dpsgd.dpsgd_plan import DpSgdPlan
from dp_forward.train.dpsgd.private_optimizer import PrivateTraining, freeze_embeddings
from dp_forward.train.evaluation import accuracy_without_noise, commonest_share
from dp_forward.train.inputs import read_splits
from dp_forward.train.processes import peak_memory_mib, start_counting_memory
from dp_forward.train.regimes import as_guarantee
from dp_forward.train.report import build_report, markdown
from dp_forward.train.run import RunFolder

__all__ = ["run_dpsgd", "train_dpsgd"]

History = list[dict[str, float]]
Facts = Mapping[str, Any]
_STAGE, _EPOCH_STAGE = "dp-sgd", "dpsgd-epoch-{:04d}"


@dataclass(frozen=True, kw_only=True)
class DpSgdOutcome:
    """What a run gave: ``history`` has step, epoch, loss and accuracy for each epoch.

    The losses are computed from raw training records and are not covered by the promise.
    """

    plan: DpSgdPlan
    records: int
    history: History
    epsilon: float
    noise_multiplier: float
    sample_rate: float
    steps: int
    peak_memory_mib: float
    model: Any = field(repr=False)  # the trained model, an ordinary one, without hooks

    @property
    def statement(self) -> str:
        """The promise of a run in plain words, with what it does not cover."""
        delta, records = self.plan.delta, self.records
        twice, more = as_replace_one(self.epsilon, delta)
        lines = [
            f"Central DP of one training record (its text and label together) against whoever sees the "
            f"trained weights: ({shown_up(self.epsilon)}, {shown_up(delta)}) when one record is added or "
            f"removed, by Opacus's prv accountant for {self.steps} steps at sampling rate "
            f"{shown_up(self.sample_rate)} with noise multiplier {shown_down(self.noise_multiplier)} and "
            f"clipping at {brief(shown_up(self.plan.clip_norm))}.",
            f"For one record replaced by another, the relation of our other central numbers, this proves "
            f"({shown_up(twice)}, {shown_up(more, 3)}).",
            "Not protected: whoever trains sees every text and label raw. A query at inference is sent raw, "
            "without noise. The training losses in the history come from raw records and are not covered.",
            "Assumed: the number of records, the sampling rate and the number of steps are public.",
        ]
        if delta * records > 1:
            lines.append(f"Mind that delta is above 1 / {records}, the number of records: that is weak.")
        lines.append(
            "The noise came from an ordinary generator in float32: good for an experiment, not for weights "
            "that an attacker will study."
        )
        return " ".join(lines)


def run_dpsgd(
    plan: DpSgdPlan,
    *,
    folder: Path,
    resume: bool = False,
    progress: Progress | None = None,
    register: Path | None = None,
) -> dict[str, Any]:
    """Train with DP-SGD, write RUN/model (an ordinary checkpoint) and the report; returns the report."""
    plan = plan.with_data()
    task = plan.find_task()
    with RunFolder.opened(folder, plan, resume=resume) as place:
        if place.complete:
            return place.report
        started = time.perf_counter()
        tokenizer = load_tokenizer(plan.model)
        model: Any = load_model(plan.model, labels=len(task.labels))
        check_vocabulary(tokenizer, getattr(model.config, "vocab_size", None))
        train, evaluation = read_splits(plan, FixedLength(tokenizer, plan.rows), progress=progress)
        if evaluation is None:
            raise InvalidInput("evaluation_split", "be given for DP-SGD", "nothing", "Use validation.")
        with TextRegister(register) as known:
            known.declare("public", evaluation.prints)
            note_seen_texts(vars(model.config), known.declare("raw", train.prints))
        # A checkpoint may be stored in half precision; weights that train are kept in float32.
        model.to(pick_device(), torch.float32)
        outcome = train_dpsgd(model, train, evaluation, plan, place=place, progress=progress)
        outcome.model.save_pretrained(place.path / "model")
        tokenizer.save_pretrained(place.path / "model")
        report = _report(outcome, task, evaluation, started=started)
        place.write_report(report, markdown(report))
        return report


def train_dpsgd(
    model: Any,
    train: EncodedTexts,
    evaluation: EncodedTexts,
    plan: DpSgdPlan,
    *,
    place: RunFolder | None = None,
    progress: Progress | None = None,
) -> DpSgdOutcome:
    """Train ``model``, whose own weights change, with DP-SGD on ``train``; accuracy is on ``evaluation``.

    Every epoch is stored in ``place``, and what is stored there is not trained again.
    """
    train.check_labels(model.config.num_labels, name="train labels")
    evaluation.check_labels(model.config.num_labels, name="evaluation labels")
    rate, per_epoch = sampling(len(train), plan.batch)
    steps = plan.epochs * per_epoch
    run = {"model": _digest(model.state_dict()), "records": len(train)}
    tensors, facts = ({}, {}) if place is None else _stored_epoch(place, run, plan.epochs)
    if facts:
        noise = facts["noise_multiplier"]
    else:
        noise = noise_multiplier_for(plan.epsilon, delta=plan.delta, sample_rate=rate, steps=steps)
    torch.manual_seed(plan.seed + facts.get("steps", 0))
    freeze_embeddings(model)
    weights = [parameter for parameter in model.parameters() if parameter.requires_grad]
    private = PrivateTraining(
        model,
        train,
        optimizer=torch.optim.AdamW(weights, lr=plan.learning_rate, weight_decay=0.0),
        mode=plan.mode,
        batch=plan.batch,
        noise_multiplier=noise,
        clip_norm=plan.clip_norm,
    )
    history = _restore(private, tensors, facts) if facts else []
    start_counting_memory()
    for epoch in range(len(history) + 1, plan.epochs + 1):
        loss = _train_epoch(private, plan, progress)
        if not all(bool(torch.isfinite(weight).all()) for weight in weights):
            raise InvalidInput("weights", "stay finite", "NaN or Inf", "Use a smaller learning_rate.")
        accuracy = accuracy_without_noise(private.module, evaluation).mean
        history.append({"step": private.steps, "epoch": epoch, "loss": loss, "accuracy": accuracy})
        if progress is not None:
            progress(_STAGE, private.steps, steps, {"loss": loss, "accuracy": accuracy})
        if place is not None:
            _store_epoch(place, run, private, history)
    return DpSgdOutcome(
        plan=plan,
        records=len(train),
        history=history,
        epsilon=epsilon_of(private.accountant.history, delta=plan.delta, near=plan.epsilon),
        noise_multiplier=noise,
        sample_rate=rate,
        steps=private.steps,
        peak_memory_mib=peak_memory_mib(),
        model=private.remove_hooks(),
    )


def _train_epoch(private: PrivateTraining, plan: DpSgdPlan, progress: Progress | None) -> float:
    """One pass of Poisson batches; the mean loss."""
    private.module.train()
    total, texts = torch.zeros((), device=private.device), 0
    for part in private.parts(plan.micro_batch):
        before = private.steps
        loss, size = private.step(part)
        total, texts = total + loss, texts + size
        if progress is not None and private.steps > before:
            progress(_STAGE, private.steps, plan.epochs * len(private.draws), {})
    return float(total) / max(1, texts)


def _store_epoch(place: RunFolder, run: Facts, private: PrivateTraining, history: History) -> None:
    """Store the end of an epoch; then the one before goes."""
    tensors = {f"weights.{name}": p for name, p in private.model.named_parameters() if p.requires_grad}
    for index, entry in private.optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{index}.{name}": value for name, value in entry.items()}
    facts = {
        **run,
        "digest": _digest(tensors),
        "noise_multiplier": float(private.optimizer.noise_multiplier),
        "steps": private.steps,
        "accountant_history": private.accountant.history,
        "history": history,
    }
    place.finish_stage(_EPOCH_STAGE.format(len(history)), tensors, facts)
    place.drop_stage(_EPOCH_STAGE.format(len(history) - 1))


def _stored_epoch(place: RunFolder, run: Facts, epochs: int) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and facts of the last stored epoch, or nothing; another run's, or a damaged one, is refused."""
    found, stages = "", (place.stage_result(_EPOCH_STAGE.format(number)) for number in range(epochs, 0, -1))
    try:
        stored = next(filter(None, stages), None)
        if stored is None:
            return {}, {}
        tensors, facts = stored
        other = [name for name, value in run.items() if facts[name] != value]
        spent, noise = facts["accountant_history"], facts["noise_multiplier"]
        honest = spent and all(used == noise and steps > 0 for used, _, steps in spent)
        if not honest or sum(steps for _, _, steps in spent) != facts["steps"]:
            found = "an accountant's history that does not fit its steps"
        elif _digest(tensors) != facts["digest"]:
            found = "changed tensors"
    except (OSError, KeyError, TypeError, ValueError, SafetensorError):
        found = "something else"
    refuse_if(found, "out", "hold a checkpoint as it was written", found, "Start in a new folder.")
    if other:
        rule, remedy = f"hold a run with the same {other[0]}", "Use the plan, data and model it has."
        raise InvalidInput("out", rule, "another", remedy)
    return tensors, facts


def _restore(private: PrivateTraining, tensors: Mapping[str, Tensor], facts: Facts) -> History:
    """Put back weights, optimizer and what was spent; returns the learning curve so far."""
    state: dict[int, dict[str, Tensor]] = {}
    with torch.no_grad():
        for name, tensor in tensors.items():
            kind, _, rest = name.partition(".")
            if kind == "weights":
                private.model.get_parameter(rest).copy_(tensor)
            else:
                index, _, entry = rest.partition(".")
                state.setdefault(int(index), {})[entry] = tensor
    groups = private.optimizer.state_dict()["param_groups"]
    private.optimizer.load_state_dict({"state": state, "param_groups": groups})
    private.accountant.history = [tuple(entry) for entry in facts["accountant_history"]]
    return list(facts["history"])


def _digest(tensors: Mapping[str, Tensor]) -> str:
    found = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        found.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return found.hexdigest()


def _report(outcome: DpSgdOutcome, task: Task, evaluation: EncodedTexts, *, started: float) -> dict[str, Any]:
    plan = outcome.plan
    accuracy = accuracy_without_noise(outcome.model, evaluation)
    statements = {
        "queries": "NOT protected: they are sent as they are, and no noise is added at inference.",
        "training_texts": outcome.statement,
        "labels": "part of the record that DP-SGD protects.",
    }
    training = {
        "notion": "central DP, one record added or removed",
        "epsilon": outcome.epsilon,
        "delta": plan.delta,
        **{name: getattr(outcome, name) for name in ("noise_multiplier", "sample_rate", "steps")},
        "assumptions": [
            "whoever trains is trusted: the texts are seen raw",
            "batches are Poisson samples, as Opacus's accountant assumes",
        ],
    }
    return build_report(
        plan,
        regime=_STAGE,
        accuracy=accuracy,
        without_noise=accuracy.mean,
        labels=task.labels,
        records=outcome.records,
        guarantee=as_guarantee(_STAGE, statements, training=training),
        stages={_STAGE: {"history": outcome.history, "peak_memory_mib": outcome.peak_memory_mib}},
        notes=task.notes,
        started=started,
        accuracy_of_commonest_label=commonest_share(evaluation.labels),
    ) | {"plan": {"mechanism": f"dp-sgd ({plan.mode})", **plan.as_dict()}}
