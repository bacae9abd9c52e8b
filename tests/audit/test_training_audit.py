"""What the back reads in training is listened to; the broken ways are in the mutants."""

import torch

import tiny_models
from audit.training_audit import audit_training
from dp_forward.noise import Sanitizer
from dp_forward.privacy import NoiseSpec
from dp_forward.split import split_model
from dp_forward.split.private_model import join

LABELS = torch.zeros(8, dtype=torch.long)


def _audited(module: torch.nn.Module) -> list:
    return audit_training(module, {**tiny_models.tiny_inputs("bert", batch=8), "labels": LABELS})  # type: ignore[arg-type]


def test_every_pass_is_heard_and_nothing_is_left_changed() -> None:
    pair = split_model(tiny_models.tiny("bert", blocks=2), "encoder.1")
    module = join(pair, Sanitizer(NoiseSpec(epsilon=4.0).build(), seed=1)).eval()
    weights = [value.clone() for value in module.parameters()]
    found = _audited(module)
    assert not [one for one in found if one.refuted]
    assert sum("variance" in one.what for one in found) == 5, "once plainly, twice with each checkpointing"
    assert not module.training
    assert all(drop.p > 0 for drop in module.modules() if isinstance(drop, torch.nn.Dropout))
    assert all(torch.equal(a, b) for a, b in zip(weights, module.parameters(), strict=True))
    assert all(value.grad is None for value in module.parameters())


def test_too_little_noise_is_seen() -> None:
    pair = split_model(tiny_models.tiny("bert", blocks=2), "encoder.1")
    sanitizer = Sanitizer(NoiseSpec(mechanism="matrix-gaussian", epsilon=8.0).build(), seed=1)
    loud = NoiseSpec(mechanism="matrix-gaussian", epsilon=16.0).build()
    honest = join(pair, sanitizer)
    sanitizer._noisy = Sanitizer(loud, seed=2)._noisy  # type: ignore[method-assign]
    assert [one for one in _audited(honest) if one.refuted]
