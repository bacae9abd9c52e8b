"""Halves that were trained at one place are an ordinary model again."""

import pytest
import torch

from dp_forward.errors import InvalidInput
from dp_forward.split import split_model
from dp_forward.train.pretrain.merge_halves import merge_halves, split_tied
from dp_forward.train.pretrain.noisy_masked_lm import NoisyMaskedLM
from tiny_models import MASKED_LM, tiny, tiny_inputs


@pytest.mark.parametrize("family", MASKED_LM)
@pytest.mark.parametrize("cut", ["embeddings", "encoder.2.attention_norm"])
def test_without_noise_the_merged_model_is_the_halves(family: str, cut: str) -> None:
    model, inputs = tiny(family, "masked_lm"), tiny_inputs(family)
    pair = split_tied(model, cut)
    halves = NoisyMaskedLM(pair, None, 1, freeze_front=False)
    with torch.no_grad():
        before = halves(**inputs).logits
        for parameter in halves.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape))
        moved = halves(**inputs).logits
        assert not torch.allclose(before, moved)
        assert torch.equal(merge_halves(pair, like=model)(**inputs).logits, moved)
        assert torch.equal(model(**inputs).logits, before), "the model itself is untouched"
    assert sum(p.numel() for p in halves.parameters()) == sum(p.numel() for p in model.parameters())
    again = NoisyMaskedLM(split_tied(model, cut), None, 1, freeze_front=False)
    again.load_state_dict(halves.state_dict())
    with torch.no_grad():
        assert torch.equal(again.eval()(**inputs).logits, moved)


def test_where_a_residual_is_dropped_every_weight_still_finds_its_place() -> None:
    model = tiny("bert", "masked_lm")
    for cut in ("encoder.1.qkv", "encoder.2.attention", "encoder.2.ffn"):
        pair = split_tied(model, cut)
        with torch.no_grad():
            for parameter in {*pair.front.parameters(), *pair.back.parameters()}:
                parameter.add_(1.0)
        for name, parameter in merge_halves(pair, like=model).named_parameters():
            assert torch.equal(parameter, model.get_parameter(name) + 1.0), (cut, name)


def test_halves_that_are_no_ordinary_model_are_refused() -> None:
    model = tiny("bert", "masked_lm")
    with pytest.raises(InvalidInput, match="no maps"):
        merge_halves(split_model(model, "encoder.1", width=8, allow_vocabulary_head=True), like=model)
    apart = split_model(model, "encoder.1", allow_vocabulary_head=True)
    with torch.no_grad():
        apart.front.get_parameter("model.embeddings.word_embeddings.weight").add_(1.0)
    with pytest.raises(InvalidInput, match="one version of"):
        merge_halves(apart, like=model)
