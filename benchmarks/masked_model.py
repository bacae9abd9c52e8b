"""Masked model for the rewriting rival: MiniLM with a new head, trained on public reviews.

    python -m benchmarks.masked_model --out FOLDER

We found no masked model on the package index, and MiniLM has lost the head that it was distilled with. The
first steps are those of `dpf pretrain` without noise. The others read a text beside itself with some tokens
masked, as DP-MLM asks: a large masked model copies from the other half unasked, a small one must learn it.
Logits are computed at the masked tokens only. The default takes about half an hour on one core. A GPU, if
there is one, is used; there ``--batch 256 --steps 4000 --pair-steps 4000`` takes six minutes and is much
better. The folder is an ordinary checkpoint.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy

from benchmarks.goals import say
from benchmarks.report import provenance
from dp_forward.data.public_text import pack_blocks, read_public_records
from dp_forward.train.pretrain.masked_lm import IGNORED, MaskedLM, Masking

REPORT = "masked-model.json"
HELD_OUT = 256
RATE = 5e-4
SHORTEST = 4
Batch = dict[str, Tensor]


class Batches:
    """Masked blocks of public text, alone or beside themselves."""

    def __init__(self, tokenizer: Any, corpus: str, *, most: int, length: int) -> None:
        texts = (record.text for record in read_public_records(corpus))
        blocks = pack_blocks(texts, tokenizer, length=length, most=most + HELD_OUT)
        kept = min(HELD_OUT, len(blocks) // 2)
        self._blocks, self._held_out = blocks[:-kept], blocks[-kept:]
        self._masking = Masking(tokenizer)

    def draw(self, rng: np.random.Generator, batch: int, *, pairs: bool) -> Batch:
        """Blocks at random; of a pair, so many first tokens as this batch has drawn."""
        rows = self._blocks[rng.integers(0, len(self._blocks), batch)]
        return self._pair(rows, rng) if pairs else self._mask(rows, rng)

    def held_out(self, batch: int, *, pairs: bool) -> Iterator[Batch]:
        """The blocks that were set aside, masked the same way each time."""
        rng = np.random.default_rng(1)
        for start in range(0, len(self._held_out), batch):
            rows = self._held_out[start : start + batch]
            yield self._pair(rows, rng) if pairs else self._mask(rows, rng)

    def _mask(self, rows: NDArray[np.int32], rng: np.random.Generator) -> Batch:
        ids, labels = zip(*(self._masking(row, rng) for row in rows), strict=True)
        return {"input_ids": torch.from_numpy(np.stack(ids)), "labels": torch.from_numpy(np.stack(labels))}

    def _pair(self, rows: NDArray[np.int32], rng: np.random.Generator) -> Batch:
        body = rows[:, 1 : 1 + rng.integers(SHORTEST, rows.shape[1] // 2)]
        masked, ends = self._mask(body, rng), torch.from_numpy(rows[:, [0, -1]].astype(np.int64))
        first, last = ends[:, :1], ends[:, 1:]
        whole = torch.cat([first, torch.from_numpy(body.astype(np.int64)), last], dim=1)
        none = torch.full_like(whole, IGNORED)
        return {
            "input_ids": torch.cat([whole, masked["input_ids"], last], dim=1),
            "labels": torch.cat([none, masked["labels"], torch.full_like(last, IGNORED)], dim=1),
            "token_type_ids": torch.cat([0 * whole, 0 * masked["labels"] + 1, 0 * last + 1], dim=1),
        }


def loss_of(model: Any, batch: Batch) -> Tensor:
    """Mean cross entropy over the masked tokens."""
    batch = {name: value.to(model.device) for name, value in batch.items()}
    inputs = {name: value for name, value in batch.items() if name != "labels"}
    masked = batch["labels"] != IGNORED
    return cross_entropy(model.cls(model.base_model(**inputs)[0][masked]), batch["labels"][masked])


def train(model: Any, batches: Batches, *, steps: int, batch: int, pairs: bool, rate: float = RATE) -> float:
    """Train in place; the loss on what was held out."""
    optimizer, warm, recent = torch.optim.AdamW(model.parameters(), lr=rate), max(steps // 20, 1), []
    pace = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / warm, (steps - step) / max(steps - warm, 1))
    )
    rng = np.random.default_rng((0, int(pairs)))
    model.train()
    for step in range(steps):
        loss = loss_of(model, batches.draw(rng, batch, pairs=pairs))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        pace.step()
        recent.append(loss.detach())
        if (step + 1) % 25 == 0:
            say(f"{'pairs' if pairs else 'alone'}: step {step + 1}: {torch.stack(recent[-25:]).mean():.3f}")
    model.eval()
    with torch.no_grad():
        return float(np.mean([loss_of(model, some).item() for some in batches.held_out(batch, pairs=pairs)]))


def main(arguments: list[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", default="minilm", help="where to start [minilm]")
    parser.add_argument("--corpus", default="movie-reviews", help="PUBLIC text, as in `dpf pretrain`")
    parser.add_argument("--steps", type=int, default=250)
    parser.add_argument("--pair-steps", type=int, default=250)
    parser.add_argument("--batch", type=int, default=32)
    given = parser.parse_args(arguments)
    torch.manual_seed(0)
    start, began = MaskedLM(given.model), time.perf_counter()
    start.model.to("cuda" if torch.cuda.is_available() else "cpu")
    batches = Batches(start.tokenizer, given.corpus, most=250 * given.batch, length=64)
    report = {"start": "minilm", "corpus": given.corpus, "batch": given.batch}
    earlier = Path(given.model) / REPORT
    if earlier.exists():
        report |= {"earlier": json.loads(earlier.read_text(encoding="utf-8"))}
    for name, steps in (("alone", given.steps), ("pairs", given.pair_steps)):
        loss = train(start.model, batches, steps=steps, batch=given.batch, pairs=name == "pairs")
        report |= {f"{name}_steps": steps, f"{name}_loss": loss}
        print(f"{name}: held-out loss {loss:.3f} after {steps} steps")
    start.save(given.out)
    report |= {"seconds": time.perf_counter() - began, **provenance(("torch", "transformers"))}
    (given.out / REPORT).write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
