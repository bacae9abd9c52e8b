"""What came out of a table against what the paper printed, in sentences computed from the cells.

Accuracies are never typed here: ours come from the cells, the paper's from `PaperValues`. Where no cell of
the paper's recipe is run, the sentence says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations, pairwise
from typing import Final

from reproduction.model_setup import TASKS
from reproduction.render.markdown import number, points
from reproduction.render.paper_values import PaperValues, printed_text
from reproduction.tables.paper_recipe import AUTHORS, PROOF
from reproduction.tables.table import Found, Table

__all__ = ["findings_section"]

_GOAL: Final = 0.03
_CHANCE: Final = 0.5
_OURS: Final = ", our recipe"
_Pairs = list[tuple[str, str, float, float]]
"""(row, column, ours, theirs) of cells that were run and printed."""


def findings_section(table: Table, values: PaperValues, found: Found) -> str:
    """The sentences of a table as a section; empty where there is nothing to say."""
    said = _FINDINGS.get(table.name)
    cells = _Cells(table, values.get(table.name, {}), found)
    lines = [] if said is None or not table.counts(found)[1] else said(cells)
    return "## What came out\n\n" + "\n".join(f"* {line}" for line in lines) if lines else ""


class _Cells:
    """The cells of one table, with the paper's number beside each that has one."""

    def __init__(self, table: Table, printed: Mapping[str, Mapping[str, float]], found: Found) -> None:
        self.table, self.printed, self.found = table, printed, found

    def ours(self, row: str, column: str) -> float | None:
        cell = self.table.at(row, column)
        return None if cell is None else cell.value(self.found).number

    def theirs(self, row: str, column: str) -> float | None:
        return self.printed.get(row, {}).get(column)

    def pairs(self, wanted: Callable[[str], bool]) -> _Pairs:
        """Cells of these rows that were run and printed."""
        both = [
            (row, column, self.ours(row, column), self.theirs(row, column))
            for row in self.table.rows
            if wanted(row)
            for column in self.table.columns
        ]
        return [
            (r, c, ours, theirs) for r, c, ours, theirs in both if ours is not None and theirs is not None
        ]

    def row(self, row: str) -> list[float]:
        """The numbers of a row that were run, in the order of the columns."""
        return [value for c in self.table.columns if (value := self.ours(row, c)) is not None]


def _range(values: Sequence[float], shown: Callable[[float], str]) -> str:
    low, high = shown(min(values)), shown(max(values))
    return low if low == high else f"{low} to {high}"


def _share(value: float) -> str:
    return number(value, 3)


def _distance(pairs: _Pairs) -> str:
    """How far from the printed cells, and how many of them are near enough."""
    gaps = [ours - theirs for _, _, ours, theirs in pairs]
    near = sum(abs(gap) <= _GOAL for gap in gaps)
    return (
        f"{near} of {len(gaps)} cells lie within {100 * _GOAL:g} points of the printed ones; ours minus "
        "theirs "
        f"is {_range(gaps, points)} points"
    )


def _without_noise(cells: _Cells, title: str) -> str:
    clean = cells.pairs(lambda row: row == f"{title}: without noise")
    return f" (the model without noise: {points(clean[0][2] - clean[0][3])})" if clean else ""


def _mechanisms(cells: _Cells) -> list[str]:
    lines, missed = [], []
    for task in TASKS.values():
        mine = {f"{task.title}: {name}, {AUTHORS}" for name in ("aMGM", "GM")}
        if pairs := cells.pairs(mine.__contains__):
            if any(abs(ours - theirs) > _GOAL for _, _, ours, theirs in pairs):
                missed.append(task.title)
            lines.append(
                f"{task.title}, aMGM and GM at S = C: {_distance(pairs)}{_without_noise(cells, task.title)}."
            )
    if missed:
        lines.append(
            f"Why cells miss ({' and '.join(missed)}): the model without noise is another one, of six blocks "
            "in "
            "place of twelve; a cell is one run with one seed; QQP is a subset of 19,055 pairs where the "
            "paper "
            "has 363,846."
        )
    if lines:
        lines += [*_below(cells), *_rises(cells)]
    chance = [value for t in TASKS.values() for value in cells.row(f"{t.title}: MVG")]
    if chance:
        far = max(abs(value - _CHANCE) for value in chance)
        lines.append(
            f"MVG is at chance, as printed: no cell lies more than {number(100 * far, 1)} points from 0.5."
        )
    costs = [
        right - wrong
        for t in TASKS.values()
        for c in cells.table.columns
        if (right := cells.ours(f"{t.title}: aMGM, {PROOF}", c)) is not None
        and (wrong := cells.ours(f"{t.title}: aMGM, {AUTHORS}", c)) is not None
    ]
    if costs:
        lines.append(f"S = 2C in place of S = C costs aMGM {_range([-c for c in costs], _points)} points.")
    return lines


def _points(share: float) -> str:
    return number(100 * share, 1)


def _below(cells: _Cells) -> list[str]:
    """Whether GM lies below aMGM everywhere."""
    gaps = {
        f"{t.title} at {c}": gm - amgm
        for t in TASKS.values()
        for c in cells.table.columns
        if (gm := cells.ours(f"{t.title}: GM, {AUTHORS}", c)) is not None
        and (amgm := cells.ours(f"{t.title}: aMGM, {AUTHORS}", c)) is not None
    }
    if not gaps:
        return []
    above = [f"{where} ({points(gap)} points)" for where, gap in gaps.items() if gap >= 0]
    line = f"GM lies below aMGM in {len(gaps) - len(above)} of {len(gaps)} cells; in print in all of them."
    if above:
        line += (
            f" Above: {', '.join(above)}. There the two noises are nearly equal, and each cell is one model "
            "with one seed."
        )
    return [line]


def _rises(cells: _Cells) -> list[str]:
    rows = [f"{t.title}: {name}, {AUTHORS}" for t in TASKS.values() for name in ("aMGM", "GM")]
    run = [values for row in rows if len(values := cells.row(row)) > 1]
    rising = sum(values == sorted(values) for values in run)
    return [f"Accuracy rises with epsilon in {rising} of {len(run)} rows of aMGM and GM, in print in all."]


def _positions(cells: _Cells) -> list[str]:
    lines = []
    for task in TASKS.values():
        rows = [
            row for row in cells.table.rows if row.startswith(f"{task.title}: ") and row.endswith(AUTHORS)
        ]
        if pairs := cells.pairs(rows.__contains__):
            lines.append(
                f"{task.title}, all positions at S = C: {_distance(pairs)}"
                f"{_without_noise(cells, task.title)}. {_order(cells, rows)}"
            )
    if lines:
        lines.append(
            "Why cells miss, most of all the first positions: six blocks leave fewer behind the noise than "
            "twelve, no mask tells the back which rows are padding, and a cell is one seed; which of these "
            "counts most was not tried. QQP has a twentieth of the paper's pairs, and models of central 1 "
            "only. "
            "The subset is balanced for training and not for the test, so that a model which learnt nothing "
            "may "
            "name the rarer class and fall below one half."
        )
    return [*lines, *_dpsgd(cells)]


def _order(cells: _Cells, rows: Sequence[str]) -> str:
    """How many pairs of positions come in the printed order, column by column."""
    same = total = steps = up = printed_up = 0
    for column in cells.table.columns:
        known = [(o, t) for _, c, o, t in cells.pairs(rows.__contains__) if c == column]
        for (ours, theirs), (later, printed) in combinations(known, 2):
            if theirs != printed:
                total += 1
                same += (later > ours) == (printed > theirs) and later != ours
        for (ours, theirs), (later, printed) in pairwise(known):
            steps, up, printed_up = steps + 1, up + (later > ours), printed_up + (printed > theirs)
    return (
        f"{same} of {total} pairs of positions stand in the printed order; the next deeper position is "
        "better "
        f"in {up} of {steps} steps, in print in {printed_up}."
    )


def _dpsgd(cells: _Cells) -> list[str]:
    lines = []
    for task in TASKS.values():
        pairs = cells.pairs(lambda row, title=task.title: row == f"{title}: DP-SGD, batches of 32")  # type: ignore[misc]
        if not pairs:
            continue
        ours, theirs = [pair[2] for pair in pairs], [pair[3] for pair in pairs]
        large = cells.row(f"{task.title}: DP-SGD{_OURS}")
        beside = f"; {_range(large, _share)} in batches of 2,048 (our recipe)" if large else ""
        lines.append(f"{task.title} {_range(ours, _share)}, printed {_range(theirs, _share)}{beside}")
    if not lines:
        return []
    return [
        f"DP-SGD with the paper's b = 32, k = 3 and rate 2e-5 does not come near its printed cells here: "
        f"{'; '.join(lines)}. In a batch of 32 the noise outweighs the clipped gradients, and three epochs "
        "at "
        "that rate do not average it out. What the authors' run did differently we do not know."
    ]


def _attacks(cells: _Cells) -> list[str]:
    lines = []
    fronts = ("embeddings", "encoder", "output", "DP-Forward")
    for attack, columns in (
        ("membership", ("entropy", "confidence")),
        ("inversion", tuple(c for c in cells.table.columns if c.endswith((", nearest", ", gradient")))),
        ("attribute", ("overall",)),
    ):
        parts = []
        for name, starts in (
            ("without noise", ("without",)),
            ("DP-SGD", ("DP-SGD",)),
            ("DP-Forward", fronts),
        ):
            mine = tuple(f"{attack}: {start}" for start in starts)
            pairs = [p for p in cells.pairs(lambda row, m=mine: row.startswith(m)) if p[1] in columns]  # type: ignore[misc]
            if pairs:
                ours, theirs = [pair[2] for pair in pairs], [pair[3] for pair in pairs]
                parts.append(f"{name} {_range(ours, _share)} (printed {_range(theirs, _share)})")
        if parts:
            lines.append(f"{attack.capitalize()}: {'; '.join(parts)}.")
    if lines:
        lines.append(
            "Noise on a whole matrix is far larger than the row of one token, so that inversion has next to "
            "nothing to read here; what is recovered in print we do not know. DP-SGD by the paper's recipe "
            "hardly trains the model, which keeps what the published one knew of a genre; fine-tuning "
            "without "
            "noise forgets some of it. A membership attack without noise is the ceiling of the others; why "
            "MiniLM's is lower than in print was not looked into."
        )
    return lines


def _columns(cells: _Cells) -> list[str]:
    pairs = cells.pairs(lambda row: row.endswith(AUTHORS))
    if not pairs:
        return ["None of the paper's widths is run."]
    return [
        f"The model's own width, the one that is run: {_distance(pairs)}. Whether d' matters little, as the "
        "paper finds, our rows answer, not the paper's."
    ]


def _only_ours(cells: _Cells) -> list[str]:
    theirs = [cell for cell in cells.table.cells if cell.priority]
    if any(cell.value(cells.found).run for cell in theirs):
        return []
    return ["No row with the paper's recipe is run yet: nothing here confirms or denies the paper's numbers."]


def _tokens(cells: _Cells) -> list[str]:
    mvg = cells.row("MVG")
    if not mvg:
        return _only_ours(cells)
    return [f"MVG is at chance ({_range(mvg, _share)}). No other row with the paper's recipe is run yet."]


def _noisy_queries(cells: _Cells) -> list[str]:
    numbers = cells.row(f"DP-SGD 8{_OURS}")
    if len(numbers) < len(cells.table.columns):
        return []
    raw, *asked = numbers
    return [
        f"The paper reports {printed_text('SST-2 acc of DP-SGD with noisy inference, central 8'):g} for "
        "DP-SGD "
        "at central 8 with noisy queries, and does not say at which position. Here a DP-SGD model of central "
        "8 "
        f"loses {_points(raw - asked[-1])} points at `output`, and inside the model "
        f"{_range([raw - value for value in asked[:-1]], _points)}."
    ]


def _clean_queries(cells: _Cells) -> list[str]:
    gains = [
        clean - noisy
        for row in cells.table.rows
        for column in cells.table.columns
        if column != "clean"
        and (noisy := cells.ours(row, column)) is not None
        and (clean := cells.ours(row, "clean")) is not None
    ]
    if not gains:
        return []
    better = sum(gain < 0 for gain in gains)
    return [
        "The paper finds queries through the noise of training about two points better than queries without. "
        f"Not here: noisy queries are better in {better} of {len(gains)} cells; clean minus noisy is "
        f"{_range(gains, points)} points."
    ]


_FINDINGS: Final[Mapping[str, Callable[[_Cells], list[str]]]] = {
    "rows": _only_ours,
    "columns": _columns,
    "sublayers": _only_ours,
    "mechanisms": _mechanisms,
    "positions": _positions,
    "noisy-queries": _noisy_queries,
    "clean-queries": _clean_queries,
    "pretraining": _only_ours,
    "attacks": _attacks,
    "tokens": _tokens,
}
