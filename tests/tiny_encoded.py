"""Encoded texts of random tokens."""

from __future__ import annotations

import numpy as np

from dp_forward.data.encoded_texts import EncodedTexts
from tiny_models import LABELS, VOCABULARY

ROWS = 6


def encoded_texts(
    count: int, *, seed: int = 0, labels: int = LABELS, ragged: bool = False, pads_left: bool = False
) -> EncodedTexts:
    """Texts whose label is their first token's remainder (none for ``labels=0``); ``ragged``: with PAD."""
    ids = np.random.default_rng(seed).integers(2, VOCABULARY, (count, ROWS), dtype=np.int32)
    kinds = ids[:, 0].astype(np.int64) % labels if labels else None
    lengths = np.full(count, ROWS, dtype=np.int32)
    if ragged:
        lengths = (1 + 5 * np.arange(count, dtype=np.int32) % ROWS).astype(np.int32)
        row = np.arange(ROWS)
        ids *= (row >= ROWS - lengths[:, None]) if pads_left else (row < lengths[:, None])
    columns = {"ids": ids, "lengths": lengths} | ({} if kinds is None else {"labels": kinds})
    return EncodedTexts(columns, pads_left=pads_left)
