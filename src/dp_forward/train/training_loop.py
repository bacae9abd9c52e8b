"""The training loop of every stage: a module, records, a few settings, and the Hugging Face Trainer.

Trainer brings logging, checkpoints, resume, bf16, accelerate and several processes. What is ours is short:
batches of texts of like length, clean epochs at the start, and progress.
"""

import contextlib
import json
import math
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.data import Sampler

from dp_forward.data import EncodedTexts
from dp_forward.errors import refuse_if
from dp_forward.progress import Progress
from dp_forward.split.pretrained import quiet_transformers
from dp_forward.train.plan import Plan, Precision, ReleasesPlan, Schedule
from dp_forward.train.processes import peak_memory_mib, process_count, start_counting_memory
from dp_forward.train.run import RunFolder

_ATTENTION = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
"""Not cuDNN's: its gradients are not numbers for masked texts of 64 rows (pytorch issue 196678)."""


@dataclass(frozen=True, kw_only=True)
class FitSettings:
    epochs: float
    batch: int  # texts per step, over all processes
    learning_rate: float
    head_learning_rate: float | None = None  # for `module.new_parameters()`; None means: as all others
    weight_decay: float = 0.01
    schedule: Schedule = "linear"
    clean_epochs: float = 0.0  # epochs at the start in which the module's noise is left out (`module.clean`)
    seed: int = 0
    precision: Precision = "auto"

    @classmethod
    def of(cls, plan: Plan | ReleasesPlan, **changes: Any) -> Self:
        known = {item.name: getattr(plan, item.name) for item in fields(cls) if hasattr(plan, item.name)}
        return cls(**{**known, **changes})


def fit(
    module: nn.Module,
    train: Any,
    evaluation: Any,
    settings: FitSettings,
    *,
    stage: str,
    folder: Path | None = None,
    progress: Progress | None = None,
    **arguments: Any,
) -> dict[str, Any]:
    """Train ``module`` in place. With a ``folder``, checkpoints go there and an earlier one is continued.

    ``train`` and ``evaluation`` (or None) are datasets: texts, a released corpus, or a list of records.
    ``arguments`` are for Transformers, in place of ours. Returns what a report says of the stage.
    """
    transformers.set_seed(settings.seed)
    started = time.perf_counter()
    per_epoch = math.ceil(len(train) / settings.batch)
    watcher = _Watcher(module, stage=stage, clean=settings.clean_epochs, progress=progress)
    with tempfile.TemporaryDirectory() as temporary, quiet_transformers(), sdpa_kernel(_ATTENTION):
        place = folder or Path(temporary)
        switches = {"saves": folder is not None, "evaluates": evaluation is not None}
        trainer = _Trainer(
            model=module,
            args=_arguments(settings, place, per_epoch, **switches, **arguments),
            train_dataset=_dataset(train, module),
            eval_dataset=_dataset(evaluation, module),
            data_collator=_collate,
            compute_metrics=_accuracy,
            callbacks=[watcher],
        )
        trainer.head_learning_rate = settings.head_learning_rate
        # Trainer prints its numbers on stdout, which is for results.
        trainer.remove_callback(transformers.PrinterCallback)
        earlier = last_checkpoint(place)
        start_counting_memory()
        outcome = trainer.train(resume_from_checkpoint=None if earlier is None else str(earlier))
    history = [_numbers(entry) for entry in trainer.state.log_history]
    return {
        "steps": int(outcome.global_step),
        "epochs": float(trainer.state.epoch or 0.0),
        "seconds": time.perf_counter() - started,
        "peak_memory_mib": peak_memory_mib(),
        "history": [entry for entry in history if "loss" in entry or "accuracy" in entry],
    }


def train_stage(
    place: RunFolder,
    stage: str,
    settings: FitSettings,
    *,
    make_module: Callable[[int], nn.Module],
    train: Any,
    evaluation: Any,
    halves: dict[str, nn.Module],
    checkpoints: bool = True,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Train one stage of a run and store it, or put back what an earlier process stored; what was logged.

    Args:
        make_module: the module to train, made from the step that it starts at: 0, or a checkpoint's.
        halves: what the stage changes.
        checkpoints: whether a kill costs less than the whole stage.
    """
    trained, done = nn.ModuleDict(halves), place.stage_result(stage)
    if done is not None:
        trained.load_state_dict(done[0])
        return done[1]
    folder = place.checkpoints(stage) if checkpoints else None
    module = make_module(0 if folder is None else step_of(last_checkpoint(folder)))
    facts = fit(module, train, evaluation, settings, stage=stage, folder=folder, progress=progress)
    place.finish_stage(stage, trained.state_dict(), facts)
    return facts


def curve_sample(records: int) -> NDArray[np.int64]:
    """Which held-out records the learning curve is drawn from: evenly spread; the final accuracy uses all."""
    return np.linspace(0, records - 1, min(records, 2000)).astype(np.int64)


def last_checkpoint(folder: Path) -> Path | None:
    """The newest checkpoint that was written to its end, which a readable state shows: it is written last."""
    found = [path for path in folder.glob("checkpoint-*") if path.name.rpartition("-")[2].isdigit()]
    for path in sorted(found, key=step_of, reverse=True):
        with contextlib.suppress(OSError, ValueError):
            if json.loads((path / "trainer_state.json").read_text(encoding="utf-8")):
                return path
    return None


def step_of(checkpoint: Path | None) -> int:
    """The step after which a checkpoint was written; 0 for none."""
    return 0 if checkpoint is None else int(checkpoint.name.rpartition("-")[2])


def _arguments(
    settings: FitSettings, place: Path, per_epoch: int, *, saves: bool, evaluates: bool, **others: Any
) -> Any:
    steps = math.ceil(settings.epochs * per_epoch)
    bf16 = settings.precision == "bf16"
    if settings.precision == "auto":
        bf16 = torch.cuda.is_available() and torch.cuda.is_bf16_supported()
    ours: dict[str, Any] = {
        "output_dir": str(place),
        "num_train_epochs": settings.epochs,
        "per_device_train_batch_size": max(1, settings.batch // process_count()),
        "per_device_eval_batch_size": max(settings.batch, 64),
        "learning_rate": settings.learning_rate,
        "weight_decay": settings.weight_decay,
        "lr_scheduler_type": settings.schedule,
        # As BERT was fine-tuned.
        "warmup_steps": math.ceil(0.06 * steps) if settings.schedule == "linear" else 0,
        "bf16": bf16,
        # Else several processes without a GPU would each train alone.
        "use_cpu": not torch.cuda.is_available(),
        "seed": settings.seed,
        "eval_strategy": "epoch" if evaluates else "no",
        "save_strategy": "epoch" if saves else "no",
        "save_total_limit": 1,
        "logging_steps": max(1, per_epoch // 20),
        "logging_nan_inf_filter": False,  # what is not a number ends the training
        "remove_unused_columns": False,
        "label_names": ["labels"],
        "dataloader_pin_memory": torch.cuda.is_available(),
        "disable_tqdm": True,
        "report_to": "none",
    }
    return transformers.TrainingArguments(**{**ours, **others})


class _Trainer(transformers.Trainer):
    """Trainer with batches of like length, and a learning rate of its own for what starts at random."""

    head_learning_rate: float | None = None

    def create_optimizer(self, *_: Any, **__: Any) -> Any:
        """Parameters by learning rate, and by whether they decay: matrices do, biases and norms do not."""
        if self.optimizer is not None:
            return self.optimizer
        module: Any = self.model
        head_rate = self.head_learning_rate
        new = set() if head_rate is None else {id(parameter) for parameter in module.new_parameters()}
        groups: dict[tuple[bool, bool], list[nn.Parameter]] = {}
        for parameter in module.parameters():
            if parameter.requires_grad:
                groups.setdefault((id(parameter) in new, parameter.ndim > 1), []).append(parameter)
        settings = [
            {
                "params": parameters,
                "lr": head_rate if is_new else self.args.learning_rate,
                "weight_decay": self.args.weight_decay if is_matrix else 0.0,
            }
            for (is_new, is_matrix), parameters in groups.items()
        ]
        self.optimizer = torch.optim.AdamW(settings, fused=torch.cuda.is_available())
        return self.optimizer

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        lengths = getattr(train_dataset or self.train_dataset, "lengths", None)
        if lengths is None:
            return super()._get_train_sampler(train_dataset)
        return _LikeLengths(lengths, batch=self.args.train_batch_size, seed=self.args.seed)


class _Watcher(transformers.TrainerCallback):
    """Ends the clean epochs, and reports progress."""

    def __init__(self, module: nn.Module, *, stage: str, clean: float, progress: Progress | None) -> None:
        self._module, self._stage, self._clean_epochs, self._progress = module, stage, clean, progress

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self._clean_epochs:
            self._module.clean = (state.epoch or 0.0) < self._clean_epochs  # type: ignore[assignment]

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        last = state.log_history[-1] if state.log_history else {}
        is_new = "loss" in last and last["step"] == state.global_step - 1
        self._show(state, {"loss": last["loss"]} if is_new else {})

    def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._show(state, _numbers(state.log_history[-1]))

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        loss, step = float((logs or {}).get("loss", 0.0)), state.global_step
        remedy = "Try half the learning rate, or float32 numbers."
        refuse_if(not math.isfinite(loss), "loss", "stay finite", f"{loss} at step {step}", remedy)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self._clean_epochs:
            self._module.clean = False  # type: ignore[assignment]

    def _show(self, state: Any, numbers: dict[str, float]) -> None:
        if self._progress is not None:
            self._progress(self._stage, state.global_step, state.max_steps, numbers)


class _LikeLengths(Sampler[int]):
    """A shuffle in which neighbours have about the same length; the same order for the same epoch.

    Transformers' LengthGroupedSampler draws from the global generator: a resumed run would meet another.
    """

    def __init__(self, lengths: Any, *, batch: int, seed: int, pool: int = 32) -> None:
        self._lengths = np.asarray(lengths)
        self._batch, self._pool, self._seed, self._epoch = batch, pool, seed, 0

    def set_epoch(self, epoch: int) -> None:
        self._epoch = epoch

    def __len__(self) -> int:
        return len(self._lengths)

    def __iter__(self) -> Iterator[int]:
        random = np.random.default_rng((self._seed, self._epoch))
        order = random.permutation(len(self._lengths))
        size, full = self._batch * self._pool, len(order) // self._batch
        for start in range(0, len(order), size):
            block = order[start : start + size]
            order[start : start + size] = block[np.argsort(self._lengths[block], kind="stable")]
        # The one short batch stays last: a sampler hands out single records, and the loader cuts them anew.
        for i in [*random.permutation(full), full]:
            yield from order[i * self._batch : (i + 1) * self._batch].tolist()


class _TrimmedTexts(EncodedTexts):
    """Texts in batches that are cut to their longest text."""

    def __getitems__(self, indices: Sequence[int]) -> dict[str, Tensor]:
        return self.batch(indices, trim=True)


def _dataset(records: Any, module: nn.Module) -> Any:
    """Texts are trimmed; those of a decoder only where one row crosses, as rows count from the left."""
    if not isinstance(records, EncodedTexts) or (records.pads_left and getattr(module, "rows", 0) != 1):
        return records
    return _TrimmedTexts(records.columns, pads_left=records.pads_left)


def _collate(batch: Any) -> Any:
    """A dataset of ours hands out whole batches; a list of records does not."""
    return batch if isinstance(batch, dict) else transformers.default_data_collator(batch)


def _accuracy(predicted: Any) -> dict[str, float]:
    logits, labels = predicted.predictions, predicted.label_ids
    return {"accuracy": float((np.argmax(logits, axis=-1) == labels).mean())}


def _numbers(entry: dict[str, Any]) -> dict[str, float]:
    """A line of Trainer's log in our words."""
    names = {"eval_loss": "evaluation_loss", "eval_accuracy": "accuracy", "loss": "loss"}
    kept = {ours: float(entry[theirs]) for theirs, ours in names.items() if theirs in entry}
    return {"step": float(entry.get("step", 0)), "epoch": float(entry.get("epoch") or 0.0), **kept}
