r"""Inversion by linear discriminants: for cuts that mix rows, learnt from the attacker's own releases.

The attacker releases public text with (simulated) noise and keeps, of the rows seen where token v stands,
their number and mean mu_v, and of all of them the covariance S within a token. Were the rows of a token
normal with that covariance, the most probable token of a row y would be that with the largest

.. math:: (y - \mu)^T S^{-1} (\mu_v - \mu) - \tfrac12 (\mu_v - \mu)^T S^{-1} (\mu_v - \mu) + \log p_v

with p_v its frequency: under much noise the prior alone is left. At `output`, where one row crosses, that row
counts for every token of its text, and the largest scores name its bag.

Edges:
    A mean of few rows is drawn towards that of all (`_doubt`), so a token that public text does not have is
    never named. Rows are compared with the mean over contexts; a trained decoder reads more
    (`reproduction/attacks/decoder.py`). Any mechanism that can be simulated is attacked.
"""

from typing import Final

import torch
from torch import Tensor

from dp_forward.attacks.attack_result import AttackResult
from dp_forward.attacks.inversion.recall import Inversion, counted_tokens
from dp_forward.attacks.observations import each_batch
from dp_forward.data import EncodedTexts
from dp_forward.errors import InvalidInput
from dp_forward.progress import Count

__all__ = ["invert_linearly"]

_RIDGE: Final = 1e-3  # added to the covariance, as a share of its mean variance


def invert_linearly(target: Inversion, public: EncodedTexts, progress: Count | None = None) -> AttackResult:
    """Learn what tokens look like from ``public`` text, and name those of the ``target``; see the module.

    ``progress`` is called with the public texts so far.
    """
    if public.length != target.texts.length:
        raise InvalidInput("public", f"have {target.texts.length} rows", public.length, "Encode both alike.")
    prior, pooled = target.prior, target.front.cut.place == "output"
    share = prior.log_share.double()
    sums, squares = torch.zeros(()), torch.zeros(())
    numbers = torch.zeros(len(share), dtype=torch.float64)
    for batch, _ in each_batch(public, 64, progress):
        seen, text = target.observe(batch, simulate=True).double().cpu(), counted_tokens(batch, prior.special)
        rows, ids = seen.expand(-1, public.length, -1)[text], batch["input_ids"][text]
        sums = sums + torch.zeros(len(share), rows.shape[1], dtype=torch.float64).index_add_(0, ids, rows)
        squares = squares + rows.T @ rows
        numbers += torch.bincount(ids, minlength=len(share))
    size = numbers.sum()
    mean = sums.sum(dim=0) / size
    own = (sums - numbers[:, None] * mean) / (numbers + _doubt(sums, squares, numbers))[:, None]
    within = squares / size - torch.outer(mean, mean) - own.T @ (own * (numbers / size)[:, None])
    within += _RIDGE * within.diagonal().mean() * torch.eye(len(mean), dtype=torch.float64)
    weights = torch.linalg.solve(within, own.T)
    bias = share - 0.5 * (own.T * weights).sum(dim=0)
    mean, weights, bias = (some.float().to(target.device) for some in (mean, weights, bias))
    found = []
    for some, _ in target.each_batch(16):
        scores = (some - mean) @ weights + bias
        best = min(target.texts.length, len(share)) if pooled else 1
        found.append(scores.topk(best, dim=2).indices.cpu())
    guesses = torch.cat(found)
    return target.judge("linear", guesses[:, 0] if pooled else guesses[..., 0], ranked=pooled)


def _doubt(sums: Tensor, squares: Tensor, numbers: Tensor) -> Tensor:
    """How many rows of a token say as much of its mean as is known beforehand (empirical Bayes).

    It is the variance within tokens over that between them. Under much noise nothing lies between them.
    """
    size, there = numbers.sum(), numbers > 0
    mean = sums.sum(dim=0) / size
    total = squares.trace() / size - mean.square().sum()
    means = sums[there] / numbers[there, None] - mean
    apart = (numbers[there] / size) @ means.square().sum(dim=1)
    within = (total - apart) / (1 - there.sum() / size).clamp_min(1e-3)
    return within / (total - within).clamp_min(1e-9 * total)
