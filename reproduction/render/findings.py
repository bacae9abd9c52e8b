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
from reproduction.tables.paper_recipe import AUTHORS, AUTHORS_BY_ROW, PROOF
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
            "MVG is at chance, printed as about 0.5: no cell lies more than "
            f"{number(100 * far, 1)} points off."
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
    rates = {
        row.rpartition(" ")[2]: value[0]
        for row in cells.table.rows
        if ", batches of 32, rate " in row and (value := cells.row(row))
    }
    tried = "; ".join(f"{rate}: {value:.3f}" for rate, value in rates.items())
    why = f" The rate explains most of it: at central 8 on SST-2, with rate {tried}." if tried else ""
    return [
        f"DP-SGD with the paper's b = 32, k = 3 and rate 2e-5 does not come near its printed cells here: "
        f"{'; '.join(lines)}. In a batch of 32 the noise outweighs the clipped gradients, and three epochs "
        f"at that rate do not average it out. The paper gives one rate for all experiments, and none for "
        f"DP-SGD apart.{why}"
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
            "without noise forgets some of it. Membership without noise reaches little more than chance "
            "here, so there is little to lower, and cells above it are chance; why it is lower than in print "
            "was not looked into."
        )
    return lines


def _columns(cells: _Cells) -> list[str]:
    pairs = cells.pairs(lambda row: row.endswith(AUTHORS))
    if not pairs:
        return ["None of the paper's widths is run."]
    spans = [
        max(numbers) - min(numbers)
        for row in cells.table.rows
        if row.endswith(AUTHORS) and len(numbers := cells.row(row)) > 1
    ]
    line = f"{_distance(pairs)}, about as far as the model without noise lies below BERT-base."
    if spans:
        line += (
            " d' matters little, as the paper finds: over all widths the cells of a row lie within "
            f"{_range(spans, _points)} points."
        )
    return [f"At S = C, {line}"]


def _rows(cells: _Cells) -> list[str]:
    if lines := _only_ours(cells):
        return lines
    spread = []
    for cut in ("encoder.1", "encoder.4", "encoder.6", "output"):
        short, long = (cells.ours(f"{cut}, {AUTHORS}", n) for n in ("32", "256"))
        if short is not None and long is not None:
            spread.append(f"{cut} {points(long - short)}")
    lines = [
        "The paper finds n = 64 or 128 best at most positions (Section 5.2); its Figure 2 has no printed "
        f"numbers. Here, from n = 32 to 256, in points: {', '.join(spread)}. Behind the first block rows of "
        "padding cost what is there to be learnt, since no mask tells the back to leave them out; behind the "
        "fourth and later n hardly matters."
    ]
    learnt = [(row, column, cells.ours(row, column)) for row, column in _causes(cells)]
    shown = [f"{row.partition(', S = C, ')[2]} {value:.3f} at n = {c}" for row, c, value in learnt if value]
    if shown:
        lines.append(
            "At the embeddings the paper's recipe learns nothing here, at any n (0.509 is the larger class; "
            f"the paper prints 0.7345 at n = 128). One setting changed at a time: {'; '.join(shown)}. What "
            "is left and was not tried: the model (six blocks of half the width, made from a larger one), "
            "the mask, which the authors' code hands to the back, random batches, and the seed. Our recipe "
            "does not learn there either."
        )
    return lines


def _causes(cells: _Cells) -> list[tuple[str, str]]:
    rows = [row for row in cells.table.rows if row.startswith("embeddings, S = C, all texts")]
    return [(row, c) for row in rows for c in cells.table.columns if cells.table.at(row, c) is not None]


def _sublayers(cells: _Cells) -> list[str]:
    if lines := _only_ours(cells):
        return lines
    names = [row.removesuffix(f", {AUTHORS}") for row in cells.table.rows if row.endswith(AUTHORS)]
    up = steps = 0
    for name in names:
        for shallow, deep in pairwise(cells.row(f"{name}, {AUTHORS}")):
            up, steps = up + (deep > shallow), steps + 1
    bare = [cells.row(f"{name}, {AUTHORS}")[1:] for name in names if "norm" not in name]
    full = [cells.row(f"{name}, {AUTHORS}")[1:] for name in names if "norm" in name]
    gains = [b - f for one, other in zip(bare, full, strict=True) for b, f in zip(one, other, strict=True)]
    return [
        f"At S = C the next deeper block is better in {up} of {steps} steps of a row. From the second block "
        "on, a sub-layer without its residual (attention, feed-forward) lies "
        f"{_range(gains, points)} points above the same one after add and norm."
    ]


def _pretraining(cells: _Cells) -> list[str]:
    if lines := _only_ours(cells):
        return lines
    numbers = [v for row in cells.table.rows if row.endswith(AUTHORS) for v in cells.row(row)]
    if not numbers or max(numbers) - min(numbers) > 1e-9:
        return []
    inside = "".join(
        f" At encoder.3, pre-training with {what} the noise{whose} moves accuracy by {_range(gains, points)} "
        "points."
        for what, whose in (("all of", ", as the paper does it,"), ("0.03 to 1 times", ""))
        if (gains := _gains(cells, f"encoder.3: pre-trained with {what} the noise{_OURS}"))
    )
    return [
        f"Not reproduced: at the embeddings the paper's recipe learns nothing here ({numbers[0]:.3f} is the "
        "larger class), with or without pre-training, so these cells neither confirm nor deny that "
        f"pre-training helps. [rows](rows.md) looks for the cause.{inside}"
    ]


def _gains(cells: _Cells, row: str) -> list[float]:
    """What a row of pre-training has above the published start, column by column."""
    found = zip(cells.row(row), cells.row(f"encoder.3: as published{_OURS}"), strict=False)
    return [after - before for after, before in found]


def _only_ours(cells: _Cells) -> list[str]:
    theirs = [cell for cell in cells.table.cells if cell.priority]
    if any(cell.value(cells.found).run for cell in theirs):
        return []
    return ["No row with the paper's recipe is run yet: nothing here confirms or denies the paper's numbers."]


def _tokens(cells: _Cells) -> list[str]:
    if lines := _only_ours(cells):
        return lines
    lines = [f"MVG is at chance ({_range(mvg, _share)})."] if (mvg := cells.row("MVG")) else []
    for cut in ("embeddings", "encoder.1.qkv"):
        if numbers := cells.row(f"{cut}, {AUTHORS_BY_ROW}"):
            lines.append(f"Accuracy at {cut}, S = C: {_range(numbers, _share)}; 0.509 is the larger class.")
    if pairs := cells.pairs(lambda row: row.startswith("membership")):
        ours, theirs = [pair[2] for pair in pairs], [pair[3] for pair in pairs]
        lines.append(
            f"Membership: {_range(ours, _share)}, printed {_range(theirs, _share)}, near chance. A "
            "model that learnt nothing still tells phrases from sentences a little, which is no membership."
        )
    return lines


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
    "rows": _rows,
    "columns": _columns,
    "sublayers": _sublayers,
    "mechanisms": _mechanisms,
    "positions": _positions,
    "noisy-queries": _noisy_queries,
    "clean-queries": _clean_queries,
    "pretraining": _pretraining,
    "attacks": _attacks,
    "tokens": _tokens,
}
