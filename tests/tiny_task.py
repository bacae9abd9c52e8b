"""A tiny checkpoint on disk and a tiny sentiment task in files: real formats, seconds to train."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

import tiny_models
from dp_forward.train.plan import Plan

GOOD, BAD = ("lovely", "bright", "warm", "moving"), ("dull", "cold", "grim", "tired")
PLAIN = ("a", "the", "film", "story", "with", "some", "scene", "and", "actor", "plot")
WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *GOOD, *BAD, *PLAIN)


def sentences(count: int, *, seed: int) -> list[tuple[str, int]]:
    """Sentences whose label is told by two of their words."""
    chosen = random.Random(seed)
    made = []
    for i in range(count):
        label = i % 2
        words = chosen.choices(PLAIN, k=chosen.randint(2, 6)) + chosen.choices((BAD, GOOD)[label], k=2)
        chosen.shuffle(words)
        made.append((" ".join(words), label))
    return made


def write_task(folder: Path, *, train: int = 256, validation: int = 64) -> Path:
    """train.tsv and dev.tsv as SST-2 writes them."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, count, seed in (("train", train, 1), ("dev", validation, 2)):
        rows = [f"{text}\t{label}" for text, label in sentences(count, seed=seed)]
        (folder / f"{name}.tsv").write_text("sentence\tlabel\n" + "\n".join(rows) + "\n", encoding="utf-8")
    return folder


def write_reviews(folder: Path, *, count: int = 256) -> Path:
    """Public reviews of several sentences, as JSON lines, in IMDb's fields."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = [f'{{"text": "{text}. {text}.", "label": {label}}}' for text, label in sentences(count, seed=3)]
    (folder / "train.jsonl").write_text("\n".join(rows) + "\n", encoding="utf-8")
    return folder


def write_checkpoint(folder: Path, *, blocks: int = 2, **more: Any) -> Path:
    """An ordinary Hugging Face folder: a tiny BERT and its tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = transformers.BertTokenizerFast(vocab={word: i for i, word in enumerate(WORDS)})
    tokenizer.save_pretrained(folder)
    settings = tiny_models.SETTINGS["bert"] | {"vocab_size": len(WORDS), "pad_token_id": 0, "num_labels": 2}
    # As Hugging Face starts a model: the other tiny models have weights that are hard to train.
    torch.manual_seed(0)
    model = transformers.BertModel(transformers.BertConfig(**settings | more, num_hidden_layers=blocks))
    model.save_pretrained(folder)
    return folder


@dataclass(frozen=True)
class TinyWorld:
    """Where the checkpoint and the texts lie."""

    model: Path
    task: Path
    reviews: Path

    def plan(self, **settings: Any) -> Plan:
        """A plan that takes seconds."""
        small = {
            "task": "sst2",
            "model": str(self.model),
            "rows": 12,
            "width": 4,
            "batch": 16,
            "epochs": 2.0,
            "learning_rate": 2e-3,
            "evaluation_draws": 4,
            "data": {"sst2": str(self.task), "imdb": str(self.reviews)},
        }
        if settings.get("mechanism") != "none":
            small["epsilon"] = 12.0
        return Plan.from_dict(small | settings)

    def folded_plan(self, **settings: Any) -> Plan:
        """A plan for folded releases and the closed form, with public reviews."""
        small = {
            "task": "sst2",
            "model": str(self.model),
            "rows": 12,
            "epsilon": 8.0,
            "public_task": "imdb",
            "evaluation_draws": 4,
            "data": {"sst2": str(self.task), "imdb": str(self.reviews)},
        }
        return Plan.from_dict(small | settings)

    @classmethod
    def under(cls, root: Path) -> TinyWorld:
        """Write all of it."""
        return cls(write_checkpoint(root / "model"), write_task(root / "sst2"), write_reviews(root / "imdb"))
