"""Rivals that release text: SanText, CusText and DP-MLM, written from their published methods.

Each replaces a text word by word. The law is the same in all three, the exponential mechanism::

    P(y | x) proportional to exp(epsilon / 2 * score(x, y)),    scores in an interval of length 1

so that each word is epsilon-LDP among the inputs that share their candidates. They differ in who the
candidates are and what a score is:

* `WordReplacement` ("Differential Privacy for Text Analytics via Natural Text Sanitization", Yue et al.,
  Findings of ACL 2021; SanText): every word of a vocabulary; minus the distance of the word vectors. The
  paper's parameter is per unit of distance (metric LDP). Here distances are divided by the largest one, so
  ``epsilon`` is pure, between any two words; the paper's parameter is ``epsilon / largest``.
* `CustomSets` ("A Customized Text Sanitization Mechanism with Differential Privacy", Chen et al., Findings of
  ACL 2023; CusText): the K words of the set that holds the word; the sets part the vocabulary. The output
  says which set it was: between words of different sets there is no finite epsilon.
* `MaskedRewriting` ("DP-MLM: Differentially Private Text Rewriting Using Masked Language Models",
  Meisenbacher et al., Findings of ACL 2024): every word that is one token; the clipped logit of a masked
  model that reads the text beside itself with the word masked.

A text of n words costs n times the epsilon of a word, by composition. The number of words is not hidden.
Draws are numpy's: for experiments, never to protect a text.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]

SET_SIZE = 20
"""CusText's published K."""
CLIP_DEVIATIONS = 4
_CONTRACTION = re.compile(r"(?<=\w)(?=(?:n't|'(?:s|re|ve|ll|d|m))\b)")
_WORD = re.compile(r"n't|'\w+|\w+(?:-\w+)*")
_AT_ONCE = 512


class Choices(NamedTuple):
    """What each word of a text may become, and how well it fits."""

    candidates: NDArray[np.str_]  # [k], or [words, k] where each word has its own
    scores: Floats  # [words, k]


class Sanitizer(Protocol):
    """A mechanism that replaces words."""

    def choices(self, words: Sequence[str]) -> Choices:
        """Candidates and scores for the words of one text."""


def split_words(text: str) -> list[str]:
    """Words in lower case, as the Penn Treebank cuts them; punctuation is dropped, so it costs nothing."""
    return _WORD.findall(_CONTRACTION.sub(" ", text.lower()))


def exponential_law(scores: Floats, epsilon: float) -> Floats:
    """The exponential mechanism's probabilities, row by row; infinity means the best candidate.

    Guarantees:
        If scores lie in an interval of length 1, two rows differ by a factor of e^epsilon at most.
    """
    if np.isinf(epsilon):
        return np.asarray(scores == scores.max(axis=1, keepdims=True), dtype=np.float64)
    weights = np.exp(epsilon / 2 * (scores - scores.max(axis=1, keepdims=True)))
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def draw_text(choices: Choices, total: float, rng: np.random.Generator) -> str:
    """One sanitized text: ``total`` is split evenly over its words."""
    number = len(choices.scores)
    if not number:
        return ""
    heights = np.cumsum(exponential_law(choices.scores, total / number), axis=1, dtype=np.float64)
    places = (heights < rng.random((number, 1)) * heights[:, -1:]).sum(axis=1)
    if choices.candidates.ndim == 1:
        return " ".join(choices.candidates[places])
    return " ".join(choices.candidates[np.arange(number), places])


def sanitize(
    sanitizer: Sanitizer, texts: Iterable[str], totals: Sequence[float], generators: Sequence[Any]
) -> Iterator[list[list[str]]]:
    """For each text: a sanitized one for each generator and total. Scores are computed once."""
    for text in texts:
        found = sanitizer.choices(split_words(text))
        yield [[draw_text(found, total, rng) for total in totals] for rng in generators]


def ceiling(words: NDArray[np.int64], total: float) -> Floats:
    """The most that any classifier can be right about rewritten texts, by their numbers of words.

    Whatever the scores are, in an interval of length 1 and over the same candidates: the log ratio of two
    laws of a word lies in an interval of length ``epsilon``, so their divergence is epsilon^2 / 8 at most
    (Hoeffding's lemma; "Optimal Differential Privacy Composition for Exponential Mechanisms", ICML 2020).
    The words are drawn independently, so divergences add up to total^2 / (8 n), and Pinsker's or Bretagnolle
    and Huber's inequality bounds the total variation.

    Edges:
        For two labels that are equally frequent at every length. Not for `CustomSets`, whose candidates
        differ from word to word.
    """
    divergence = total**2 / (8 * words)
    variation = np.minimum(np.sqrt(divergence / 2), np.sqrt(-np.expm1(-divergence)))
    return np.asarray((1 + np.minimum(variation, np.tanh(total / 2))) / 2)


class Vocabulary:
    """Public words with vectors, the most frequent first.

    A word that is not among them counts as the nearest one that is; so the inputs of a mechanism are the
    words of the vocabulary, whatever a text holds.
    """

    def __init__(self, words: Sequence[str], vectors_of: Callable[[Sequence[str]], Floats]) -> None:
        self.words = np.array(words)
        self.vectors = np.asarray(vectors_of(words), dtype=np.float32)
        self.lengths = (self.vectors**2).sum(axis=1)
        self._vectors_of = vectors_of
        self._places = {word: place for place, word in enumerate(words)}
        self.unknown = 0

    @classmethod
    def of_texts(
        cls, texts: Iterable[str], size: int, vectors_of: Callable[[Sequence[str]], Floats]
    ) -> Vocabulary:
        """The most frequent words of public texts: ``size`` of them, or the multiple of K below."""
        counted: Counter[str] = Counter()
        for text in texts:
            counted.update(split_words(text))
        kept = min(size, len(counted)) // SET_SIZE * SET_SIZE
        return cls([word for word, _ in counted.most_common(kept)], vectors_of)

    def distances(self, vectors: Floats) -> Floats:
        """Euclidean distances [rows, words]."""
        squares = (vectors**2).sum(axis=1)[:, None] + self.lengths - 2 * vectors @ self.vectors.T
        return np.asarray(np.sqrt(np.maximum(squares, 0)))

    def learn(self, words: Iterable[str]) -> None:
        """Place words that are not in the vocabulary at their nearest neighbours, many at a time."""
        new = sorted(set(words) - self._places.keys())
        self.unknown += len(new)
        for start in range(0, len(new), _AT_ONCE):
            some = new[start : start + _AT_ONCE]
            nearest = self.distances(np.asarray(self._vectors_of(some), np.float32)).argmin(axis=1)
            self._places |= dict(zip(some, nearest.tolist(), strict=True))

    def places(self, words: Sequence[str]) -> NDArray[np.int64]:
        """Where the words stand."""
        self.learn(words)
        return np.array([self._places[word] for word in words], dtype=np.int64)

    def rows(self) -> Iterator[Floats]:
        """The whole matrix of distances, some hundred rows at a time; a word is at 0 from itself."""
        for start in range(0, len(self.words), _AT_ONCE):
            found = self.distances(self.vectors[start : start + _AT_ONCE])
            found[np.arange(len(found)), np.arange(start, start + len(found))] = 0
            yield found


class WordReplacement:
    """SanText: any word may become any other one, the nearer the likelier."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self.largest = max(float(rows.max()) for rows in vocabulary.rows())

    def choices(self, words: Sequence[str]) -> Choices:
        """The whole vocabulary, by distance in units of the largest."""
        places = self.vocabulary.places(words)
        distances = self.vocabulary.distances(self.vocabulary.vectors[places])
        distances[np.arange(len(places)), places] = 0
        return Choices(self.vocabulary.words, -distances / self.largest)

    def exact_epsilons(self, epsilons: Sequence[float]) -> list[float]:
        """What the law is worth between the two worst words of this vocabulary, for each ``epsilon``.

        The proof bounds both factors of a ratio of probabilities, e^(epsilon / 2) each, and need not be
        tight: this is the largest ratio itself.
        """
        size = len(self.vocabulary.words)
        most, least = np.full((len(epsilons), size), -np.inf), np.full((len(epsilons), size), np.inf)
        for rows in self.vocabulary.rows():
            for number, epsilon in enumerate(epsilons):
                logs = -epsilon / 2 / self.largest * rows
                logs -= np.log(np.exp(logs).sum(axis=1, keepdims=True))
                np.maximum(most[number], logs.max(axis=0), out=most[number])
                np.minimum(least[number], logs.min(axis=0), out=least[number])
        return [float(found) for found in (most - least).max(axis=1)]


class CustomSets:
    """CusText: a word may become one of the K words of its set.

    The sets are made as published: the most frequent word that has none takes the K - 1 nearest words that
    have none either.
    """

    def __init__(self, vocabulary: Vocabulary, size: int = SET_SIZE) -> None:
        self.vocabulary = vocabulary
        self.sets = np.zeros((len(vocabulary.words) // size, size), dtype=np.int64)
        self.set_of = np.full(len(vocabulary.words), -1)
        for number in range(len(self.sets)):
            free = np.flatnonzero(self.set_of < 0)
            distances = vocabulary.distances(vocabulary.vectors[free[:1]])[0, free]
            distances[0] = -1  # the word itself, whatever rounding says
            self.sets[number] = free[np.argsort(distances, kind="stable")[:size]]
            self.set_of[self.sets[number]] = number

    def choices(self, words: Sequence[str]) -> Choices:
        """The set of each word, by distance from 0 (the nearest of the set) to 1 (the farthest)."""
        places = self.vocabulary.places(words)
        sets = self.sets[self.set_of[places]]
        vectors = self.vocabulary.vectors
        distances = np.linalg.norm(vectors[sets] - vectors[places][:, None], axis=2)
        distances -= distances.min(axis=1, keepdims=True)
        distances /= distances.max(axis=1, keepdims=True)
        return Choices(self.vocabulary.words[sets], -distances)


class MaskedRewriting:
    """DP-MLM: a word becomes what a masked model would put in its place, seeing the text beside it.

    Args:
        model: a Hugging Face masked LM.
        tokenizer: its tokenizer, with a [MASK] token.
        clip: the least and the largest logit, fixed before any private text is read (`clip_from`).
    """

    def __init__(self, model: Any, tokenizer: Any, clip: tuple[float, float] | None = None) -> None:
        self.model, self.tokenizer, self.clip = model.eval(), tokenizer, clip
        words = {place: word for word, place in tokenizer.get_vocab().items()}
        self._whole = [place for place in sorted(words) if _WORD.fullmatch(words[place])]
        self._candidates = np.array([words[place] for place in self._whole])

    def clip_from(self, texts: Iterable[str]) -> tuple[float, float]:
        """Set the clip to the mean of the logits on public texts, and four deviations above it."""
        found = np.concatenate([self.logits(split_words(text)).ravel() for text in texts])
        self.clip = float(found.mean()), float(found.mean() + CLIP_DEVIATIONS * found.std())
        return self.clip

    def logits(self, words: Sequence[str]) -> Floats:
        """Logits [words, candidates]: each word masked in turn, beside the whole text."""
        mask, text = self.tokenizer.mask_token, " ".join(words)
        masked = [" ".join([*words[:place], mask, *words[place + 1 :]]) for place in range(len(words))]
        if not masked:
            return np.zeros((0, len(self._candidates)))
        inputs = self.tokenizer([text] * len(masked), masked, padding=True, return_tensors="pt")
        with torch.no_grad():
            hidden = self.model.base_model(**inputs)[0]
            wanted = hidden[inputs["input_ids"] == self.tokenizer.mask_token_id]
            return np.asarray(self.model.cls(wanted)[:, self._whole].numpy())

    def choices(self, words: Sequence[str]) -> Choices:
        """All words of one token, by clipped logit in units of the clip's width."""
        assert self.clip is not None, "set the clip first"
        low, high = self.clip
        return Choices(self._candidates, np.clip(self.logits(words), low, high) / (high - low))
