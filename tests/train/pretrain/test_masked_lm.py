"""Leaving out the scores that no loss reads changes neither loss nor gradient."""

import pytest
import torch

from dp_forward.noise import Sanitizer
from dp_forward.privacy import TEXT, Budget, PrivUnit, calibrate, normalise
from dp_forward.train.pretrain.masked_lm import IGNORED, NoisyMaskedLM, score_masked_tokens_only, split_tied
from tiny_models import MASKED_LM, tiny

ROWS = 12


def batch(model) -> dict[str, torch.Tensor]:
    torch.manual_seed(1)
    ids = torch.randint(5, model.config.vocab_size, (3, ROWS))
    labels = torch.where(torch.rand(3, ROWS) < 0.3, ids, IGNORED)
    labels[:, 0] = ids[:, 0]
    return {"input_ids": ids, "labels": labels}


def gradients(model, inputs) -> tuple[torch.Tensor, list[torch.Tensor], torch.Size]:
    model.zero_grad(set_to_none=True)
    output = model(**inputs)
    output.loss.backward()
    found = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
    return output.loss.detach(), found, output.logits.shape


def compare(model, inputs) -> None:
    whole = gradients(model, inputs)
    with score_masked_tokens_only(model):
        few = gradients(model, inputs)
    torch.testing.assert_close(few[0], whole[0])
    assert len(few[1]) == len(whole[1])
    for ours, theirs in zip(few[1], whole[1], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)
    hidden = int((inputs["labels"] != IGNORED).sum())
    assert few[2][:-1].numel() == hidden < whole[2][:-1].numel() == 3 * ROWS, "nothing was left out"
    assert gradients(model, inputs)[2] == whole[2], "the hooks outlived their use"


@pytest.mark.parametrize("family", MASKED_LM)
def test_loss_and_gradients_of_a_whole_model_stay(family: str) -> None:
    model = tiny(family, "masked_lm").eval()
    compare(model, batch(model))


@pytest.mark.parametrize("family", MASKED_LM)
def test_loss_and_gradients_through_the_noise_stay(family: str) -> None:
    model = tiny(family, "masked_lm")
    mechanism = calibrate(PrivUnit, Budget(64.0), bound=normalise(1.0), unit=TEXT)
    pair = split_tied(model, "encoder.1")
    noisy = NoisyMaskedLM(pair, Sanitizer(mechanism)).eval()
    # The same draw each time: the noise must not be what differs.
    noisy.register_forward_pre_hook(
        lambda module, args: setattr(module, "sanitizer", Sanitizer(mechanism, seed=7))
    )
    compare(noisy, batch(model))


def test_batches_without_hidden_tokens_are_left_as_they_are() -> None:
    model = tiny("bert", "masked_lm")
    inputs = batch(model)
    with score_masked_tokens_only(model):
        assert model(input_ids=inputs["input_ids"]).logits.shape[:2] == (3, ROWS)
        nothing = torch.full_like(inputs["labels"], IGNORED)
        assert model(input_ids=inputs["input_ids"], labels=nothing).logits.shape[:2] == (3, ROWS)
