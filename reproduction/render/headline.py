"""The figure of the README: accuracy on SST-2 against epsilon per text, with what is possible at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from dp_forward.privacy.rounding import shown_up
from reproduction.render.ceilings import PAPERS, PRIVUNIT, RIGHT, TASK, interval, non_private_accuracy
from reproduction.render.figures import PALETTE, canvas, save
from reproduction.render.markdown import Found
from reproduction.tables import paper_sensitivity as convention
from reproduction.tables.table import Table

__all__ = ["draw_headline", "has_headline"]

_PLACES: Final = 61
_BLUE, _GREEN, _SKY = PALETTE["aMGM, S = 2C"], PALETTE["PrivUnit"], PALETTE["aMGM, S = C"]


def has_headline(table: Table, found: Found) -> bool:
    """Whether one of its lines was run."""
    return any(_line(table, name, found) for name in (RIGHT, PRIVUNIT))


def draw_headline(table: Table, found: Found, path: Path) -> None:
    """From the table `mechanisms`: what was run, and where the model without noise was run, the ceilings."""
    epsilons = [float(column) for column in table.columns]
    clean = non_private_accuracy(table, found)
    with canvas(7.0, 4.6) as figure:
        axes = figure.subplots()
        if clean is not None:
            axes.axhline(clean, color="black", linestyle=":", linewidth=1.2, label="without noise")
            _ceilings(axes, clean, epsilons)
        for name, label, look in (
            (PRIVUNIT, "PrivUnit", {"color": _GREEN, "marker": "o", "linewidth": 2.2}),
            (
                RIGHT,
                "the paper's mechanism, at the right sensitivity",
                {"color": _BLUE, "marker": "s", "linewidth": 2.2},
            ),
            (PAPERS, _papers_label(epsilons), {"color": _SKY, "linestyle": "--", "linewidth": 1.0}),
        ):
            points = _line(table, name, found)
            if points:
                x, y, low, high = zip(*points, strict=True)
                off = [
                    [b - a for a, b in zip(low, y, strict=True)],
                    [b - a for a, b in zip(y, high, strict=True)],
                ]
                axes.errorbar(x, y, yerr=off, elinewidth=0.9, capsize=2.5, label=label, **look)
        _dress(axes, epsilons)
        figure.legend(loc="outside lower center", ncols=2, fontsize=8, frameon=False)
        save(figure, path)


def _line(table: Table, name: str, found: Found) -> list[tuple[float, float, float, float]]:
    """(epsilon, accuracy, low, high) of a row's cells that were run."""
    ends = {column: interval(table, name, column, found) for column in table.columns}
    return [(float(column), *found) for column, found in ends.items() if found is not None]


def _ceilings(axes: Any, clean: float, epsilons: list[float]) -> None:
    low, high = epsilons[0], epsilons[-1]
    places = [low * (high / low) ** (k / (_PLACES - 1)) for k in range(_PLACES)]
    pure = [convention.pure_ceiling(clean, epsilon) for epsilon in places]
    gaussian = [convention.gaussian_ceiling(clean, epsilon, sensitivity=2.0) for epsilon in places]
    axes.plot(
        places,
        pure,
        color=_GREEN,
        linewidth=5,
        alpha=0.22,
        label=f"ceiling of pure LDP, for {clean:.3f} without noise",
    )
    axes.plot(
        places, gaussian, color=_BLUE, linewidth=5, alpha=0.22, label="ceiling of the Gaussian, likewise"
    )


def _papers_label(epsilons: list[float]) -> str:
    low, high = (float(shown_up(convention.real_epsilon(e), 2)) for e in (epsilons[0], epsilons[-1]))
    return f"the paper's epsilon (really {low:g} to {high:g})"


def _dress(axes: Any, epsilons: list[float]) -> None:
    from matplotlib.ticker import NullLocator

    axes.set_xscale("log", base=2)
    axes.set_xticks(epsilons, [f"{epsilon:g}" for epsilon in epsilons])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_ylim(bottom=0.5)
    axes.set(xlabel="epsilon per text", ylabel=f"accuracy on {TASK}, cut at the output")
