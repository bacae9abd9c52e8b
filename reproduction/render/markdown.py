"""Cells as words, tables as Markdown.

Guarantees:
    A measured number is rounded to nearest; an epsilon that a formula proves is rounded up, so no page
    promises more than the proof does. A cell without a result has no number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Mapping, Sequence
from decimal import ROUND_CEILING, Decimal
from typing import Final

from reproduction.tables.table import Cell, Found, Table

__all__ = [
    "NOT_MEASURED",
    "NOT_RUN",
    "grid",
    "grids",
    "largest_half_width",
    "number",
    "pivot",
    "points",
    "proved",
    "shown",
]

NOT_RUN: Final = "not run"
NOT_MEASURED: Final = "not measured"


def number(value: float, digits: int) -> str:
    """With so many decimals; never a negative zero."""
    return f"{round(value, digits) + 0.0:.{digits}f}"


def proved(epsilon: float, digits: int) -> str:
    """The same, never below the value: for what a proof gives.

    Edges:
        A float stands for its shortest decimal, so 4.197 reads 4.197.
    """
    if not math.isfinite(epsilon):
        return str(epsilon)
    return str(Decimal(repr(float(epsilon))).quantize(Decimal(1).scaleb(-digits), rounding=ROUND_CEILING))


def points(difference: float) -> str:
    """A difference of two shares in percentage points, with its sign."""
    return f"{round(100 * difference, 1) + 0.0:+.1f}"


def shown(cell: Cell, found: Found) -> str:
    """What a cell shows: its number (seeds in brackets), its words, or that it was not run."""
    value = cell.value(found)
    if value.value is None:
        done = bool(cell.jobs) and all(job.digest in found for job in cell.jobs)
        return NOT_MEASURED if done else NOT_RUN
    if isinstance(value.value, str):
        return value.value
    if cell.known is not None or cell.derived is not None:
        return proved(value.value, cell.digits)
    mean = number(value.value, cell.digits)
    if value.missing:
        return f"{mean} ({len(value.parts)} of {len(cell.jobs)} seeds)"
    if len(value.parts) < 2:
        return mean
    return f"{mean} ({', '.join(number(part, cell.digits) for part in value.parts)})"


def grid(corner: str, columns: Sequence[str], rows: Mapping[str, Sequence[str]]) -> str:
    """A Markdown table; a bar inside a cell is escaped, and a stroke that ends the corner is dropped."""
    head = [corner.rstrip("\\ "), *columns]
    lines = [head, ["---"] * len(head), *([name, *cells] for name, cells in rows.items())]
    return "\n".join("| " + " | ".join(_plain(cell) for cell in line) + " |" for line in lines)


def pivot(table: Table, found: Found) -> str:
    """The table as it is read: its rows against its columns; empty where it has no cell."""

    def text(row: str, column: str) -> str:
        cell = table.at(row, column)
        return "" if cell is None else shown(cell, found)

    return grids(table, text)


def grids(table: Table, text: Callable[[str, str], str], only: Container[str] | None = None) -> str:
    """The table with a text in each place; rows that share no column with those before begin another grid."""
    blocks: list[tuple[set[str], list[str]]] = []
    for row in table.rows:
        if only is not None and row not in only:
            continue
        filled = {column for column in table.columns if text(row, column)}
        if blocks and blocks[-1][0] & filled:
            blocks[-1] = (blocks[-1][0] | filled, [*blocks[-1][1], row])
        else:
            blocks.append((filled, [row]))
    made = []
    for filled, rows in blocks:
        columns = [column for column in table.columns if column in filled]
        made.append(grid(table.corner, columns, {row: [text(row, c) for c in columns] for row in rows}))
    return "\n\n".join(made)


def largest_half_width(table: Table, found: Found) -> float | None:
    """Half the widest 95 % interval of its cells; None where no cell has one."""
    values = [cell.value(found) for cell in table.cells]
    halves = [(v.high - v.low) / 2 for v in values if v.low is not None and v.high is not None]
    return max(halves, default=None)


def _plain(cell: str) -> str:
    return cell.replace("|", "\\|").replace("\n", " ")
