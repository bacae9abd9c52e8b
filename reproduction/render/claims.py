"""Claims of the paper's abstract beside the same, computed from our cells.

Every number of ours comes from cells of `positions`, `efficiency` and `attacks`; where one is missing, the
text says so.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from reproduction.render.markdown import NOT_MEASURED, NOT_RUN, number, points
from reproduction.tables.paper_rows import MASKED
from reproduction.tables.table import Found, Table

__all__ = ["claims"]

_POSITION: Final = re.compile(
    r"(?P<task>[^:]+): (?P<cut>embeddings|encoder\.\d+|output), S = (?P<s>C|2C)(?P<ours>, our recipe)?"
)
_OURS: Final = ", our recipe"
_FORWARD: Final = "DP-Forward, end-to-end (matrix Gaussian)"
_OPACUS: Final = {"hooks": "DP-SGD (Opacus, hooks)", "ghost": "DP-SGD (Opacus, ghost)"}
_UNDEFENDED: Final = "without noise"
_INVERSION: Final = ("inversion, embeddings",)
_ATTRIBUTE: Final = ("attribute, embeddings", "attribute, output")
_THEIR_INVERSION: Final = (", nearest", ", gradient")


def claims(tables: Mapping[str, Table], found: Found) -> list[tuple[str, str, str]]:
    """(what the abstract claims, what we find, from which table)."""
    positions, efficiency, attacks = (tables[name] for name in ("positions", "efficiency", "attacks"))
    return [
        (
            "up to 7.7 pp above DP-SGD at a moderate privacy level",
            _both(positions, {"": "DP-SGD, batches of 32", _OURS: f"DP-SGD{_OURS}"}, found),
            "positions",
        ),
        (
            "almost the non-private accuracy (here: minus that)",
            _both(positions, {"": _UNDEFENDED, _OURS: _UNDEFENDED + _OURS}, found),
            "positions",
        ),
        ("DP-SGD takes 3 times as long (here: TF32)", _ratio(efficiency, "ms a step", found), "efficiency"),
        ("DP-SGD takes 3 times the memory", _ratio(efficiency, "memory, MiB", found), "efficiency"),
        (
            "inversion succeeds up to 88 pp less often",
            _drops(attacks, "inversion", _THEIR_INVERSION, _INVERSION, found),
            "attacks",
        ),
        (
            "attribute inference succeeds up to 41 pp less often",
            _drops(attacks, "attribute", ("overall",), _ATTRIBUTE, found),
            "attacks",
        ),
    ]


def _both(table: Table, others: Mapping[str, str], found: Found) -> str:
    """The paper's recipe, and ours, each against its own ``others``."""
    names = {"": "the paper's recipe", _OURS: "our recipe"}
    return ". ".join(
        f"{names[r].capitalize()}: {_above(table, o, found, recipe=r)}" for r, o in others.items()
    )


def _above(table: Table, other: str, found: Found, *, recipe: str) -> str:
    """DP-Forward minus ``other`` where that is largest, at S = C and at S = 2C.

    Over the tasks that have rows for both, so that nothing but the sensitivity differs.
    """
    matched = {
        row: at for row in table.rows if MASKED not in row and (at := _POSITION.match(row)) is not None
    }
    places = {row: at for row, at in matched.items() if (at["ours"] or "") == recipe}
    tasks = {s: {at["task"] for at in places.values() if at["s"] == s} for s in ("C", "2C")}
    best: dict[str, list[tuple[float, str]]] = {"C": [], "2C": []}
    missing = dict.fromkeys(best, 0)
    for row, at in places.items():
        if at["task"] not in tasks["C"] & tasks["2C"]:
            continue
        for column in table.columns:
            ours = table.number(row, column, found)
            theirs = table.number(f"{at['task']}: {other}", column, found)
            if ours is None or theirs is None:
                missing[at["s"]] += 1
            else:
                best[at["s"]].append((ours - theirs, f"{at['task']}, {at['cut']}, {column}"))
    return "; ".join(f"S = {s}: {_largest(best[s], partly=missing[s] > 0)}" for s in best)


def _largest(differences: Iterable[tuple[float, str]], *, partly: bool) -> str:
    difference, where = max(differences, default=(None, ""), key=lambda pair: pair[0])
    if difference is None:
        return NOT_RUN
    return f"{points(difference)} pp for the best cell ({where}{'; not all cells run' if partly else ''})"


def _ratio(table: Table, column: str, found: Found) -> str:
    ours = table.number(_FORWARD, column, found)
    missing = NOT_MEASURED if all(job.digest in found for job in table.jobs()) else NOT_RUN
    parts = []
    for name, row in _OPACUS.items():
        theirs = table.number(row, column, found)
        if ours is None or theirs is None:
            parts.append(f"{name} {missing}")
        else:
            parts.append(f"{name} {number(theirs / ours, 1)} times")
    return "Opacus " + ", ".join(parts)


def _drops(table: Table, attack: str, theirs: tuple[str, ...], ours: tuple[str, ...], found: Found) -> str:
    """By the paper's recipe at central 8, and by ours for every noise."""
    columns = [column for column in table.columns if column.endswith(theirs)]
    rows = [row for row in table.rows if row.startswith(f"{attack}: ") and "DP-SGD" not in row]
    before, *after = rows
    drop, where = max((_less(table, before, row, columns, found) for row in after), key=_size)
    parts = [f"The paper's recipe: {_shown(drop, where)}"]
    before = f"{_UNDEFENDED}{_OURS}"
    for row in table.rows:
        if row.endswith(_OURS) and row != before and table.at(row, ours[0]) is not None:
            name = row.removesuffix(_OURS)
            parts.append(f"{name}: {_shown(*_less(table, before, row, ours, found))}")
    return f"{parts[0]}. Our recipe: {'; '.join(parts[1:])}"


def _less(
    table: Table, before: str, after: str, columns: Iterable[str], found: Found
) -> tuple[float | None, str]:
    """Success without noise minus success through it, where that is largest."""
    drops: list[tuple[float | None, str]] = []
    for column in columns:
        without, through = (table.number(row, column, found) for row in (before, after))
        if without is not None and through is not None:
            drops.append((without - through, column.removeprefix("attribute, ").removeprefix("inversion, ")))
    return max(drops, default=(None, ""), key=_size)


def _size(drop: tuple[float | None, str]) -> float:
    return float("-inf") if drop[0] is None else drop[0]


def _shown(drop: float | None, where: str) -> str:
    return NOT_RUN if drop is None else f"{number(100 * drop, 1)} pp less ({where})"
