r"""The loss on labels, true or randomized.

Labels that went through randomized response follow ``P[answer = j] = sum_y P[y] T_yj`` with the public flip
matrix T. *Forward correction* compares the answer with what the model predicts for answers, ``softmax(z) T``,
instead of with ``softmax(z)``: its minimiser is the model that is right about the true labels (Patrini et
al. 2017). T is public and the answer was released, so this is post-processing: it costs no privacy.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["LabelLoss"]


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
