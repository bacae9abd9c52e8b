"""Ceilings beside the table `mechanisms`: what each noise lets the best front reach at `output`.

Paper: the accuracies of its figure over epsilon lie on the ceiling of S = C.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from reproduction.render.markdown import NOT_RUN, grid, number, points
from reproduction.tables.paper_sensitivity import gaussian_ceiling, pure_ceiling
from reproduction.tables.table import Found, Table

__all__ = ["PAPERS", "PRIVUNIT", "RIGHT", "TASK", "ceilings_section", "non_private_accuracy"]

TASK: Final = "SST-2"
PAPERS: Final = "aMGM, S = C (the paper's)"
RIGHT: Final = "aMGM, S = 2C (right)"
PRIVUNIT: Final = "PrivUnit (ours)"
_CEILINGS: Final[Mapping[str, tuple[str, Callable[[float, float], float]]]] = {
    PAPERS: ("r = Phi(B)", lambda a, e: gaussian_ceiling(a, e, sensitivity=1.0)),
    RIGHT: ("r = Phi(B / 2)", lambda a, e: gaussian_ceiling(a, e, sensitivity=2.0)),
    PRIVUNIT: ("r = e^epsilon / (1 + e^epsilon)", pure_ceiling),
}
_WORDS: Final = (
    "With the accuracy a of the model without noise, a front that puts the two classes at opposite points "
    "is right with `a r + (1 - a)(1 - r)`, where r is how often a release tells the side. Each cell: "
    "measured, of the ceiling (measured minus ceiling, in points)."
)
_MIND: Final = (
    "Here a is {a}, one run; the two classes are equally frequent. A run through noise is another run "
    "with an a of its own, and a cell has the interval of its texts and draws, so it may lie a little above "
    "its ceiling."
)


def non_private_accuracy(table: Table, found: Found) -> float | None:
    """Accuracy of SST-2 without noise, from the table `mechanisms`."""
    return table.number(f"{TASK}: without noise", table.columns[0], found)


def ceilings_section(table: Table, found: Found) -> str:
    """The section with measured values beside their ceilings."""
    clean = non_private_accuracy(table, found)
    rows = {}
    for name, (rate, ceiling) in _CEILINGS.items():
        rows[f"{name}: {rate}"] = [
            _beside(
                table.number(f"{TASK}: {name}", column, found),
                None if clean is None else ceiling(clean, float(column)),
            )
            for column in table.columns
        ]
    known = "The model without noise was not run." if clean is None else _MIND.format(a=number(clean, 3))
    body = grid(f"{TASK}, mechanism \\ epsilon per text", table.columns, rows)
    return f"## Measured, and the ceiling\n\n{_WORDS} {known}\n\n{body}"


def _beside(got: float | None, best: float | None) -> str:
    if best is None:
        return NOT_RUN if got is None else number(got, 3)
    if got is None:
        return f"{NOT_RUN}, of {number(best, 3)}"
    return f"{number(got, 3)} of {number(best, 3)} ({points(got - best)})"
