"""Per-record clipping and noise: a model, its optimizer and its batches under Opacus.

Everything that decides the privacy of a step is here. The mode "hooks" keeps the gradient of every record
(memory grows with the batch), "ghost" only their norms, and then a second backward pass of the clipped loss.

Guarantees:
    Each record enters a step with probability ``sample_rate``, by itself (Poisson); an empty batch is a step
    like any other, with noise alone. One record moves the sum before the noise by at most ``clip_norm``; that
    each record of *this* model is clipped is tried before the first step (`clipping_error`). Noise and draws
    start from operating-system entropy, never from a seed that a report could print: who knows the seed can
    take the noise off.
Edges:
    The noise is a float32 draw of torch's ordinary generator, fit for experiments: on a CPU it has only 2^32
    starting points. Opacus does not bound a gradient that is not finite: it makes the weights not finite,
    which the epoch's check refuses.
Paper: the DP-SGD baseline.
"""

import os
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from dp_forward.data import EncodedTexts
from dp_forward.errors import InvalidInput, refuse_if
from dp_forward.privacy import checks
from dp_forward.train.dpsgd.accounting import ignore_warning, sampling
from dp_forward.train.dpsgd.dpsgd_plan import Mode

__all__ = ["PrivateTraining", "freeze_embeddings"]

Batch = dict[str, Tensor]  # what the model takes, by name, and `labels`

_MOST_ERROR = 0.02
"""Of the clipping norm, over a few records: float32 errs by 1e-5, TF32 by 1e-3, a wrong gradient by 1."""
_TRIAL_TEXTS = 3
# The first layer that trains has inputs without gradients; Opacus needs only its outputs'.
_NO_INPUT_GRADIENT = "Full backward hook is firing"


def freeze_embeddings(model: Any) -> None:
    """Leave only those weights to train that Opacus can clip: no table of tokens or positions.

    The gradient of a record is as large as the vocabulary there, or has no batch axis.
    """
    model.requires_grad_(True)
    for part in model.modules():
        if isinstance(part, nn.Embedding):
            part.requires_grad_(False)


class PrivateTraining:
    """A model whose trainable weights are set, under DP-SGD.

    ``draws`` are the batches of one epoch as numbers of records; the ``history`` of ``accountant`` its steps.
    """

    def __init__(
        self,
        model: Any,
        records: EncodedTexts,
        *,
        optimizer: torch.optim.Optimizer,
        mode: Mode,
        batch: int,
        noise_multiplier: float,
        clip_norm: float,
    ) -> None:
        from opacus import PrivacyEngine  # type: ignore[import-untyped]
        from opacus.validators.errors import UnsupportedModuleError  # type: ignore[import-untyped]

        checks.positive("noise_multiplier", noise_multiplier, remedy="Use noise_multiplier_for().")
        self.model, self.records, self.mode = model, records, mode
        self.device: torch.device = next(model.parameters()).device
        trains = any(parameter.requires_grad for parameter in model.parameters())
        refuse_if(not trains, "model", "have weights to train", "none", "Use freeze_embeddings().")
        # What it warns of, a generator that is not cryptographic, stands in the statement of the run.
        with ignore_warning("Secure RNG turned off"):
            engine = PrivacyEngine(accountant="prv")
        self.accountant = engine.accountant
        numbers = TensorDataset(torch.arange(len(records)))
        try:
            self.module, self.optimizer, *criterion, poisson = engine.make_private(
                module=model.train(),
                optimizer=optimizer,
                criterion=nn.CrossEntropyLoss(),
                data_loader=DataLoader(numbers, batch_size=batch, generator=_fresh_generator("cpu")),
                noise_multiplier=noise_multiplier,
                max_grad_norm=clip_norm,
                grad_sample_mode=mode,
                noise_generator=_fresh_generator(self.device),
            )
        except NotImplementedError:
            raise _unsupported("trainable layers with buffers", mode) from None
        except UnsupportedModuleError as problem:
            errors = problem.args[0]
            kinds = ", ".join(sorted({type(error).__name__ for error in errors}))
            raise _unsupported(f"{len(errors)} layers it refuses ({kinds})", mode) from None
        self.criterion = criterion[0] if criterion else nn.CrossEntropyLoss()
        self.draws = poisson.batch_sampler
        _, steps = sampling(len(records), batch)
        rule, drawn = f"draw {steps} batches an epoch", len(self.draws)
        refuse_if(drawn != steps, "opacus", rule, drawn, "Use 1.6.")
        try:
            error = clipping_error(self)
        except (AttributeError, NotImplementedError, RuntimeError, TypeError, ValueError) as problem:
            raise _unsupported(f"one it cannot ({type(problem).__name__})", mode) from problem
        if not error <= _MOST_ERROR:
            raise _unsupported(f"clipped gradients wrong by {error:.2g} of the norm", mode)

    @property
    def steps(self) -> int:
        return sum(steps for _, _, steps in self.accountant.history)

    def parts(self, most_texts: int) -> Iterator[Batch]:
        """The batches of one epoch, cut for `step` into parts of at most so many texts of like length.

        A step sums over its batch: the order inside changes nothing but how much PAD is computed with.
        """
        from opacus.utils.batch_memory_manager import BatchSplittingSampler  # type: ignore[import-untyped]

        draws = (sorted(numbers, key=self.records.lengths.__getitem__) for numbers in self.draws)
        split = BatchSplittingSampler(sampler=draws, max_batch_size=most_texts, optimizer=self.optimizer)
        return map(self.batch, split)

    def batch(self, numbers: Sequence[int]) -> Batch:
        """These records as the model takes them, without columns at the end that are PAD in all of them."""
        # Where PAD lies on the left, a cut would change the positions of the words.
        part = self.records.batch(numbers, trim=not self.records.pads_left)
        return {name: tensor.to(self.device) for name, tensor in part.items()}

    def step(self, part: Batch) -> tuple[Tensor, int]:
        """Forward, per-record clipping and, at the end of a batch, noise and update; sum of losses, texts."""
        self.optimizer.zero_grad()
        texts = len(part["labels"])
        loss = self.backward(part) if texts else torch.zeros((), device=self.device)
        if not texts:  # no gradients, so that the step is noise alone
            for parameter in self.optimizer.params:
                if self.mode == "ghost":
                    parameter.grad = torch.zeros_like(parameter)
                else:
                    parameter.grad_sample = parameter.new_zeros((0, *parameter.shape))
        self.optimizer.step()
        return loss * texts, texts

    def backward(self, part: Batch) -> Tensor:
        """Forward and backward pass of some texts, with what Opacus needs to clip them; the mean loss."""
        loss = self.criterion(*_logits(self.module, part))
        with ignore_warning(_NO_INPUT_GRADIENT):
            loss.backward()
        return loss.detach()  # type: ignore[no-any-return]

    def remove_hooks(self) -> Any:
        """The trained module as it was before Opacus; `step` cannot be used after it."""
        self.optimizer.zero_grad(set_to_none=True)
        return self.module.to_standard_module()


def _logits(module: Any, part: Batch) -> tuple[Tensor, Tensor]:
    inputs = {name: tensor for name, tensor in part.items() if name != "labels"}
    return module(**inputs).logits, part["labels"]


def _fresh_generator(device: torch.device | str) -> torch.Generator:
    # 63 bits: what every device's generator takes as a seed.
    return torch.Generator(device=device).manual_seed(int.from_bytes(os.urandom(8), "big") >> 1)


def clipping_error(private: PrivateTraining) -> float:
    """How far the sum of clipped gradients is from autograd's, in units of the clipping norm.

    Opacus computes a record's gradient layer by layer, from what goes in and out of each. A layer whose first
    axis is not the batch, or weights used in a way it does not see, could give a wrong norm without an error,
    and a wrong norm is a promise broken. The norm is set for the trial to half the smallest gradient's, so
    that every record is clipped. Dropout is off. Gradients, and the norm, are left as they were.
    """
    optimizer, module, trial = private.optimizer, private.module, _trial_batch(private)
    before = optimizer.max_grad_norm
    for part in module.modules():
        # Opacus's hooks work in training only. Dropout has no weights of its own, and stays off.
        part.training = any(parameter.requires_grad for parameter in part.parameters(recurse=False))
    try:
        rows = []
        module.disable_hooks()
        with ignore_warning(_NO_INPUT_GRADIENT):
            for i in range(_TRIAL_TEXTS):
                record = {name: value[i : i + 1] for name, value in trial.items()}
                loss = nn.functional.cross_entropy(*_logits(module, record))
                gradients = torch.autograd.grad(loss, optimizer.params)
                rows.append(torch.cat([gradient.flatten() for gradient in gradients]))
        module.enable_hooks()
        alone = torch.stack(rows)
        norms = torch.linalg.vector_norm(alone, dim=1, keepdim=True)
        clip = float(norms.min()) / 2
        if not clip > 0:
            return float("inf")
        optimizer.max_grad_norm = module.max_grad_norm = clip  # "ghost" clips in the module
        private.backward(trial)
        optimizer.accumulate() if private.mode == "ghost" else optimizer.clip_and_accumulate()
        found = torch.cat([parameter.summed_grad.flatten() for parameter in optimizer.params])
    finally:
        module.enable_hooks()
        optimizer.max_grad_norm = module.max_grad_norm = before
        optimizer.zero_grad(set_to_none=True)
        module.train()
    wanted = (alone * (clip / norms)).sum(dim=0)
    return float(torch.linalg.vector_norm(found - wanted)) / clip


def _trial_batch(private: PrivateTraining) -> Batch:
    """A few records of random tokens in the shape of real ones, without padding; no text of the user."""
    shapes, config = private.records.batch([0] * _TRIAL_TEXTS), private.model.config
    made = {name: torch.zeros_like(tensor) for name, tensor in shapes.items()}
    generator = torch.Generator().manual_seed(0)
    made["attention_mask"].fill_(1)
    made["input_ids"].random_(config.vocab_size, generator=generator)
    made["labels"].random_(config.num_labels, generator=generator)
    return {name: tensor.to(private.device) for name, tensor in made.items()}


def _unsupported(found: str, mode: Mode) -> InvalidInput:
    rule = f"be one whose gradients Opacus can clip per record in mode {mode}"
    return InvalidInput("model", rule, found, "Use the other mode, or a BERT-like model.")
