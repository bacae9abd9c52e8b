"""Nearest neighbour and what inversions share: all is read without noise, nothing under much of it."""

import numpy as np
import pytest
import torch

from attacks.inversion.inversion_cases import (
    PRIOR,
    PUBLIC,
    ROWS,
    SECRET,
    SPECIAL,
    VOCABULARY,
    front,
    noise,
    texts,
)
from dp_forward.attacks.inversion.nearest_token import invert_nearest
from dp_forward.attacks.inversion.recall import (
    Noise,
    TokenPrior,
    recall_result,
    text_lengths,
)
from dp_forward.attacks.observations import observe_average
from dp_forward.errors import InvalidInput
from dp_forward.privacy import NoiseSpec

CASES = [("bert", "embeddings", None), ("bert", "encoder.1.qkv", None), ("gpt2", "embeddings", None)]


@pytest.mark.parametrize(("family", "cut", "width"), [*CASES, ("bert", "embeddings", 8)])
def test_without_noise_every_token_is_read(family: str, cut: str, width: int | None) -> None:
    attacked = front(cut, family=family, width=width)
    result = invert_nearest(attacked, None, SECRET, prior=PRIOR)
    assert result.success == result.details["bag_recall"] == 1.0
    assert result.ceiling is None
    assert result.low < 1 == result.high, "forty texts cannot prove that all are read"


@pytest.mark.parametrize("mechanism", ["privunit", "matrix-gaussian"])
@pytest.mark.parametrize("use_prior", [False, True])
def test_under_strong_noise_nothing_but_the_prior_is_left(mechanism: str, use_prior: bool) -> None:
    result = invert_nearest(
        front("embeddings"), noise(1.0, mechanism), SECRET, prior=PRIOR, use_prior=use_prior
    )
    assert result.details["released"]
    assert result.success < 0.25
    assert result.low < result.chance + 0.05
    assert result.within_ceiling
    assert result.ceiling is not None
    assert result.ceiling < 0.7


@pytest.mark.parametrize(("mechanism", "unit"), [("matrix-gaussian", "text"), ("matrix-gaussian", "token")])
def test_under_weak_noise_the_bound_alone_hides_nothing(mechanism: str, unit: str) -> None:
    """The attacker's model of bound and scale is right: only the noise stands in its way."""
    weak = noise(3000.0, mechanism, unit=unit)
    assert invert_nearest(front("embeddings"), weak, SECRET, prior=PRIOR).success > 0.97


def test_a_promise_per_token_is_weaker_than_one_per_text() -> None:
    by_token = invert_nearest(
        front("embeddings"), noise(30.0, unit="token"), SECRET, prior=PRIOR, use_prior=True
    )
    by_text = invert_nearest(front("embeddings"), noise(30.0), SECRET, prior=PRIOR, use_prior=True)
    assert by_token.success > by_text.success + 0.2
    assert by_token.ceiling == 1.0


def test_averaged_releases_are_read_better_and_their_ceiling_is_that_of_all() -> None:
    once, often = (
        invert_nearest(front("embeddings"), noise(8.0), SECRET, prior=PRIOR, releases=k) for k in (1, 200)
    )
    assert often.success > once.success + 0.3
    assert often.ceiling is not None
    assert often.ceiling > 0.999
    assert often.details["releases"] == 200


def test_the_length_is_read_without_noise_and_follows_the_prior_under_it() -> None:
    batch = SECRET.batch(np.arange(len(SECRET)))
    for cut in ("embeddings", "encoder.2"):
        seen = observe_average(front(cut), None, batch, releases=1, device="cpu")
        lengths = text_lengths(seen, Noise.of(None, 1), PRIOR, pads_left=False)
        assert lengths.tolist() == SECRET.lengths.tolist()
    weak = noise(3000.0, "matrix-gaussian")
    seen = observe_average(front("embeddings"), weak, batch, releases=1, device="cpu")
    near = text_lengths(seen, Noise.of(weak, 1), PRIOR, pads_left=False)
    assert float((near - torch.from_numpy(SECRET.lengths.astype(int))).abs().float().mean()) < 0.3
    strong = noise(0.1)
    seen = observe_average(front("embeddings"), strong, batch, releases=1, device="cpu")
    far = text_lengths(seen, Noise.of(strong, 1), PRIOR, pads_left=False)
    likely = PRIOR.log_lengths.argsort(descending=True)[:5] + 1
    assert torch.isin(far, likely).all()


def test_recall_counts_tokens_at_their_place_and_each_text_alike() -> None:
    ids = SECRET.batch(np.arange(len(SECRET)))["input_ids"]
    half = ids.clone()
    half[::2] = 0
    result = recall_result("half", half, SECRET, prior=PRIOR, mechanism=None, details={})
    assert result.success == pytest.approx(0.5)
    assert result.low < 0.5 < result.high
    shifted = ids.roll(1, dims=1)
    moved = recall_result("moved", shifted, SECRET, prior=PRIOR, mechanism=None, details={})
    assert moved.success < 0.3 < moved.details["bag_recall"]


def test_chance_is_the_best_fixed_guess_of_public_text_and_hindsight_is_no_worse() -> None:
    fixed = PRIOR.at_place.expand(len(SECRET), -1)
    result = recall_result("fixed", fixed, SECRET, prior=PRIOR, mechanism=None, details={})
    assert result.success == pytest.approx(result.chance)
    assert result.chance <= result.details["best_fixed_in_hindsight"]
    ranked = PRIOR.by_texts.expand(len(SECRET), -1)
    weak = noise(1.0, "matrix-gaussian")
    bags = recall_result("fixed", ranked, SECRET, prior=PRIOR, mechanism=weak, ranked=True, details={})
    assert bags.success == pytest.approx(bags.chance)
    assert bags.chance <= bags.details["best_fixed_in_hindsight"]
    assert bags.ceiling is not None
    assert bags.ceiling >= bags.success


def test_special_tokens_are_never_guessed_and_never_counted() -> None:
    assert not torch.isin(PRIOR.at_place, PRIOR.special).any()
    assert torch.isinf(PRIOR.log_share[list(SPECIAL)]).all()
    assert PRIOR.log_share.exp().sum() == pytest.approx(1.0)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"encoder\.1.*decoder"):
        invert_nearest(front("encoder.1"), None, SECRET, prior=PRIOR)
    with pytest.raises(InvalidInput, match="texts"):
        invert_nearest(front("embeddings"), None, SECRET.subset(range(19)), prior=PRIOR)
    with pytest.raises(InvalidInput, match="prior"):
        invert_nearest(front("embeddings"), None, texts(20, seed=3, rows=9), prior=PRIOR)
    with pytest.raises(InvalidInput, match="releases"):
        invert_nearest(front("embeddings"), None, SECRET, prior=PRIOR, releases=0)
    with pytest.raises(InvalidInput, match="special"):
        TokenPrior.learn(PUBLIC, special=[VOCABULARY], vocabulary=VOCABULARY)


def test_noise_that_cannot_be_released_yet_is_simulated_and_shaped_noise_is_left_to_the_decoder() -> None:
    simulated = invert_nearest(front("embeddings"), noise(0.5, "classical-gaussian"), SECRET, prior=PRIOR)
    assert not simulated.details["released"]
    assert simulated.success < 0.25
    for name in ("mvg", "k-ary-response"):
        shaped = NoiseSpec(mechanism=name, epsilon=8.0, rows=ROWS, columns=32).build()
        with pytest.raises(InvalidInput, match=r"same noise.*decoder"):
            invert_nearest(front("embeddings"), shaped, SECRET, prior=PRIOR)


def test_progress_rises_to_the_number_of_texts_and_no_repr_tells_a_token() -> None:
    seen: list[int] = []
    invert_nearest(front("embeddings"), None, SECRET, prior=PRIOR, progress=seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == 40
    assert repr(PRIOR) == f"TokenPrior({VOCABULARY} tokens, 12 places)"
