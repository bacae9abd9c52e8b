r"""Nearest neighbour over the vocabulary, with the bound and the noise in the attacker's model.

Where a front computes row i from token i alone (`embeddings`, `encoder.1.qkv`), the attacker runs it on every
token at every place and knows all candidate rows x_v. What it sees of row i is ``y_i = s x_v + noise``.

* Without a mechanism s = 1 and there is no noise: the nearest candidate *is* the token.
* A bound by row makes s a known function of the candidate: ``C / |x_v|`` (normalise), at most 1 (clip).
* A bound over the whole matrix has one s for all rows, ``C / |X|``. |X| follows from the tokens: it starts
  from the likeliest length and an average row, and is taken anew from the tokens named, a few times.

Given s, the likelihood of v under Gaussian noise is greatest where ``|y_i - s x_v|`` is least. PrivUnit of a
whole matrix has ``V = s x + (I - x x^T) G``: in one row, whose share of x is small, that is the same model
up to a term of that share. PrivUnit by row has two levels of density only: with a prior the most frequent
token whose cap holds y_i is the best guess, exactly; without one all tokens of the highest level are equally
likely, and the nearest is named.

``use_prior=True`` adds the log frequency of tokens in public text: the most probable token, not the
likeliest.

Edges:
    Candidates are run as a single text (token type 0): of pairs, the second text is read less well.
Paper: embedding inversion, nearest neighbour.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import torch
from scipy.special import log_expit, log_ndtr
from torch import Tensor

from dp_forward.attacks.attack_result import AttackResult
from dp_forward.attacks.inversion.recall import (
    AnyFront,
    Noise,
    Progress,
    TokenPrior,
    each_batch,
    hidden_rows,
    observed,
    recall_result,
    text_lengths,
    token_table,
    within_batch,
)
from dp_forward.data.encoded_texts import EncodedTexts
from dp_forward.errors import InvalidInput
from dp_forward.privacy import Mechanism, PrivUnit
from dp_forward.privacy.checks import count

__all__ = ["Candidates", "invert_nearest"]

_SCORES_AT_ONCE: Final = {"cpu": 1 << 26, "cuda": 1 << 28}
_ENTRIES_AT_ONCE: Final = {"cpu": 1 << 20, "cuda": 1 << 26}
"""For a CPU, few enough for the cache of a core."""
_ROUNDS: Final = 4


class Candidates:
    """The row of every token at every place, compared with rows that were seen."""

    def __init__(self, front: AnyFront, *, rows: int, device: str) -> None:
        self._front, self._rows, self._device = front, rows, device
        self.size = int(token_table(front).num_embeddings)  # type: ignore[arg-type]

    def compare(self, seen: Tensor, tell: Callable[[float], None] | None = None) -> tuple[Tensor, Tensor]:
        """Products [texts, rows, tokens] with every candidate, and the squared norms [rows, tokens].

        ``tell`` is called with the share of the tokens that is done.
        """
        entries = _ENTRIES_AT_ONCE.get(seen.device.type, 1 << 20)
        at_once = max(1, entries // (self._rows * seen.shape[2]))
        dots, squares = [], []
        for start in range(0, self.size, at_once):
            ids = torch.arange(start, min(start + at_once, self.size))
            same_everywhere = ids[:, None].repeat(1, self._rows)
            batch = {"input_ids": same_everywhere, "attention_mask": torch.ones_like(same_everywhere)}
            found = self.rows_of(batch)
            dots.append(torch.einsum("trw,vrw->trv", seen, found))
            squares.append(found.square().sum(dim=2).T)
            if tell is not None:
                tell((int(ids[-1]) + 1) / self.size)
        return torch.cat(dots, dim=2), torch.cat(squares, dim=1)

    def rows_of(self, batch: dict[str, Tensor]) -> Tensor:
        """What the front makes of tokens."""
        return hidden_rows(self._front, batch, device=self._device)

    def texts_at_once(self) -> int:
        """How many texts may be compared in one go."""
        scores = _SCORES_AT_ONCE.get(torch.device(self._device).type, 1 << 26)
        return max(1, scores // (self._rows * self.size))


def invert_nearest(
    front: AnyFront,
    mechanism: Mechanism | None,
    texts: EncodedTexts,
    *,
    prior: TokenPrior,
    releases: int = 1,
    use_prior: bool = False,
    device: str = "cpu",
    progress: Progress | None = None,
) -> AttackResult:
    """Name a token for every row of every text from ``releases`` releases of it, averaged; see the module.

    Edges:
        A cut behind which rows are mixed is refused.
    """
    count("releases", releases, remedy="It is how many releases of one text are averaged.")
    if not front.row_local:
        raise InvalidInput(
            "front",
            "compute each row from its own token (embeddings, encoder.1.qkv)",
            front.cut,
            "Use the decoder or the gradient attack there.",
        )
    prior.check(texts)
    front = front.to(device)
    candidates = Candidates(front, rows=texts.length, device=device)
    noise = Noise.of(mechanism, releases)
    cap = mechanism if isinstance(mechanism, PrivUnit) and noise.by_row and releases == 1 else None
    guesses = []
    for indices, batch in each_batch(texts, candidates.texts_at_once(), progress):
        tell = within_batch(progress, indices, len(texts))
        seen = observed(front, mechanism, batch, releases=releases, device=device)
        dots, squares = candidates.compare(seen, tell)
        if use_prior and cap is not None:
            scores = _cap_levels(dots, squares, cap)
        else:
            lengths = text_lengths(seen, noise, prior, pads_left=front.pads_left)
            scores = likelihoods(
                dots, squares, noise, lengths=lengths, prior=prior, pads_left=front.pads_left
            )
        guesses.append(best_tokens(scores, prior, use_prior=use_prior))
    name = "nearest with prior" if use_prior else "nearest"
    details = {"cut": str(front.cut)}
    return recall_result(
        name,
        torch.cat(guesses),
        texts,
        prior=prior,
        mechanism=mechanism,
        releases=releases,
        details=details,
    )


def best_tokens(scores: Tensor, prior: TokenPrior, *, use_prior: bool) -> Tensor:
    """The best token of every row that is not special [texts, rows]."""
    share = prior.log_share.to(scores.device)
    # A special token has the log frequency of minus infinity, so it is left out either way.
    return (scores + (share if use_prior else torch.where(share.isinf(), share, 0.0))).argmax(dim=2)


def likelihoods(
    dots: Tensor, squares: Tensor, noise: Noise, *, lengths: Tensor, prior: TokenPrior, pads_left: bool
) -> Tensor:
    """The log-likelihood of every token in every row [texts, rows, tokens], up to what all share."""
    if noise.bound is None:
        return 2 * dots - squares
    norm, noise_power = noise.bound.norm, 2 * noise.sigma**2
    clips = noise.bound.how == "clip"
    if noise.by_row:
        scale = norm / squares.clamp_min(1e-30).sqrt()
        scale = scale.clamp(max=1.0) if clips else scale
        return (2 * scale * dots - scale.square() * squares) / noise_power
    place = torch.arange(dots.shape[1], device=dots.device)
    place = place.flip(0) if pads_left else place
    text = place < lengths[:, None]
    typical = (squares * prior.log_share.exp().to(squares.device)).sum(dim=1).mean()
    power = lengths * typical
    scores = dots
    for _ in range(_ROUNDS):
        scale = norm / power.sqrt()
        scale = (scale.clamp(max=1.0) if clips else scale)[:, None, None]
        scores = (2 * scale * dots - scale.square() * squares) / noise_power
        named = squares.expand_as(scores).gather(2, scores.argmax(dim=2, keepdim=True))[..., 0]
        power = (named * text).sum(dim=1)
    return scores


def _cap_levels(dots: Tensor, squares: Tensor, mechanism: PrivUnit) -> Tensor:
    """The exact log density of one PrivUnit release by row: one of two levels."""
    t, odds = mechanism.threshold, mechanism.cap_log_odds
    inside = float(log_expit(odds) - log_ndtr(-t))
    outside = float(log_expit(-odds) - log_ndtr(t))
    along = dots / (squares.clamp_min(1e-30).sqrt() * mechanism.sigma)
    return torch.where(along >= t, inside, outside if math.isfinite(outside) else -1e30)
