"""Long public reviews into pieces of sentence length, for a public front that will meet sentences.

`pieces` cuts reviews at the ends of sentences and gives every piece the label of its review.

For public text only: one review becomes many pieces, so a release per piece would protect a piece, and not
the review that they all come from.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import pairwise

from dp_forward.data.records import Record
from dp_forward.errors import InvalidInput
from dp_forward.privacy.checks import count

__all__ = ["pieces"]

_END_OF_SENTENCE = re.compile(r"""([.!?]["')\]]*)\s+""")
_NEW_LINE = re.compile(r"<br\s*/?>|[\r\n]+", re.IGNORECASE)
"""IMDb writes a new line as <br />."""


_NOT = re.compile(r"n't\b", re.IGNORECASE)


def pieces(
    records: Iterable[Record], *, most_words: int = 32, least_words: int = 3, treebank: bool = False
) -> Iterator[Record]:
    """Cut every record into sentence-like pieces that inherit its label; lazy.

    ``treebank`` writes "does n't" for "doesn't", for a front that will meet texts written so: a tokenizer
    makes other tokens of the two, and negations decide a sentiment.

    Guarantees:
        Every piece has ``least_words`` to ``most_words`` words of one record, in their order.
    Edges:
        A longer sentence is cut into runs of nearly equal length; a shorter one is left out. A record of
        which nothing remains gives no piece. A pair is refused: its halves mean nothing alone.
    """
    least = count("least_words", least_words, remedy="Use 3.")
    most = count("most_words", most_words, remedy="Use the words of an ordinary sentence, such as 32.")
    if 2 * least > most + 1:
        # Otherwise a sentence of most + 1 words could not be cut into two pieces that are long enough.
        raise InvalidInput("least_words", f"be at most half of most_words = {most}", least, "Use 3.")
    cut = _pieces(records, most=most, least=least)
    return map(_as_in_the_treebank, cut) if treebank else cut


def _as_in_the_treebank(piece: Record) -> Record:
    return piece._replace(text=_NOT.sub(" n't", piece.text))


def _pieces(records: Iterable[Record], *, most: int, least: int) -> Iterator[Record]:
    for record in records:
        if record.second is not None:
            raise InvalidInput(
                "records", "hold single texts", "a pair", "Pieces of a pair mean nothing alone."
            )
        for sentence in _NEW_LINE.split(_END_OF_SENTENCE.sub(r"\1\n", record.text)):
            words = sentence.split()
            if len(words) >= least:
                yield from (Record(" ".join(run), None, record.label) for run in _runs(words, most=most))


def _runs(words: list[str], *, most: int) -> Iterator[list[str]]:
    """Runs of at most ``most`` words whose lengths differ by one at most."""
    number = -(-len(words) // most)
    ends = [len(words) * i // number for i in range(number + 1)]
    return (words[start:end] for start, end in pairwise(ends))
