"""Shares of labels from releases: unbiased, and their intervals cover; a forgotten correction is seen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from corpus.release_cases import ROWS, Numbers, folded_front, folding_user, texts, user
from dp_forward.corpus.label_shares import Estimate, estimate_shares, shares_of_answers, shares_of_folded
from dp_forward.corpus.reader import ReleasedCorpus
from dp_forward.corpus.writer import release_corpus
from dp_forward.data import FixedLength
from dp_forward.errors import InvalidInput
from dp_forward.noise.folded_record import FoldedCode
from dp_forward.privacy import (
    Budget,
    KaryResponse,
    NoiseSpec,
    Prior,
    PrivUnit,
    RandomizedResponse,
    ResponseWithPrior,
)
from dp_forward.privacy.units import RECORD
from dp_forward.release_spec import ReleaseSpec
from dp_forward.split.artifacts import UserSide
from reference_samplers import signal
from tiny_models import LABELS

REPETITIONS, LEAST = 1000, 0.93
SKEWED = {2: np.array([0.05, 0.95]), 4: np.array([0.02, 0.08, 0.2, 0.7])}
SIZES = [200, pytest.param(2000, marks=pytest.mark.slow)]
Draws = list[Estimate]


def covered(draws: Draws, shares: np.ndarray) -> np.ndarray:
    """How often the interval of each label holds its share."""
    _, low, high = np.moveaxis(np.array(draws), 1, 0)
    return np.asarray(((low <= shares) & (shares <= high)).mean(axis=0))


def width_over_need(draws: Draws) -> np.ndarray:
    """The mean width over that of the best interval for an estimate that varies so much."""
    found, low, high = np.moveaxis(np.array(draws), 1, 0)
    return np.asarray((high - low).mean(axis=0) / (2 * 1.96 * found.std(axis=0)))


def draw_folded(
    mechanism: PrivUnit, kinds: int, records: int, fit: Callable[[np.ndarray, FoldedCode], Estimate]
) -> Draws:
    """Estimates from fresh records of a population, each released once."""
    rng, code = np.random.default_rng(kinds * records), FoldedCode(kinds, 1)
    folded, draws = code.fold(np.ones((kinds, 1)), np.arange(kinds)), []
    for _ in range(REPETITIONS):
        unit = folded[rng.choice(kinds, records, p=SKEWED[kinds])]
        along, noise = signal(mechanism, records, rng), rng.standard_normal(unit.shape)
        raw = noise + (along - np.sum(unit * noise, axis=1))[:, None] * unit
        draws.append(fit(mechanism.sigma * raw.mean(axis=0), code))
    return draws


def draw_answers(transition: np.ndarray, kinds: int, records: int, assumed: np.ndarray) -> Draws:
    rng, draws = np.random.default_rng(kinds * records + 1), []
    for _ in range(REPETITIONS):
        true = rng.multinomial(records, SKEWED[kinds])
        answers = sum(rng.multinomial(many, row) for many, row in zip(true, transition, strict=True))
        draws.append(shares_of_answers(answers, assumed))
    return draws


@pytest.mark.slow
@pytest.mark.parametrize("records", SIZES)
@pytest.mark.parametrize("kinds", [2, 4])
@pytest.mark.parametrize("epsilon", [1.0, 4.0])
def test_intervals_of_folded_records_cover_and_are_no_wider_than_they_must_be(
    kinds: int, records: int, epsilon: float
) -> None:
    mechanism = PrivUnit.for_budget(Budget(epsilon), unit=RECORD)

    def fit(mean: np.ndarray, code: FoldedCode) -> Estimate:
        return shares_of_folded(mean, records, code, variance=mechanism.sigma**2)

    draws = draw_folded(mechanism, kinds, records, fit)
    assert covered(draws, SKEWED[kinds]).min() >= LEAST
    assert width_over_need(draws).max() < 1.1
    error = np.mean([found for found, _, _ in draws], axis=0) - SKEWED[kinds]
    assert np.abs(error).max() < 4.5 * np.std([found for found, _, _ in draws], axis=0).max() / 1000**0.5


@pytest.mark.slow
@pytest.mark.parametrize("kinds", [2, 4])
def test_folded_records_without_a_correction_do_not_cover(kinds: int) -> None:
    mechanism = PrivUnit.for_budget(Budget(4.0), unit=RECORD)
    variance = mechanism.sigma**2

    def without_debiasing(mean: np.ndarray, code: FoldedCode) -> Estimate:
        return shares_of_folded(mean / mechanism.sigma, 200, code, variance=variance)

    def two_thirds_of_the_noise(mean: np.ndarray, code: FoldedCode) -> Estimate:
        return shares_of_folded(mean, 200, code, variance=variance * 4 / 9)

    for broken in (without_debiasing, two_thirds_of_the_noise):
        assert covered(draw_folded(mechanism, kinds, 200, broken), SKEWED[kinds]).min() < LEAST


@pytest.mark.slow
def test_the_variance_is_right_at_another_threshold_too() -> None:
    mechanism = PrivUnit.for_budget(Budget(16.0), unit=RECORD, threshold=5.3)
    wide = mechanism.threshold / mechanism.scale

    def fit(stretch: float) -> Callable[[np.ndarray, FoldedCode], Estimate]:
        return lambda mean, code: shares_of_folded(
            mean, 200, code, variance=mechanism.sigma**2, stretch=stretch
        )

    right, forgotten = (width_over_need(draw_folded(mechanism, 2, 200, fit(s))) for s in (wide, 1.0))
    assert right == pytest.approx(1.0, abs=0.06)
    assert forgotten.max() < 0.94


@pytest.mark.slow
@pytest.mark.parametrize("records", SIZES)
@pytest.mark.parametrize("kinds", [2, 4])
@pytest.mark.parametrize("epsilon", [1.0, 4.0])
def test_intervals_of_answers_cover_and_those_without_debiasing_do_not(
    kinds: int, records: int, epsilon: float
) -> None:
    transition = KaryResponse(epsilon, kinds).transition()
    assert np.array_equal(transition, RandomizedResponse(epsilon, kinds).transition())
    draws = draw_answers(transition, kinds, records, transition)
    assert covered(draws, SKEWED[kinds]).min() >= LEAST
    assert width_over_need(draws).max() < 1.15
    biased = draw_answers(transition, kinds, records, np.eye(kinds))
    assert covered(biased, SKEWED[kinds]).min() < LEAST


@pytest.mark.slow
@pytest.mark.parametrize("records", SIZES)
def test_intervals_of_public_labels_cover(records: int) -> None:
    draws = draw_answers(np.eye(4), 4, records, np.eye(4))
    assert covered(draws, SKEWED[4]).min() >= LEAST


def test_an_estimate_inverts_the_transition_and_may_leave_the_unit_interval() -> None:
    counts, transition = np.array([0, 7, 13]), RandomizedResponse(1.0, 3).transition()
    found, low, high = shares_of_answers(counts, transition)
    np.testing.assert_allclose(found, counts / 20 @ np.linalg.inv(transition), atol=1e-12)
    assert found[0] < 0
    assert (low <= found).all()
    assert (found <= high).all()
    sure, least, most = shares_of_answers(np.array([5, 0]), np.eye(2))
    assert sure.tolist() == [1.0, 0.0]
    assert (least[1], most[0]) == (0.0, 1.0)
    assert most[1] == pytest.approx(1 - 0.025 ** (1 / 5))


def decided_user(epsilon: float) -> UserSide:
    """A user whose front ends in K scores."""
    torch.manual_seed(5)
    front = folded_front().with_scores(torch.randn(LABELS, 4), torch.randn(LABELS))
    noise = NoiseSpec(mechanism="k-ary-response", epsilon=epsilon, columns=LABELS)
    spec = ReleaseSpec.of(front, noise=noise, rows=ROWS, labels="abc"[:LABELS], front="cc" * 32)
    return UserSide(front, FixedLength(Numbers(), ROWS), spec)


def error_in_widths(corpus: ReleasedCorpus, true: np.ndarray) -> float:
    """The largest error over half the width of its interval."""
    found, low, high = estimate_shares(corpus).estimate
    return float(np.max(np.abs(found - true) / ((high - low) / 2)))


def true_shares(records: int) -> np.ndarray:
    return np.asarray(np.bincount(texts(records).labels, minlength=LABELS) / records)


@pytest.mark.slow
@pytest.mark.parametrize(
    "noise", [{}, {"threshold_share": 0.5}, {"mechanism": "gaussian", "epsilon": 16.0}, {"norm": 3.0}]
)
def test_a_folded_corpus_says_the_shares_of_its_labels(tmp_path: Path, noise: dict[str, Any]) -> None:
    side = folding_user(**{"epsilon": 8.0, **noise})
    corpus = release_corpus(side, texts(600), tmp_path / "out", bits=16, shard_records=250)
    found = estimate_shares(corpus)
    assert (found.of, found.records, found.labels) == ("labels", 600, ("a", "b", "c"))
    assert error_in_widths(corpus, true_shares(600)) < 2.3
    assert error_in_widths(corpus, true_shares(600)[[1, 2, 0]] + 0.5) > 2.3
    assert "costs nothing" in " ".join(found.notes)


@pytest.mark.slow
def test_randomized_labels_and_public_ones_are_counted(tmp_path: Path) -> None:
    prior = Prior.public([0.3, 0.3, 0.4], where="a census")
    for number, label in enumerate((RandomizedResponse(2.0, LABELS), ResponseWithPrior(4.0, prior))):
        own = {"ledger": tmp_path / f"{number}.ledger", "label_mechanism": label}
        randomized = release_corpus(user(), texts(600), tmp_path / str(number), **own)
        assert error_in_widths(randomized, true_shares(600)) < 2.3
        assert not np.allclose(estimate_shares(randomized).estimate[0], true_shares(600))
    own = {"ledger": tmp_path / "public.ledger"}
    public = estimate_shares(release_corpus(user(), texts(), tmp_path / "public", **own))
    np.testing.assert_allclose(public.estimate[0], true_shares(22))
    assert "public" in public.notes[0]
    assert "not protected" in public.notes[0]


@pytest.mark.slow
def test_answers_of_k_ary_response_say_the_shares_of_decisions(tmp_path: Path) -> None:
    side = decided_user(2.0)
    corpus = release_corpus(side, texts(600), tmp_path / "out", publish_labels=False)
    scores = torch.cat([side.front(**batch)[:, 0] for batch in _batches(600)])
    decided = np.bincount(scores.argmax(dim=1).numpy(), minlength=LABELS) / 600
    found = estimate_shares(corpus)
    assert found.of == "decisions"
    assert "not of true labels" in found.notes[0]
    assert error_in_widths(corpus, decided) < 2.3
    other = release_corpus(side, texts(600), tmp_path / "labelled", ledger=tmp_path / "other")
    assert estimate_shares(other).of == "labels", "labels that are there are what is counted"


def _batches(records: int) -> list[dict[str, torch.Tensor]]:
    batch = texts(records).__getitems__(range(records))
    batch.pop("labels")
    return [batch]


def test_numbers_for_programs_are_clipped_and_the_raw_one_is_kept(tmp_path: Path) -> None:
    corpus = release_corpus(user(), texts(), tmp_path / "out")
    found = estimate_shares(corpus)
    moved = replace(found, estimate=(np.array([-0.2, 0.5, 0.7]), np.full(3, -0.4), np.full(3, 1.3)))
    rows = moved.as_dict()
    assert rows["shares"]["a"] == {"share": 0.0, "low": 0.0, "high": 1.0, "raw": -0.2}
    assert rows["records"] == 22
    assert rows["guarantee"] == corpus.guarantee.as_dict()


def test_what_tells_nothing_of_labels_is_refused(tmp_path: Path) -> None:
    silent = release_corpus(user(), texts(), tmp_path / "silent", publish_labels=False)
    with pytest.raises(InvalidInput, match="not collected"):
        estimate_shares(silent)
    prior = Prior.public([0.9, 0.05, 0.05], where="a census")
    partly = ResponseWithPrior(0.5, prior)
    assert len(partly.top) < LABELS
    own = {"ledger": tmp_path / "ledger", "label_mechanism": partly}
    corpus = release_corpus(user(), texts(), tmp_path / "partly", **own)
    with pytest.raises(InvalidInput, match="left some out"):
        estimate_shares(corpus)
