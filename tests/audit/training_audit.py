"""What the back reads while a model trains through the noise: every time with noise, and nothing else.

A back that is trained on clean matrices by mistake has seen what nobody was to see, and no loss curve tells.
So every call of the back is listened to, also where gradient checkpointing computes it again. And for one
fixed matrix the back must answer alike, whichever text, of whatever length, the front has read before.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from dp_forward.audit.claims import as_vectors, bounded_vectors, claim_of
from dp_forward.audit.findings import Finding
from dp_forward.noise import Sanitizer

__all__ = ["Trained", "audit_sanitizer", "audit_training"]


class Trained(Protocol):
    """Front, sanitizer and back in one module, such as `joined.PrivateModel`."""

    front: Any
    sanitizer: Any
    back: Any
    training: bool

    def __call__(self, **inputs: Tensor) -> Any: ...
    def train(self, mode: bool = True) -> Any: ...
    def modules(self) -> Iterator[nn.Module]: ...


def audit_training(module: Trained, inputs: Mapping[str, Tensor]) -> list[Finding]:
    """Train one step in three ways, and measure the noise in whatever the back read; then try its memory.

    ``inputs`` are those of the model, with labels. No weight changes; dropout is left out, so that the hidden
    matrices are known.
    """
    sanitizer = module.sanitizer
    claim = claim_of(sanitizer.mechanism)
    seen: dict[str, list[Tensor]] = {}
    with _without_dropout(module), torch.enable_grad():
        with torch.no_grad():
            texts = {name: value for name, value in inputs.items() if name != "labels"}
            hidden = module.front(**texts).double().cpu().numpy()
        for way in ("plainly", "with checkpointing", "with reentrant checkpointing"):
            seen[way] = _one_step(module, inputs, way)
        remembered = _remembered(module, texts) if "input_ids" in texts else 0
    inside = np.stack([bounded_vectors(one, claim.bound) for one in hidden])
    findings = []
    for way, calls in seen.items():
        for number, read in enumerate(calls):
            found = as_vectors(read.double().cpu().numpy(), claim.bound)
            length = np.linalg.norm(inside, axis=2, keepdims=True)
            unit = inside / np.maximum(length, 1e-300)
            rest = found - np.sum(found * unit, axis=2, keepdims=True) * unit
            freedom = rest.size - rest.shape[0] * rest.shape[1]
            strength = float(np.sum(rest * rest)) / freedom / claim.mechanism.sigma**2
            name = f"variance that the back reads {way}, pass {number + 1}"
            findings.append(Finding(name, 1.0, strength, (1 - strength) / math.sqrt(2 / freedom)))
    return [*findings, Finding("answers that depend on what the front read before", 0.0, float(remembered))]


@torch.no_grad()
def _remembered(module: Trained, texts: Mapping[str, Tensor]) -> int:
    """Answers to one fixed matrix that change with the text before it: other tokens, masks and types."""
    module.train(False)
    ids = texts["input_ids"]
    short = torch.zeros_like(ids)
    short[:, : max(1, ids.shape[1] // 3)] = 1
    before = [
        {"input_ids": ids, "attention_mask": torch.ones_like(ids)},
        {"input_ids": ids, "attention_mask": short, "token_type_ids": 1 - short},
        {"input_ids": ids.flip(1), "attention_mask": torch.ones_like(ids)},
    ]
    fixed = module.front(**before[0]).clone()
    answers = []
    for text in before:
        module.front(**text)
        answers.append(module.back(fixed.clone()).logits)
    return sum(not torch.equal(answer, answers[0]) for answer in answers)


def _one_step(module: Trained, inputs: Mapping[str, Tensor], way: str) -> list[Tensor]:
    """What the back read in one step; with checkpointing it reads twice."""
    read: list[Tensor] = []
    hook = module.back.register_forward_pre_hook(lambda _, given: read.append(given[0].detach().clone()))
    try:
        if way == "plainly":
            loss = module(**inputs).loss
        else:
            # Reentrant checkpointing wants a tensor with a gradient among its arguments.
            start = torch.zeros(1, requires_grad=True)

            def forward(start: Tensor) -> Tensor:
                found: Tensor = module(**inputs).loss + start.sum()
                return found

            loss = checkpoint(forward, start, use_reentrant="reentrant" in way)
        loss.backward()
    finally:
        hook.remove()
        for part in module.modules():
            part.zero_grad(set_to_none=True)
    return read


@contextmanager
def _without_dropout(module: Trained) -> Iterator[None]:
    drops = [(part, part.p) for part in module.modules() if isinstance(part, nn.Dropout)]
    training = module.training
    try:
        for part, _ in drops:
            part.p = 0.0
        module.train()
        yield
    finally:
        for part, share in drops:
            part.p = share
        module.train(training)


def audit_sanitizer(sanitizer: Sanitizer, *, rows: int = 8, width: int = 16) -> list[Finding]:
    """What one text becomes does not depend on the others of its batch: noise of one seed, twice."""
    stream = torch.Generator().manual_seed(0)
    texts = torch.randn(2, rows, width, generator=stream)

    def first_of(factor: float) -> Tensor:
        again = Sanitizer(sanitizer.mechanism, seed=1)
        found: Tensor = again(torch.stack([texts[0], factor * texts[1]]))[0]
        return found

    alone = first_of(1.0)
    # The bound is computed in float32: another text may not move more than its last digits.
    moved = sum(int((first_of(factor) - alone).abs().gt(1e-5).sum()) for factor in (1e-6, 1e6))
    return [Finding("simulated entries that depend on another text of the batch", 0.0, float(moved))]
