r"""The simplest reading of a matrix: for each row, the token whose own row is nearest to it.

Whoever has the front (it is public, or the provider made it) can ask it what any token looks like. So a
hidden matrix that leaves without noise is as good as the text itself at an early cut.

What a token looks like depends on the cut:

* where the front computes each row from its own token (`row_local`: embeddings, encoder.1.qkv), the front on
  that token at that very place, so the candidates are exact and a matrix without noise is read without error;
* at inner cuts, the front on the token alone between its special tokens. In a text its neighbours move the
  row, so this is an approximation, and a trained inversion reads more;
* at `output`, where one row crosses, the front on every whole word alone: the nearest words, not the text.

Why cosine. A bound multiplies a matrix X by one unknown number s, then comes the noise: Y = s X + Z. For
Gaussian noise on normalised matrices (all sX have norm C) the likelihood of X grows with ``<Y, X> / |X|``.
For PrivUnit it has two levels, and the higher one is where ``<Y, X> / |X|`` passes a threshold. So for both
the matrix of greatest cosine is a most likely one. `_jointly` climbs towards it: for given tokens the best s
is ``<Y, X> / |X|^2``, and for given s the best tokens are found row by row; no step lowers the cosine of the
whole. Where rows are bounded one by one, each has its own s, and the cosine is taken row by row.

The attacker is helped: it is told which rows hold text.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import torch
from torch import Tensor

from dp_forward.errors import InvalidInput
from dp_forward.privacy.checks import count
from dp_forward.split.artifacts import UserSide

__all__ = ["Guess", "NearestTokens", "Reading"]

Scale = Literal["known", "matrix", "row"]
"""What the attacker knows of the scale: all of it (no bound), one number per matrix, or one per row."""
Seen = tuple[Tensor, Scale]
Progress = Callable[[int, int], None]

_TOP: Final = 8
_BATCH: Final = 512
_ENTRIES_AT_ONCE: Final = 1 << 20
"""Few enough for the cache of a core."""
_STEPS: Final = 16


@dataclass(frozen=True, slots=True, repr=False)
class Guess:
    """One token that was read, and whether it is right."""

    word: str
    right: bool


@dataclass(frozen=True, slots=True, repr=False)
class Reading:
    """What was read from one matrix; ``recall`` is the share of the text's tokens that was found."""

    guesses: tuple[Guess, ...]
    recall: float


class NearestTokens:
    """Reads matrices of one front; candidates that need the whole front are computed once and kept.

    ``vocabulary`` limits the candidates to the first so many tokens of the vocabulary, which is sorted by
    frequency in most tokenizers.

    Guarantees:
        Where `exact` holds, every token among the candidates is found in a matrix without noise, unless two
        tokens have the same row.
    Edges:
        A token that is no candidate counts as not found. Special tokens are neither guessed nor counted. No
        repr holds what was read.
    """

    def __init__(self, user: UserSide, *, vocabulary: int | None = None) -> None:
        if vocabulary is not None:
            count("vocabulary", vocabulary, remedy="It is a number of tokens.")
        self._front, self._tokenizer = user.front, user.tokens.tokenizer
        self._pooled = user.front.cut.place == "output"
        self._ids = torch.tensor(self._candidates(vocabulary))
        self._pads_left = user.front.pads_left
        self._rows: Tensor | None = None
        self._turn = threading.Lock()
        self._done = 0
        user.front.train(False)

    def __repr__(self) -> str:
        return f"NearestTokens({len(self._ids)} tokens at {self._front.cut})"

    @property
    def exact(self) -> bool:
        """Whether a matrix without noise is read without error."""
        return bool(self._front.row_local)

    @property
    def pooled(self) -> bool:
        """Whether words near one vector are read, and not a token per row."""
        return self._pooled

    @property
    def size(self) -> int:
        """How many tokens are candidates."""
        return len(self._ids)

    @property
    def prepared(self) -> float:
        """The share of the candidates that is there, from 0 to 1."""
        return 1.0 if self.exact else self._done / len(self._ids)

    def prepare(self, progress: Progress | None = None) -> None:
        """Compute what every token looks like; nothing where rows are local, since places differ there."""
        with self._turn:
            if self.exact or self._rows is not None:
                return
            template, place = self._alone()
            found, self._done = [], 0
            for ids in torch.split(self._ids, _BATCH):
                inputs = template.repeat(len(ids), 1)
                inputs[:, place] = ids
                rows = self._run({"input_ids": inputs, "attention_mask": torch.ones_like(inputs)})
                found.append(rows[:, 0 if self._pooled else place])
                self._done += len(ids)
                if progress is not None:
                    progress(self._done, len(self._ids))
            self._rows = torch.cat(found)

    def _prepared_rows(self) -> Tensor:
        self.prepare()
        if self._rows is None:  # pragma: no cover - asked for where rows are not local
            raise AssertionError("prepared without rows")
        return self._rows

    def read(self, seen: Sequence[Seen], tokens: Mapping[str, Tensor]) -> list[Reading]:
        """What each matrix [rows, width] tells; ``tokens`` are the true ones, as the front read them.

        They say which rows hold text and which guesses are right, and nothing else.
        """
        places = self._text_rows(tokens)
        true = tokens["input_ids"][0, places]
        if self._pooled:
            return [self._near_words(matrix, true) for matrix, _ in seen]
        rows = torch.stack([matrix[places].float() for matrix, _ in seen])
        dots, squares = self._compared(rows, tokens, places)
        return [
            self._reading(_best(products, squares, scale if self.exact else "row"), true)
            for products, (_, scale) in zip(dots, seen, strict=True)
        ]

    def _reading(self, best: Tensor, true: Tensor) -> Reading:
        guessed = self._ids[best]
        right = guessed == true
        guesses = tuple(Guess(self._word(int(i)), bool(ok)) for i, ok in zip(guessed, right, strict=True))
        return Reading(guesses, float(right.double().mean()) if len(true) else 0.0)

    def _near_words(self, matrix: Tensor, true: Tensor) -> Reading:
        rows = torch.nn.functional.normalize(self._prepared_rows(), dim=1)
        nearest = (rows @ matrix[0].float()).topk(min(_TOP, len(rows))).indices
        wanted = set(true.tolist())
        found = [int(i) for i in self._ids[nearest]]
        recall = len(wanted.intersection(found)) / len(wanted) if wanted else 0.0
        return Reading(tuple(Guess(self._word(i), i in wanted) for i in found), recall)

    def _compared(self, rows: Tensor, tokens: Mapping[str, Tensor], places: Tensor) -> tuple[Tensor, Tensor]:
        """Products with every candidate [matrices, places, candidates], and the candidates' squares."""
        if not self.exact:
            known = self._prepared_rows()
            return rows @ known.T, known.square().sum(dim=1).expand(len(places), -1)
        dots, squares = [], []
        for found in self._at_their_places(tokens, places):
            dots.append(torch.einsum("kpw,mpw->mpk", found, rows))
            squares.append(found.square().sum(dim=2).T)
        return torch.cat(dots, dim=2), torch.cat(squares, dim=1)

    def _at_their_places(self, tokens: Mapping[str, Tensor], places: Tensor) -> Iterator[Tensor]:
        """What each candidate looks like at each place [candidates, places, width], some at a time.

        A row depends on its own token, so one run with the same token everywhere serves all places.
        """
        last = int(places.max()) + 1 if len(places) else 0
        # What follows the text on the right is PAD; on the left it moves positions, so it stays.
        inputs = {name: value if self._pads_left else value[:, :last] for name, value in tokens.items()}
        at_once = max(1, _ENTRIES_AT_ONCE // max(1, inputs["input_ids"].shape[1] * self._front.width))
        for ids in torch.split(self._ids, at_once):
            many = {name: value.repeat(len(ids), 1) for name, value in inputs.items()}
            many["input_ids"][:, places] = ids[:, None]
            yield self._run(many)[:, places]

    @torch.inference_mode()
    def _run(self, inputs: Mapping[str, Tensor]) -> Tensor:
        rows: Tensor = self._front(**inputs)
        return rows

    def _text_rows(self, tokens: Mapping[str, Tensor]) -> Tensor:
        ids = tokens["input_ids"][0]
        mask = tokens.get("attention_mask")
        text = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask[0] != 0
        frame = torch.tensor(sorted(self._frame()), dtype=ids.dtype)
        return torch.nonzero(text & ~torch.isin(ids, frame))[:, 0]

    def _frame(self) -> set[int]:
        """The special tokens that every text has."""
        names = ("pad", "cls", "sep", "bos", "eos")
        found = (getattr(self._tokenizer, f"{name}_token_id", None) for name in names)
        return {int(i) for i in found if i is not None}

    def _candidates(self, most: int | None) -> list[int]:
        special = set(self._tokenizer.all_special_ids)
        words = sorted(self._tokenizer.get_vocab().items(), key=lambda item: item[1])
        kept = [(word, i) for word, i in words if i not in special and not word.startswith("[unused")]
        if self._pooled:
            kept = _whole(kept)
        if not kept:
            raise InvalidInput("tokenizer", "have tokens to guess", "none", "Use another front.")
        return [i for _, i in kept[:most]]

    def _alone(self) -> tuple[Tensor, int]:
        """A token between its special tokens, and the place where it stands."""
        bare = self._tokenizer("")["input_ids"]
        for i in self._ids[: 1 << 10].tolist():
            ids = self._tokenizer(self._word(i))["input_ids"]
            if len(ids) == len(bare) + 1 and i in ids:
                return torch.tensor([ids]), ids.index(i)
        raise InvalidInput(
            "tokenizer", "read some word as one token", "none", "Use a front with a common tokenizer."
        )

    def _word(self, i: int) -> str:
        """A token for people: as it stands in a text, a piece inside a word with a hyphen before it."""
        token = self._tokenizer.convert_ids_to_tokens(i)
        if token.startswith("##"):
            return f"-{token[2:]}"
        return str(self._tokenizer.convert_tokens_to_string([token])).strip() or token


def _best(dots: Tensor, squares: Tensor, scale: Scale) -> Tensor:
    """The index of the best candidate for every row [rows]."""
    if scale == "known":
        return (2 * dots - squares).argmax(dim=1)
    alone = (dots / squares.clamp_min(1e-30).sqrt()).argmax(dim=1)
    return alone if scale == "row" else _jointly(dots, squares, alone)


def _jointly(dots: Tensor, squares: Tensor, best: Tensor) -> Tensor:
    """The rows together, under one unknown scale; see the module."""
    for _ in range(_STEPS):
        chosen = best[:, None]
        s = dots.gather(1, chosen).sum() / squares.gather(1, chosen).sum().clamp_min(1e-30)
        better = (2 * s * dots - s * s * squares).argmax(dim=1)
        if s <= 0 or torch.equal(better, best):
            break
        best = better
    return best


def _whole(words: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """Only tokens that are words by themselves."""
    starts = tuple(mark for mark in ("Ġ", "▁") if any(word.startswith(mark) for word, _ in words))
    kept = []
    for word, i in words:
        inner = word.startswith("##") or (bool(starts) and not word.startswith(starts))
        if not inner and word.lstrip("Ġ▁").isalpha() and len(word.lstrip("Ġ▁")) > 1:
            kept.append((word, i))
    return kept
