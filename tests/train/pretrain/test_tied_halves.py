"""Halves that are trained at one place are the ordinary model."""

import copy

import pytest
import torch

from dp_forward.train.pretrain.masked_lm import NoisyMaskedLM, split_tied
from tiny_models import MASKED_LM, tiny, tiny_inputs


@pytest.mark.slow
@pytest.mark.parametrize("family", MASKED_LM)
@pytest.mark.parametrize("cut", ["embeddings", "encoder.2.attention_norm"])
def test_without_noise_the_model_computes_what_its_halves_do(family: str, cut: str) -> None:
    model, inputs = tiny(family, "masked_lm"), tiny_inputs(family)
    untrained = copy.deepcopy(model)
    halves = NoisyMaskedLM(split_tied(model, cut), None)
    with torch.no_grad():
        before = halves(**inputs).logits
        assert torch.equal(model(**inputs).logits, before)
        for parameter in halves.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape))
        moved = halves(**inputs).logits
        assert not torch.allclose(before, moved)
        assert torch.equal(model(**inputs).logits, moved)
    assert {id(p) for p in halves.parameters()} == {id(p) for p in model.parameters()}
    again = NoisyMaskedLM(split_tied(untrained, cut), None)
    again.load_state_dict(halves.state_dict())
    with torch.no_grad():
        assert torch.equal(again.eval()(**inputs).logits, moved)
        assert torch.equal(untrained(**inputs).logits, moved)


@pytest.mark.slow
def test_where_a_residual_is_dropped_every_weight_still_finds_its_place() -> None:
    model = tiny("bert", "masked_lm")
    for cut in ("encoder.1.qkv", "encoder.2.attention", "encoder.2.ffn"):
        untrained, pair = copy.deepcopy(model), split_tied(model, cut)
        with torch.no_grad():
            for parameter in {*pair.front.parameters(), *pair.back.parameters()}:
                parameter.add_(1.0)
        for name, parameter in model.named_parameters():
            assert torch.equal(parameter, untrained.get_parameter(name) + 1.0), (cut, name)
