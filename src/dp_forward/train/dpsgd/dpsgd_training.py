"""DP-SGD with Opacus, the baseline: the same task, another promise.

It hides whether a record was in the training set from whoever sees the trained weights. It does not hide the
texts from whoever trains, and it does nothing for a query at inference, which is sent raw. `statement_of`
says so in words, and every outcome carries them.

    settings = DpSgdSettings(epsilon=8.0, mode="ghost")
    outcome = train_dpsgd(model, train, evaluation, settings)
    outcome.epsilon, outcome.accuracy, outcome.statement

Guarantees:
    ``epsilon`` is what Opacus's accountant says of the steps that were taken, those before an interruption
    included, and is at most the epsilon asked for.
Edges:
    A folder that holds the checkpoint of another run is refused, and so is a second start without ``resume``.
Paper: the DP-SGD rows of its tables (Section 6); ours uses Opacus 1.6.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import torch

from dp_forward.errors import InvalidInput
from dp_forward.privacy import checks
from dp_forward.privacy.rounding import shown_up
from dp_forward.train.dpsgd.accounting import (
    Accountant,
    as_replace_one,
    epsilon_of,
    history_epsilon,
    noise_multiplier_for,
    sampling,
)
from dp_forward.train.dpsgd.dpsgd_checkpoint import Checkpoint, digest_of, newest, save
from dp_forward.train.dpsgd.private_optimizer import (
    Mode,
    Private,
    Records,
    Trainable,
    make_private,
    set_trainable,
)
from dp_forward.train.processes import peak_memory_mib, start_counting_memory

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = [
    "DpSgdOutcome",
    "DpSgdSettings",
    "epsilon_of",
    "noise_multiplier_for",
    "statement_of",
    "train_dpsgd",
]

Progress = Callable[[dict[str, float]], None]


@dataclass(frozen=True, kw_only=True)
class DpSgdSettings:
    """One run of the baseline.

    ``batch`` is the expected size of a Poisson batch, ``micro_batch`` the most texts in memory at once.
    ``seed`` fixes what is public (fresh LoRA weights, dropout); the noise has no seed, see `private`.
    """

    epsilon: float
    delta: float = 1e-5
    mode: Mode = "hooks"
    epochs: int = 3
    batch: int = 32
    learning_rate: float = 5e-4
    clip_norm: float = 1.0
    trainable: Trainable = "frozen-embeddings"
    lora_rank: int = 8
    micro_batch: int = 32
    seed: int = 0
    secure: bool = False
    accountant: Accountant = "prv"

    def __post_init__(self) -> None:
        checks.epsilon(self.epsilon)
        checks.delta(self.delta, zero=False)
        checks.positive("learning_rate", self.learning_rate, remedy="Use something near 5e-4.")
        checks.positive("clip_norm", self.clip_norm, remedy="Use 1.0.")
        for name in ("epochs", "batch", "micro_batch", "lora_rank"):
            checks.count(name, getattr(self, name), remedy="Use 1 or more.")
        checks.count("seed", self.seed, at_least=0, remedy="Use 0.")
        for name, allowed in (("mode", Mode), ("trainable", Trainable), ("accountant", Accountant)):
            if getattr(self, name) not in get_args(allowed):
                rule = f"be {' or '.join(get_args(allowed))}"
                raise InvalidInput(name, rule, getattr(self, name), f"Use {get_args(allowed)[0]}.")


@dataclass(frozen=True, kw_only=True)
class DpSgdOutcome:
    """What a run gave: ``history`` has step, epoch, loss and accuracy for each epoch.

    The losses are computed from raw training records and are not covered by the promise.
    """

    history: list[dict[str, float]]
    accuracy: float
    epsilon: float
    delta: float
    noise_multiplier: float
    sample_rate: float
    steps: int
    seconds: float
    peak_memory_mib: float
    statement: str
    model: Any = field(repr=False)
    """The trained model, an ordinary one: no hooks, LoRA merged."""


def train_dpsgd(
    model: PreTrainedModel,
    train: Records,
    evaluation: Records,
    settings: DpSgdSettings,
    *,
    folder: Path | None = None,
    resume: bool = False,
    on_progress: Progress | None = None,
) -> DpSgdOutcome:
    """Train ``model``, whose own weights change, with DP-SGD on ``train``; accuracy is on ``evaluation``.

    With a ``folder`` every epoch is stored there; ``resume`` takes up the last one. ``on_progress`` hears of
    every step (step, steps, epoch, loss) and, with accuracy too, of every epoch.
    """
    started = time.perf_counter()
    for name, records in (("train", train), ("evaluation", evaluation)):
        _check_records(name, records, labels=_head_size(model))
    rate, per_epoch = sampling(len(train), settings.batch)
    digest = "" if folder is None else digest_of(model)
    earlier = _earlier(folder, resume, settings, digest, len(train))
    noise = earlier.noise_multiplier if earlier else _noise(settings, rate, per_epoch)

    torch.manual_seed(settings.seed + (earlier.steps if earlier else 0))
    trained = set_trainable(model, settings.trainable, lora_rank=settings.lora_rank)
    private = _private(trained, train, settings, noise)
    if len(private.loader) != per_epoch:
        raise InvalidInput("opacus", f"draw {per_epoch} batches an epoch", len(private.loader), "Use 1.6.")
    history: list[dict[str, float]] = []
    before = 0.0
    if earlier is not None:
        _take_up(private, trained, earlier)
        history, before = list(earlier.history), earlier.seconds
    start_counting_memory(private.device)

    for epoch in range(len(history) + 1, settings.epochs + 1):
        loss = _epoch(private, settings, epoch, on_progress)
        _check_finite(trained)
        accuracy = _accuracy(private, evaluation, settings.micro_batch)
        history.append({"step": private.steps, "epoch": epoch, "loss": loss, "accuracy": accuracy})
        if on_progress is not None:
            on_progress({**history[-1], "steps": settings.epochs * per_epoch})
        if folder is not None:
            seconds = before + time.perf_counter() - started
            run = {"settings": _deciding(asdict(settings)), "model_digest": digest, "records": len(train)}
            save(folder, _checkpoint(private, trained, run, history, seconds))

    epsilon = history_epsilon(
        private.history, delta=settings.delta, accountant=settings.accountant, near=settings.epsilon
    )
    steps, module = private.steps, private.plain()
    return DpSgdOutcome(
        history=history,
        accuracy=history[-1]["accuracy"],
        epsilon=epsilon,
        delta=settings.delta,
        noise_multiplier=noise,
        sample_rate=rate,
        steps=steps,
        seconds=before + time.perf_counter() - started,
        peak_memory_mib=peak_memory_mib(private.device),
        statement=statement_of(
            settings, epsilon=epsilon, noise_multiplier=noise, steps=steps, records=len(train)
        ),
        model=module.merge_and_unload() if settings.trainable == "lora" else module,
    )


def statement_of(
    settings: DpSgdSettings, *, epsilon: float, noise_multiplier: float, steps: int, records: int
) -> str:
    """The promise of a run in plain words, with what it does not cover."""
    delta = settings.delta
    twice, more = as_replace_one(epsilon, delta)
    rate, _ = sampling(records, settings.batch)
    lines = [
        f"Central DP of one training record (its text and label together) against whoever sees the trained "
        f"weights: ({shown_up(epsilon)}, {shown_up(delta)}) when one record is added or removed, by Opacus's "
        f"{settings.accountant} accountant for {steps} steps at sampling rate {rate:.6g} with noise "
        f"multiplier {noise_multiplier:.6g} and clipping at {settings.clip_norm:g}.",
        f"For one record replaced by another, the relation of our other central numbers, this proves "
        f"({shown_up(twice)}, {shown_up(more, 3)}).",
        "Not protected: whoever trains sees every text and label raw. A query at inference is sent raw, "
        "without noise. The training losses in the history come from raw records and are not covered.",
        "Assumed: the number of records, the sampling rate and the number of steps are public.",
    ]
    if delta * records > 1:
        lines.append(f"Mind that delta is above 1 / {records}, the number of records: that is weak.")
    if not settings.secure:
        lines.append(
            "The noise came from an ordinary generator in float32: good for an experiment, not for weights "
            "that an attacker will study."
        )
    return " ".join(lines)


def _head_size(model: Any) -> int:
    return int(model.config.num_labels)


def _noise(settings: DpSgdSettings, rate: float, per_epoch: int) -> float:
    return noise_multiplier_for(
        settings.epsilon,
        delta=settings.delta,
        sample_rate=rate,
        steps=settings.epochs * per_epoch,
        accountant=settings.accountant,
    )


def _private(trained: Any, train: Records, settings: DpSgdSettings, noise: float) -> Private:
    weights = [parameter for parameter in trained.parameters() if parameter.requires_grad]
    return make_private(
        trained,
        records=train,
        optimizer=torch.optim.AdamW(weights, lr=settings.learning_rate, weight_decay=0.0),
        mode=settings.mode,
        batch=settings.batch,
        noise_multiplier=noise,
        clip_norm=settings.clip_norm,
        accountant=settings.accountant,
        secure=settings.secure,
    )


def _epoch(private: Private, settings: DpSgdSettings, epoch: int, on_progress: Progress | None) -> float:
    """One pass of Poisson batches; the mean loss."""
    private.module.train()
    total, texts = torch.zeros((), device=private.device), 0
    heard = private.steps
    with private.parts(settings.micro_batch) as parts:
        for part in parts:
            loss, size = private.step(part)
            total, texts = total + loss, texts + size
            if on_progress is not None and private.steps > heard:
                heard = private.steps
                steps = settings.epochs * len(private.loader)
                mean = float(total) / max(1, texts)
                on_progress({"step": heard, "steps": steps, "epoch": epoch, "loss": mean})
    return float(total) / max(1, texts)


@torch.no_grad()
def _accuracy(private: Private, records: Records, texts: int) -> float:
    """Accuracy on raw records: DP-SGD adds no noise at inference."""
    private.module.eval()
    right = 0
    for start in range(0, len(records), texts):
        part = [records[index] for index in range(start, min(start + texts, len(records)))]
        inputs = {name: torch.stack([r[name] for r in part]).to(private.device) for name in private.names}
        labels = inputs.pop("labels")
        right += int((private.module(**inputs).logits.argmax(-1) == labels).sum())
    return right / len(records)


def _check_records(name: str, records: Records, *, labels: int) -> None:
    if len(records) == 0:
        raise InvalidInput(name, "hold records", 0, "Load a split that has some.")
    first = records[0]
    missing = [key for key in ("input_ids", "attention_mask", "labels") if key not in first]
    if missing:
        raise InvalidInput(
            name, "give input_ids, attention_mask and labels", f"no {missing[0]}", "Encode it."
        )
    found = getattr(records, "labels", None)
    if found is None:
        found = torch.stack([torch.as_tensor(records[index]["labels"]) for index in range(len(records))])
    found = torch.tensor(found) if not torch.is_tensor(found) else found
    if found.ndim != 1 or found.is_floating_point():
        raise InvalidInput(
            f"{name} labels",
            "be one whole number per text",
            f"{found.dtype} of {found.ndim} axes",
            "Encode it.",
        )
    if int(found.min()) < 0 or int(found.max()) >= labels:
        rule = f"lie in 0 to {labels - 1}, the labels of the model's head"
        raise InvalidInput(f"{name} labels", rule, "another", "Load the model with num_labels of the task.")


def _check_finite(trained: Any) -> None:
    if not all(bool(torch.isfinite(p).all()) for p in trained.parameters() if p.requires_grad):
        raise InvalidInput("weights", "stay finite", "NaN or Inf", "Use a smaller learning_rate.")


def _earlier(
    folder: Path | None, resume: bool, settings: DpSgdSettings, digest: str, records: int
) -> Checkpoint | None:
    """The checkpoint to go on from, if it is this run's."""
    found = newest(folder) if folder is not None else None
    if found is None:
        return None
    if not resume:
        raise InvalidInput("folder", "be new", "one that holds a run", "Resume it, or use another folder.")
    same = {"settings": _deciding(asdict(settings)), "model_digest": digest, "records": records}
    stored = {"settings": _deciding(found.settings)}
    for name, value in same.items():
        if stored.get(name, getattr(found, name)) != value:
            raise InvalidInput(
                "folder",
                f"hold a run with the same {name}",
                "another",
                "Use the plan, data and model it has.",
            )
    return found


def _deciding(settings: dict[str, Any]) -> dict[str, Any]:
    """What decides the result: not how many texts are in memory at once."""
    return {name: value for name, value in settings.items() if name != "micro_batch"}


def _take_up(private: Private, trained: Any, earlier: Checkpoint) -> None:
    """Weights, optimizer and what was spent; the noise starts fresh."""
    weights = {name: p for name, p in trained.named_parameters() if p.requires_grad}
    if weights.keys() != earlier.weights.keys():
        raise InvalidInput("folder", "hold the weights of this model", "others", "Start in a new folder.")
    with torch.no_grad():
        for name, parameter in weights.items():
            parameter.copy_(earlier.weights[name])
    state: dict[int, dict[str, Any]] = {}
    for key, tensor in earlier.optimizer.items():
        index, _, name = key.partition(".")
        state.setdefault(int(index), {})[name] = tensor
    groups = private.optimizer.state_dict()["param_groups"]
    private.optimizer.load_state_dict({"state": state, "param_groups": groups})
    private.continue_from(earlier.accountant_history)


def _checkpoint(
    private: Private, trained: Any, run: dict[str, Any], history: list[dict[str, float]], seconds: float
) -> Checkpoint:
    state = private.optimizer.state_dict()["state"]
    return Checkpoint(
        **run,
        epoch=len(history),
        noise_multiplier=float(private.optimizer.noise_multiplier),
        accountant_history=private.history,
        history=history,
        seconds=seconds,
        weights={name: p for name, p in trained.named_parameters() if p.requires_grad},
        optimizer={
            f"{index}.{name}": value for index, entry in state.items() for name, value in entry.items()
        },
    )
