"""A central promise needs batches, and is that of the smallest set in which a record hides."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.stats import binom

from dp_forward.corpus.corpus_spec import CorpusSpec, Labels
from dp_forward.corpus.shuffle_guarantee import (
    ShuffledBatch,
    central_promise,
    central_statement,
    shuffled_deployment,
)
from dp_forward.errors import InvalidInput
from dp_forward.privacy import NoiseSpec, Notion, Prior, RandomizedResponse, ResponseWithPrior, compose
from dp_forward.privacy.shuffling import (
    CentralBounds,
    shuffled_epsilon,
    shuffled_gaussian,
    shuffled_mechanism,
)
from dp_forward.privacy.shuffling.central_epsilon import ASSUMPTIONS, SHUFFLER
from dp_forward.release_spec import ReleaseSpec

DELTA = 1e-6
LABELS = ("bad", "so so", "good")


def form(labels: Labels = "none", *, records: int = 3000, **noise: Any) -> CorpusSpec:
    choice = NoiseSpec(**{"mechanism": "privunit", "epsilon": 2.0, **noise})
    return CorpusSpec(
        release=ReleaseSpec(
            noise=choice, rows=6, labels=LABELS, width=8, cut="encoder.1", front="aa" * 32, bits=8
        ),
        labels=labels,
        records=records,
        shard_records=1000,
    )


def central_reading(spec: CorpusSpec, given: list[ShuffledBatch], *, delta: float) -> CentralBounds:
    return shuffled_deployment(spec, given).central(delta, with_estimate=False)


def batches(*sizes: int) -> list[ShuffledBatch]:
    return [ShuffledBatch(size) for size in sizes]


def test_pure_noise_gives_the_least_that_is_proved_at_the_size_of_the_batch() -> None:
    made = form()
    local = made.release.mechanism().epsilon()
    found = central_reading(made, batches(3000), delta=DELTA)
    assert found == shuffled_mechanism(made.release.mechanism(), users=3000, delta=DELTA)
    assert central_promise(made, batches(3000), delta=DELTA)["central_bound"] == "blanket"
    assert found.upper.epsilon is not None
    assert found.lower.epsilon is not None
    assert 0 < found.lower.epsilon <= found.upper.epsilon < 0.5 * local


def test_the_smallest_batch_decides_for_all() -> None:
    alone = central_reading(form(records=500), batches(500), delta=DELTA)
    together = central_reading(form(), batches(2000, 500, 500), delta=DELTA)
    assert together == alone
    whole = central_reading(form(), batches(3000), delta=DELTA)
    assert whole.upper.epsilon < together.upper.epsilon  # type: ignore[operator]


def test_public_labels_leave_only_those_of_the_same_label_to_hide_among() -> None:
    made = form("public")
    found = central_reading(
        made, [ShuffledBatch(2000, (700, 0, 1300)), ShuffledBatch(1000, (500, 410, 90))], delta=DELTA
    )
    text = made.release.mechanism()
    assert found == shuffled_mechanism(text, users=90, delta=DELTA)
    # The control: as if labels were hidden, the number would be far better, and wrong.
    hidden = shuffled_mechanism(text, users=1000, delta=DELTA)
    assert hidden.upper.epsilon < 0.6 * found.upper.epsilon  # type: ignore[operator]


def exact_delta(epsilon: float, *, local: float, users: int) -> float:
    """One of ``users`` bits flips, each told by a coin of this local epsilon, and their sum is seen."""
    keep = 1 / (1 + np.exp(-local))
    ones = np.arange(users + 1)
    others = np.concatenate([binom.pmf(ones[:-1], users - 1, 1 - keep), [0.0]])
    shifted = np.concatenate([[0.0], others[:-1]])
    before, after = (1 - keep) * shifted + keep * others, keep * shifted + (1 - keep) * others
    return max(
        float(np.maximum(p - np.exp(epsilon) * q, 0).sum()) for p, q in ((before, after), (after, before))
    )


def test_the_size_of_the_batch_would_be_a_breach_where_labels_are_public() -> None:
    """Against an exact oracle: a pure randomizer of the same local epsilon, whose shuffle is a sum."""
    made = form("public", records=1000)
    local = made.release.mechanism().epsilon()
    right = shuffled_epsilon(DELTA, local_epsilon=local, users=200)
    found = central_reading(made, [ShuffledBatch(1000, (500, 200, 300))], delta=DELTA)
    assert found == shuffled_mechanism(made.release.mechanism(), users=200, delta=DELTA)
    wrong = shuffled_epsilon(DELTA, local_epsilon=local, users=1000)
    assert exact_delta(right, local=local, users=200) <= DELTA
    assert exact_delta(wrong, local=local, users=200) > 10 * DELTA


@pytest.mark.parametrize(
    "label",
    [
        RandomizedResponse(1.0, 3),
        ResponseWithPrior(1.0, Prior.public([0.5, 0.4, 0.1], where="a census")),
        ResponseWithPrior(1.0, Prior.public([0.98, 0.01, 0.01], where="a census")),
    ],
    ids=["plain", "prior", "prior of one"],
)
def test_text_and_randomized_label_are_one_randomizer_of_the_sum(label: Any) -> None:
    made = form(label)
    local = compose(made.release.mechanism(), label).epsilon()
    assert local == pytest.approx(2.0 + label.loss.epsilon)
    found = central_reading(made, batches(3000), delta=DELTA)
    right = shuffled_mechanism(compose(made.release.mechanism(), label), users=3000, delta=DELTA).upper
    assert found.upper.epsilon == pytest.approx(right.epsilon, rel=1e-12)
    assert found.upper.statement == right.statement
    assert found.upper.epsilon < shuffled_epsilon(DELTA, local_epsilon=local, users=3000)  # type: ignore[operator]
    assert found.upper.epsilon >= central_reading(form(), batches(3000), delta=DELTA).upper.epsilon  # type: ignore[operator]


@pytest.mark.slow
@pytest.mark.parametrize("label", [None, RandomizedResponse(1.0, 3)])
def test_gaussian_noise_gives_what_is_proved_for_it(label: RandomizedResponse | None) -> None:
    made = form(label or "none", mechanism="matrix-gaussian", epsilon=0.4, delta=1e-8)
    found = central_reading(made, batches(3000), delta=1e-4)
    assert found == shuffled_gaussian(
        mu=made.release.mechanism().gaussian_mu,
        users=3000,
        delta=1e-4,
        label_epsilon=None if label is None else 1.0,
        labels=3,
        label_once=True,
        with_estimate=False,
    )
    # Never above what holds with nobody to trust, at the same delta.
    local = made.guarantee().mechanism.epsilon(1e-4)
    assert found.upper.epsilon <= local * (1 + 1e-6)  # type: ignore[operator]


@pytest.mark.slow
def test_gaussian_noise_with_a_prior_answers_among_the_top_alone() -> None:
    label = ResponseWithPrior(1.0, Prior.public([0.5, 0.45, 0.05], where="a census"))
    assert len(label.top) == 2
    made = form(label, mechanism="matrix-gaussian", epsilon=0.4, delta=1e-8)
    found = central_reading(made, batches(3000), delta=1e-4)
    mu = made.release.mechanism().gaussian_mu
    wanted = shuffled_gaussian(
        mu=mu, users=3000, delta=1e-4, label_epsilon=1.0, labels=2, label_once=True, with_estimate=False
    )
    assert found == wanted


@pytest.mark.parametrize(
    ("made", "given", "name"),
    [
        (form(), [], "batches"),
        (form(), batches(2999), "batches"),
        (form(), [ShuffledBatch(3000, (1000, 1000, 1000))], "by_label"),
        (form("public"), batches(3000), "by_label"),
        (form("public"), [ShuffledBatch(3000, (1000, 2000))], "by_label"),
        (form(RandomizedResponse(1.0, 3, 2)), batches(3000), "label releases"),
        (form(unit="token", rows=6), batches(3000), "unit"),
        (form(unit="token", rows=6, mechanism="gaussian", delta=1e-6), batches(3000), "unit"),
    ],
)
def test_what_has_no_central_promise_gets_none(
    made: CorpusSpec, given: list[ShuffledBatch], name: str
) -> None:
    with pytest.raises(InvalidInput, match=f"`{name}`"):
        central_reading(made, given, delta=DELTA)


@pytest.mark.parametrize(
    ("records", "by_label"),
    [(0, None), (True, None), (3, (1, 1)), (3, [1, 2]), (3, (4, -1)), (3, (1.5, 1.5)), ("3", None)],
)
def test_a_batch_that_makes_no_sense_is_refused(records: Any, by_label: Any) -> None:
    with pytest.raises(InvalidInput):
        ShuffledBatch(records, by_label)


@pytest.mark.parametrize("batch", [ShuffledBatch(3), ShuffledBatch(3, (1, 0, 2))])
def test_a_batch_is_read_as_it_was_written_and_nothing_else_is(batch: ShuffledBatch) -> None:
    assert ShuffledBatch.from_dict(batch.as_dict()) == batch
    for other in ({**batch.as_dict(), "more": 1}, {"records": 3}, [3], None, {"records": 3, "by_label": "3"}):
        with pytest.raises(InvalidInput):
            ShuffledBatch.from_dict(other)


def test_the_statement_never_comes_without_its_assumptions() -> None:
    given = [ShuffledBatch(2000, (700, 0, 1300)), ShuffledBatch(1000, (500, 410, 90))]
    reading = central_reading(form("public"), given, delta=DELTA)
    said = " ".join(central_statement(reading, given))
    assert reading.upper.statement in said
    assert all(assumption in said for assumption in ASSUMPTIONS[SHUFFLER])
    assert "2 shuffled batches of 1000 to 2000" in said
    assert "among the 90 or more of its label" in said
    assert "not about all the records of a person" in said
    assert "About one text, replaced by another with the same label (SeqDP)" in said


@pytest.mark.parametrize("public", [True, False])
def test_public_labels_make_it_seq_dp_and_hidden_ones_central_dp(public: bool) -> None:
    batch = ShuffledBatch(3000, (1000, 1000, 1000) if public else None)
    found = central_promise(form("public" if public else "none"), [batch], delta=DELTA)
    assert found["notion"] == (Notion.SEQ_DP if public else Notion.CENTRAL_DP)
    assert ("SeqDP" in " ".join(found["statements"])) is public


def test_where_nothing_is_gained_it_is_said() -> None:
    made, given = form(records=300, mechanism="matrix-gaussian", delta=1e-5), batches(300)
    reading = central_reading(made, given, delta=1e-5)
    assert reading.upper.trusted == "none"
    assert reading.upper.epsilon == pytest.approx(2.0)
    said = " ".join(central_statement(reading, given))
    assert "adds nothing" in said
    assert "This holds if" not in said
    assert all(assumption in said for assumption in ASSUMPTIONS[SHUFFLER])


def test_a_folded_record_is_one_randomizer_of_text_and_label() -> None:
    """One epsilon for both, so nothing is added for the label; randomized beside the text, it costs more."""
    noise = NoiseSpec(epsilon=2.0, unit="record")
    release = ReleaseSpec(noise=noise, rows=6, labels=LABELS, width=27, cut="output", front="aa" * 32, bits=8)
    folded = CorpusSpec(release=release, labels="folded", records=3000, shard_records=1000)
    found = central_reading(folded, batches(3000), delta=DELTA)
    assert found == shuffled_mechanism(release.mechanism(), users=3000, delta=DELTA)
    beside = central_reading(form(RandomizedResponse(1.0, 3)), batches(3000), delta=DELTA)
    assert 0 < found.upper.epsilon < beside.upper.epsilon  # type: ignore[operator]
    with pytest.raises(InvalidInput, match="be given where labels are public"):
        central_reading(folded, [ShuffledBatch(3000, (1000, 1000, 1000))], delta=DELTA)
