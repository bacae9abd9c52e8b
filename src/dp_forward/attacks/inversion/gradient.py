r"""Inversion by gradient: tokens are relaxed to weights over the vocabulary, and fitted to what was seen.

Every row of the text gets logits z over the vocabulary. ``softmax(z)`` times the token table
is a soft token; the front runs on soft tokens with its own positions, norms, blocks and maps, through a hook
on its token table, and Adam moves z so that its rows match
what was seen: in square distance without a mechanism, in the cosine of the whole matrix (or of each row)
where a bound has taken the scale away. For Gaussian noise on normalised matrices the cosine is the
likelihood, and for PrivUnit the largest cosine is a most likely one. In the end each row is read as the
token whose own table row is nearest to the soft one.

*From deeper cuts* the fit gets harder. A `RowMap` is the way around: it leads back from the rows at the cut
to those of an earlier level, where the fit is made (`benchmarks/linear_map.py` learns one).

Edges:
    At mixing cuts the attacker needs the mask, and takes the likeliest length (`text_lengths`). Refused:
    image fronts, causal fronts, and `output`, where one row crosses.
Paper: embedding inversion, the gradient-based attack (Song and Raghunathan 2020).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final, Protocol

import torch
from torch import Tensor

from dp_forward.attacks.attack_result import AttackResult
from dp_forward.attacks.inversion.recall import Noise, TokenPrior, recall_result, text_lengths, token_table
from dp_forward.attacks.observations import AnyFront, each_batch, observe_average
from dp_forward.data.encoded_texts import EncodedTexts
from dp_forward.errors import InvalidInput
from dp_forward.privacy import Mechanism
from dp_forward.privacy.checks import count, positive
from dp_forward.progress import Count

__all__ = ["invert_by_gradient", "refuse_front"]

_TINY: Final = 1e-30


@contextmanager
def soft_tokens(front: AnyFront, rows: Tensor) -> Iterator[None]:
    """Inside, the front's token table answers with ``rows`` [texts, rows, table width], come what may."""
    handle = token_table(front).register_forward_hook(lambda *_: rows)
    try:
        yield
    finally:
        handle.remove()


class RowMap(Protocol):
    """A way back from the rows at the cut to those of an earlier level."""

    @property
    def error(self) -> float:
        """The share of the earlier rows that the map leaves unexplained."""

    def map_back(self, seen: Tensor) -> Tensor:
        """What was seen, as rows of the earlier level."""

    def rows_of(self, front: AnyFront, inputs: Mapping[str, Tensor]) -> Tensor:
        """What the front computes at that level."""


def invert_by_gradient(
    front: AnyFront,
    mechanism: Mechanism | None,
    texts: EncodedTexts,
    *,
    prior: TokenPrior,
    releases: int = 1,
    through: RowMap | None = None,
    steps: int = 150,
    rate: float = 2.0,
    batch: int = 32,
    device: str = "cpu",
    progress: Count | None = None,
) -> AttackResult:
    """Fit soft tokens to ``releases`` averaged releases of every text and read them; see the module.

    Edges:
        ``through`` fits at the earlier level that it leads back to. ``progress`` is called with the texts so
        far.
    """
    count("releases", releases, remedy="It is how many releases of one text are averaged.")
    count("steps", steps, remedy="Use 150.")
    positive("rate", rate, remedy="Use 2.")
    refuse_front(front)
    prior.check(texts)
    front = front.to(device)
    noise = Noise.of(mechanism, releases)
    guesses = prior.at_place.repeat(len(texts), 1)
    for indices, some, tell in each_batch(texts, count("batch", batch, remedy="Use 32."), progress):
        seen = observe_average(front, mechanism, some, releases=releases, device=device)
        if front.row_local and mechanism is not None:
            lengths = torch.full((len(seen),), texts.length, device=device)
        else:
            lengths = text_lengths(seen, noise, prior, pads_left=False)
        found = _fit(
            front,
            seen,
            lengths,
            noise=noise,
            through=through,
            prior=prior,
            steps=steps,
            rate=rate,
            tell=tell,
        )
        guesses[torch.from_numpy(indices), : found.shape[1]] = found
    return recall_result(
        "gradient" if through is None else "gradient after a linear map",
        guesses,
        texts,
        prior=prior,
        mechanism=mechanism,
        releases=releases,
        details={"cut": str(front.cut), "steps": steps}
        | ({} if through is None else {"map_error": through.error}),
    )


def _fit(
    front: AnyFront,
    seen: Tensor,
    lengths: Tensor,
    *,
    noise: Noise,
    through: RowMap | None,
    prior: TokenPrior,
    steps: int,
    rate: float,
    tell: Callable[[float], None],
) -> Tensor:
    """The token of each row [texts, rows], up to the longest text that was estimated among them."""
    rows = int(lengths.max())
    text = torch.arange(rows, device=seen.device) < lengths[:, None]
    seen = (seen[:, :rows] if through is None else through.map_back(seen[:, :rows])) * text[..., None]
    table: Tensor = token_table(front).weight.detach().float()  # type: ignore[operator]
    inputs = {"input_ids": torch.zeros_like(text.long()), "attention_mask": text.long()}

    def loss(soft: Tensor) -> Tensor:
        with soft_tokens(front, soft):
            found = front(**inputs) if through is None else through.rows_of(front, inputs)
        found = found * text[..., None]
        if noise.bound is None or through is not None:
            return (found - seen).square().sum()
        over = (2,) if noise.by_row else (1, 2)
        along = (found * seen).sum(dim=over)
        own, others = (some.square().sum(dim=over).clamp_min(_TINY) for some in (found, seen))
        return -(along / (own * others).sqrt()).sum()

    logits = torch.zeros(*text.shape, len(table), device=seen.device, requires_grad=True)
    # Gradients are as small as one over the vocabulary: the usual epsilon would drown them.
    optimiser = torch.optim.Adam([logits], lr=rate, betas=(0.9, 0.99), eps=_TINY)
    for step in range(steps):
        optimiser.zero_grad()
        loss(logits.softmax(dim=2) @ table).backward(inputs=[logits])  # type: ignore[no-untyped-call]
        optimiser.step()
        tell((step + 1) / steps)
    with torch.no_grad():
        soft = logits.softmax(dim=2) @ table
        near = 2 * soft @ table.T - table.square().sum(dim=1)
        near[..., prior.special.to(seen.device)] = -torch.inf
        return near.argmax(dim=2).cpu()


def refuse_front(front: AnyFront) -> None:
    """Refuse the fronts that this attack cannot fit."""
    token_table(front)
    if front.pads_left:
        raise InvalidInput(
            "front",
            "read texts padded on the right for the gradient attack",
            "a causal one, padded on the left",
            "Use the decoder.",
        )
    if front.cut.place == "output":
        raise InvalidInput(
            "front", "let a row per token cross for the gradient attack", "output", "Use the decoder."
        )
