"""The DP-SGD baseline as a run: a plan, a folder, the same report as `finetune`."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from dp_forward.data import FixedLength
from dp_forward.data.encoded import EncodedTexts
from dp_forward.data.tasks import find_task
from dp_forward.errors import InvalidInput
from dp_forward.split.device import device_of
from dp_forward.split.load_model import load_model
from dp_forward.train.dpsgd.dpsgd_training import DpSgdOutcome, DpSgdSettings, train_dpsgd
from dp_forward.train.evaluation import Accuracy, accuracy_of, commonest_share
from dp_forward.train.inputs import load_tokenizer, read_texts
from dp_forward.train.plan_base import check_settings
from dp_forward.train.provenance import provenance
from dp_forward.train.report import spoken, write_report
from dp_forward.train.run_folder import RunFolder
from dp_forward.train.training_loop import Progress

__all__ = ["NOT_DECIDING", "BaselinePlan", "run_baseline"]


NOT_DECIDING = ("data", "micro_batch")
"""Where the files lie, and how many texts are in memory at once: a step sums over its whole batch."""


@dataclass(frozen=True, kw_only=True)
class BaselinePlan:
    """What decides a baseline run; the settings of `DpSgdSettings`, and what it is trained on."""

    task: str
    model: str = "minilm"
    epsilon: float | None = None
    delta: float = 1e-5
    mode: str = "hooks"
    trainable: str = "frozen-embeddings"
    lora_rank: int = 8
    epochs: int = 3
    batch: int = 256
    micro_batch: int = 32
    learning_rate: float = 5e-4
    clip_norm: float = 1.0
    rows: int = 64
    train_limit: int | None = None
    evaluation_limit: int | None = None
    evaluation_split: str = "validation"
    seed: int = 0
    data: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "task", find_task(self.task).name)
        if self.epsilon is None:
            raise InvalidInput(
                "epsilon", "be given", None, "There is no default for a promise; try --epsilon 8."
            )

    @property
    def settings(self) -> DpSgdSettings:
        """The part that DP-SGD itself needs."""
        names = set(DpSgdSettings.__dataclass_fields__) & set(self.__dataclass_fields__)
        return DpSgdSettings(**{name: getattr(self, name) for name in names})

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "data": dict(self.data)}

    def digest(self) -> str:
        """SHA-256 of what decides the result."""
        deciding = {name: value for name, value in self.as_dict().items() if name not in NOT_DECIDING}
        return hashlib.sha256(json.dumps(deciding, sort_keys=True).encode()).hexdigest()

    @classmethod
    def from_dict(cls, settings: Mapping[str, Any]) -> BaselinePlan:
        """From JSON or TOML; an unknown key or a wrong type is an error."""
        check_settings(cls, settings)
        return cls(**dict(settings))


def run_baseline(
    plan: BaselinePlan, *, folder: Path, resume: bool = False, progress: Progress | None = None
) -> dict[str, Any]:
    """Train with DP-SGD, write RUN/model (an ordinary checkpoint) and the report; returns the report."""
    settings = plan.settings
    with RunFolder.opened(folder, plan.as_dict(), plan.digest(), resume=resume) as place:
        if place.complete:
            return place.report
        started = time.perf_counter()
        task = find_task(plan.task)
        tokenizer = load_tokenizer(plan.model)
        train, evaluation = _texts(plan, tokenizer, progress)
        model: Any = load_model(plan.model, labels=len(task.labels))
        # A checkpoint may be stored in half precision; weights that train are kept in float32.
        model.to(device_of(), torch.float32)
        outcome = train_dpsgd(
            model,
            train,
            evaluation,
            settings,
            folder=place.checkpoints("dpsgd"),
            resume=place.checkpoints("dpsgd").exists(),
            on_progress=None if progress is None else _told(progress),
        )
        accuracy = _accuracy(outcome.model, evaluation)
        outcome.model.save_pretrained(place.path / "model")
        tokenizer.save_pretrained(place.path / "model")
        seconds = time.perf_counter() - started
        report = _report(
            plan,
            outcome,
            accuracy,
            commonest=commonest_share(evaluation.labels),
            records=len(train),
            notes=task.notes,
            seconds=seconds,
        )
        write_report(report, place)
        return report


def _texts(
    plan: BaselinePlan, tokenizer: Any, progress: Progress | None
) -> tuple[EncodedTexts, EncodedTexts]:
    task, tokens = find_task(plan.task), FixedLength(tokenizer, plan.rows)

    def read(split: str, limit: int | None) -> EncodedTexts:
        name = f"reading {task.name} {split}"
        tell = None if progress is None else lambda done: progress(name, done, 0, {})
        return read_texts(task, split, tokens, source=plan.data.get(task.name), limit=limit, progress=tell)

    return read("train", plan.train_limit), read(plan.evaluation_split, plan.evaluation_limit)


def _told(progress: Progress) -> Any:
    def tell(event: dict[str, float]) -> None:
        ended = ("loss", "accuracy") if "accuracy" in event else ()
        numbers = {name: value for name, value in event.items() if name in ended}
        progress("dp-sgd", int(event["step"]), int(event.get("steps", 0)), numbers)

    return tell


@torch.inference_mode()
def _accuracy(model: Any, texts: EncodedTexts) -> Accuracy:
    """Answers without noise: DP-SGD adds none to a query."""
    model.eval()
    device, right = next(model.parameters()).device, []
    for start in range(0, len(texts), 64):
        batch = texts.batch(range(start, min(start + 64, len(texts))))
        labels = batch.pop("labels")
        logits = model(**{name: value.to(device) for name, value in batch.items()}).logits
        right.append((logits.argmax(dim=-1).cpu() == labels).double())
    return accuracy_of(torch.cat(right).numpy()[:, None])


def _report(
    plan: BaselinePlan,
    outcome: DpSgdOutcome,
    accuracy: Accuracy,
    *,
    commonest: float,
    records: int,
    notes: str,
    seconds: float,
) -> dict[str, Any]:
    statements = {
        "queries": "NOT protected: they are sent as they are, and no noise is added at inference.",
        "training_texts": outcome.statement,
        "labels": "part of the record that DP-SGD protects.",
    }
    training = {
        "notion": "central DP, one record added or removed",
        "epsilon": outcome.epsilon,
        "delta": outcome.delta,
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
        "accuracy_of_commonest_label": commonest,
        "draws": 1,
        "texts": accuracy.texts,
        "training_records": records,
        "regime": "dp-sgd",
        "guarantee": {
            "regime": "dp-sgd",
            "queries": None,
            "training": training,
            "labels": None,
            "statements": statements,
            "statement": " ".join(spoken(statements)),
        },
        "notes": notes,
        "seconds": seconds,
        "peak_memory_mib": outcome.peak_memory_mib,
        "plan": {"mechanism": f"dp-sgd ({plan.mode})", **plan.as_dict()},
        "plan_digest": plan.digest(),
        "stages": {"dp-sgd": {"history": outcome.history, "peak_memory_mib": outcome.peak_memory_mib}},
        "provenance": provenance(),
    }
