"""Forward correction finds the true labels behind randomized ones; the plain loss does not."""

import numpy as np
import torch
from torch.nn import functional

from dp_forward.privacy import Budget, RandomizedResponse, calibrate
from dp_forward.train.label_loss import LabelLoss

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
