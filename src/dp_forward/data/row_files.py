"""Local data files: which file holds a split, and its rows as a stream.

Formats: TSV, CSV, JSON lines, a JSON array of objects (.json) and Parquet, all but the last also gzipped. TSV
is read as GLUE writes it: a tab ends a field and a quote is a letter. CSV is quoted.

The split of a file is told by a word in its name (train / validation, dev / test). Nothing is guessed: a file
whose name says another split is refused, and one whose name says none must tell its rows apart
(`Task.row_split`), or it counts as `train`.

Guarantees:
    A file is streamed, but for a JSON array: memory does not grow with the number of rows.
    An error names the file and the line or row, never what stands there.
Edges:
    The first line of TSV and CSV names the columns; without a header they are called 1, 2 and so on. Blank
    lines are passed over. A line of more than 16 MiB (not in a JSON array), or a CSV field past the limit of
    Python's csv module, is refused.
"""

import codecs
import csv
import gzip
import io
import itertools
import json
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from dp_forward.data.tasks import SPLITS
from dp_forward.errors import InvalidInput, refuse_if

__all__ = ["Row", "find_split_files", "read_rows"]

_LONGEST_LINE = 1 << 24
_SHARD = re.compile(r"(?P<stem>.*)-[0-9]{5}-of-(?P<count>[0-9]{5})(?P<rest>\..*)")


class Row(NamedTuple):
    """The fields of one row, and where the row stands, for errors: ``train.tsv, line 17``."""

    place: str
    fields: Mapping[str, object]

    def __repr__(self) -> str:
        return f"Row({self.place}, {len(self.fields)} fields)"

    def wrong(self, rule: str, got: str, remedy: str, *, name: str = "data") -> InvalidInput:
        """The refusal of what stands in it."""
        return InvalidInput(name, rule, f"{got} at {self.place}", remedy)


def suffix_of(path: Path) -> str:
    """The ending that tells the format, without the .gz."""
    return Path(path.name.lower().removesuffix(".gz")).suffix


def is_data_file(path: Path) -> bool:
    suffix = suffix_of(path)
    return suffix in _READERS and not (suffix == ".parquet" and path.name.lower().endswith(".gz"))


def find_split_files(source: Path, split: str) -> tuple[list[Path], bool]:
    """The files of a split in a folder, or the one named; and whether all of their rows belong to it.

    Where no file of a folder says a split, all of them are taken, in the order of their names.
    """
    source = existing_path(source)
    if not source.is_dir():
        says = _split_in_name(source)
        rule, remedy = f"hold the split {split}", "Name a folder with one file for each split."
        refuse_if(says not in (None, split), "data", rule, f"{source.name}, whose name says {says}", remedy)
        return [source], says is not None
    there = sorted(path for path in source.iterdir() if path.is_file() and is_data_file(path))
    named = [path for path in there if _split_in_name(path) == split]
    if named:
        # NAME-00000-of-00003.parquet must come with all of its sisters: a part would pass for the whole.
        if [path.name for path in named] != _sisters(named[0].name):
            rule = f"hold all of its shards, or one file of the split {split}"
            raise InvalidInput("data", rule, _list_names(named), "Fetch the missing, or remove the others.")
        return named, True
    silent = [path for path in there if _split_in_name(path) is None]
    if len(silent) == 1 or (silent and len(silent) == len(there)):
        return silent, False
    rule = f"hold a file of the split {split} (one of {', '.join(SPLITS[split])} in its name)"
    found = _list_names(there) if there else f"no data file in {source.name or source}"
    raise InvalidInput("data", rule, found, "Add it, or rename a file.")


def _sisters(name: str) -> list[str]:
    """The names of all shards that go with one; of another file, its own."""
    shard = _SHARD.fullmatch(name)
    if shard is None:
        return [name]
    stem, count, rest = shard.group("stem", "count", "rest")
    return [f"{stem}-{index:05}-of-{count}{rest}" for index in range(int(count))]


def existing_path(source: str | Path) -> Path:
    path = Path(source).expanduser()
    refuse_if(not path.exists(), "data", "be a file or a folder", repr(str(path)), "Check the path.")
    return path


def read_rows(path: Path, *, name: str = "data", header: bool = True) -> Iterator[Row]:
    """The rows of one file, in order, one at a time; errors call the file ``name``."""
    rule = f"end in one of {', '.join(_READERS)} (text ones also .gz)"
    refuse_if(not is_data_file(path), name, rule, path.name, "Rename or convert it.")
    if not header and suffix_of(path) not in (".tsv", ".csv"):
        raise InvalidInput("header", "go with CSV and TSV files", path.name, "Leave out header=False.")
    return _READERS[suffix_of(path)](_File(path, name, header))


def read_lines(path: Path, *, name: str = "data") -> Iterator[str]:
    """The lines of a UTF-8 text file, plain or gzipped, of any length."""
    return _File(path, name).texts(any_length=True)


def _split_in_name(path: Path) -> str | None:
    words = set(re.split(r"[^a-z0-9]+", path.name.lower()))
    found = [split for split, names in SPLITS.items() if words.intersection(names)]
    return found[0] if len(found) == 1 else None


def _list_names(paths: list[Path], most: int = 8) -> str:
    names = ", ".join(path.name for path in paths[:most])
    return names if len(paths) <= most else f"{names} and {len(paths) - most} more"


@dataclass(frozen=True)
class _File:
    """One file, and what its errors call it."""

    path: Path
    name: str
    header: bool = True

    def place(self, number: int, kind: str = "line") -> str:
        return f"{self.path.name}, {kind} {number}"

    def wrong(self, rule: str, got: str, place: str, remedy: str) -> InvalidInput:
        return InvalidInput(self.name, rule, f"{got} at {place}", remedy)

    def damaged(self, error: Exception) -> InvalidInput:
        found = f"{type(error).__name__} in {self.path.name}"
        return InvalidInput(self.name, "be a whole, readable file", found, "Fetch or write it anew.")

    def texts(self, *, any_length: bool = False) -> Iterator[str]:
        """The lines, not longer than may be held, or of ``any_length``."""
        most = -1 if any_length else _LONGEST_LINE + 1
        # Only the very first bytes of a file may be a byte order mark.
        decoder, line = codecs.getincrementaldecoder("utf-8-sig")(), 1
        try:
            with self.path.open("rb") as raw:
                packed = self.path.suffix.lower() == ".gz"
                stream: Any = io.BufferedReader(gzip.GzipFile(fileobj=raw)) if packed else raw
                while data := stream.readline(most):
                    if len(data) == most:
                        rule, remedy = "have lines under 16 MiB", "Is it a text file?"
                        raise self.wrong(rule, "a longer one", self.place(line), remedy)
                    yield decoder.decode(data)
                    line += data.count(b"\n")
                decoder.decode(b"", final=True)
        except UnicodeDecodeError as error:
            place = self.place(line + error.object[: error.start].count(b"\n"))
            raise self.wrong("be UTF-8", "other bytes", place, "Convert the file to UTF-8.") from None
        except (OSError, EOFError, zlib.error) as error:
            raise self.damaged(error) from None

    def table(self, lines: Iterator[tuple[int, list[str]]]) -> Iterator[Row]:
        """Rows of numbered lines of fields, the first of which names the columns if there is a header."""
        first = next(lines, (0, []))
        columns = [name.strip() for name in first[1]]
        if not self.header:
            columns = [str(number) for number in range(1, len(columns) + 1)]
            lines = itertools.chain([first] if first[1] else [], lines)
        if len(set(columns)) != len(columns):
            rule = "have a different name for every column"
            raise self.wrong(rule, "one twice", self.place(1), "Rename or add a header.")
        for number, values in lines:
            if len(values) != len(columns):
                rule = f"have {len(columns)} fields in every row, as in the first"
                raise self.wrong(rule, str(len(values)), self.place(number), "Mend the row.")
            yield Row(self.place(number), dict(zip(columns, values, strict=True)))


def _read_tsv(file: _File) -> Iterator[Row]:
    lines = enumerate((line.rstrip("\r\n") for line in file.texts()), start=1)
    return file.table((number, line.split("\t")) for number, line in lines if line)


def _read_csv(file: _File) -> Iterator[Row]:
    reader = csv.reader(file.texts(), strict=True)
    try:
        yield from file.table((reader.line_num, values) for values in reader if values)
    except csv.Error:
        place = file.place(reader.line_num)
        raise file.wrong("be quoted CSV", "a row that is not", place, "Quote it, or use TSV.") from None


def _read_json(file: _File) -> Iterator[Row]:
    """An array of objects, or an object in every line."""
    start = next((line.lstrip() for line in file.texts(any_length=True) if line.strip()), "")
    return _read_json_array(file) if start.startswith("[") else _read_json_lines(file)


def _read_json_array(file: _File) -> Iterator[Row]:
    text, rule = "".join(file.texts(any_length=True)), "hold a JSON array of objects"
    try:
        rows = json.loads(text)
    except (ValueError, RecursionError) as error:
        place = file.place(getattr(error, "lineno", 1))
        raise file.wrong(rule, "something else", place, "Mend the file.") from None
    for number, fields in enumerate(rows, start=1):
        place = file.place(number, "row")
        if not isinstance(fields, dict):
            raise file.wrong(rule, "something else", place, "Mend the file.")
        yield Row(place, fields)


def _read_json_lines(file: _File) -> Iterator[Row]:
    for number, line in enumerate(file.texts(), start=1):
        if not line.strip():
            continue
        try:
            fields = json.loads(line)
        except (ValueError, RecursionError):
            fields = None
        if not isinstance(fields, dict):
            rule, place = "hold one JSON object in every line", file.place(number)
            raise file.wrong(rule, "something else", place, "Mend the line.")
        yield Row(file.place(number), fields)


def _read_parquet(file: _File) -> Iterator[Row]:
    try:
        import pyarrow as arrow  # type: ignore[import-untyped,unused-ignore]
        from pyarrow import parquet
    except ImportError:
        remedy = 'Parquet needs pyarrow: pip install "dp-forward[train]".'
        raise InvalidInput(file.name, "be readable here", file.path.name, remedy) from None
    try:
        with parquet.ParquetFile(file.path) as table:
            rows = (fields for batch in table.iter_batches(batch_size=1024) for fields in batch.to_pylist())
            for number, fields in enumerate(rows, start=1):
                yield Row(file.place(number, "row"), fields)
    except (OSError, EOFError, ValueError, arrow.ArrowException) as error:
        raise file.damaged(error) from None


_READERS: Final[dict[str, Callable[[_File], Iterator[Row]]]] = {
    ".tsv": _read_tsv,
    ".csv": _read_csv,
    ".jsonl": _read_json_lines,
    ".json": _read_json,
    ".parquet": _read_parquet,
}
