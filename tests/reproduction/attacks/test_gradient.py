"""Inversion by gradient: reads everything without noise, nothing under much of it."""

import numpy as np
import pytest
import torch

from attacks.inversion.inversion_cases import SECRET, front, noise, target
from dp_forward.attacks.inversion.recall import token_table
from dp_forward.errors import InvalidInput
from reproduction.attacks.gradient import invert_by_gradient, soft_tokens

BATCH = {k: v for k, v in SECRET.batch(np.arange(6)).items() if k != "labels"}


@pytest.mark.parametrize("cut", ["embeddings", "encoder.1"])
@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert", "modernbert"])
def test_hard_tokens_through_the_hook_are_the_front_itself(family: str, cut: str) -> None:
    attacked = front(cut, family=family)
    with torch.no_grad():
        true = attacked(**BATCH)
        rows = token_table(attacked)(BATCH["input_ids"])
        with soft_tokens(attacked, rows):
            soft = attacked(**BATCH | {"input_ids": torch.zeros_like(BATCH["input_ids"])})
        assert torch.equal(soft, true)
        assert torch.equal(attacked(**BATCH), true), "the hook is gone"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "cut", "width"),
    [("bert", "embeddings", None), ("bert", "encoder.1", None), ("roberta", "embeddings", 16)],
)
def test_without_noise_tokens_are_read(family: str, cut: str, width: int | None) -> None:
    attacked = front(cut, family=family, width=width)
    result = invert_by_gradient(target(attacked, None), steps=80, rate=0.2)
    assert result.success > 0.97
    assert all(p.requires_grad for p in attacked.parameters()), "the front is left as it was"


@pytest.mark.slow
@pytest.mark.parametrize("cut", ["embeddings", "encoder.1"])
@pytest.mark.parametrize("mechanism", ["privunit", "matrix-gaussian"])
def test_under_strong_noise_little_is_read(mechanism: str, cut: str) -> None:
    result = invert_by_gradient(target(front(cut), noise(1.0, mechanism)), steps=40)
    assert result.success < 0.25
    assert result.low < result.chance + 0.05
    assert result.within_ceiling


@pytest.mark.slow
def test_under_weak_noise_the_bound_alone_hides_nothing() -> None:
    weak = noise(3000.0, "matrix-gaussian")
    result = invert_by_gradient(target(front("embeddings"), weak), steps=80)
    assert result.success > 0.9


@pytest.mark.parametrize(
    ("family", "cut", "reason"),
    [("bert", "output", "output"), ("gpt2", "embeddings", "causal")],
)
def test_what_does_not_fit_is_refused(family: str, cut: str, reason: str) -> None:
    with pytest.raises(InvalidInput, match=f"{reason}.*decoder"):
        invert_by_gradient(target(front(cut, family=family), None))
    with pytest.raises(InvalidInput, match="steps"):
        invert_by_gradient(target(front("embeddings"), None), steps=0)
