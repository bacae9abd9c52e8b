"""Randomized response, with and without a prior, and on the decision of a front."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dp_forward.errors import InvalidInput
from dp_forward.privacy import (
    LABEL,
    TEXT,
    Budget,
    Deployment,
    KaryResponse,
    Notion,
    Prior,
    RandomizedResponse,
    ResponseWithPrior,
    calibrate,
)
from reference_samplers import sample


def _worst_log_ratio(transition: np.ndarray) -> float:
    worst = 0.0
    for first, second in itertools.permutations(range(len(transition)), 2):
        for a, b in zip(transition[first], transition[second], strict=True):
            if a or b:
                worst = max(worst, abs(math.log(a / b)) if a and b else math.inf)
    return worst


def test_keeping_nine_of_ten_binary_labels_is_2_197() -> None:
    assert RandomizedResponse(math.log(9), 2).keep == pytest.approx(0.9)
    assert (
        repr(RandomizedResponse(math.log(9), 2))
        == "RandomizedResponse(labels=2, keep=0.9) -> 2.19723-LDP per label"
    )


@pytest.mark.slow
@given(epsilon=st.floats(0.1, 12), labels=st.integers(2, 12))
def test_the_transition_keeps_the_promise_exactly(epsilon: float, labels: int) -> None:
    made = RandomizedResponse(epsilon, labels)
    transition = made.transition()
    assert np.allclose(transition.sum(axis=1), 1)
    assert _worst_log_ratio(transition) == pytest.approx(epsilon)
    for at in (0.0, epsilon / 2):
        brute = np.maximum(0, transition[0] - math.exp(at) * transition[1]).sum()
        assert made.delta(at) == pytest.approx(brute, rel=1e-10, abs=1e-14)


@pytest.mark.slow
@given(
    epsilon=st.floats(0.2, 8),
    weights=st.lists(st.floats(0.001, 1), min_size=2, max_size=8),
)
def test_a_prior_steers_accuracy_and_never_the_promise(epsilon: float, weights: list[float]) -> None:
    prior = Prior.public(np.array(weights) / sum(weights), where="test")
    made = calibrate(ResponseWithPrior, Budget(epsilon), prior=prior)
    transition = made.transition()
    assert np.allclose(transition.sum(axis=1), 1)
    assert _worst_log_ratio(transition) <= epsilon * (1 + 1e-12)
    assert made.epsilon() == pytest.approx(_worst_log_ratio(transition))
    plain = RandomizedResponse(epsilon, len(weights)).transition()
    hit = prior.weights @ np.diag(transition)
    assert hit >= prior.weights @ np.diag(plain) - 1e-12


def test_a_certain_prior_answers_without_looking() -> None:
    made = ResponseWithPrior(0.1, Prior.public([0.98, 0.01, 0.01], where="published"))
    assert made.epsilon() == 0.0
    assert made.charge().epsilon(0.0) == 0.0
    assert made.guess_rate() == 0.5
    assert (made.sample([2, 1, 0], np.random.default_rng(0)) == 0).all()
    assert "top=1 of 3" in repr(made)


def test_a_prior_says_where_it_came_from() -> None:
    guarantee = Deployment(RandomizedResponse(1.0, 2)).guarantee()
    noisy = Prior(np.array([0.4, 0.6]), "noisy", guarantee.promise)
    assert noisy.source == "noisy"
    assert noisy.where == "1.0-LDP per label"
    assert "source='public'" in repr(Prior.public([0.5, 0.5], where="the data sheet"))
    assert guarantee.notion is Notion.LABEL_LDP


def test_fresh_answers_add_and_a_stored_one_does_not() -> None:
    fresh = calibrate(RandomizedResponse, Budget(3.0), labels=4, releases=3)
    assert fresh.label_epsilon == pytest.approx(1.0)
    assert fresh.epsilon() <= 3.0
    with_prior = calibrate(
        ResponseWithPrior, Budget(3.0), prior=Prior.public([0.5, 0.5], where="x"), releases=3
    )
    assert with_prior.epsilon() <= 3.0
    assert fresh.unit == LABEL
    assert fresh.assumptions
    assert "3 releases" in repr(fresh)


@pytest.mark.parametrize(
    "make",
    [
        lambda: RandomizedResponse(1.0, 1),
        lambda: RandomizedResponse(0.0, 2),
        lambda: RandomizedResponse(math.nan, 2),
        lambda: RandomizedResponse(1.0, -3),
        lambda: RandomizedResponse(1.0, 2, 0),
        lambda: KaryResponse(1.0, 1),
        lambda: calibrate(KaryResponse, Budget(1.0), labels=2, unit=TEXT),
        lambda: Prior.public([0.5, 0.6], where="x"),
        lambda: Prior.public([1.0], where="x"),
        lambda: Prior.public([1.5, -0.5], where="x"),
        lambda: Prior.public([0.5, 0.5], where=" "),
        lambda: Prior(np.array([0.5, 0.5]), "guess", "x"),
        lambda: calibrate(RandomizedResponse, Budget(1.0), labels=2, sensitivity=1.0),
        lambda: RandomizedResponse(1.0, 2).sample([0, 2], np.random.default_rng(0)),
        lambda: RandomizedResponse(1.0, 2).sample([0.5], np.random.default_rng(0)),
        lambda: RandomizedResponse(1.0, 2).sample([[0]], np.random.default_rng(0)),
    ],
)
def test_nonsense_is_refused(make) -> None:
    with pytest.raises(InvalidInput):
        make()


# On the decision of a front


@pytest.mark.slow
@given(epsilon=st.floats(0.1, 12), labels=st.integers(2, 12))
def test_a_decision_costs_what_a_label_costs_and_protects_the_text(epsilon: float, labels: int) -> None:
    made, label = KaryResponse(epsilon, labels), RandomizedResponse(epsilon, labels)
    assert np.array_equal(made.transition(), label.transition())
    assert made.epsilon() == epsilon == pytest.approx(_worst_log_ratio(made.transition()))
    assert made.charge() == label.charge()
    assert made != label
    assert made.unit == TEXT
    assert Deployment(made).guarantee().notion is Notion.LDP


def test_a_decision_says_what_it_promises() -> None:
    assert repr(KaryResponse(math.log(9), 2)) == "KaryResponse(labels=2, keep=0.9) -> 2.19723-LDP per text"
    assert "over 3 releases" in repr(calibrate(KaryResponse, Budget(3.0), labels=4, releases=3))


@pytest.mark.parametrize(
    ("scores", "decision"),
    [
        ([0.1, 0.7, 0.2], 1),
        ([-3.0, -1.0, -2.0], 1),
        ([1.0, 2.0, 2.0], 1),
        ([0.0, 0.0, 0.0], 0),
        ([math.nan, math.nan, math.nan], 0),
        ([math.inf, -math.inf, math.nan], 0),
        ([math.nan, -1.0, 3.0], 2),
        ([1e300, -1e300, 1e299], 0),
        ([0.0, 5e-324, 0.0], 1),
    ],
)
def test_the_first_of_the_largest_scores_is_the_decision_and_nothing_raises(scores, decision) -> None:
    made = KaryResponse(40.0, 3)
    row = np.array([scores])
    assert made.decide(row) == [decision]
    assert made.decide(made.bound.apply(row)) == [decision]
    released = sample(made, row, np.random.default_rng(0))
    assert released.tolist() == [[int(i == decision) for i in range(3)]]


@pytest.mark.slow
def test_a_decision_is_answered_as_its_transition_says() -> None:
    made, rng, many = KaryResponse(1.0, 3), np.random.default_rng(1), 4000
    shares = sum(sample(made, [[0.0, 5.0, 1.0]], rng) for _ in range(many))[0] / many
    row = made.transition()[1]
    assert np.abs(shares - row).max() < 5 * math.sqrt(0.25 / many)
    assert np.abs(shares - RandomizedResponse(1.6, 3).transition()[1]).max() > 5 * math.sqrt(0.25 / many)


@pytest.mark.parametrize("shape", [(1, 2), (2, 3), (1, 4)])
def test_scores_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(InvalidInput, match="hidden"):
        sample(KaryResponse(1.0, 3), np.zeros(shape), np.random.default_rng(0))


def test_no_labels_give_no_answers() -> None:
    assert RandomizedResponse(1.0, 2).sample(np.array([], dtype=int), np.random.default_rng(0)).size == 0
