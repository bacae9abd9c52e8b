"""The noise of pre-training: a share of it in training, all of it in evaluation."""

import pytest
import torch

from dp_forward.errors import InvalidInput
from dp_forward.noise import Sanitizer
from dp_forward.privacy import TEXT, Budget, PrivUnit, calibrate, normalise
from dp_forward.train.pretrain.masked_lm import NoisyMaskedLM, soften, split_tied
from tiny_models import tiny

MECHANISM = calibrate(PrivUnit, Budget(1.0), bound=normalise(1.0), unit=TEXT)


def test_a_softened_text_lies_part_of_the_way_to_its_noisy_matrix() -> None:
    torch.manual_seed(0)
    inside, noisy = torch.zeros(4000, 2, 3), torch.ones(4000, 2, 3)
    found = soften(inside, noisy, least=0.01)
    shares = found[:, 0, 0]
    assert torch.equal(found, shares[:, None, None].expand_as(found)), "one share for a whole text"
    assert 0.01 <= float(shares.min()) < 0.0105
    assert 0.95 < float(shares.max()) <= 1
    # As often in one octave as in another: half of the shares lie below 0.1, by 4.7 standard errors.
    below = float((shares < 0.1).float().mean())
    assert abs(below - 0.5) < 0.037
    assert abs(float((shares < 0.5).float().mean()) - 0.5) > 0.037  # the control: not uniform in [0, 1]


def test_the_noise_is_softened_in_training_only() -> None:
    model = NoisyMaskedLM(
        split_tied(tiny("bert", "masked_lm"), "encoder.1"),
        Sanitizer(MECHANISM, seed=0),
        least_noise=1e-6,
    )
    torch.manual_seed(0)
    hidden = torch.randn(64, 4, 16)
    inside = hidden / hidden.flatten(1).norm(dim=1)[:, None, None]
    whole = (model.eval()._noisy(hidden, 1) - inside).flatten(1).norm(dim=1)
    alone = Sanitizer(MECHANISM, seed=0)(hidden)
    assert torch.equal(whole, (alone - inside).flatten(1).norm(dim=1)), "all of the noise, draw by draw"
    part = (model.train()._noisy(hidden, 1) - inside).flatten(1).norm(dim=1)
    assert float(part.median()) < 0.1 * float(whole.min())
    with pytest.raises(InvalidInput, match="all of the noise"):
        model.guarantee()
