"""Fingerprints of texts: numbers by which a text, or one nearly like it, is recognised.

Column 0 stands for the whole text: its letters and digits, case folded. The others stand for runs of four
words, the least 16 of their hashes: a text of up to 19 words keeps all of its runs, so it is also recognised
inside a longer one.

Edges:
    They can confirm a guess at a text. They stay in memory; what is stored is keyed (`ledger.text_register`).
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from hashlib import blake2b
from itertools import islice
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dp_forward.data.records import Record
from dp_forward.data.sources import fold_words

__all__ = ["note_prints"]

_RUN: Final = 4
_RUNS_KEPT: Final = 16
PRINT_COLUMNS: Final = 1 + _RUNS_KEPT
# Odd, and otherwise of no meaning: the golden ratio, and the constants of MurmurHash3 and SplitMix64.
_FACTORS: Final = (0x9E3779B97F4A7C15, 0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53, 0xBF58476D1CE4E5B9)


def note_prints(records: Iterable[Record], prints: list[NDArray[np.uint64]]) -> Iterator[Record]:
    """The same records; their fingerprints are added to ``prints``."""
    source = iter(records)
    while some := list(islice(source, 1024)):
        prints.append(fingerprint_records(some))
        yield from some


def fingerprint_records(records: Iterable[Record]) -> NDArray[np.uint64]:
    """As `fingerprint_texts`; a pair is one text."""
    return fingerprint_texts([f"{record.text} {record.second or ''}" for record in records])


def fingerprint_texts(texts: Sequence[str]) -> NDArray[np.uint64]:
    """[texts, 17]: the whole text, then its least runs of words in order, and 0 where it has fewer."""
    word_hash, wholes, flat, lengths = cache(_hash), list[int](), list[int](), list[int]()
    for text in texts:
        words = fold_words(text)
        wholes.append(_hash("".join(words) or text.strip()))  # without letters, what else is there
        flat += map(word_hash, words)
        lengths.append(len(words))
    found = np.zeros((len(texts), PRINT_COLUMNS), dtype=np.uint64)
    found[:, 0] = wholes
    owners = np.repeat(np.arange(len(texts)), lengths)
    hashes = np.array(flat, dtype=np.uint64)
    last = len(hashes) - _RUN + 1
    if last < 1:
        return found
    within = owners[:last] == owners[_RUN - 1 :]
    runs = np.zeros(last, dtype=np.uint64)
    for step, factor in enumerate(_FACTORS):  # wraps around, as it should
        runs += hashes[step : step + last] * np.uint64(factor)
    runs ^= runs >> np.uint64(31)
    _put_least(found, owners[:last][within], runs[within] * np.uint64(_FACTORS[1]))
    return found


def _put_least(found: NDArray[np.uint64], owners: NDArray[np.int64], runs: NDArray[np.uint64]) -> None:
    """Put the least different runs of each text into its row."""
    order = np.lexsort((runs, owners))
    owners, runs = owners[order], runs[order]
    first = np.ones(len(runs), dtype=np.bool_)
    first[1:] = (owners[1:] != owners[:-1]) | (runs[1:] != runs[:-1])
    owners, runs = owners[first], runs[first]
    rank = np.arange(len(owners)) - np.searchsorted(owners, owners)
    kept = rank < _RUNS_KEPT
    found[owners[kept], 1 + rank[kept]] = runs[kept]


def _hash(text: str) -> int:
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")
