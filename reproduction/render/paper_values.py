"""The paper's printed numbers beside ours: `reproduction/printed.json`, or typed in by a reader.

The file names its source and holds each table under the paper's own names; a cell says where its number
stands there (`Cell.printed`). A reader's file, `{table: {row: {column: number}}}` with the names of our
pages, goes before it; each of its cells is checked against the tables here before anything is written.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

from dp_forward.errors import InvalidInput
from reproduction.render.markdown import NOT_RUN, grids, number, points
from reproduction.tables.table import Found, Table

__all__ = ["PaperValues", "paper_values_section", "printed_number", "printed_text", "read_paper_values"]

PaperValues = Mapping[str, Mapping[str, Mapping[str, float]]]
_FILE: Final = Path(__file__).parents[1] / "printed.json"
_SHARES: Final = ("accuracy", "accuracy_without_noise", "success", "chance")


def read_paper_values(path: Path | None, tables: Mapping[str, Table]) -> PaperValues:
    """The paper's number of every cell that has one, and what a reader typed in its place."""
    typed = {} if path is None else _typed(path, tables)
    found = {}
    for name, table in tables.items():
        rows: dict[str, dict[str, float]] = {}
        for cell in table.cells:
            if cell.printed is not None:
                rows.setdefault(cell.row, {})[cell.column] = printed_number(cell.printed)
        for row, columns in typed.get(name, {}).items():
            rows.setdefault(row, {}).update(columns)
        found[name] = rows
    return found


@cache
def _published() -> Mapping[str, Any]:
    found: Mapping[str, Any] = json.loads(_FILE.read_text(encoding="utf-8"))
    return found


def printed_number(where: tuple[str, ...]) -> float:
    """What the paper printed at a table, row and column of its own."""
    table, row, column = where
    cells = _published()["tables"][table]["cells"]
    return float(cells[row][column])


def printed_text(name: str) -> float:
    """A number that stands in the paper's text, by what it is about."""
    return float(_published()["text"][name])


def _typed(path: Path, tables: Mapping[str, Table]) -> PaperValues:
    """The cells of a reader's file, all of them checked."""
    try:
        typed = json.loads(path.read_text(encoding="utf-8"), parse_constant=_no_constant)
    except (OSError, ValueError):
        raise InvalidInput(
            "printed", "be a file of JSON", path, "{table: {row: {column: number}}}."
        ) from None
    for name, rows in _entries(typed, "tables"):
        if name not in tables:
            raise InvalidInput("printed", f"name one of {', '.join(tables)}", repr(name), "Check its name.")
        for row, columns in _entries(rows, f"rows of {name}"):
            for column, value in _entries(columns, f"columns of {name}"):
                _check(tables[name], row, column, value)
    found: PaperValues = typed
    return found


def _no_constant(name: str) -> float:
    raise ValueError(name)


def _entries(value: Any, name: str) -> list[tuple[str, Any]]:
    if not isinstance(value, dict):
        kind = type(value).__name__
        raise InvalidInput("printed", f"have {name} by name", kind, "{table: {row: {column: number}}}.")
    return list(value.items())


def _check(table: Table, row: str, column: str, value: Any) -> None:
    remedy = f"Copy the names from the page of {table.name}."
    if row not in table.rows:
        raise InvalidInput("printed", f"name a row of {table.name}", repr(row), remedy)
    cell = table.at(row, column)
    if cell is None:
        raise InvalidInput("printed", f"name a column of {table.name} in that row", repr(column), remedy)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise InvalidInput("printed", f"hold numbers at {table.name}", type(value).__name__, "Type a number.")
    if cell.known is None and cell.metric in _SHARES and not 0 <= value <= 1:
        raise InvalidInput(
            "printed", f"hold shares between 0 and 1 at {table.name}", value, "Write 92.1 % as 0.921."
        )


def paper_values_section(table: Table, printed: PaperValues, found: Found) -> str:
    """What the paper printed, and ours minus that; empty where nothing was typed for this table."""
    typed = printed.get(table.name, {})
    if not typed:
        return ""

    def text(row: str, column: str) -> str:
        return _pair(table, row, column, typed[row].get(column), found)

    items = sorted({cell.printed[0] for cell in table.cells if cell.printed}, key=lambda t: int(t.split()[1]))
    words = (
        f"Ours, *theirs* as printed ({', '.join(items) or 'as typed in'} of the paper, on BERT-base), and in "
        "brackets ours minus theirs in points. What still differs: [settings](index.md#settings-the-papers-"
        "and-these)."
    )
    return f"## What the paper printed\n\n{words}\n\n{grids(table, text, typed)}"


def _pair(table: Table, row: str, column: str, theirs: float | None, found: Found) -> str:
    cell = table.at(row, column)
    if theirs is None or cell is None:
        return ""
    ours = cell.value(found).number
    if ours is None:
        return f"{NOT_RUN}, *{theirs:g}*"
    return f"{number(ours, cell.digits)}, *{theirs:g}* ({points(ours - theirs)})"
