"""True labels are learnt, and the accuracy against them is found, through randomized ones."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch.nn import functional

from dp_forward.privacy import Budget, Prior, RandomizedResponse, ResponseWithPrior, calibrate
from dp_forward.train.label_debiasing import LabelLoss, accuracy_of_answers

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


@pytest.mark.slow
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


RESPONSE = calibrate(RandomizedResponse, Budget(1.0), labels=3)


def _learned(loss: LabelLoss, answers: torch.Tensor) -> torch.Tensor:
    logits = torch.zeros(3, requires_grad=True)
    optimizer = torch.optim.LBFGS([logits], max_iter=200)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        value = loss(logits.expand(len(answers), 3), answers)
        value.backward()
        return value

    optimizer.step(closure)
    return functional.softmax(logits.detach(), dim=0)


def test_the_corrected_loss_learns_the_true_distribution() -> None:
    truth = np.repeat([0, 1, 2], [14000, 4500, 1500])
    answers = torch.tensor(RESPONSE.sample(truth, np.random.default_rng(0)))
    corrected = _learned(LabelLoss(RESPONSE.transition()), answers)
    plain = _learned(LabelLoss(), answers)
    expected = torch.tensor([0.7, 0.225, 0.075])
    assert (corrected - expected).abs().max() < 0.03
    assert (plain - expected).abs().max() > 0.1, "the control: without correction it learns the answers"


def test_without_flips_both_losses_are_cross_entropy() -> None:
    logits, labels = torch.randn(8, 3), torch.tensor([0, 1, 2, 0, 1, 2, 0, 1])
    plain = functional.cross_entropy(logits, labels)
    torch.testing.assert_close(LabelLoss()(logits, labels), plain)
    torch.testing.assert_close(LabelLoss(np.eye(3))(logits, labels), plain)


def test_the_loss_is_finite_for_extreme_logits() -> None:
    logits = torch.tensor([[1e4, -1e4, 0.0]], requires_grad=True)
    value = LabelLoss(RESPONSE.transition())(logits, torch.tensor([1]))
    value.backward()
    assert torch.isfinite(value)
    assert torch.isfinite(logits.grad).all()
