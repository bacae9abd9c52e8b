"""Claims of the paper's abstract beside the same, computed from our cells.

Every number of ours comes from cells of `positions`, `efficiency` and `attacks`; where one is missing, the
text says so. The abstract is the only part of the paper that is cited by number here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from reproduction.render.markdown import NOT_MEASURED, NOT_RUN, number, points
from reproduction.tables.table import Found, Table

__all__ = ["claims"]

_POSITION: Final = re.compile(r"(?P<task>[^:]+): (?P<cut>[^,]+), S = (?P<s>C|2C)(?P<ours>, our recipe)?")
_OURS: Final = ", our recipe"
_FORWARD: Final = "DP-Forward, end-to-end (matrix Gaussian)"
_OPACUS: Final = {"hooks": "DP-SGD (Opacus, hooks)", "ghost": "DP-SGD (Opacus, ghost)"}
_UNDEFENDED: Final = "without noise"
_INVERSION: Final = ("inversion, embeddings",)
_ATTRIBUTE: Final = ("attribute, embeddings", "attribute, output")


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
        ("inversion succeeds up to 88 pp less often", _less(attacks, _INVERSION, found), "attacks"),
        ("attribute inference succeeds up to 41 pp less often", _less(attacks, _ATTRIBUTE, found), "attacks"),
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
    matched = {row: at for row in table.rows if (at := _POSITION.match(row)) is not None}
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


def _less(table: Table, columns: Iterable[str], found: Found) -> str:
    """Success without noise minus success through it, where that is largest, for every noise."""
    asked = tuple(columns)
    parts = []
    for row in table.rows:
        if row == _UNDEFENDED or table.at(row, asked[0]) is None:
            continue
        drops = []
        for column in asked:
            before, after = (table.number(name, column, found) for name in (_UNDEFENDED, row))
            if before is not None and after is not None:
                drops.append((before - after, column.split(", ")[-1]))
        drop, where = max(drops, default=(None, ""), key=lambda pair: pair[0])
        parts.append(f"{row}: {NOT_RUN if drop is None else f'{number(100 * drop, 1)} pp less ({where})'}")
    return "; ".join(parts)
