"""Texts to token ids of one fixed, public length.

The number of rows that cross is part of what a provider sees, so it must not tell one text from another:
every text becomes ``length`` rows, cut or padded. PAD rows are zeroed in the front, and the attention mask,
token types and true length never leave it.

A pair of texts goes into one such sequence; which row belongs to which text (token types) stays in the front.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dp_forward.errors import InvalidInput
from dp_forward.privacy.checks import count

__all__ = ["check_vocabulary"]


@dataclass(frozen=True, slots=True, eq=False)
class FixedLength:
    """A tokenizer held to a fixed length; causal models pad on the left, so that the last row is text.

    A front knows what it needs: ``FixedLength(tokenizer, n, causal=front.pads_left,
    most_positions=front.max_rows)``.
    """

    tokenizer: Any
    length: int
    causal: bool = False
    most_positions: int | None = None

    def __post_init__(self) -> None:
        if getattr(self.tokenizer, "pad_token_id", None) is None:
            raise InvalidInput(
                "tokenizer", "have a PAD token", "none", "Set tokenizer.pad_token = tokenizer.eos_token."
            )
        count("length", self.length, remedy="Use the number of tokens of an ordinary text.")
        if self.most_positions is not None and self.length > self.most_positions:
            rule = f"fit the model's {self.most_positions} positions"
            raise InvalidInput("length", rule, self.length, "Use a smaller length.")
        self._check_room(pair=False)

    def encode(self, texts: Sequence[str], seconds: Sequence[str] | None = None) -> dict[str, Tensor]:
        """Token ids, attention mask and token types for the front, all texts (or pairs) at the full length.

        Guarantees:
            Every value has the shape [texts, length], whatever the texts.
        Edges:
            A pair that is too long loses tokens from the end of the longer text first ("longest_first").
            A tokenizer without a separator (GPT-2) puts the second text right after the first.
        """
        return self.encode_and_count(texts, seconds)[0]

    def encode_and_count(
        self, texts: Sequence[str], seconds: Sequence[str] | None = None
    ) -> tuple[dict[str, Tensor], int]:
        """As `encode`, and how many of the texts were too long and are cut.

        Edges:
            A tokenizer without the fast library does not say it: those that fill every row are counted.
        """
        if seconds is not None:
            if len(seconds) != len(texts):
                rule = "be as many as the texts"
                raise InvalidInput("seconds", rule, len(seconds), f"There are {len(texts)}.")
            self._check_room(pair=True)
        encoded = self.tokenizer(
            list(texts),
            None if seconds is None else list(seconds),
            truncation="longest_first",
            max_length=self.length,
            padding="max_length",
            padding_side="left" if self.causal else "right",
        )
        tensors = {name: torch.tensor(values) for name, values in encoded.items()}
        if any(tensor.shape != (len(texts), self.length) for tensor in tensors.values()):
            # The promise of this module; a tokenizer that breaks it must not get as far as a release.
            rule = f"give {self.length} rows for every text"
            raise InvalidInput("tokenizer", rule, "others", "Use another one.")
        parts = getattr(encoded, "encodings", None)
        full = int((tensors["attention_mask"].sum(dim=1) == self.length).sum())
        return tensors, full if parts is None else sum(bool(part.overflowing) for part in parts)

    def _check_room(self, *, pair: bool) -> None:
        # A tokenizer that cannot fit its own special tokens does not truncate at all: the length would tell.
        count_special = getattr(self.tokenizer, "num_special_tokens_to_add", None)
        special = 0 if count_special is None else count_special(pair=pair)
        if self.length < special:
            rule = f"hold the tokenizer's {special} special tokens"
            raise InvalidInput("length", rule, self.length, "Use a greater length.")


def check_vocabulary(tokenizer: Any, table: int | None) -> None:
    """Refuse a tokenizer that cannot be the model's: its vocabulary fills less than half of the ``table``.

    A folder without the files of its tokenizer gives one that knows special tokens only.
    """
    known = len(tokenizer)
    if table is not None and known < table / 2:
        rule = f"know the words of the model's table of {table}"
        raise InvalidInput("tokenizer", rule, known, "Put the model's own tokenizer into its folder.")
