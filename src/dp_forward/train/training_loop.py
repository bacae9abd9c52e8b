"""The training path: a module, records, a few settings, and the Hugging Face Trainer.

Trainer brings logging, checkpoints, resume, bf16, accelerate and several processes. What is ours is short:
batches of texts of like length, a clean warm-up that ends after so many epochs, and progress.
"""

from __future__ import annotations

import contextlib
import math
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
import transformers
from torch import nn
from torch.utils.data import Dataset, Sampler

from dp_forward.split.load_model import quiet_transformers
from dp_forward.train.checkpoints import last_checkpoint, step_of
from dp_forward.train.processes import peak_memory_mib, process_count, start_counting_memory
from dp_forward.train.weight_average import MovingAverage

if TYPE_CHECKING:
    from dp_forward.train.plan import Precision

__all__ = ["Batched", "Fit", "FitSettings", "Progress", "fit", "last_step"]

Progress = Callable[[str, int, int, dict[str, float]], None]
"""``progress(stage, done, total, numbers)``; drawn by whoever calls."""

_LOGS_PER_EPOCH = 20
_WARM_UP_SHARE = 0.06
"""The share of steps in which the learning rate rises; as BERT was fine-tuned."""


class Batched(Protocol):
    """Records that hand out whole batches."""

    def __len__(self) -> int: ...
    def batch(self, indices: Any, *, trim: bool = False) -> dict[str, torch.Tensor]: ...


@dataclass(frozen=True, kw_only=True)
class FitSettings:
    """How one stage trains."""

    epochs: float
    batch: int
    """Texts per step, over all processes."""
    learning_rate: float
    head_learning_rate: float | None = None
    """For ``module.new_parameters()``; None means: as all others."""
    weight_decay: float = 0.01
    average: float = 0.0
    """Decay of the moving average of the weights that is kept in the end; 0 keeps the last weights."""
    clean_epochs: float = 0.0
    """Epochs at the start in which the module's noise is left out (``module.clean``)."""
    early_stopping: int = 0
    seed: int = 0
    precision: Precision = "auto"
    trim: bool = False
    """Cut batches to their longest text and put texts of like length together."""


@dataclass
class Fit:
    """What came of it."""

    steps: int
    epochs: float
    seconds: float
    peak_memory_mib: float
    history: list[dict[str, float]] = field(default_factory=list)


def fit(
    module: nn.Module,
    train: Batched,
    evaluation: Batched | None,
    settings: FitSettings,
    *,
    stage: str,
    folder: Path | None = None,
    progress: Progress | None = None,
) -> Fit:
    """Train ``module`` in place. With a ``folder``, checkpoints go there and an earlier one is continued."""
    transformers.set_seed(settings.seed)
    started = time.perf_counter()
    per_epoch = math.ceil(len(train) / settings.batch)
    saves = folder is not None or settings.early_stopping > 0
    callbacks: list[Any] = [
        _Watch(module, stage=stage, clean_epochs=settings.clean_epochs, progress=progress)
    ]
    if settings.average:
        callbacks.append(MovingAverage(module, decay=settings.average))
    if settings.early_stopping:
        callbacks.append(transformers.EarlyStoppingCallback(settings.early_stopping))
    with _place(folder) as place, quiet_transformers():
        trainer = _Trainer(
            model=module,
            args=_arguments(
                settings, place=place, per_epoch=per_epoch, saves=saves, evaluates=evaluation is not None
            ),
            train_dataset=_Fetched(train, settings.trim),
            eval_dataset=None if evaluation is None else _Fetched(evaluation, settings.trim),
            data_collator=_as_it_is,
            compute_metrics=_accuracy,
            callbacks=callbacks,
        )
        trainer.head_learning_rate = settings.head_learning_rate
        # Trainer prints its numbers on stdout, which is for results.
        trainer.remove_callback(transformers.PrinterCallback)
        earlier = last_checkpoint(place) if folder is not None else None
        start_counting_memory()
        outcome = trainer.train(resume_from_checkpoint=None if earlier is None else str(earlier))
    history = [_numbers(entry) for entry in trainer.state.log_history]
    return Fit(
        steps=int(outcome.global_step),
        epochs=float(trainer.state.epoch or 0.0),
        seconds=time.perf_counter() - started,
        peak_memory_mib=peak_memory_mib(),
        history=[entry for entry in history if "loss" in entry or "accuracy" in entry],
    )


def last_step(folder: Path | None) -> int:
    """The step of the newest checkpoint; 0 where there is none."""
    return 0 if folder is None else step_of(last_checkpoint(folder))


def _arguments(settings: FitSettings, *, place: Path, per_epoch: int, saves: bool, evaluates: bool) -> Any:
    steps = math.ceil(settings.epochs * per_epoch)
    return transformers.TrainingArguments(
        output_dir=str(place),
        num_train_epochs=settings.epochs,
        per_device_train_batch_size=max(1, settings.batch // process_count()),
        per_device_eval_batch_size=max(settings.batch, 64),
        learning_rate=settings.learning_rate,
        weight_decay=settings.weight_decay,
        lr_scheduler_type="linear",
        warmup_steps=math.ceil(_WARM_UP_SHARE * steps),
        bf16=_bf16(settings.precision),
        # Else several processes without a GPU would each train alone.
        use_cpu=not torch.cuda.is_available(),
        seed=settings.seed,
        eval_strategy="epoch" if evaluates else "no",
        save_strategy="epoch" if saves else "no",
        save_total_limit=2 if settings.early_stopping else 1,
        load_best_model_at_end=settings.early_stopping > 0,
        metric_for_best_model="accuracy" if settings.early_stopping else None,
        logging_steps=max(1, per_epoch // _LOGS_PER_EPOCH),
        remove_unused_columns=False,
        label_names=["labels"],
        dataloader_pin_memory=torch.cuda.is_available(),
        disable_tqdm=True,
        report_to="none",
    )


class _Trainer(transformers.Trainer):
    """Trainer with batches of like length, and a learning rate of its own for what starts at random."""

    head_learning_rate: float | None = None

    def create_optimizer(self, *_: Any, **__: Any) -> Any:
        if self.optimizer is None:
            groups = _groups(self.model, self.args, self.head_learning_rate)
            self.optimizer = torch.optim.AdamW(groups, fused=torch.cuda.is_available())
        return self.optimizer

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        records = self.train_dataset if train_dataset is None else train_dataset
        lengths = getattr(records, "lengths", None)
        if lengths is None:
            return super()._get_train_sampler(train_dataset)
        return LikeLengths(lengths, batch=self.args.train_batch_size, seed=self.args.seed)


class _Watch(transformers.TrainerCallback):
    """Ends the clean epochs, and reports progress."""

    def __init__(
        self, module: nn.Module, *, stage: str, clean_epochs: float, progress: Progress | None
    ) -> None:
        self._module, self._stage = module, stage
        self._clean_epochs, self._progress = clean_epochs, progress

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self._clean_epochs:
            self._module.clean = (state.epoch or 0.0) < self._clean_epochs  # type: ignore[assignment]

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self._progress is not None:
            self._progress(self._stage, state.global_step, state.max_steps, {})

    def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self._progress is not None:
            entry = _numbers(state.log_history[-1])
            self._progress(self._stage, state.global_step, state.max_steps, entry)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self._clean_epochs:
            self._module.clean = False  # type: ignore[assignment]


def _groups(module: Any, args: Any, head_learning_rate: float | None) -> list[dict[str, Any]]:
    """Parameters by learning rate, and by whether they decay: matrices do, biases and norms do not."""
    new = set() if head_learning_rate is None else {id(parameter) for parameter in module.new_parameters()}
    groups: dict[tuple[bool, bool], list[nn.Parameter]] = {}
    for parameter in module.parameters():
        if parameter.requires_grad:
            groups.setdefault((id(parameter) in new, parameter.ndim > 1), []).append(parameter)
    return [
        {
            "params": parameters,
            "lr": head_learning_rate if is_new else args.learning_rate,
            "weight_decay": args.weight_decay if is_matrix else 0.0,
        }
        for (is_new, is_matrix), parameters in groups.items()
    ]


class LikeLengths(Sampler[int]):
    """A shuffle in which neighbours have about the same length; the same order for the same epoch."""

    def __init__(self, lengths: Any, *, batch: int, seed: int, pool: int = 32) -> None:
        self._lengths = np.asarray(lengths)
        self._batch, self._pool, self._seed, self._epoch = batch, pool, seed, 0

    def set_epoch(self, epoch: int) -> None:
        """Called by Trainer, also when it resumes."""
        self._epoch = epoch

    def __len__(self) -> int:
        return len(self._lengths)

    def __iter__(self) -> Iterator[int]:
        random = np.random.default_rng((self._seed, self._epoch))
        order = random.permutation(len(self._lengths))
        batches: list[Any] = []
        size = self._batch * self._pool
        for start in range(0, len(order), size):
            block = order[start : start + size]
            block = block[np.argsort(self._lengths[block], kind="stable")]
            batches += [block[i : i + self._batch] for i in range(0, len(block), self._batch)]
        # The one short batch stays last: a sampler hands out single records, and the loader cuts them anew.
        full = [batch for batch in batches if len(batch) == self._batch]
        short = [batch for batch in batches if len(batch) < self._batch]
        for i in random.permutation(len(full)):
            yield from full[i].tolist()
        for batch in short:
            yield from batch.tolist()


class _Fetched(Dataset[Any]):
    """Records as the loader wants them: asked for a batch, it gives a batch."""

    def __init__(self, records: Batched, trim: bool) -> None:
        self._records, self._trim = records, trim
        self.lengths = getattr(records, "lengths", None) if trim else None

    def __len__(self) -> int:
        return len(self._records)

    def __getitems__(self, indices: list[int]) -> dict[str, torch.Tensor]:
        return self._records.batch(indices, trim=self._trim)


def _as_it_is(batch: Any) -> Any:
    return batch


def _accuracy(predicted: Any) -> dict[str, float]:
    logits, labels = predicted.predictions, predicted.label_ids
    return {"accuracy": float((np.argmax(logits, axis=-1) == labels).mean())}


def _numbers(entry: dict[str, Any]) -> dict[str, float]:
    """A line of Trainer's log in our words."""
    names = {"eval_loss": "evaluation_loss", "eval_accuracy": "accuracy", "loss": "loss"}
    kept = {ours: float(entry[theirs]) for theirs, ours in names.items() if theirs in entry}
    return {"step": float(entry.get("step", 0)), "epoch": float(entry.get("epoch") or 0.0), **kept}


def _bf16(precision: str) -> bool:
    if precision == "auto":
        return torch.cuda.is_available() and torch.cuda.is_bf16_supported()
    return precision == "bf16"


@contextlib.contextmanager
def _place(folder: Path | None) -> Iterator[Path]:
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        yield folder
        return
    with tempfile.TemporaryDirectory() as temporary:
        yield Path(temporary)
