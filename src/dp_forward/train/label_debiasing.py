r"""Randomized labels undone: a loss that learns the true labels, and the accuracy against them.

The loss
--------
Labels that went through randomized response follow ``P[answer = j] = sum_y P[y] T_yj`` with the public flip
matrix T. *Forward correction* compares the answer with what the model predicts for answers, ``softmax(z) T``,
instead of with ``softmax(z)``: its minimiser is the model that is right about the true labels (Patrini et
al. 2017). T is public and the answer was released, so this is post-processing: it costs no privacy.

The accuracy
------------
A record has a true label y. What was released of it is an answer a, drawn with the public probabilities
``T[y, a]`` by a coin of its own. The back predicts p from the noisy matrix of a record that it was not
trained on. Given y, p and a are independent: the noise of the matrix and the coin of the label are.

Write ``J[p, y]`` for the probability of a prediction with a true label, ``J'[p, a]`` for that of a prediction
with an answer. Then

    J'[p, a] = sum_y J[p, y] T[y, a],   that is   J' = J T   and   J = J' T^-1.

The accuracy is the trace of J. With ``W = T^-1``,

    accuracy = sum_p J[p, p] = sum_{p, a} J'[p, a] W[a, p] = E[ W[a, p] ].

So every record is worth ``w = W[a, p]``, and the mean of these over the held-out records has exactly the
accuracy as its expectation, whatever the back predicts and however common the labels are. The w of different
records are independent, so their spread holds both sources of error at once: which records were held out, and
what the coins of their labels did, enlarged by the inversion.

The interval is that of `accuracy_of` for w, moved from its range [least entry of W, largest entry of W] to
[0, 1] and back: Wilson's for a plain accuracy where W is the identity, and for plain randomized response
Wilson's for the rate of agreement, mapped by ``(rate - r) / (q - r)``, with q the probability of the true
label and r that of each other one.

Guarantees:
    The estimate has no bias before it is cut to [0, 1]; cutting takes nothing from the interval's coverage.
    It is computed from releases alone: post-processing, which costs no privacy.
Edges:
    None where T has no inverse: randomized response with a prior that never answers some label tells nothing
    about that label's accuracy.
    A weak label budget makes the interval wide, and that is the truth: at epsilon 0.1 and two labels the
    error is twenty times that of true labels.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from dp_forward.train.evaluation import Accuracy, accuracy_of


def accuracy_of_answers(
    predicted: NDArray[np.int64], answers: NDArray[np.int64], transition: NDArray[np.float64] | None
) -> Accuracy | None:
    """The accuracy against true labels, with its 95 % interval; no ``transition`` for labels as they are."""
    if transition is None:
        return accuracy_of((predicted == answers).astype(np.float64)[:, None])
    if np.linalg.cond(transition) > 1e6:  # the inverse is rounding more than it is information
        return None
    worth = np.linalg.inv(transition)
    least, span = float(worth.min()), float(worth.max() - worth.min())
    found = accuracy_of(np.asarray((worth[answers, predicted] - least) / span, dtype=np.float64)[:, None])
    mean, low, high = (min(max(least + span * x, 0.0), 1.0) for x in (found.mean, found.low, found.high))
    return Accuracy(mean, low, high, 1, len(answers), (mean,))


class LabelLoss(nn.Module):
    """Cross entropy, corrected forward for the flip matrix ``transition`` where there is one."""

    def __init__(self, transition: NDArray[np.float64] | None = None) -> None:
        super().__init__()
        self.log_transition: Tensor | None
        table = None if transition is None else torch.tensor(np.log(np.maximum(transition, 1e-30)))
        self.register_buffer("log_transition", None if table is None else table.float(), persistent=False)

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The mean loss over a batch, in float32."""
        logits = logits.float()
        if self.log_transition is None:
            return functional.cross_entropy(logits, labels)
        columns = self.log_transition[:, labels].T
        return -torch.logsumexp(functional.log_softmax(logits, dim=-1) + columns, dim=-1).mean()
