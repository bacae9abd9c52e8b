r"""Inversion by a trained decoder: the strongest attacker here.

It has the front, so it makes as many releases of public text as it likes, with fresh noise at every step,
and learns to name the token of every row from the whole noisy matrix: a small transformer over rows and
places, whose output is compared with the front's own token table. It sees no mask and no length. Where one
row crosses (`output`), it learns which tokens the text has, as a ranking of the vocabulary.

With cross-entropy as the loss, the best decoder is the true posterior of every token given the release. What
is left of it under noise is the prior: the frequency of tokens by place.

For several releases of one text, training averages as many as the attack will.

Guarantees:
    A decoder attacks the front, mechanism and number of releases that it was trained for, and no other.
    Training uses simulated noise (`noise.Sanitizer`), which has the distribution of real releases; what is
    attacked are real releases (`observations`).
Paper: not in it; stronger than its attacks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from dp_forward.attacks.attack_result import AttackResult
from dp_forward.attacks.inversion.recall import Inversion, TokenPrior, counted_tokens, token_table
from dp_forward.data import EncodedTexts
from dp_forward.errors import InvalidInput
from dp_forward.privacy.checks import count, positive
from dp_forward.progress import Count


@dataclass(frozen=True, eq=False, repr=False)
class Decoder:
    """A decoder that was trained for one attack."""

    net: _Net
    target: Inversion
    losses: tuple[float, ...]
    """In nats per token, at about a hundred steps of the training."""


class _Net(nn.Module):
    """Noisy rows [texts, rows, width] to logits over the vocabulary."""

    def __init__(self, seen: Tensor, table: Tensor, share: Tensor, *, inner: int, layers: int) -> None:
        super().__init__()
        _, rows, width = seen.shape
        self.pooled, self.scale = rows == 1, 1 / max(float(seen.std()), 1e-12)
        self.table: Tensor
        self.register_buffer("table", table.detach().clone().float())
        self.into = nn.Linear(width, inner)
        self.places = nn.Parameter(torch.randn(rows, inner) * 0.02)
        if self.pooled:
            self.body: nn.Module = nn.Sequential(*(_Feed(inner) for _ in range(layers)))
        else:
            # About 64 columns in each head.
            heads = next(some for some in range(max(1, inner // 64), 0, -1) if inner % some == 0)
            layer = nn.TransformerEncoderLayer(
                inner, heads, 4 * inner, 0.0, "gelu", batch_first=True, norm_first=True
            )
            self.body = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(inner)
        self.out = nn.Linear(inner, table.shape[1])
        self.own = nn.Linear(inner, len(table))
        if width == inner == table.shape[1]:
            # A matched filter to start from: at `embeddings` a row is near to its own token in the table.
            nn.init.eye_(self.into.weight)
            nn.init.eye_(self.out.weight)
        nn.init.zeros_(self.own.weight)
        with torch.no_grad():
            self.own.bias.copy_(share.clamp_min(-20.0))  # where there was none at all

    def features(self, seen: Tensor) -> Tensor:
        """One vector per row, before the vocabulary."""
        found: Tensor = self.norm(self.body(self.into(seen * self.scale) + self.places))
        return found

    def tokens(self, features: Tensor) -> Tensor:
        """Logits: nearness to the front's own table, and what the decoder learnt besides."""
        logits: Tensor = self.out(features) @ self.table.T + self.own(features)
        return logits


class _Feed(nn.Sequential):
    """One residual feed-forward layer."""

    def __init__(self, width: int) -> None:
        super().__init__(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        added: Tensor = super().forward(x)  # type: ignore[no-untyped-call]
        return x + added


def train_decoder(
    target: Inversion,
    public: EncodedTexts,
    *,
    steps: int = 3000,
    batch: int = 128,
    rate: float = 1e-3,
    inner: int = 384,
    layers: int = 3,
    seed: int = 0,
    progress: Count | None = None,
) -> Decoder:
    """Learn to invert the target's releases from those of ``public`` texts.

    ``progress`` is called with the steps so far. ``seed`` is that of the weights and of the order of texts;
    the noise is fresh in every run.
    """
    for name, value in (("steps", steps), ("batch", batch), ("layers", layers)):
        count(name, value, remedy="Leave it out.")
    positive("rate", rate, remedy="Use 0.001.")
    if public.length != target.texts.length:
        raise InvalidInput("public", f"have {target.texts.length} rows", public.length, "Encode both alike.")
    prior, device = target.prior, target.device
    order = _batches(len(public), batch, seed)
    first = target.observe(public.batch(next(order).numpy()), simulate=True)
    table: Tensor = token_table(target.front).weight  # type: ignore[assignment]
    # The weights are drawn apart, so that a caller's own random stream goes on as it was.
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        net = _Net(first, table, prior.log_share, inner=inner, layers=layers).to(device)
    optimiser = torch.optim.AdamW(net.parameters(), lr=rate, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: _rate(step, steps))
    losses: list[float] = []
    for step in range(steps):
        some = public.batch(next(order).numpy())
        loss = _loss(net, target.observe(some, simulate=True), some, prior, device=device)
        optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        if step % max(1, steps // 100) == 0 or step == steps - 1:
            losses.append(float(loss.detach()))
        if progress is not None:
            progress(step + 1)
    net.train(False)
    return Decoder(net, target, tuple(losses))


def invert_with(decoder: Decoder) -> AttackResult:
    """Name the tokens of the texts that it was trained for from real releases of them."""
    net, target = decoder.net, decoder.target
    special = target.prior.special.to(target.device)
    best = target.texts.length if net.pooled else 1
    found = []
    for seen, _ in target.each_batch(64):
        with torch.inference_mode(), _precision(target.device):
            logits = net.tokens(net.features(seen)).float().index_fill(2, special, -torch.inf)
        found.append(logits.topk(min(best, logits.shape[2]), dim=2).indices.cpu())
    guesses = torch.cat(found)
    guesses = guesses[:, 0] if net.pooled else guesses[..., 0]
    return target.judge("decoder", guesses, ranked=net.pooled, loss=decoder.losses[-1])


def _loss(net: _Net, seen: Tensor, batch: dict[str, Tensor], prior: TokenPrior, *, device: str) -> Tensor:
    """Cross-entropy per token: at its row, or, where one row crosses, of the bag."""
    text = counted_tokens(batch, prior.special)
    ids = batch["input_ids"].to(device)
    with _precision(device):
        features = net.features(seen)
        if not net.pooled:
            # Only rows of text are compared with the vocabulary; that saves most of the work.
            logits = net.tokens(features[text.to(device)]).float()
            return nn.functional.cross_entropy(logits, ids[text.to(device)])
        logits = net.tokens(features[:, 0]).float()
    weights = (text.float() / text.sum(dim=1, keepdim=True).clamp_min(1)).to(device)
    return -(logits.log_softmax(dim=1).gather(1, ids) * weights).sum(dim=1).mean()


def _precision(device: str) -> Any:
    return torch.autocast("cuda", torch.bfloat16, enabled=torch.device(device).type == "cuda")


def _rate(step: int, steps: int) -> float:
    warm = max(1, int(0.05 * steps))
    if step < warm:
        return (step + 1) / warm
    return 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, steps - warm)))


def _batches(texts: int, size: int, seed: int) -> Iterator[Tensor]:
    """Batches of text numbers without end, every text once per round."""
    generator = torch.Generator().manual_seed(seed)
    size = min(size, texts)
    while True:
        order = torch.randperm(texts, generator=generator)
        yield from order[: texts - texts % size].reshape(-1, size)
