"""What came out of a table against what the paper printed, in sentences computed from the cells.

Accuracies are never typed here: ours come from the cells, the paper's from `PaperValues`. Where no cell of
the paper's recipe is run, the sentence says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations, pairwise
from typing import Final

from dp_forward.privacy import curve
from reproduction.model_setup import TASKS
from reproduction.render.markdown import number, points
from reproduction.render.paper_values import PaperValues, printed_text
from reproduction.tables.paper_recipe import AUTHORS, AUTHORS_BY_ROW, PROOF
from reproduction.tables.paper_rows import MASKED
from reproduction.tables.paper_sensitivity import DELTA
from reproduction.tables.table import Found, Table

__all__ = ["findings_section"]

_GOAL: Final = 0.03
_CHANCE: Final = 0.5
_FIRST_SUBLAYER, _LAST_SUBLAYER = "attention", "feed-forward, add and norm"
_OURS: Final = ", our recipe"
_EXCESS_AT_8: Final = math.sqrt(2 * math.log(1.25 / DELTA)) / 8 * curve.largest_mu(8.0, DELTA) - 1
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
            f"What may explain the cells that miss ({' and '.join(missed)}), each by itself untried: the "
            "model "
            "without noise is another one, of six blocks in place of twelve; a cell is one run with one "
            "seed; "
            "QQP is a balanced subset of 19,055 pairs where the paper has 363,846."
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
            f" Above: {', '.join(above)}. At 8 the "
            f"noise of GM is {_points(_EXCESS_AT_8)} % larger, which one model with one seed does not show."
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
    return [*lines, *_with_mask(cells), *_dpsgd(cells)]


def _with_mask(cells: _Cells) -> list[str]:
    """How much nearer print the same positions are where the back has the mask."""
    parts = []
    for task in TASKS.values():
        with_mask = cells.pairs(lambda row, t=task.title: row.startswith(f"{t}: ") and row.endswith(MASKED))  # type: ignore[misc]
        places = {(row.split(", S = ")[0], column) for row, column, _, _ in with_mask}
        without = [
            pair
            for pair in cells.pairs(lambda row: row.endswith(AUTHORS))
            if (pair[0].split(", S = ")[0], pair[1]) in places
        ]
        if with_mask and len(without) == len(with_mask):
            parts.append(f"{task.title}, without: {_distance(without)}. With: {_distance(with_mask)}")
    if not parts:
        return []
    return [
        "The mask, which the authors' code hands to the back, explains a part of the distance. Between the "
        f"blocks, {'; '.join(parts)}. So on SST-2 the printed accuracies between the blocks come out here "
        "only with a back that knows the length of every text, which no promise per text allows "
        "([errata, f](../explanation/errata.md#f-what-crosses-beside-the-matrix)).",
        "What is left was not taken apart: six blocks leave fewer behind the noise than twelve, and a cell "
        "is "
        "one seed. QQP has a twentieth of the paper's pairs; the subset is balanced for training and not for "
        "the test, so that a model which learnt nothing may name the rarer class and fall below one half. On "
        "IMDb our cells lie above print, most of all at encoder.1, where print is at chance; we do not know "
        "why, and did not run the mask there.",
    ]


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
    why = (
        f" In the one cell where other rates were tried, central 8 on SST-2, they explain most: rate {tried}."
    )
    return [
        f"DP-SGD with the paper's b = 32, k = 3 and rate 2e-5 does not come near its printed cells here: "
        f"{'; '.join(lines)}. The paper gives one rate for all experiments, and none for DP-SGD apart."
        f"{why if tried else ''}"
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
        lines += [
            "Noise on a whole matrix is far larger than the row of one token, so that inversion has next to "
            "nothing to read here; what is recovered in print we do not know, and the authors' script "
            "(594cb8a) does not tell: it "
            "sets its noise to zero before it attacks. DP-SGD trains with frozen "
            "tables "
            "of tokens, so that inversion of its front is that of the published one. By the paper's recipe "
            "it "
            "hardly moves the model; that it keeps what the published model knew of a genre, which training "
            "without noise loses, is a guess: the published model was not attacked.",
            "Non-members lack a fifth of their words, and training texts of SST-2 are often phrases where "
            "test "
            "texts are sentences: any model may see that, so a success above one half is by itself no "
            "membership. The paper has DP-Forward at deeper positions more than "
            f"{100 * printed_text('Table 7: DP-Forward at deeper layers below DP-SGD, more than'):g} points "
            "below DP-SGD; here neither stands out. That the model without noise gives away less than "
            "in print has a likely cause that was not tried: the authors' code changes about half of the "
            "words of non-members, and here a fifth is dropped.",
        ]
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
    return [f"At S = C, {line} Beside 384, all columns of MiniLM, stands the paper's 768, all of BERT-base."]


def _rows(cells: _Cells) -> list[str]:
    if lines := _only_ours(cells):
        return lines
    spread = []
    for cut in ("encoder.1", "encoder.4", "encoder.6", "output"):
        short, long = (cells.ours(f"{cut}, {AUTHORS}", n) for n in ("32", "256"))
        if short is not None and long is not None:
            spread.append(f"{cut} {points(long - short)}")
    lines = [
        "The paper finds n = 64 or 128 often best (Section 5.2); of its Figure 2 we have no numbers. Here, "
        f"from n = 32 to 256, in points: {', '.join(spread)}. So behind the first block more rows cost "
        "accuracy, and behind the fourth and later n hardly matters."
    ]
    with_mask = {n: cells.ours(f"encoder.1, S = C, {MASKED}", n) for n in ("32", "128", "256")}
    shown = [f"{value:.3f} at n = {n}" for n, value in with_mask.items() if value is not None]
    if shown:
        lines.append(
            "Rows of padding are the cause: with the mask handed to the back, encoder.1 has "
            f"{', '.join(shown)}. "
            "Behind the first block n = 128 costs nothing only for a back that knows how long each text is."
        )
    learnt = [(row, column, cells.ours(row, column)) for row, column in _causes(cells)]
    shown = [f"{row.partition(', S = C, ')[2]} {value:.3f} at n = {c}" for row, c, value in learnt if value]
    if shown:
        lines.append(
            "At the embeddings the paper's recipe learns nothing here, at any n (0.509 is the larger class; "
            f"the paper prints 0.7345 at n = 128). One setting changed at a time: {'; '.join(shown)}. What "
            "is left and was not tried: the model (six blocks of half the width, made from a larger one) and "
            "random batches. Our recipe does not learn there either."
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
        f"{_range(gains, points)} points above the same one after add and norm.",
        *_first_encoder(cells),
    ]


def _first_encoder(cells: _Cells) -> list[str]:
    """The last sub-layer of the first block beside its first one, the one number that the text gives."""
    first, last = (
        cells.ours(f"{name}, {AUTHORS}", "encoder 1") for name in (_FIRST_SUBLAYER, _LAST_SUBLAYER)
    )
    if first is None or last is None:
        return []
    theirs = printed_text("Figure 3: last above first sub-layer of Encoder 1, SST-2, about")
    return [
        f"In the first block the last sub-layer lies {_points(last - first)} points above the first, in "
        "print "
        f"about {100 * theirs:g}."
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
            f"Membership: {_range(ours, _share)}, printed {_range(theirs, _share)}. Non-members lack a fifth "
            "of their words, and a model that learnt nothing tells phrases from sentences as well: the "
            "largest "
            "of ours is such a model's, so a success above one half is no membership."
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
    lines = []
    for whose, end in (("By its recipe", AUTHORS), ("By ours", _OURS)):
        gains = [
            clean - noisy
            for row in cells.table.rows
            if row.endswith(end)
            for column in cells.table.columns
            if column.endswith(", noisy")
            and (noisy := cells.ours(row, column)) is not None
            and (clean := cells.ours(row, _clean_of(cells, row, column))) is not None
        ]
        if gains:
            lines.append(
                f"{whose} noisy queries are better in {sum(gain < 0 for gain in gains)} of {len(gains)} "
                f"cells; clean minus noisy is {_range(gains, points)} points."
            )
    if not lines:
        return []
    return [
        "The paper finds queries through the noise of training about two points better than queries without. "
        f"Here it is the other way round. {' '.join(lines)}"
    ]


def _clean_of(cells: _Cells, row: str, column: str) -> str:
    """Where the same model stands without noise: our recipe has one model, of central 1."""
    clean = column.replace("noisy", "clean")
    return clean if cells.table.at(row, clean) is not None else "1, clean"


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
