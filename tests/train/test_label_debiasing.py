"""The accuracy for true labels is found through randomized ones, and its interval holds."""

import numpy as np
import pytest
from numpy.typing import NDArray

from dp_forward.privacy import Prior, RandomizedResponse, ResponseWithPrior
from dp_forward.train.label_debiasing import accuracy_of_answers

UNEVEN = np.array([[0.7, 0.2, 0.1], [0.25, 0.6, 0.15], [0.05, 0.25, 0.7]])
"""No randomized response of ours: any public channel will do."""
JOINT = np.array([[0.40, 0.05, 0.05], [0.06, 0.20, 0.04], [0.02, 0.03, 0.15]])
"""Prediction by true label; right in 0.75 of all cases, with labels of unlike frequency."""


def _drawn(
    rng: np.random.Generator, joint: NDArray[np.float64], channel: NDArray[np.float64], records: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    labels = len(joint)
    predicted, true = np.divmod(rng.choice(labels * labels, size=records, p=joint.ravel()), labels)
    ladder = channel.cumsum(axis=1)
    answers = (rng.random(records)[:, None] >= ladder[true]).sum(axis=1)
    return predicted, np.minimum(answers, labels - 1)


@pytest.mark.parametrize(
    ("joint", "channel", "records"),
    [
        (JOINT, UNEVEN, 300),
        (JOINT, RandomizedResponse(1.0, 3).transition(), 300),
        (np.array([[0.55, 0.02], [0.03, 0.40]]), RandomizedResponse(1.5, 2).transition(), 100),
    ],
    ids=["uneven", "three labels", "two labels"],
)
def test_the_interval_covers_the_true_accuracy_and_one_without_correction_does_not(
    joint: NDArray[np.float64], channel: NDArray[np.float64], records: int
) -> None:
    rng, true, trials = np.random.default_rng(1), float(np.trace(joint)), 1500
    covered = plain = 0
    means = []
    for _ in range(trials):
        predicted, answers = _drawn(rng, joint, channel, records)
        found = accuracy_of_answers(predicted, answers, channel)
        control = accuracy_of_answers(predicted, answers, None)
        assert found is not None
        assert control is not None
        covered += found.low <= true <= found.high
        plain += control.low <= true <= control.high
        means.append(found.mean)
    assert 0.93 < covered / trials < 0.975
    assert plain / trials < 0.2, "the control: agreement with the answers is not the accuracy"
    if true < 0.9:  # near 1 the estimate is cut
        assert abs(np.mean(means) - true) < 4 * np.std(means) / np.sqrt(trials)


def test_without_a_channel_it_is_the_plain_accuracy() -> None:
    predicted, labels = np.array([0, 1, 1, 0, 1]), np.array([0, 1, 0, 0, 1])
    plain = accuracy_of_answers(predicted, labels, None)
    same = accuracy_of_answers(predicted, labels, np.eye(2))
    assert plain is not None
    assert plain.mean == pytest.approx(0.8)
    assert same is not None
    assert (same.mean, same.low, same.high) == pytest.approx((plain.mean, plain.low, plain.high))


def test_plain_randomized_response_is_undone_by_one_line() -> None:
    response = RandomizedResponse(1.0, 3)
    other = (1 - response.keep) / 2
    predicted = np.tile([0, 1, 2], 40)
    answers = np.where(np.arange(120) < 60, predicted, (predicted + 1) % 3)
    found = accuracy_of_answers(predicted, answers, response.transition())
    assert found is not None
    assert found.mean == pytest.approx((0.5 - other) / (response.keep - other))
    assert 0 <= found.low < found.mean < found.high <= 1


def test_a_label_that_is_never_answered_leaves_the_accuracy_unknown() -> None:
    prior = Prior.public([0.9, 0.09, 0.01], where="a test")
    response = ResponseWithPrior(0.5, prior)
    assert len(response.top) < 3
    labels = np.zeros(10, dtype=np.int64)
    assert accuracy_of_answers(labels, labels, response.transition()) is None
