r"""Inversion by gradient: tokens are relaxed to weights over the vocabulary, and fitted to what was seen.

Every row of the text gets logits z over the vocabulary. ``softmax(z)`` times the token table
is a soft token; the front runs on soft tokens with its own positions, norms, blocks and maps, through a hook
on its token table, and Adam moves z so that its rows match
what was seen: in square distance without a mechanism, in the cosine of the whole matrix (or of each row)
where a bound has taken the scale away. For Gaussian noise on normalised matrices the cosine is the
likelihood, and for PrivUnit the largest cosine is a most likely one. In the end each row is read as the
token whose own table row is nearest to the soft one.

*From deeper cuts* the fit gets harder. A way around is a map back to the rows of an earlier level, where the
fit is made (`benchmarks/linear_map.py` learns one).

Edges:
    At mixing cuts the attacker needs the mask, and takes the likeliest length (`Inversion.lengths`). Refused:
    image fronts, causal fronts, and `output`, where one row crosses.
Paper: embedding inversion, the gradient-based attack (Song and Raghunathan 2020).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import torch
from torch import Tensor

from dp_forward.attacks.attack_result import AttackResult
from dp_forward.attacks.inversion.recall import Inversion, token_table
from dp_forward.errors import InvalidInput
from dp_forward.privacy.checks import count, positive
from dp_forward.split.halves import AnyFront

BATCH: Final = 32
"""Texts that are fitted at once."""
_TINY: Final = 1e-30


@contextmanager
def soft_tokens(front: AnyFront, rows: Tensor) -> Iterator[None]:
    """Inside, the front's token table answers with ``rows`` [texts, rows, table width], come what may."""
    handle = token_table(front).register_forward_hook(lambda *_: rows)
    try:
        yield
    finally:
        handle.remove()


def invert_by_gradient(target: Inversion, *, steps: int = 150, rate: float = 2.0) -> AttackResult:
    """Fit soft tokens to what is seen of every text and read them; see the module."""
    front = target.front
    refuse_front(front)
    _, bound = target.noise()
    over = None if bound is None else (2,) if bound.over == "row" else (1, 2)
    guesses = []
    for seen, tell in target.each_batch(BATCH):
        if bound is not None and front.row_local:
            lengths = torch.full((len(seen),), target.texts.length, device=seen.device)
        else:
            lengths = target.lengths(seen)
        guesses.append(fit_tokens(target, front, seen, lengths, over=over, steps=steps, rate=rate, tell=tell))
    return target.judge("gradient", torch.cat(guesses), steps=steps)


def fit_tokens(
    target: Inversion,
    rows_of: Callable[..., Tensor],
    seen: Tensor,
    lengths: Tensor,
    *,
    over: tuple[int, ...] | None,
    steps: int,
    rate: float,
    tell: Callable[[float], None],
) -> Tensor:
    """The token of each row [texts, rows]; the prior's where no text of the batch reaches.

    ``rows_of`` computes what is fitted to what was ``seen``: the front, or an earlier level of it. ``over``
    are the axes of the cosine; None fits in square distance.
    """
    count("steps", steps, remedy="Use 150.")
    positive("rate", rate, remedy="Use 2.")
    rows = int(lengths.max())
    text = torch.arange(rows, device=seen.device) < lengths[:, None]
    seen = seen[:, :rows] * text[..., None]
    table: Tensor = token_table(target.front).weight.detach().float()  # type: ignore[operator]
    inputs = {"input_ids": torch.zeros_like(text.long()), "attention_mask": text.long()}

    def loss(soft: Tensor) -> Tensor:
        with soft_tokens(target.front, soft):
            found = rows_of(**inputs) * text[..., None]
        if over is None:
            return (found - seen).square().sum()
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
        near[..., target.prior.special.to(seen.device)] = -torch.inf
    guesses = target.prior.at_place.repeat(len(seen), 1)
    guesses[:, :rows] = near.argmax(dim=2).cpu()
    return guesses


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
