"""Beside the table `mechanisms`: what each noise lets the best front reach at `output`, and the best guess.

Paper: the accuracies of its Table 4 on SST-2 and IMDb lie near the ceiling of S = C.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from dp_forward.privacy import NoiseSpec, PrivUnit
from dp_forward.privacy.rounding import percent_up
from dp_forward.train.defaults import recipe
from reproduction.render.markdown import NOT_RUN, grid, number, points
from reproduction.render.svg_files import picture
from reproduction.tables.paper_recipe import AUTHORS, PROOF
from reproduction.tables.paper_sensitivity import DELTA, gaussian_ceiling, pure_ceiling
from reproduction.tables.table import Found, Table

__all__ = [
    "PAPERS",
    "PRIVUNIT",
    "RIGHT",
    "TASK",
    "ceilings_section",
    "guess_rate",
    "guess_rates_section",
    "non_private_accuracy",
    "our_columns",
]

TASK: Final = "SST-2"
_OURS: Final = ", our recipe"
PAPERS: Final = "aMGM, S = C, our recipe"
RIGHT: Final = "aMGM, S = 2C, our recipe"
PRIVUNIT: Final = "PrivUnit, our recipe"
_Ceiling = Callable[[float, float], float]
_AT_C: Final[tuple[str, _Ceiling]] = ("r = Phi(B)", lambda a, e: gaussian_ceiling(a, e, sensitivity=1.0))
_AT_2C: Final[tuple[str, _Ceiling]] = ("r = Phi(B / 2)", lambda a, e: gaussian_ceiling(a, e, sensitivity=2.0))
_CEILINGS: Final[Mapping[str, tuple[str, _Ceiling]]] = {
    f"aMGM, {AUTHORS}": _AT_C,
    f"aMGM, {PROOF}": _AT_2C,
    PAPERS: _AT_C,
    RIGHT: _AT_2C,
    PRIVUNIT: ("r = e^epsilon / (1 + e^epsilon)", pure_ceiling),
}
_WORDS: Final = (
    "With the accuracy a of the model without noise, a front that puts the two classes at opposite points "
    "is right with `a r + (1 - a)(1 - r)`, where r is how often a release tells the side. Each cell: "
    "measured, of the ceiling (measured minus ceiling, in points)."
)
_MIND: Final = (
    "Here a is {theirs} by the paper's recipe and {ours} by ours, one run each; the two classes are equally "
    "frequent. A run through noise is another run with an a of its own, and a cell has the interval of its "
    "texts and draws, so it may lie a little above its ceiling."
)


def non_private_accuracy(table: Table, found: Found, recipe: str = _OURS) -> float | None:
    """Accuracy of SST-2 without noise, from the table `mechanisms`; "" is the paper's recipe."""
    row = f"{TASK}: without noise{recipe}"
    column = next(column for column in table.columns if table.at(row, column) is not None)
    return table.number(row, column, found)


def our_columns(table: Table) -> list[str]:
    """The epsilons of our recipe in the table `mechanisms`."""
    return [column for column in table.columns if table.at(f"{TASK}: {RIGHT}", column) is not None]


def ceilings_section(table: Table, found: Found) -> str:
    """The section with measured values beside their ceilings."""
    clean = {recipe: non_private_accuracy(table, found, recipe) for recipe in ("", _OURS)}
    rows = {}
    for name, (rate, ceiling) in _CEILINGS.items():
        best = clean[_OURS if name.endswith(_OURS) else ""]
        rows[f"{name}: {rate}"] = [
            ""
            if table.at(f"{TASK}: {name}", column) is None
            else _beside(
                table.number(f"{TASK}: {name}", column, found),
                None if best is None else ceiling(best, float(column)),
            )
            for column in table.columns
        ]
    theirs, ours = (NOT_RUN if a is None else number(a, 3) for a in clean.values())
    known = _MIND.format(theirs=theirs, ours=ours)
    body = grid(f"{TASK}, mechanism \\ epsilon per text", table.columns, rows)
    return f"## Measured, and the ceiling\n\n{_WORDS} {known}\n\n{body}"


def _beside(got: float | None, best: float | None) -> str:
    if best is None:
        return NOT_RUN if got is None else number(got, 3)
    if got is None:
        return f"{NOT_RUN}, of {number(best, 3)}"
    return f"{number(got, 3)} of {number(best, 3)} ({points(got - best)})"


_EQUAL: Final = (
    "The best guess between two texts, of any attacker who sees one release, and the accuracy of the same "
    "runs. *At equal epsilon the pure mechanism is far more useful. At equal guess rate the two are close*: "
    "what a release tells about the class it tells about the text. What pure epsilon buys is delta = 0, "
    "plain addition over releases, and a proved shuffler."
)

_DASHED: Final = (
    "The dashed lines are not of this table: there the training records are protected too "
    "([proved training](proved-training.md), folded PrivUnit), and a question is K-ary response."
)


def guess_rate(name: str, epsilon: float) -> float:
    """The best two-candidate guess rate against one release of a run: Phi(mu / 2), or by its threshold."""
    if name == RIGHT:
        return NoiseSpec(mechanism="matrix-gaussian", epsilon=epsilon, delta=DELTA).build().guess_rate()
    share = recipe("output", epsilon=epsilon, mechanism="privunit")["threshold_share"]
    made = NoiseSpec(epsilon=epsilon, threshold_share=share).build()
    assert isinstance(made, PrivUnit)
    return made.own_guess_rate()


def guess_rates_section(table: Table, found: Found) -> str:
    """The section with the best guess rate beside the accuracy, for both mechanisms."""
    rows, run = {}, False
    for name in (RIGHT, PRIVUNIT):
        cells = []
        for column in our_columns(table):
            got = table.number(f"{TASK}: {name}", column, found)
            run = run or got is not None
            best = percent_up(guess_rate(name, float(column)))
            cells.append(f"{NOT_RUN if got is None else number(got, 3)} at {best}")
        rows[name] = cells
    body = grid(f"{TASK}, accuracy at best guess \\ epsilon per text", our_columns(table), rows)
    figure = picture("../figures/accuracy-against-guess-rate", "Accuracy against epsilon and best guess")
    shown = f"\n\n{figure}\n\n{_DASHED}" if run else ""
    return f"## The same runs, by the best guess\n\n{_EQUAL}\n\n{body}{shown}"
