"""Proof by trial that each record of *this* model is clipped: Opacus against plain autograd.

Opacus computes a record's gradient layer by layer, from what goes in and out of each. A layer whose first
axis is not the batch, or weights used in a way it does not see, could give a wrong norm without an error, and
a wrong norm is a promise broken. So before a run the clipped sum of a few made-up records is compared with
the one that plain autograd gives, record by record. No text of the user is used.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from dp_forward.train.dpsgd.private_optimizer import Private

__all__ = ["clipping_error", "made_up"]

_TEXTS = 3


def clipping_error(private: Private, part: list[Tensor]) -> float:
    """How far the sum of clipped gradients is from autograd's, in units of the clipping norm.

    The norm is set for the trial to half the smallest gradient's, so that every record is clipped. Dropout is
    off. Gradients, and the norm, are left as they were.
    """
    optimizer, module = private.optimizer, private.module
    parameters: list[Any] = list(optimizer.params)
    with _without_dropout(module):
        alone = [_plain(private, [tensor[i : i + 1] for tensor in part], parameters) for i in range(_TEXTS)]
        norms = [float(torch.linalg.vector_norm(gradient)) for gradient in alone]
        clip = min(norms) / 2
        if not clip > 0:
            return float("inf")
        wanted = torch.stack([gradient * (clip / norm) for gradient, norm in zip(alone, norms, strict=True)])
        before = optimizer.max_grad_norm
        try:
            _set_norm(private, clip)
            private.backward(part)
            optimizer.accumulate() if private.mode == "ghost" else optimizer.clip_and_accumulate()
            found = torch.cat([parameter.summed_grad.flatten() for parameter in parameters])
        finally:
            _set_norm(private, before)
            optimizer.zero_grad(set_to_none=True)
    return float(torch.linalg.vector_norm(found - wanted.sum(0))) / clip


def made_up(like: Sequence[Tensor], names: tuple[str, ...], *, vocabulary: int, labels: int) -> list[Tensor]:
    """A few records of random tokens in the shape of real ones, without padding."""
    generator = torch.Generator().manual_seed(0)
    made = []
    for name, tensor in zip(names, like, strict=True):
        most = {"input_ids": vocabulary, "labels": labels}.get(name)
        shape = (_TEXTS, *tensor.shape)
        if most is not None:
            made.append(torch.randint(0, most, shape, generator=generator))
        else:
            made.append(torch.full(shape, int(name == "attention_mask")))
    return made


def _plain(private: Private, part: list[Tensor], parameters: list[Any]) -> Tensor:
    """The gradient of one record by autograd alone."""
    inputs, labels = private.inputs(part)
    private.module.disable_hooks()
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Full backward hook is firing")
            loss = nn.functional.cross_entropy(private.module(**inputs).logits, labels)
            found = torch.autograd.grad(loss, parameters)
    finally:
        private.module.enable_hooks()
    return torch.cat([gradient.flatten() for gradient in found])


def _set_norm(private: Private, norm: float) -> None:
    private.optimizer.max_grad_norm = norm
    if private.mode == "ghost":
        private.module.max_grad_norm = norm


@contextmanager
def _without_dropout(module: nn.Module) -> Iterator[None]:
    """Only layers with weights of their own stay in training: Opacus's hooks look at that, dropout too."""
    module.eval()
    for part in module.modules():
        if any(parameter.requires_grad for parameter in part.parameters(recurse=False)):
            part.training = True
    try:
        yield
    finally:
        module.train()
