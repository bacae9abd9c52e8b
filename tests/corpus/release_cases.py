"""A tiny front, a tiny corpus, and ways to release it: shared by the tests of `release` and `shards`."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dp_forward.data import EncodedTexts, FixedLength, Record
from dp_forward.privacy import NoiseSpec
from dp_forward.release_spec import ReleaseSpec
from dp_forward.split import Split, split_model
from dp_forward.split.artifacts import UserSide
from dp_forward.split.halves import Front, ReadoutFront
from tiny_models import LABELS, PAD, VOCABULARY, tiny

ROWS = 6


class Numbers:
    """A tokenizer for texts that are numbers: ``"5 17 9"``."""

    pad_token_id = PAD

    def __call__(self, texts: list[str], seconds: None, *, max_length: int, **_: Any) -> dict[str, Any]:
        assert seconds is None
        ids = [[int(word) for word in text.split()][:max_length] for text in texts]
        rest = [max_length - len(text) for text in ids]
        return {
            "input_ids": [text + [PAD] * more for text, more in zip(ids, rest, strict=True)],
            "attention_mask": [[1] * len(text) + [0] * more for text, more in zip(ids, rest, strict=True)],
        }


@cache
def pair(cut: str = "encoder.1") -> Split:
    """Two blocks; shared, so not for training."""
    return split_model(tiny("bert", blocks=2), cut)


def user(cut: str = "encoder.1", *, digest: str = "aa" * 32, **noise: Any) -> UserSide:
    choice = NoiseSpec(**{"mechanism": "privunit", "epsilon": 4.0, **noise})
    front = pair(cut).front
    spec = ReleaseSpec.of(front, noise=choice, rows=ROWS, labels="abc"[:LABELS], front=digest)
    return UserSide(front, FixedLength(Numbers(), ROWS), spec)


@cache
def folded_front() -> ReadoutFront:
    """A public projection to four columns."""
    plain = split_model(tiny("bert", blocks=2), "output", pooling="mean").front
    assert isinstance(plain, Front)
    torch.manual_seed(3)
    return ReadoutFront(plain, 4)


def folding_user(*, digest: str = "bb" * 32, **noise: Any) -> UserSide:
    """A user whose releases hold text and label."""
    choice = NoiseSpec(**{"mechanism": "privunit", "epsilon": 4.0, "unit": "record", **noise})
    front = folded_front()
    spec = ReleaseSpec.of(front, noise=choice, rows=ROWS, labels="abc"[:LABELS], front=digest)
    return UserSide(front, FixedLength(Numbers(), ROWS), spec)


@cache
def texts(records: int = 22, *, seed: int = 0, labelled: bool = True) -> EncodedTexts:
    """Random texts of random lengths; the label says which third of the vocabulary the text is from."""
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(records):
        label = int(rng.integers(LABELS))
        low = 2 + label * (VOCABULARY - 2) // LABELS
        words = rng.integers(low, low + 15, size=rng.integers(2, ROWS + 1))
        made.append(Record(" ".join(map(str, words)), None, label if labelled else None))
    return EncodedTexts.from_records(made, FixedLength(Numbers(), ROWS))


def same_text(records: int, *, label: int = 0) -> EncodedTexts:
    """One text, many times."""
    return EncodedTexts.from_records(
        [Record("5 17 9 40", None, label)] * records, FixedLength(Numbers(), ROWS)
    )


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())} if folder.exists() else {}
