"""Charts as PNG: one colour for one mechanism in all figures, a sequence of colours for depth.

Guarantees:
    The same values give the same bytes, with the same matplotlib: its defaults are used whatever the reader
    has set, and no date or version is written into the file.
Edges:
    matplotlib is an optional extra (`train`); `check_figures` says so before anything is written.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

from dp_forward.errors import InvalidInput
from dp_forward.storage.files import draft_of
from reproduction.render.ceilings import (
    PAPERS,
    PRIVUNIT,
    RIGHT,
    TASK,
    guess_rate,
    non_private_accuracy,
    our_columns,
)
from reproduction.tables.paper_sensitivity import gaussian_ceiling, pure_ceiling, real_epsilon
from reproduction.tables.table import Chart, Found, Table

__all__ = ["check_figures", "draw_chart", "draw_guess_rates", "draw_headline", "has_chart", "has_headline"]

_DPI: Final = 150
# Okabe and Ito's colours, which most colour-blind readers tell apart.
_PALETTE: Final = {
    "aMGM, S = 2C": "#0072B2",
    "aMGM, S = C": "#56B4E9",
    "GM": "#E69F00",
    "MVG": "#CC79A7",
    "PrivUnit": "#009E73",
    "DP-SGD": "#D55E00",
    "without noise": "#000000",
}
_OTHERS: Final = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9")
_MARKERS: Final = "osD^vPX*<>"
_CUT: Final = re.compile(r"(embeddings|encoder\.\d+|output)(?=,|$)")
_STEPWISE: Final = re.compile(r"\d")
_LEGEND_CHARACTERS: Final = 105
_CEILING_POINTS: Final = 61
_BRACKETS: Final = re.compile(r" \((?:the authors' experiments|the text, and the proof)\)")
_THEIRS: Final = "printed in the paper (hollow)"
Printed = Mapping[str, Mapping[str, float]]
"""Row -> column -> the paper's own number, of one table."""


def check_figures() -> None:
    """Refuse to begin where no figure could be drawn."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise InvalidInput(
            "figures", "be drawn with matplotlib", "none here", "pip install 'dp-forward[train]'."
        ) from None


def has_chart(table: Table, found: Found) -> bool:
    """Whether there is anything to draw."""
    if table.chart is None:
        return False
    return any(table.points(row, found) for lines in table.chart.lines.values() for row in lines)


@contextmanager
def _canvas(width: float, height: float) -> Iterator[Any]:
    """An empty figure of so many inches, with matplotlib's own defaults."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(
            {"font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True}
        )
        matplotlib.rcParams.update({"grid.alpha": 0.3, "lines.linewidth": 1.6, "lines.markersize": 4.5})
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(figure)
        yield figure


def _save(figure: Any, path: Path) -> None:
    with draft_of(path) as draft:
        figure.savefig(draft, dpi=_DPI, format="png", metadata={"Software": None})


def draw_chart(table: Table, found: Found, path: Path, *, printed: Printed | None = None) -> None:
    """The table's chart: panels side by side, a line for every row that has a value, one legend below.

    What the paper ``printed`` stands as hollow marks in the colour of its row.
    """
    chart = table.chart
    assert chart is not None
    panels = {
        title: [(row, points) for row in rows if (points := table.points(row, found))]
        for title, rows in chart.lines.items()
    }
    # A panel of the undefended model alone says nothing.
    telling = [t for t, rows in panels.items() if any("without noise" not in row for row, _ in rows)]
    panels = {title: panels[title] for title in telling or panels}
    labels = list(dict.fromkeys(_label(row, title) for title, rows in panels.items() for row, _ in rows))
    looks = _looks([_label(row, title) for title, rows in chart.lines.items() for row in rows])
    columns = _columns(table, chart)
    legend_columns = max(1, min(4, _LEGEND_CHARACTERS // (max(map(len, labels)) + 8)))
    across = min(3, len(panels))
    down = -(-len(panels) // across)
    width = 7.0 if across == 1 else 3.2 * across
    height = 3.0 * down + 0.7 + 0.19 * -(-len(labels) // legend_columns)
    with _canvas(width, height) as figure:
        every_axes = figure.subplots(down, across, squeeze=False, sharey=True).flatten()
        for axes in every_axes[len(panels) :]:
            axes.set_visible(False)
        handles: dict[str, Any] = {}
        for axes, (title, rows) in zip(every_axes, panels.items(), strict=False):
            for row, points in rows:
                label = _label(row, title)
                places = [(columns[column], *value) for column, *value in points]
                handles[label] = _draw_line(axes, places, elinewidth=0.8, capsize=2, **looks[label])
                theirs = {columns[c]: v for c, v in (printed or {}).get(row, {}).items() if c in columns}
                if theirs:
                    hollow = {"marker": "o", "facecolors": "none", "edgecolors": looks[label]["color"]}
                    handles[_THEIRS] = axes.scatter(list(theirs), list(theirs.values()), s=42, **hollow)
            numbers = all(_is_number(name) for name in columns)
            _set_ticks(axes, columns, log=chart.log and numbers and min(columns.values()) > 0)
            axes.set_xlabel(chart.x)
            axes.set_title(title, fontsize=10)
        every_axes[0].set_ylabel(chart.y)
        named = [*labels, *([_THEIRS] if _THEIRS in handles else [])]
        figure.legend(
            [handles[label] for label in named],
            named,
            loc="outside lower center",
            ncols=legend_columns,
            fontsize=8,
            frameon=False,
            title=table.corner.split("\\")[0].strip(),
            title_fontsize=8,
        )
        _save(figure, path)


def _label(row: str, panel: str) -> str:
    """A row without its panel's name; which recipe it has, the panel says."""
    return _BRACKETS.sub("", row.removeprefix(f"{panel.split(',', maxsplit=1)[0]}: ")).removesuffix(
        ", our recipe"
    )


def _columns(table: Table, chart: Chart) -> dict[str, float]:
    """Where each column stands: at its number if all are numbers, else one after the other."""
    drawn = {row for rows in chart.lines.values() for row in rows}
    names = list(dict.fromkeys(cell.column for cell in table.cells if cell.row in drawn))
    try:
        return {name: float(name) for name in names}
    except ValueError:
        return {name: float(place) for place, name in enumerate(names)}


def _draw_line(axes: Any, points: Sequence[Sequence[float]], **look: Any) -> Any:
    """A line with the interval of each of its (x, value, low, high)."""
    x, y, low, high = zip(*points, strict=True)
    below = [value - end for value, end in zip(y, low, strict=True)]
    above = [end - value for value, end in zip(y, high, strict=True)]
    return axes.errorbar(x, y, yerr=[below, above], **look)


def _set_ticks(axes: Any, columns: dict[str, float], *, log: bool) -> None:
    from matplotlib.ticker import NullLocator

    if log:
        axes.set_xscale("log", base=2)
    axes.set_xticks(list(columns.values()), list(columns))
    axes.xaxis.set_minor_locator(NullLocator())


def _is_number(name: str) -> bool:
    try:
        float(name)
    except ValueError:
        return False
    return True


def _looks(labels: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Colour and marker of each line, the same in every panel."""
    import matplotlib

    names = list(dict.fromkeys(labels))
    in_order = [name for name in names if _CUT.match(name) or _STEPWISE.match(name)]
    colour_map = matplotlib.colormaps["viridis"]
    looks: dict[str, dict[str, Any]] = {}
    other = 0
    for name in names:
        known = next((key for key in _PALETTE if name.startswith(key)), None)
        if known == "without noise":
            looks[name] = {"color": _PALETTE[known], "linestyle": "--", "linewidth": 1.2}
        elif known is not None:
            place = list(_PALETTE).index(known)
            looks[name] = {"color": _PALETTE[known], "marker": _MARKERS[place]}
        elif name in in_order:
            place = in_order.index(name)
            # Not to the end of the map: its yellow cannot be read on white.
            shade = 0.9 * place / max(1, len(in_order) - 1)
            looks[name] = {"color": colour_map(shade), "marker": _MARKERS[place % len(_MARKERS)]}
        else:
            looks[name] = {"color": _OTHERS[other % len(_OTHERS)], "marker": _MARKERS[other % len(_MARKERS)]}
            other += 1
    return looks


def has_headline(table: Table, found: Found) -> bool:
    """Whether one of the lines of the README's figure was run."""
    return any(table.points(f"{TASK}: {name}", found) for name in (RIGHT, PRIVUNIT))


def draw_headline(table: Table, found: Found, path: Path) -> None:
    """The README's figure: SST-2 in the table `mechanisms` against epsilon, and the ceilings if known."""
    columns = {column: float(column) for column in our_columns(table)}
    epsilons = list(columns.values())
    blue, green, sky = (_PALETTE[name] for name in ("aMGM, S = 2C", "PrivUnit", "aMGM, S = C"))
    clean = non_private_accuracy(table, found)
    low, high = (round(real_epsilon(end), 2) for end in (epsilons[0], epsilons[-1]))
    lines = {
        PRIVUNIT: ("PrivUnit", {"color": green, "marker": "o", "linewidth": 2.2}),
        RIGHT: (
            "the paper's mechanism, at S = 2C",
            {"color": blue, "marker": "s", "linewidth": 2.2},
        ),
        PAPERS: (
            f"at S = C, as in its experiments (proved: {low:g} to {high:g})",
            {"color": sky, "linestyle": "--", "linewidth": 1.0},
        ),
    }
    with _canvas(7.0, 4.6) as figure:
        axes = figure.subplots()
        if clean is not None:
            axes.axhline(clean, color="black", linestyle=":", linewidth=1.2, label="without noise")
            _draw_ceilings(axes, clean, epsilons, pure=green, gaussian=blue)
        for name, (label, look) in lines.items():
            points = [(columns[column], *value) for column, *value in table.points(f"{TASK}: {name}", found)]
            if points:
                _draw_line(axes, points, elinewidth=0.9, capsize=2.5, label=label, **look)
        _set_ticks(axes, columns, log=True)
        axes.set_ylim(bottom=0.5)
        axes.set(xlabel="epsilon per text", ylabel=f"accuracy on {TASK}, cut at the output")
        figure.legend(loc="outside lower center", ncols=2, fontsize=8, frameon=False)
        _save(figure, path)


def draw_guess_rates(table: Table, found: Found, path: Path) -> None:
    """The runs of the README's figure against epsilon and, beside it, against the best guess rate."""
    looks = {
        PRIVUNIT: ("PrivUnit", {"color": _PALETTE["PrivUnit"], "marker": "o", "linewidth": 2.0}),
        RIGHT: (
            "matrix Gaussian, delta 1e-5",
            {"color": _PALETTE["aMGM, S = 2C"], "marker": "s", "linewidth": 2.0},
        ),
    }
    columns = {column: float(column) for column in our_columns(table)}
    clean = non_private_accuracy(table, found)
    with _canvas(8.0, 4.0) as figure:
        by_epsilon, by_guess = figure.subplots(1, 2, sharey=True)
        for name, (label, look) in looks.items():
            points = [(columns[column], *value) for column, *value in table.points(f"{TASK}: {name}", found)]
            if points:
                _draw_line(by_epsilon, points, elinewidth=0.9, capsize=2.5, label=label, **look)
                guesses = [(100 * guess_rate(name, epsilon), *value) for epsilon, *value in points]
                _draw_line(by_guess, guesses, elinewidth=0.9, capsize=2.5, **look)
                for (x, y, *_), (epsilon, *_) in zip(guesses, points, strict=True):
                    where = {"xytext": (5, -11), "textcoords": "offset points"}
                    by_guess.annotate(f"{epsilon:g}", (x, y), fontsize=7, color=look["color"], **where)
        for axes in (by_epsilon, by_guess):
            if clean is not None:
                axes.axhline(clean, color="black", linestyle=":", linewidth=1.2)
        _set_ticks(by_epsilon, columns, log=True)
        by_epsilon.set(xlabel="epsilon per text", ylabel=f"accuracy on {TASK}, cut at the output")
        by_guess.set(xlabel="best guess between two texts, % (points: epsilon)")
        figure.legend(loc="outside lower center", ncols=2, fontsize=8, frameon=False)
        _save(figure, path)


def _draw_ceilings(axes: Any, clean: float, epsilons: list[float], *, pure: str, gaussian: str) -> None:
    low, high = epsilons[0], epsilons[-1]
    places = [low * (high / low) ** (k / (_CEILING_POINTS - 1)) for k in range(_CEILING_POINTS)]
    ceilings = (
        (pure, pure_ceiling, f"ceiling of pure LDP, for {clean:.3f} without noise"),
        (gaussian, partial(gaussian_ceiling, sensitivity=2.0), "ceiling of the Gaussian, likewise"),
    )
    for colour, ceiling, label in ceilings:
        heights = [ceiling(clean, epsilon) for epsilon in places]
        axes.plot(places, heights, color=colour, linewidth=5, alpha=0.22, label=label)
