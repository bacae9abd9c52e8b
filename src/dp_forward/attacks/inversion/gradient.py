r"""Inversion by gradient: tokens are relaxed to weights over the vocabulary, and fitted to what was seen.

Every row of the text gets logits z over the vocabulary. ``softmax(z / temperature)`` times the token table
is a soft token; the front runs on soft tokens with its own modules, and Adam moves z so that its rows match
what was seen: in square distance without a mechanism, in the cosine of the whole matrix (or of each row)
where a bound has taken the scale away. For Gaussian noise on normalised matrices the cosine is the
likelihood, and for PrivUnit the largest cosine is a most likely one. In the end each row is read as the
token whose own table row is nearest to the soft one.

The front runs on soft tokens through a hook on its token table, so positions, norms, blocks and maps are
those of the real front.

*From deeper cuts* the fit gets harder. `LinearMap` is the way around: least squares from the rows at the cut
back to the rows that the first block reads, learnt on public text (with the attacker's own noise, where there
is any). What it gives is then fitted at the level of the embeddings, where the nearest solution is easy.

Edges:
    At mixing cuts the attacker needs the mask, and takes the likeliest length (`text_lengths`). Refused:
    image fronts, causal fronts, and `output`, where one row crosses.
Paper: embedding inversion, the gradient-based attack (Song and Raghunathan 2020).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn

from dp_forward.attacks.attack_result import AttackResult
from dp_forward.attacks.inversion.recall import (
    AnyFront,
    Noise,
    Progress,
    TokenPrior,
    each_batch,
    observed,
    recall_result,
    text_lengths,
    token_table,
    within_batch,
)
from dp_forward.data.encoded_texts import EncodedTexts
from dp_forward.errors import InvalidInput
from dp_forward.privacy import Mechanism
from dp_forward.privacy.checks import count, positive
from dp_forward.split.families import FAMILIES
from dp_forward.split.halves import NarrowFront

__all__ = ["LinearMap", "fit_linear_map", "invert_by_gradient", "soft_tokens"]

_RIDGE: Final = 1e-6
_TINY: Final = 1e-30


@contextmanager
def soft_tokens(front: AnyFront, rows: Tensor) -> Iterator[None]:
    """Inside, the front's token table answers with ``rows`` [texts, rows, table width], come what may."""

    def answer(*_: Any) -> Tensor:
        return rows

    handle = token_table(front).register_forward_hook(answer)
    try:
        yield
    finally:
        handle.remove()


class _Reached(Exception):
    """The first block was about to run."""


def entry_rows(front: AnyFront, inputs: Mapping[str, Tensor]) -> Tensor:
    """The rows that the first block reads: those of the cut `embeddings`, whatever the front's own cut is."""
    plain = front.front if isinstance(front, NarrowFront) else front
    blocks: Any = plain.model.get_submodule(FAMILIES[plain.settings["model_type"]].blocks)
    if len(blocks) == 0:
        found: Tensor = plain(**inputs)
        return found
    caught: list[Tensor] = []

    def catch(_: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        caught.append(args[0] if args else named["hidden_states"])
        raise _Reached

    handle = blocks[0].register_forward_pre_hook(catch, with_kwargs=True)
    try:
        plain(**inputs)
    except _Reached:
        pass
    finally:
        handle.remove()
    return caught[0]


@dataclass(frozen=True, eq=False, repr=False)
class LinearMap:
    """From a row at the cut to the row that the first block read; ``error`` is what it leaves unexplained."""

    weight: Tensor
    offset: Tensor
    error: float
    """Mean square of the difference over that of the rows, on the texts it was learnt from."""

    def __call__(self, rows: Tensor) -> Tensor:
        """All rows mapped."""
        return rows @ self.weight + self.offset

    def __repr__(self) -> str:
        return f"LinearMap({tuple(self.weight.shape)}, error={self.error:.3g})"


def fit_linear_map(
    front: AnyFront,
    mechanism: Mechanism | None,
    public: EncodedTexts,
    *,
    releases: int = 1,
    device: str = "cpu",
    progress: Progress | None = None,
) -> LinearMap:
    """Least squares on public text: what would be seen of its rows, against what the first block read."""
    _refuse(front)
    front = front.to(device)
    width = front.width + 1
    left: Tensor = torch.zeros(width, width, dtype=torch.float64, device=device)
    right: Tensor | None = None
    power = 0.0
    for _, batch in each_batch(public, 128, progress):
        seen = observed(front, mechanism, batch, releases=releases, device=device)
        inputs = _on(batch, device)
        with torch.inference_mode():
            wanted = entry_rows(front, inputs)
        text = inputs["attention_mask"] != 0
        x = torch.nn.functional.pad(seen[text].double(), (0, 1), value=1.0)
        y = wanted[text].double()
        left += x.T @ x
        right = x.T @ y if right is None else right + x.T @ y
        power += float(y.square().sum())
    assert right is not None
    ridge = _RIDGE * left.diagonal().mean() * torch.eye(width, dtype=torch.float64, device=device)
    solved = torch.linalg.solve(left + ridge, right)
    # |y - xW|^2 = |y|^2 - 2 <W, x'y> + <W, x'x W>
    rest = power - 2 * float((solved * right).sum()) + float((solved * (left @ solved)).sum())
    return LinearMap(solved[:-1].float(), solved[-1].float(), max(0.0, rest) / power)


def invert_by_gradient(
    front: AnyFront,
    mechanism: Mechanism | None,
    texts: EncodedTexts,
    *,
    prior: TokenPrior,
    releases: int = 1,
    through: LinearMap | None = None,
    steps: int = 150,
    rate: float = 2.0,
    temperature: float = 1.0,
    batch: int = 32,
    device: str = "cpu",
    progress: Progress | None = None,
) -> AttackResult:
    """Fit soft tokens to ``releases`` averaged releases of every text and read them; see the module.

    Edges:
        ``through`` fits what a linear map makes of the rows instead of the rows themselves.
    """
    count("releases", releases, remedy="It is how many releases of one text are averaged.")
    count("steps", steps, remedy="Use 150.")
    positive("temperature", temperature, remedy="Use 1.")
    positive("rate", rate, remedy="Use 2.")
    _refuse(front)
    prior.check(texts)
    front = front.to(device)
    noise = Noise.of(mechanism, releases)
    guesses = torch.empty((len(texts), texts.length), dtype=torch.int64)
    guesses[:] = prior.at_place
    for indices, some in each_batch(texts, count("batch", batch, remedy="Use 32."), progress):
        seen = observed(front, mechanism, some, releases=releases, device=device)
        if front.row_local:
            lengths = torch.full((len(seen),), texts.length, device=device)
            if mechanism is None:
                lengths = text_lengths(seen, noise, prior, pads_left=False)
        else:
            lengths = text_lengths(seen, noise, prior, pads_left=False)
        fit = _Fit(front, seen, lengths, noise=noise, through=through, prior=prior)
        tell = within_batch(progress, indices, len(texts))
        found = fit.run(steps=steps, rate=rate, temperature=temperature, tell=tell)
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


class _Fit:
    """The relaxation of some texts, up to the longest that was estimated among them."""

    def __init__(
        self,
        front: AnyFront,
        seen: Tensor,
        lengths: Tensor,
        *,
        noise: Noise,
        through: LinearMap | None,
        prior: TokenPrior,
    ) -> None:
        self._rows = int(lengths.max())
        self._front, self._noise, self._through = front, noise, through
        self._seen = seen[:, : self._rows] if through is None else through(seen[:, : self._rows])
        self._text = torch.arange(self._rows, device=seen.device) < lengths[:, None]
        self._seen = self._seen * self._text[..., None]
        self._special = prior.special.to(seen.device)
        self._table: Tensor = token_table(front).weight.detach().float()  # type: ignore[operator]

    def run(self, *, steps: int, rate: float, temperature: float, tell: Any) -> Tensor:
        """The token of each row [texts, rows]."""
        logits = torch.zeros(
            *self._text.shape, len(self._table), device=self._seen.device, requires_grad=True
        )
        # Gradients are as small as one over the vocabulary: the usual epsilon would drown them.
        optimiser = torch.optim.Adam([logits], lr=rate, betas=(0.9, 0.99), eps=_TINY)
        wanted = [p for p in self._front.parameters() if p.requires_grad]
        for parameter in wanted:
            parameter.requires_grad_(False)
        try:
            for step in range(steps):
                optimiser.zero_grad()
                loss = self._loss(self._soft(logits, temperature))
                loss.backward()  # type: ignore[no-untyped-call]
                optimiser.step()
                if tell is not None:
                    tell((step + 1) / steps)
        finally:
            for parameter in wanted:
                parameter.requires_grad_(True)
        with torch.no_grad():
            return self._read(self._soft(logits, temperature)).cpu()

    def _soft(self, logits: Tensor, temperature: float) -> Tensor:
        return (logits / temperature).softmax(dim=2) @ self._table

    def _loss(self, soft: Tensor) -> Tensor:
        mask = self._text.long()
        inputs = {"input_ids": torch.zeros_like(mask), "attention_mask": mask}
        with soft_tokens(self._front, soft):
            rows = self._front(**inputs) if self._through is None else entry_rows(self._front, inputs)
        rows = rows * self._text[..., None]
        if self._noise.bound is None or self._through is not None:
            return (rows - self._seen).square().sum()
        over = (2,) if self._noise.by_row else (1, 2)
        along = (rows * self._seen).sum(dim=over)
        sizes = rows.square().sum(dim=over).clamp_min(_TINY) * self._seen.square().sum(dim=over).clamp_min(
            _TINY
        )
        return -(along / sizes.sqrt()).sum()

    def _read(self, soft: Tensor) -> Tensor:
        """The nearest row of the table, special tokens left out."""
        far = 2 * soft @ self._table.T - self._table.square().sum(dim=1)
        far[..., self._special] = -torch.inf
        return far.argmax(dim=2)


def _refuse(front: AnyFront) -> None:
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


def _on(batch: dict[str, Tensor], device: str) -> dict[str, Tensor]:
    return {name: value.to(device) for name, value in batch.items() if name != "labels"}
