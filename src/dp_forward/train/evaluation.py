"""Accuracy over repeated draws of the noise, with an interval.

One draw per text says little: the noise decides much of a single answer. Every text is answered ``draws``
times with fresh noise, and the texts are the sample: the interval is Wilson's at 95 %, with as many
observations as the spread *between* texts is worth. So it covers both which texts were met and which noise.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dp_forward.errors import InvalidInput, refuse_if
from dp_forward.privacy import checks
from dp_forward.progress import Count

if TYPE_CHECKING:
    from dp_forward.data import EncodedTexts
    from dp_forward.train.noisy_model import NoisyModel

__all__ = ["accuracy_over_draws", "commonest_share", "wilson"]

_Z = 1.959963984540054


@dataclass(frozen=True)
class Accuracy:
    """A mean over texts and draws, and its 95 % interval."""

    mean: float
    low: float
    high: float
    draws: int
    texts: int
    by_draw: tuple[float, ...]


@torch.inference_mode()
def accuracy_over_draws(
    module: NoisyModel, records: EncodedTexts, *, draws: int = 10, progress: Count | None = None
) -> Accuracy:
    """How often the ``module`` is right about ``records`` over ``draws``; the front reads each text once."""
    checks.count("draws", draws, remedy="Use 10 or more.")
    refuse_if(not len(records), "records", "be at least one", 0, "Check the split.")
    if module.sanitizer is None or module.clean:
        draws = 1
    was_training = module.training
    module.eval()
    device = next(module.parameters()).device
    right = []
    for _, texts in length_batches(records, 64, device, progress=progress):
        labels = texts.pop("labels")
        hidden = module.hidden(**texts)
        at_once = max(1, min(draws, 1024 // len(labels)))
        columns = []
        for done in range(0, draws, at_once):
            times = min(at_once, draws - done)
            answers = module.back(module.add_noise(hidden, times=times)).logits.argmax(dim=-1)
            columns.append((answers.reshape(len(labels), times) == labels[:, None]).double().cpu().numpy())
        right.append(np.concatenate(columns, axis=1))
    module.train(was_training)
    return accuracy_of(np.concatenate(right))


def accuracy_without_noise(model: Any, records: EncodedTexts) -> Accuracy:
    """How often a model without noise is right about ``records``."""
    return accuracy_of((answers_of(model, records) == records.labels).astype(np.float64)[:, None])


@torch.inference_mode()
def answers_of(
    model: Any, texts: EncodedTexts, *, at_once: int = 64, progress: Count | None = None
) -> NDArray[np.int64]:
    """The label that a model without noise gives to each text; it is left in evaluation mode."""
    model.eval()
    device = next(model.parameters()).device
    answers = np.empty(len(texts), dtype=np.int64)
    for chosen, batch in length_batches(texts, at_once, device, progress=progress):
        batch.pop("labels")
        answers[chosen] = model(**batch)["logits"].argmax(dim=-1).cpu().numpy()
    return answers


def length_batches(
    texts: EncodedTexts,
    size: int,
    device: torch.device | str,
    *,
    trim: bool | None = None,
    progress: Count | None = None,
) -> Iterator[tuple[NDArray[np.int64], dict[str, Tensor]]]:
    """Batches on a device, each with the numbers of its texts.

    Where ``trim`` (by default: where padding lies on the right) texts of like length are together, cut to the
    longest: it saves time. Of padding on the left only a front at `output` knows how much there was.
    """
    trim = not texts.pads_left if trim is None else trim
    order = np.argsort(texts.lengths, kind="stable") if trim else np.arange(len(texts))
    for start in range(0, len(order), size):
        chosen = order[start : start + size]
        yield chosen, {k: value.to(device) for k, value in texts.batch(chosen, trim=trim).items()}
        if progress is not None:
            progress(start + len(chosen))


def accuracy_of(right: NDArray[np.float64]) -> Accuracy:
    """From [texts, draws] of right (1) and wrong (0) answers."""
    texts, draws = right.shape
    by_text = right.mean(axis=1)
    mean = float(by_text.mean())
    error = float(by_text.std(ddof=1)) / math.sqrt(texts) if texts > 1 else 0.0
    worth = max(texts, mean * (1 - mean) / error**2) if error > 0 else float(texts)
    low, high = wilson(mean, worth)
    return Accuracy(mean, low, high, draws, texts, tuple(float(x) for x in right.mean(axis=0)))


def commonest_share(labels: NDArray[np.int64] | None) -> float:
    """How often the most frequent label stands among ``labels``: what naming it always would reach."""
    if labels is None or not len(labels):
        raise InvalidInput("labels", "be at least one", 0, "Check the split.")
    return float(np.bincount(labels).max()) / len(labels)


def wilson(mean: float, observations: float) -> tuple[float, float]:
    """Wilson's 95 % interval for a rate, the ``mean`` of so many ``observations``."""
    z2 = _Z**2 / observations
    centre = (mean + z2 / 2) / (1 + z2)
    half = _Z / (1 + z2) * math.sqrt(mean * (1 - mean) / observations + z2 / (4 * observations))
    return max(0.0, centre - half), min(1.0, centre + half)
