"""Blocks of token ids with some tokens hidden: what a masked LM learns from.

Which tokens are hidden depends on the seed and on the number of the item alone: not on the process, the batch
or on how often a run was stopped. So a resumed run sees what the run without a stop would have seen. This is
why Transformers' collator is not used: it draws from one generator of the process, batch after batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from dp_forward.errors import InvalidInput

IGNORED = -100
"""The label of a token that was not chosen: torch's cross entropy passes it over."""


@dataclass(frozen=True, slots=True, eq=False)
class Masking:
    """BERT's rule: of the chosen tokens 80 % become [MASK], 10 % another token, 10 % stay.

    Guarantees:
        [CLS], [SEP] and the other special tokens are never chosen and never put in. At least one token of a
        block is chosen, so that the loss is a number.
    """

    rate: float
    mask: int
    special: NDArray[np.int64]
    ordinary: NDArray[np.int64]

    @classmethod
    def of(cls, tokenizer: Any, *, rate: float) -> Masking:
        """The rule for a tokenizer that has a [MASK]."""
        if tokenizer.mask_token_id is None:
            raise InvalidInput("tokenizer", "have a [MASK] token", "none", "Use a masked-LM checkpoint.")
        special = np.unique(np.array(tokenizer.all_special_ids, np.int64))
        ordinary = np.setdiff1d(np.arange(len(tokenizer)), special)
        return cls(rate=rate, mask=int(tokenizer.mask_token_id), special=special, ordinary=ordinary)

    def __call__(
        self, block: NDArray[np.int32], rng: np.random.Generator
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The block with some tokens hidden, and the labels: the true token where chosen, else `IGNORED`."""
        ids = block.astype(np.int64)
        candidates = np.flatnonzero(~np.isin(ids, self.special))
        chosen = candidates[rng.random(len(candidates)) < self.rate]
        if not len(chosen):
            chosen = rng.choice(candidates, 1)
        labels = np.full_like(ids, IGNORED)
        labels[chosen] = ids[chosen]
        fate = rng.random(len(chosen))
        ids[chosen[fate < 0.8]] = self.mask
        swapped = chosen[(fate >= 0.8) & (fate < 0.9)]
        ids[swapped] = rng.choice(self.ordinary, len(swapped))
        return ids, labels


class MaskedBlocks(Dataset[dict[str, Tensor]]):
    """``items`` masked blocks: pass after pass over the blocks, each in a new order, with new masks."""

    def __init__(self, blocks: NDArray[np.int32], masking: Masking, *, seed: tuple[int, ...], items: int):
        self._blocks, self._masking, self._seed, self._items = blocks, masking, seed, items
        self._order: tuple[int, NDArray[np.int64]] = (-1, np.empty(0, np.int64))

    def __len__(self) -> int:
        return self._items

    def __getitem__(self, item: int) -> dict[str, Tensor]:
        turn, place = divmod(item, len(self._blocks))
        if self._order[0] != turn:
            shuffle = np.random.default_rng((*self._seed, 0, turn))
            self._order = (turn, shuffle.permutation(len(self._blocks)))
        block = self._blocks[self._order[1][place]]
        ids, labels = self._masking(block, np.random.default_rng((*self._seed, 1, item)))
        return {"input_ids": torch.from_numpy(ids), "labels": torch.from_numpy(labels)}
