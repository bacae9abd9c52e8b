"""A tiny front at any cut, tiny texts, and what public text tells of them."""

from __future__ import annotations

from functools import lru_cache

import transformers

import tiny_models
import tiny_task
from dp_forward.attacks.inversion.recall import Inversion, TokenPrior
from dp_forward.data import FixedLength
from dp_forward.data.encoded_texts import EncodedTexts
from dp_forward.data.records import Record
from dp_forward.privacy import Mechanism, NoiseSpec
from dp_forward.progress import Count
from dp_forward.split import split_model
from dp_forward.split.halves import Front, NarrowFront

ROWS, VOCABULARY, SPECIAL = 12, len(tiny_task.WORDS), range(5)
TOKENIZER = transformers.BertTokenizerFast(vocab={word: i for i, word in enumerate(tiny_task.WORDS)})


def texts(count: int, *, seed: int, rows: int = ROWS) -> EncodedTexts:
    """Sentences of four to eight words."""
    records = [Record(text, label=label) for text, label in tiny_task.sentences(count, seed=seed)]
    return EncodedTexts.from_records(records, FixedLength(TOKENIZER, rows))


PUBLIC, SECRET = texts(400, seed=1), texts(40, seed=2)
PRIOR = TokenPrior.learn(PUBLIC, special=SPECIAL, vocabulary=VOCABULARY)


@lru_cache
def front(cut: str, *, family: str = "bert", width: int | None = None) -> Front | NarrowFront:
    """A random front."""
    model = tiny_models.tiny(family, blocks=2, vocab_size=VOCABULARY, pad_token_id=0)
    return split_model(model, cut, width=width).front


def target(
    attacked: Front | NarrowFront,
    mechanism: Mechanism | None,
    secret: EncodedTexts = SECRET,
    *,
    releases: int = 1,
    progress: Count | None = None,
) -> Inversion:
    """The tiny texts, under attack."""
    return Inversion(attacked, mechanism, secret, PRIOR, releases, progress=progress)


@lru_cache
def noise(epsilon: float, mechanism: str = "privunit", *, unit: str = "text") -> Mechanism:
    """A mechanism for the tiny texts."""
    rows = None if unit == "text" else ROWS
    return NoiseSpec(mechanism=mechanism, epsilon=epsilon, unit=unit, rows=rows).build()
