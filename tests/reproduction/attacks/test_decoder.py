"""The learned decoder: reads mixed rows without noise, and no more than the prior under much of it."""

import pytest
import torch

from attacks.inversion.inversion_cases import PUBLIC, front, noise, target, texts
from dp_forward.errors import InvalidInput
from reproduction.attacks.decoder import Decoder, invert_with, train_decoder

SMALL = {"steps": 150, "batch": 64, "rate": 3e-3, "inner": 32, "layers": 1}


@pytest.fixture(scope="module")
def undefended() -> Decoder:
    return train_decoder(target(front("encoder.1"), None), PUBLIC, **SMALL)


@pytest.mark.slow
def test_without_noise_a_cut_that_mixes_rows_is_read(undefended: Decoder) -> None:
    result = invert_with(undefended)
    assert result.success > 0.85
    assert result.chance < 0.3
    assert undefended.losses[-1] < undefended.losses[0] / 3


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", ["privunit", "matrix-gaussian"])
def test_under_strong_noise_the_prior_is_left(mechanism: str) -> None:
    strong = noise(0.5, mechanism)
    decoder = train_decoder(target(front("encoder.1"), strong), PUBLIC, **SMALL | {"steps": 60})
    result = invert_with(decoder)
    assert result.success < 0.3
    assert result.low < result.chance + 0.05
    assert result.within_ceiling
    assert result.details["released"]


@pytest.mark.slow
def test_the_one_row_at_the_output_tells_the_bag_of_tokens() -> None:
    attacked = front("output")
    read = invert_with(train_decoder(target(attacked, None), PUBLIC, **SMALL))
    assert read.success == pytest.approx(read.details["bag_recall"])
    assert read.low > read.chance
    blind = invert_with(train_decoder(target(attacked, noise(0.5)), PUBLIC, **SMALL))
    assert blind.success < read.success - 0.1
    assert blind.low < blind.chance + 0.1


def test_training_leaves_the_caller_its_random_numbers_and_repeats_its_weights() -> None:
    read = target(front("embeddings"), None)  # made before the seed is set, since making it draws weights
    torch.manual_seed(7)
    expected = torch.rand(1)
    torch.manual_seed(7)
    told: list[int] = []
    settings = SMALL | {"steps": 3}
    first = train_decoder(read, PUBLIC, progress=told.append, **settings)
    assert torch.equal(torch.rand(1), expected)
    assert told == [1, 2, 3]
    again = train_decoder(read, PUBLIC, **settings)
    assert first.losses == again.losses


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(InvalidInput, match="public"):
        train_decoder(target(front("embeddings"), None), texts(20, seed=3, rows=9), **SMALL)
    with pytest.raises(InvalidInput, match="steps"):
        train_decoder(target(front("embeddings"), None), PUBLIC, **SMALL | {"steps": 0})
