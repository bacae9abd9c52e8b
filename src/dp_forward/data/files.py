"""Rows of local files: TSV, CSV, JSON lines, Parquet, and the first three gzipped.

TSV is read as GLUE writes it: a tab ends a field and a quote is a letter. CSV is quoted.

Guarantees:
    A file is streamed: memory does not grow with the number of rows.
    An error names the file and the line or row, never what stands there.
Edges:
    The first line of TSV and CSV names the columns. Blank lines are passed over.
    A line of more than 16 MiB, or a CSV field past the limit of Python's csv module, is refused.
"""

from __future__ import annotations

import csv
import gzip
import io
import itertools
import json
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from dp_forward.data.records import Row
from dp_forward.errors import InvalidInput

__all__ = ["file_rows", "is_data_file", "suffix_of"]

_LONGEST_LINE = 1 << 24
_PARQUET_BATCH = 1024


def suffix_of(path: Path) -> str:
    """The ending that tells the format, without the .gz."""
    return Path(path.name.lower().removesuffix(".gz")).suffix


def is_data_file(path: Path) -> bool:
    """Whether the ending is one that can be read."""
    suffix = suffix_of(path)
    return suffix in _READERS and not (suffix == ".parquet" and path.name.lower().endswith(".gz"))


def file_rows(path: Path) -> Iterator[Row]:
    """The rows of one file, in order, one at a time."""
    if not is_data_file(path):
        raise InvalidInput(
            "data",
            f"end in one of {', '.join(_READERS)} (text ones also .gz)",
            path.name,
            "Rename or convert it.",
        )
    return _READERS[suffix_of(path)](path)


def _wrong(rule: str, got: str, place: str, remedy: str) -> InvalidInput:
    return InvalidInput("data", rule, f"{got} at {place}", remedy)


def _damaged(path: Path, error: Exception) -> InvalidInput:
    return InvalidInput(
        "data",
        "be a whole, readable file",
        f"{type(error).__name__} in {path.name}",
        "Fetch or write it anew.",
    )


def _lines(path: Path) -> Iterator[str]:
    number = 0
    try:
        with path.open("rb") as raw:
            stream: Any = (
                io.BufferedReader(gzip.GzipFile(fileobj=raw)) if path.suffix.lower() == ".gz" else raw
            )
            for number in itertools.count(1):
                line = stream.readline(_LONGEST_LINE + 1)
                if not line:
                    return
                if len(line) > _LONGEST_LINE:
                    raise _wrong(
                        "have lines under 16 MiB",
                        "a longer one",
                        f"{path.name}, line {number}",
                        "Is it a text file?",
                    )
                # Only the very first bytes of a file may be a byte order mark.
                yield line.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError:
        raise _wrong(
            "be UTF-8", "other bytes", f"{path.name}, line {number}", "Convert the file to UTF-8."
        ) from None
    except (OSError, EOFError, zlib.error) as error:
        raise _damaged(path, error) from None


def _header(names: Sequence[str], path: Path) -> list[str]:
    columns = [name.strip() for name in names]
    if len(set(columns)) != len(columns):
        raise _wrong(
            "have a different name for every column",
            "one twice",
            f"{path.name}, line 1",
            "Rename or add a header.",
        )
    return columns


def _row(columns: list[str], values: list[str], place: str) -> Row:
    if len(values) != len(columns):
        raise _wrong(
            f"have {len(columns)} fields in every row, as in the header",
            str(len(values)),
            place,
            "Mend the row.",
        )
    return Row(place, dict(zip(columns, values, strict=True)))


def _tsv(path: Path) -> Iterator[Row]:
    columns: list[str] | None = None
    for number, line in enumerate(_lines(path), start=1):
        values = line.rstrip("\r\n").split("\t")
        if values == [""]:
            continue
        if columns is None:
            columns = _header(values, path)
        else:
            yield _row(columns, values, f"{path.name}, line {number}")


def _csv(path: Path) -> Iterator[Row]:
    columns: list[str] | None = None
    reader = csv.reader(_lines(path), strict=True)
    try:
        for values in reader:
            if not values:
                continue
            if columns is None:
                columns = _header(values, path)
            else:
                yield _row(columns, values, f"{path.name}, line {reader.line_num}")
    except csv.Error:
        raise _wrong(
            "be quoted CSV",
            "a row that is not",
            f"{path.name}, line {reader.line_num}",
            "Quote it, or use TSV.",
        ) from None


def _json_lines(path: Path) -> Iterator[Row]:
    for number, line in enumerate(_lines(path), start=1):
        if not line.strip():
            continue
        place = f"{path.name}, line {number}"
        try:
            fields = json.loads(line)
        except (ValueError, RecursionError):
            fields = None
        if not isinstance(fields, dict):
            raise _wrong("hold one JSON object in every line", "something else", place, "Mend the line.")
        yield Row(place, fields)


def _parquet(path: Path) -> Iterator[Row]:
    try:
        import pyarrow as arrow  # type: ignore[import-untyped,unused-ignore]
        from pyarrow import parquet
    except ImportError:
        raise InvalidInput(
            "data", "be readable here", path.name, 'Parquet needs pyarrow: pip install "dp-forward[train]".'
        ) from None
    number = 0
    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=_PARQUET_BATCH):
                for fields in batch.to_pylist():
                    number += 1
                    yield Row(f"{path.name}, row {number}", fields)
    except UnicodeDecodeError:
        raise _wrong("be UTF-8", "other bytes", f"{path.name}, after row {number}", "Convert it.") from None
    except (OSError, EOFError, ValueError, arrow.ArrowException) as error:
        raise _damaged(path, error) from None


_READERS: Final[dict[str, Callable[[Path], Iterator[Row]]]] = {
    ".tsv": _tsv,
    ".csv": _csv,
    ".jsonl": _json_lines,
    ".json": _json_lines,
    ".parquet": _parquet,
}
