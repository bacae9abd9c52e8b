"""Training a back on what was released: the back with its loss, and noisy matrices in batches."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dp_forward.corpus.reader import ReleasedCorpus
from dp_forward.split.halves import Back, NarrowBack
from dp_forward.train.label_loss import LabelLoss
from dp_forward.train.noisy_model import new_parameters_of

__all__ = ["FromReleases", "Held", "Stored"]


class FromReleases(nn.Module):
    """The back with the loss that trains it on stored releases."""

    def __init__(self, back: Back | NarrowBack, loss: LabelLoss) -> None:
        super().__init__()
        self.back, self.loss = back, loss

    def new_parameters(self) -> list[nn.Parameter]:
        """Those that start from random weights."""
        return new_parameters_of(self.back)

    def forward(self, hidden: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        """Logits, and the loss where labels are given."""
        logits: Tensor = self.back(hidden).logits
        return {"logits": logits} if labels is None else {"loss": self.loss(logits, labels), "logits": logits}


class Stored:
    """A released corpus in batches: all of its records, or those that were ``chosen``."""

    def __init__(self, corpus: ReleasedCorpus, chosen: NDArray[np.int64] | None = None) -> None:
        self._corpus, self._chosen = corpus, chosen

    def __len__(self) -> int:
        return len(self._corpus) if self._chosen is None else len(self._chosen)

    def batch(self, indices: Any, *, trim: bool = False) -> dict[str, Tensor]:
        """The records at these places; there is nothing to trim."""
        places = list(indices)
        return self._corpus.__getitems__(places if self._chosen is None else self._chosen[places].tolist())


class Held:
    """Noisy matrices and labels in memory."""

    def __init__(self, hidden: Tensor, labels: Tensor) -> None:
        self._hidden, self._labels = hidden, labels

    def __len__(self) -> int:
        return len(self._labels)

    def batch(self, indices: Any, *, trim: bool = False) -> dict[str, Tensor]:
        """The records at these places; there is nothing to trim."""
        chosen = torch.as_tensor(list(indices))
        return {"hidden": self._hidden[chosen], "labels": self._labels[chosen]}
