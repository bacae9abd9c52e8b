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
    target,
    texts,
)
from dp_forward.attacks.inversion.nearest_token import invert_nearest
from dp_forward.attacks.inversion.recall import TokenPrior
from dp_forward.errors import InvalidInput
from dp_forward.privacy import NoiseSpec

CASES = [("bert", "embeddings", None), ("bert", "encoder.1.qkv", None), ("gpt2", "embeddings", None)]


@pytest.mark.parametrize(("family", "cut", "width"), [*CASES, ("bert", "embeddings", 8)])
def test_without_noise_every_token_is_read(family: str, cut: str, width: int | None) -> None:
    attacked = front(cut, family=family, width=width)
    result = invert_nearest(target(attacked, None))
    assert result.success == result.details["bag_recall"] == 1.0
    assert result.ceiling is None
    assert result.low < 1 == result.high, "forty texts cannot prove that all are read"


@pytest.mark.parametrize("mechanism", ["privunit", "matrix-gaussian"])
@pytest.mark.parametrize("use_prior", [False, True])
def test_under_strong_noise_nothing_but_the_prior_is_left(mechanism: str, use_prior: bool) -> None:
    result = invert_nearest(target(front("embeddings"), noise(1.0, mechanism)), use_prior=use_prior)
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
    assert invert_nearest(target(front("embeddings"), weak)).success > 0.97


def test_a_promise_per_token_is_weaker_than_one_per_text() -> None:
    by_token = invert_nearest(target(front("embeddings"), noise(30.0, unit="token")), use_prior=True)
    by_text = invert_nearest(target(front("embeddings"), noise(30.0)), use_prior=True)
    assert by_token.success > by_text.success + 0.2
    assert by_token.ceiling == 1.0


@pytest.mark.slow
def test_averaged_releases_are_read_better_and_their_ceiling_is_that_of_all() -> None:
    once, often = (invert_nearest(target(front("embeddings"), noise(8.0), releases=k)) for k in (1, 200))
    assert often.success > once.success + 0.3
    assert often.ceiling is not None
    assert often.ceiling > 0.999
    assert often.details["releases"] == 200


def test_the_length_is_read_without_noise_and_follows_the_prior_under_it() -> None:
    batch = SECRET.batch(np.arange(len(SECRET)))
    for cut in ("embeddings", "encoder.2"):
        seen = target(front(cut), None)
        lengths = seen.lengths(seen.observe(batch))
        assert lengths.tolist() == SECRET.lengths.tolist()
    weak = target(front("embeddings"), noise(3000.0, "matrix-gaussian"))
    near = weak.lengths(weak.observe(batch))
    assert float((near - torch.from_numpy(SECRET.lengths.astype(int))).abs().float().mean()) < 0.3
    strong = target(front("embeddings"), noise(0.1))
    far = strong.lengths(strong.observe(batch))
    likely = PRIOR.log_lengths.argsort(descending=True)[:5] + 1
    assert torch.isin(far, likely).all()


def test_recall_counts_tokens_at_their_place_and_each_text_alike() -> None:
    ids = SECRET.batch(np.arange(len(SECRET)))["input_ids"]
    half = ids.clone()
    half[::2] = 0
    result = target(front("embeddings"), None).judge("half", half)
    assert result.success == pytest.approx(0.5)
    assert result.low < 0.5 < result.high
    shifted = ids.roll(1, dims=1)
    moved = target(front("embeddings"), None).judge("moved", shifted)
    assert moved.success < 0.3 < moved.details["bag_recall"]


def test_chance_is_the_best_fixed_guess_of_public_text_and_hindsight_is_no_worse() -> None:
    fixed = PRIOR.at_place.expand(len(SECRET), -1)
    result = target(front("embeddings"), None).judge("fixed", fixed)
    assert result.success == pytest.approx(result.chance)
    assert result.chance <= result.details["best_fixed_in_hindsight"]
    ranked = PRIOR.by_texts.expand(len(SECRET), -1)
    weak = noise(1.0, "matrix-gaussian")
    bags = target(front("embeddings"), weak).judge("fixed", ranked, ranked=True)
    assert bags.success == pytest.approx(bags.chance)
    assert bags.chance <= bags.details["best_fixed_in_hindsight"]
    assert bags.ceiling is not None
    assert bags.ceiling >= bags.success


def test_special_tokens_are_never_guessed_and_never_counted() -> None:
    assert not torch.isin(PRIOR.at_place, PRIOR.special).any()
    assert torch.isinf(PRIOR.log_share[list(SPECIAL)]).all()
    assert PRIOR.log_share.exp().sum() == pytest.approx(1.0)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"encoder\.1.*linear"):
        invert_nearest(target(front("encoder.1"), None))
    with pytest.raises(InvalidInput, match="texts"):
        target(front("embeddings"), None, SECRET.subset(range(19)))
    with pytest.raises(InvalidInput, match="prior"):
        target(front("embeddings"), None, texts(20, seed=3, rows=9))
    with pytest.raises(InvalidInput, match="releases"):
        target(front("embeddings"), None, releases=0)
    with pytest.raises(InvalidInput, match="special"):
        TokenPrior.learn(PUBLIC, special=[VOCABULARY], vocabulary=VOCABULARY)


def test_noise_that_cannot_be_released_yet_is_simulated_and_shaped_noise_is_left_to_others() -> None:
    simulated = invert_nearest(target(front("embeddings"), noise(0.5, "classical-gaussian")))
    assert not simulated.details["released"]
    assert simulated.success < 0.25
    for name in ("mvg", "k-ary-response"):
        shaped = NoiseSpec(mechanism=name, epsilon=8.0, rows=ROWS, columns=32).build()
        with pytest.raises(InvalidInput, match=r"same noise.*linear"):
            invert_nearest(target(front("embeddings"), shaped))


def test_progress_rises_to_the_number_of_texts_and_no_repr_tells_a_token() -> None:
    seen: list[int] = []
    invert_nearest(target(front("embeddings"), None, progress=seen.append))
    assert seen == sorted(seen)
    assert seen[-1] == 40
    assert repr(PRIOR) == f"TokenPrior({VOCABULARY} tokens, 12 places)"
