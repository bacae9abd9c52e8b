"""Texts, and pairs of texts, to token ids of one fixed, public length.

The number of rows that cross is part of what a provider sees, so it must not tell one text from another:
every text becomes ``length`` rows, cut or padded. PAD rows are zeroed in the front, and the attention mask,
token types and true length never leave it.

A decoder may be given a *prompt*: a public template around every text, such as
``{text} All in all, the movie was``. A text that is too long is cut; the template never is.

`FastTokenizer` reads a ``tokenizer.json`` without transformers. It gives the same ids, so a text has the same
key in a ledger whichever of them read it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from dp_forward.errors import InvalidInput, refuse_if
from dp_forward.privacy.checks import count

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["FastTokenizer", "check_prompt", "check_vocabulary", "tokenizer_facts", "tokens_for"]

_PLACE: Final = "{text}"


def check_prompt(prompt: str) -> None:
    """Refuse a template that does not say once where the text goes."""
    if prompt.count(_PLACE) != 1 or not prompt.replace(_PLACE, "").strip():
        remedy = 'For example "{text} All in all, the movie was".'
        raise InvalidInput("prompt", "hold {text} once, and words", repr(prompt[:80]), remedy)


@dataclass(frozen=True, slots=True, eq=False)
class FixedLength:
    """A tokenizer held to a fixed ``length``; ``causal`` models pad on the left: the last row is text.

    More than ``most_positions`` are refused. A front knows what it needs: `tokens_for`.
    """

    tokenizer: Any
    length: int
    causal: bool = False
    most_positions: int | None = None
    prompt: str | None = None
    """A public template around every text, for causal models."""

    def __post_init__(self) -> None:
        rule, remedy = "have a PAD token", "Set tokenizer.pad_token = tokenizer.eos_token."
        refuse_if(getattr(self.tokenizer, "pad_token_id", None) is None, "tokenizer", rule, "none", remedy)
        count("rows", self.length, remedy="Use the number of tokens of an ordinary text.")
        if self.most_positions is not None and self.length > self.most_positions:
            rule = f"fit the model's {self.most_positions} positions"
            raise InvalidInput("rows", rule, self.length, "Use fewer tokens of a text.")
        self._check_room(pair=False)
        if self.prompt is not None:
            check_prompt(self.prompt)
            remedy = "Only the last row of a decoder has read the whole of it."
            refuse_if(not self.causal, "prompt", "go with a decoder", "an encoder", remedy)
            taken = sum(map(len, self._template()[:2]))
            rule = f"hold the {taken} tokens of the prompt and one of a text"
            refuse_if(self.length <= taken, "rows", rule, self.length, "Use more tokens of a text.")

    def encode(self, texts: Sequence[str], seconds: Sequence[str] | None = None) -> dict[str, Tensor]:
        """Token ids, attention mask and token types for the front, all texts (or pairs) at the full length.

        Guarantees:
            Every value has the shape [texts, length], whatever the texts.
        Edges:
            A pair that is too long loses tokens from the end of the longer text first ("longest_first").
            A tokenizer without a separator (GPT-2) puts the second text right after the first.
        """
        import torch

        return {name: torch.from_numpy(ids) for name, ids in self.encode_arrays(texts, seconds)[0].items()}

    def encode_arrays(
        self, texts: Sequence[str], seconds: Sequence[str] | None = None
    ) -> tuple[dict[str, NDArray[np.int64]], int]:
        """As `encode`, without torch; and how many of the texts were too long and are cut.

        Edges:
            A tokenizer without the fast library does not say it: those that fill every row are counted.
        """
        if seconds is not None:
            rule = "be as many as the texts"
            refuse_if(len(seconds) != len(texts), "seconds", rule, len(seconds), f"There are {len(texts)}.")
            self._check_room(pair=True)
        if self.prompt is not None:
            refuse_if(seconds is not None, "prompt", "go with single texts", "pairs", "Leave the prompt out.")
            return self._encode_into_prompt(texts)
        encoded = self.tokenizer(
            list(texts),
            None if seconds is None else list(seconds),
            truncation="longest_first",
            max_length=self.length,
            padding="max_length",
            padding_side="left" if self.causal else "right",
        )
        arrays = {name: np.asarray(values, dtype=np.int64) for name, values in encoded.items()}
        if any(array.shape != (len(texts), self.length) for array in arrays.values()):
            # The promise of this module; a tokenizer that breaks it must not get as far as a release.
            rule = f"give {self.length} rows for every text"
            raise InvalidInput("tokenizer", rule, "others", "Use another one.")
        parts = getattr(encoded, "encodings", None)
        full = int((arrays["attention_mask"].sum(axis=1) == self.length).sum())
        return arrays, full if parts is None else sum(bool(part.overflowing) for part in parts)

    def _template(self) -> tuple[list[int], list[int], str]:
        """The tokens before and after a text, and the blanks that the first word of a text begins with."""
        assert self.prompt is not None
        before, after = self.prompt.split(_PLACE)
        # A tokenizer joins a blank to the word after it, so one before {text} belongs to the text.
        lead = before[len(before.rstrip()) :]
        first: list[int] = self.tokenizer([before.rstrip()])["input_ids"][0]  # with a decoder's BOS
        plain, last = self.tokenizer([before.rstrip(), after], add_special_tokens=False)["input_ids"]
        rule = "go with a tokenizer that ends no text itself"
        refuse_if(first[len(first) - len(plain) :] != plain, "prompt", rule, "one", "Leave the prompt out.")
        return first, last, lead

    def _encode_into_prompt(self, texts: Sequence[str]) -> tuple[dict[str, NDArray[np.int64]], int]:
        """As `encode_arrays`: BOS, template, what there is room for of the text, template; padded before."""
        first, last, lead = self._template()
        room = self.length - len(first) - len(last)
        found = self.tokenizer([lead + text for text in texts], add_special_tokens=False)["input_ids"]
        ids = np.full((len(texts), self.length), self.tokenizer.pad_token_id, dtype=np.int64)
        mask = np.zeros_like(ids)
        for row, text in enumerate(found):
            whole = [*first, *text[:room], *last]
            ids[row, self.length - len(whole) :] = whole
            mask[row, self.length - len(whole) :] = 1
        return {"input_ids": ids, "attention_mask": mask}, sum(len(text) > room for text in found)

    def _check_room(self, *, pair: bool) -> None:
        # A tokenizer that cannot fit its own special tokens does not truncate at all: the length would tell.
        count_special = getattr(self.tokenizer, "num_special_tokens_to_add", None)
        special = 0 if count_special is None else count_special(pair=pair)
        rule = f"hold the tokenizer's {special} special tokens"
        refuse_if(self.length < special, "rows", rule, self.length, "Use more tokens of a text.")


def tokens_for(front: Any, tokenizer: Any, rows: int) -> FixedLength:
    """A ``tokenizer`` held to ``rows`` tokens as a ``front`` needs it: its side of padding, its prompt."""
    return FixedLength(
        tokenizer, rows, causal=front.pads_left, most_positions=front.max_rows, prompt=front.prompt
    )


def check_vocabulary(tokenizer: Any, table: int | None) -> None:
    """Refuse a tokenizer that cannot be the model's: its vocabulary fills less than half of the ``table``.

    A folder without the files of its tokenizer gives one that knows special tokens only.
    """
    known = len(tokenizer)
    if table is not None and known < table / 2:
        rule = f"know the words of the model's table of {table}"
        raise InvalidInput("tokenizer", rule, known, "Put the model's own tokenizer into its folder.")


class _Encoded(dict[str, list[list[int]]]):
    """Lists of numbers by name, and the library's own account of each text."""

    encodings: list[Any]


class FastTokenizer:
    """A ``tokenizer.json``, read by the tokenizers library alone: what `FixedLength` calls of a tokenizer.

    ``facts`` is what `tokenizer_facts` says of the tokenizer that wrote the file.
    """

    def __init__(self, file: Path, facts: Mapping[str, Any]) -> None:
        from tokenizers import Tokenizer

        self._backend = Tokenizer.from_file(str(file))
        self._backend.encode_special_tokens = facts["split_special_tokens"]
        self._names, self._side, self._padding = facts["names"], facts["truncation_side"], facts["padding"]
        self.pad_token_id: int | None = self._padding["pad_id"]

    def num_special_tokens_to_add(self, pair: bool = False) -> int:
        """How many rows of a text, or of a pair, are not its own."""
        return int(self._backend.num_special_tokens_to_add(pair))

    def __call__(
        self,
        texts: Sequence[str],
        seconds: Sequence[str] | None = None,
        *,
        truncation: bool | str = False,
        max_length: int = 0,
        padding: bool | str = False,
        padding_side: str = "right",
        add_special_tokens: bool = True,
    ) -> _Encoded:
        """As a tokenizer of transformers; truncation is ``longest_first``, padding goes to ``max_length``."""
        self._backend.no_truncation()
        self._backend.no_padding()
        if truncation:
            self._backend.enable_truncation(max_length, strategy="longest_first", direction=self._side)
        if padding:
            self._backend.enable_padding(length=max_length, direction=padding_side, **self._padding)
        parts = list(texts) if seconds is None else list(zip(texts, seconds, strict=True))
        found = self._backend.encode_batch(parts, add_special_tokens=add_special_tokens)
        columns = {"input_ids": "ids", "token_type_ids": "type_ids", "attention_mask": "attention_mask"}
        made = _Encoded({name: [getattr(one, columns[name]) for one in found] for name in self._names})
        made.encodings = found
        return made


def tokenizer_facts(tokenizer: Any) -> dict[str, Any]:
    """What a `FastTokenizer` must know of a tokenizer of transformers besides its ``tokenizer.json``."""
    wanted = ("input_ids", "token_type_ids", "attention_mask")
    return {
        "names": [name for name in wanted if name in ("input_ids", *tokenizer.model_input_names)],
        "padding": {
            "pad_id": tokenizer.pad_token_id,
            "pad_token": tokenizer.pad_token,
            "pad_type_id": tokenizer.pad_token_type_id,
        },
        "split_special_tokens": bool(tokenizer.split_special_tokens),
        "truncation_side": tokenizer.truncation_side,
    }
