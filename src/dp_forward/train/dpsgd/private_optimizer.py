"""A model under DP-SGD: Opacus clips each record's gradient and noises their sum.

Everything that decides the privacy of a step is here: which weights train, how batches are drawn, where the
noise comes from, and the one step that both modes share.

* "hooks" keeps the gradient of every record (memory grows with the batch);
* "ghost" computes only their norms, then a second backward pass of the clipped loss.

Guarantees:
    Each record enters a step with probability ``sample_rate``, by itself (Poisson); an empty batch is a step
    like any other, with noise alone. One record moves the sum before the noise by at most ``clip_norm``.
    Noise and draws start from operating-system entropy, never from a seed that a report could print: who
    knows the seed can take the noise off.
Edges:
    The noise is a float32 draw of torch's ordinary generator, fit for experiments: on a CPU it has only 2^32
    starting points. ``secure`` asks Opacus for its cryptographic one and is refused where torchcsprng is
    missing. Opacus does not bound a gradient that is not finite: it makes the weights not finite, which the
    epoch's check refuses.
Paper: the DP-SGD baseline.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Sampler

from dp_forward.errors import InvalidInput
from dp_forward.train.dpsgd.accounting import Accountant
from dp_forward.train.dpsgd.clipping_check import clipping_error, made_up

__all__ = ["Mode", "Private", "Records", "Trainable", "make_private", "set_trainable"]

Mode = Literal["hooks", "ghost"]
Trainable = Literal["frozen-embeddings", "lora"]

_MOST_ERROR = 0.02
"""Of the clipping norm, over a few records: float32 errs by 1e-5, TF32 by 1e-3, a wrong gradient by 1."""
_INPUTS = ("input_ids", "attention_mask", "token_type_ids", "labels")


class Records(Protocol):
    """Encoded texts: each item holds tensors of one fixed length, and its label.

    Where they have ``lengths``, the tokens of each, a batch is read from its shortest to its longest text.
    """

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Mapping[str, Tensor]: ...


class _Tuples(Dataset[tuple[Tensor, ...]]):
    """Records as tuples in a fixed order: Opacus can build an empty batch of these, but not of mappings."""

    def __init__(self, records: Records) -> None:
        self.records = records
        self.names = [name for name in _INPUTS if name in records[0]]

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        record = self.records[index]
        return tuple(torch.as_tensor(record[name]) for name in self.names)


class _ByLength(Sampler[list[int]]):
    """Batches of record numbers, each sorted by length."""

    def __init__(self, batches: Any, lengths: Any) -> None:
        self._batches, self._lengths = batches, lengths

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[list[int]]:
        for batch in self._batches:
            yield sorted(batch, key=lambda number: int(self._lengths[number]))


def set_trainable(model: Any, trainable: Trainable, *, lora_rank: int) -> Any:
    """Leave only those weights to train that Opacus can clip; the model to train, which may wrap the given.

    The tables of tokens and positions cannot be clipped cheaply (a gradient per record is as large as the
    vocabulary) or at all (positions carry no batch axis), so they stay as they are in both variants.
    """
    if trainable == "frozen-embeddings":
        for parameter in model.parameters():
            parameter.requires_grad_(True)
        for part in model.modules():
            if isinstance(part, nn.Embedding):
                part.weight.requires_grad_(False)
        return model
    from peft import LoraConfig, get_peft_model
    from transformers.pytorch_utils import Conv1D

    body = model.base_model_prefix
    linear = [name for name, part in model.base_model.named_modules() if isinstance(part, nn.Linear | Conv1D)]
    head = [name for name, part in model.named_children() if name != body and [*part.parameters()]]
    plan = LoraConfig(
        r=lora_rank,
        lora_alpha=2 * lora_rank,
        target_modules=[f"{body}.{name}" for name in linear],
        modules_to_save=head,
    )
    with warnings.catch_warnings():
        # GPT-2 keeps its weights transposed; peft notices and says so.
        warnings.filterwarnings("ignore", message="fan_in_fan_out")
        return get_peft_model(model, plan)


@dataclass(frozen=True, slots=True)
class Private:
    """What `make_private` prepared: take batches from ``loader`` and give each to `step`."""

    module: Any
    optimizer: Any
    loader: DataLoader[Any]
    mode: Mode
    names: tuple[str, ...]
    device: torch.device
    _engine: Any
    _criterion: Any

    @property
    def history(self) -> list[tuple[float, float, int]]:
        """What the accountant has seen: noise multiplier, sampling rate, steps."""
        return [
            (float(noise), float(rate), int(steps)) for noise, rate, steps in self._engine.accountant.history
        ]

    @property
    def steps(self) -> int:
        """The noisy steps taken so far."""
        return sum(steps for _, _, steps in self.history)

    def continue_from(self, history: list[tuple[float, float, int]]) -> None:
        """Take up the accountant's history of an interrupted run; only before the first step."""
        if self._engine.accountant.history:
            raise InvalidInput("history", "be taken up before the first step", self.steps, "Start anew.")
        self._engine.accountant.history = list(history)

    def parts(self, most: int) -> Any:
        """A context that yields the batches of one epoch, each cut into parts of at most ``most`` texts."""
        from opacus.utils.batch_memory_manager import BatchMemoryManager  # type: ignore[import-untyped]

        return BatchMemoryManager(
            data_loader=self._by_length(), max_physical_batch_size=most, optimizer=self.optimizer
        )

    def _by_length(self) -> DataLoader[Any]:
        """The same batches, each from its shortest to its longest text: a part has texts of like length.

        A step sums over its batch, so the order inside changes nothing but how much PAD is computed with.
        """
        lengths = getattr(getattr(self.loader.dataset, "records", None), "lengths", None)
        if lengths is None:
            return self.loader
        loader = self.loader
        batches: Any = _ByLength(loader.batch_sampler, lengths)
        return DataLoader(
            loader.dataset, batch_sampler=batches, collate_fn=loader.collate_fn, generator=loader.generator
        )

    def step(self, part: Sequence[Tensor]) -> tuple[Tensor, int]:
        """Forward, per-record clipping and, at the end of a batch, noise and update; summed loss and texts.

        The loss is computed from raw records: no promise covers it.
        """
        self.optimizer.zero_grad()
        texts = len(part[-1])
        loss = self.backward(part) if texts else self._nothing()
        self.optimizer.step()
        return loss * texts, texts

    def backward(self, part: Sequence[Tensor]) -> Tensor:
        """Forward and backward pass of some texts, with what Opacus needs to clip them; the mean loss."""
        inputs, labels = self.inputs(part)
        loss = self._criterion(self.module(**inputs).logits, labels)
        with warnings.catch_warnings():
            # The first layer that trains has inputs without gradients; Opacus needs only its outputs'.
            warnings.filterwarnings("ignore", message="Full backward hook is firing")
            loss.backward()
        value: Tensor = loss.detach()
        return value

    def inputs(self, part: Sequence[Tensor]) -> tuple[dict[str, Tensor], Tensor]:
        """A batch as the model takes it, without columns at the end that are PAD in all texts; its labels."""
        named = dict(zip(self.names, part, strict=True))
        labels = named.pop("labels")
        mask = named.get("attention_mask")
        if mask is not None and bool(mask.any()):
            kept = int(mask.any(dim=0).nonzero().max()) + 1
            named = {name: tensor[:, :kept] for name, tensor in named.items()}
        return {name: tensor.to(self.device) for name, tensor in named.items()}, labels.to(self.device)

    def _nothing(self) -> Tensor:
        """The gradients of an empty batch, so that the step is noise alone."""
        for parameter in self.optimizer.params:
            if self.mode == "ghost":
                parameter.grad = torch.zeros_like(parameter)
            else:
                parameter.grad_sample = parameter.new_zeros((0, *parameter.shape))
        return torch.zeros((), device=self.device)

    def plain(self) -> Any:
        """The trained module without Opacus's hooks; `step` cannot be used after it."""
        module = self.module.to_standard_module()
        for parameter in module.parameters():
            for name in ("grad_sample", "summed_grad", "_norm_sample"):
                if hasattr(parameter, name):
                    delattr(parameter, name)
            parameter.grad = None
        return module


def make_private(
    model: Any,
    *,
    records: Records,
    optimizer: torch.optim.Optimizer,
    mode: Mode,
    batch: int,
    noise_multiplier: float,
    clip_norm: float,
    accountant: Accountant = "prv",
    secure: bool = False,
) -> Private:
    """Put a model whose trainable weights are set under DP-SGD; see the module docstring."""
    from opacus import PrivacyEngine  # type: ignore[import-untyped]

    if not (math.isfinite(noise_multiplier) and noise_multiplier > 0):
        raise InvalidInput(
            "noise_multiplier", "be a finite number above 0", noise_multiplier, "Use noise_multiplier_for()."
        )
    if secure and find_spec("torchcsprng") is None:
        raise InvalidInput(
            "secure", "have torchcsprng, Opacus's secure generator", "none", "Leave it out for an experiment."
        )
    device = next(model.parameters()).device
    _check_model(model.train(), mode)
    tuples = _Tuples(records)
    with warnings.catch_warnings():
        # What it warns of, a generator that is not cryptographic, stands in the statement of the run.
        warnings.filterwarnings("ignore", message="Secure RNG turned off")
        engine = PrivacyEngine(accountant=accountant, secure_mode=secure)
    loader = DataLoader(tuples, batch_size=batch, generator=_fresh_generator("cpu"))
    try:
        module, wrapped, *criterion, poisson = engine.make_private(
            module=model,
            optimizer=optimizer,
            criterion=nn.CrossEntropyLoss(),
            data_loader=loader,
            noise_multiplier=noise_multiplier,
            max_grad_norm=clip_norm,
            grad_sample_mode=mode,
            noise_generator=None if secure else _fresh_generator(device),
        )
    except NotImplementedError:
        raise _unsupported("trainable layers with buffers", mode) from None
    private = Private(
        module=module,
        optimizer=wrapped,
        loader=poisson,
        mode=mode,
        names=tuple(tuples.names),
        device=device,
        _engine=engine,
        _criterion=criterion[0] if criterion else nn.CrossEntropyLoss(),
    )
    _check_clipping(private, tuples[0], model.config)
    return private


def _check_clipping(private: Private, like: tuple[Tensor, ...], shape: Any) -> None:
    trial = made_up(like, private.names, vocabulary=shape.vocab_size, labels=shape.num_labels)
    try:
        error = clipping_error(private, trial)
    except (AttributeError, NotImplementedError, RuntimeError, TypeError, ValueError) as problem:
        raise _unsupported(f"one it cannot ({type(problem).__name__})", private.mode) from problem
    if not error <= _MOST_ERROR:
        raise _unsupported(f"clipped gradients wrong by {error:.2g} of the norm", private.mode)


def _fresh_generator(device: torch.device | str) -> torch.Generator:
    # 63 bits: what every device's generator takes as a seed.
    return torch.Generator(device=device).manual_seed(int.from_bytes(os.urandom(8), "big") >> 1)


def _check_model(model: nn.Module, mode: str) -> None:
    from opacus.validators import ModuleValidator  # type: ignore[import-untyped]

    errors = ModuleValidator.validate(model, strict=False)
    if errors:
        kinds = sorted({type(error).__name__ for error in errors})
        raise _unsupported(f"{len(errors)} layers it refuses ({', '.join(kinds)})", mode)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise InvalidInput("model", "have weights to train", "none", "Use set_trainable().")


def _unsupported(found: str, mode: str) -> InvalidInput:
    return InvalidInput(
        "model",
        f"be one whose gradients Opacus can clip per record in mode {mode}",
        found,
        "Use trainable=lora, the other mode, or a BERT-like model.",
    )
