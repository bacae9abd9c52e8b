"""What the back reads has been through the noise, unless a warm-up says otherwise."""

import pytest
import torch

import tiny_models
from dp_forward.noise import Sanitizer
from dp_forward.privacy import NoiseSpec
from dp_forward.split import Split, split_model
from dp_forward.train.noisy_model import AuxiliaryHead, NoisyModel

ROWS = 10
TEXTS = {
    "input_ids": torch.tensor([[5, 6, 7, 8], [9, 10, 1, 1]]),
    "attention_mask": torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]]),
}
LABELS = torch.tensor([0, 2])


def _pair(cut: str = "encoder.2", width: int | None = 4) -> Split:
    return split_model(tiny_models.tiny("bert"), cut, width=width)


def _module(pair: Split, **settings: object) -> NoisyModel:
    sanitizer = Sanitizer(NoiseSpec(epsilon=8.0).build(), seed=1)
    return NoisyModel(pair, sanitizer, rows=ROWS, labels=3, **settings).eval()  # type: ignore[arg-type]


def test_a_batch_cut_to_its_longest_text_crosses_as_the_full_one() -> None:
    module = _module(_pair())
    full = {
        "input_ids": torch.nn.functional.pad(TEXTS["input_ids"], (0, ROWS - 4), value=1),
        "attention_mask": torch.nn.functional.pad(TEXTS["attention_mask"], (0, ROWS - 4)),
    }
    module.clean = True
    torch.testing.assert_close(module(**TEXTS)["logits"], module(**full)["logits"], atol=1e-5, rtol=1e-4)
    hidden = module.hidden(input_ids=TEXTS["input_ids"], attention_mask=TEXTS["attention_mask"])
    assert hidden.shape == (2, ROWS, 4)
    assert not hidden[1, 2:].any(), "rows of PAD are zero"


@pytest.mark.parametrize("training", [True, False])
def test_the_back_reads_noise_and_no_two_passes_are_alike(training: bool) -> None:
    module = _module(_pair())
    for dropout in module.modules():
        if isinstance(dropout, torch.nn.Dropout):
            dropout.p = 0.0
    module.train(training)
    first, second = module(**TEXTS)["logits"], module(**TEXTS)["logits"]
    assert not torch.equal(first, second)
    module.clean = True
    assert torch.equal(module(**TEXTS)["logits"], module(**TEXTS)["logits"]), "the control: without noise"


def test_several_draws_are_for_training_only() -> None:
    module = _module(_pair(), draws=5)
    assert module(**TEXTS, labels=LABELS)["logits"].shape[0] == 2
    module.train()
    output = module(**TEXTS, labels=LABELS)
    assert output["logits"].shape[0] == 10
    output["loss"].backward()
    assert all(p.grad is not None for p in module.front.parameters() if p.requires_grad)


def test_the_auxiliary_loss_trains_the_front_and_is_gone_in_evaluation() -> None:
    module = _module(_pair(), auxiliary_weight=1.0)
    module.train()
    assert module.auxiliary is not None
    module(**TEXTS, labels=LABELS)["loss"].backward()
    assert module.auxiliary.read.weight.grad is not None
    module.eval()
    module.zero_grad(set_to_none=True)
    module(**TEXTS, labels=LABELS)["loss"].backward()
    assert module.auxiliary.read.weight.grad is None


def test_rows_of_pad_do_not_count_in_the_pooled_hidden() -> None:
    pair = _pair(width=None)
    head, hidden = AuxiliaryHead(pair, 3), torch.ones(2, 6, pair.front.width)
    hidden[1, 2:] = 0
    mask = torch.tensor([[1] * 6, [1, 1, 0, 0, 0, 0]])
    expected = head.read(torch.ones(2, pair.front.width))
    torch.testing.assert_close(head(hidden, hidden, mask), expected)


def test_the_undefended_model_is_the_whole_model() -> None:
    whole = tiny_models.tiny("bert")
    pair = split_model(whole, "output")
    module = NoisyModel(pair, None, rows=ROWS, labels=3).eval()
    with torch.no_grad():
        torch.testing.assert_close(module(**TEXTS)["logits"], whole(**TEXTS).logits, atol=0, rtol=0)
