"""Texts to token ids of one fixed, public length.

The number of rows that cross is part of what a provider sees, so it must not tell one text from another:
every text becomes ``length`` rows, cut or padded. PAD rows are zeroed in the front, and the attention mask,
token types and true length never leave it.

A pair of texts goes into one such sequence; which row belongs to which text (token types) stays in the front.

Length buckets are a declared relaxation: a text gets the smallest of a few public lengths that holds it, the
bucket is then public, and the guarantee says so (`assumptions`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dp_forward.errors import InvalidInput
from dp_forward.privacy.checks import count

__all__ = ["FixedLength"]


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
    buckets: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "buckets", tuple(self.buckets))
        if getattr(self.tokenizer, "pad_token_id", None) is None:
            raise InvalidInput(
                "tokenizer", "have a PAD token", "none", "Set tokenizer.pad_token = tokenizer.eos_token."
            )
        for name, length in (("length", self.length), *(("buckets", bucket) for bucket in self.buckets)):
            count(name, length, remedy="Use the number of tokens of an ordinary text.")
            if self.most_positions is not None and length > self.most_positions:
                raise InvalidInput(
                    name, f"fit the model's {self.most_positions} positions", length, "Use a smaller length."
                )
            self._check_room(length, pair=False)
        if self.buckets and (
            list(self.buckets) != sorted(set(self.buckets)) or self.buckets[-1] != self.length
        ):
            raise InvalidInput(
                "buckets", f"rise to the length {self.length}", list(self.buckets), "End with the length."
            )

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What a guarantee must say besides: nothing, or that the bucket is public."""
        if not self.buckets:
            return ()
        lengths = ", ".join(map(str, self.buckets))
        return (f"given the length bucket of the text (one of {lengths} rows), which is public",)

    def settings(self) -> dict[str, Any]:
        """What `FixedLength(tokenizer, **settings)` needs to be made again; plain JSON."""
        return {
            "length": self.length,
            "causal": self.causal,
            "most_positions": self.most_positions,
            "buckets": list(self.buckets),
        }

    def encode(self, texts: Sequence[str], seconds: Sequence[str] | None = None) -> dict[str, Tensor]:
        """Token ids, attention mask and token types for the front, all texts (or pairs) at the full length.

        Guarantees:
            Every value has the shape [texts, length], whatever the texts.
        Edges:
            A pair that is too long loses tokens from the end of the longer text first ("longest_first").
            A tokenizer without a separator (GPT-2) puts the second text right after the first.
        """
        if seconds is None:
            return self._encode(list(texts), self.length)
        if len(seconds) != len(texts):
            raise InvalidInput("seconds", "be as many as the texts", len(seconds), f"There are {len(texts)}.")
        self._check_room(self.length, pair=True)
        return self._encode(list(texts), self.length, list(seconds))

    def encode_bucketed(self, text: str) -> dict[str, Tensor]:
        """One text at the smallest bucket that holds it."""
        if not self.buckets:
            raise InvalidInput("buckets", "be declared", "none", "Use encode() for one fixed length.")
        tokens = len(self.tokenizer(text, truncation=True, max_length=self.length)["input_ids"])
        bucket = next(bucket for bucket in self.buckets if tokens <= bucket)
        return self._encode([text], bucket)

    def _check_room(self, length: int, *, pair: bool) -> None:
        # A tokenizer that cannot fit its own special tokens does not truncate at all: the length would tell.
        count_special = getattr(self.tokenizer, "num_special_tokens_to_add", None)
        special = 0 if count_special is None else count_special(pair=pair)
        if length < special:
            raise InvalidInput(
                "length", f"hold the tokenizer's {special} special tokens", length, "Use a greater length."
            )

    def _encode(self, texts: list[str], length: int, seconds: list[str] | None = None) -> dict[str, Tensor]:
        encoded = self.tokenizer(
            texts,
            seconds,
            truncation="longest_first",
            max_length=length,
            padding="max_length",
            padding_side="left" if self.causal else "right",
        )
        tensors = {name: torch.tensor(values) for name, values in encoded.items()}
        if any(tensor.shape != (len(texts), length) for tensor in tensors.values()):
            # The promise of this module; a tokenizer that breaks it must not get as far as a release.
            raise InvalidInput(
                "tokenizer", f"give {length} rows for every text", "others", "Use another one."
            )
        return tensors
