"""Charts of the tables: one colour for one mechanism in all figures, a sequence of colours for depth.

Each is written twice, for light and for dark pages: `reproduction.render.svg_files` says why.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from textwrap import fill
from typing import Any, Final

from scipy.special import expit

from dp_forward.errors import InvalidInput
from dp_forward.train.figure_style import TEXT, WIDTH, Scheme
from reproduction.render.ceilings import (
    PAPERS,
    PRIVUNIT,
    RIGHT,
    TASK,
    guess_rate,
    non_private_accuracy,
    our_columns,
)
from reproduction.render.svg_files import draw_schemes
from reproduction.tables.paper_sensitivity import gaussian_ceiling, pure_ceiling, real_epsilon
from reproduction.tables.table import Chart, Found, Table

__all__ = ["check_figures", "draw_chart", "draw_guess_rates", "draw_headline", "has_chart", "has_headline"]

_HUES: Final = {
    "aMGM, S = 2C": "blue",
    "aMGM, S = C": "sky",
    "GM": "orange",
    "MVG": "pink",
    "PrivUnit": "green",
    "DP-SGD": "vermilion",
}
_DEPTH: Final = {"light": (0.8, 0.0), "dark": (1.0, 0.45)}
"""How far up the map viridis can be read on a page, and how much white its low end needs."""
_MARKERS: Final = "osD^vPX*<>"
_STROKES: Final = ("-", "--", "-.", (0, (3, 1, 1, 1, 1, 1)))
_CUT: Final = re.compile(r"(embeddings|encoder\.\d+|output)$")
_CUT_ENDS: Final = {"embeddings": 0.0, "output": 1e9}
_CLEAN: Final = "without noise"
_CEILING_POINTS: Final = 61
_BRACKETS: Final = re.compile(r" \((?:the authors' experiments|the text, and the proof)\)")
_THEIRS: Final = "printed in the paper"
_PANEL: Final = 2.3
"""Inches of height."""
_LABEL: Final = 28
"""Characters in a line under a panel."""
_NEAR: Final = 0.1
"""The share of a panel's width that two labels of ticks need."""
Printed = Mapping[str, Mapping[str, float]]
"""Row -> column -> the paper's own number, of one table."""
Line = tuple[str, str, list[tuple[str, float, float, float]]]
"""A label, its row and its points."""


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


def draw_chart(table: Table, found: Found, path: Path, *, printed: Printed | None = None) -> list[Path]:
    """The table's chart: two panels in a row, a line for every row that has a value, one legend below.

    What the paper ``printed`` stands as hollow marks in the colour of its row.
    """
    chart = table.chart
    assert chart is not None
    panels = _panels(table, chart, found)
    used = {label for lines in panels.values() for label, _, _ in lines}
    labels = [name for name in _in_order(chart) if name in used]
    columns = _columns(table, chart)
    across = min(2, len(panels))
    down = -(-len(panels) // across)
    legend_columns = _legend_columns([*labels, _THEIRS])
    height = _PANEL * down + 0.7 + 0.22 * -(-(len(labels) + 1) // legend_columns)

    def paint(figure: Any, scheme: Scheme) -> None:
        looks = _looks(_in_order(chart), scheme)
        grid = figure.subplots(down, across, squeeze=False, sharex=True, sharey=True)
        handles: dict[str, Any] = {}
        for axes, (title, lines) in zip(grid.flatten(), panels.items(), strict=False):
            for label, row, points in lines:
                places = [(columns[column], *value) for column, *value in points]
                handles[label] = _draw_line(axes, places, **looks[label])
                theirs = {columns[c]: v for c, v in (printed or {}).get(row, {}).items() if c in columns}
                if theirs:
                    hollow = {"color": looks[label]["color"], "markerfacecolor": "none", "markersize": 7}
                    (handles[_THEIRS],) = axes.plot(*zip(*theirs.items(), strict=True), "o", **hollow)
            numbers = all(_is_number(name) for name in columns)
            _set_ticks(axes, columns, log=chart.log and numbers and min(columns.values()) > 0)
            axes.set_title(title)
        for axes in grid.flatten()[len(panels) :]:
            axes.set_visible(False)
        for axes in grid[-1]:
            axes.set_xlabel(fill(chart.x, _LABEL))
        for axes in grid[:, 0]:
            axes.set_ylabel(chart.y)
        named = [*labels, *([_THEIRS] if _THEIRS in handles else [])]
        about = {"title": table.corner.split("\\")[0].strip(), "title_fontsize": TEXT}
        figure.legend(
            [handles[label] for label in named],
            named,
            loc="outside lower center",
            ncols=legend_columns,
            **about,
        )

    return draw_schemes(path, height, paint)


def _panels(table: Table, chart: Chart, found: Found) -> dict[str, list[Line]]:
    """The lines of each panel that tells something; both recipes of a task stand in one row."""
    panels: dict[str, list[Line]] = {}
    order = list(dict.fromkeys(title.partition(",")[0] for title in chart.lines))
    for title, rows in sorted(chart.lines.items(), key=lambda item: order.index(item[0].partition(",")[0])):
        heading, labels = _labels(title, rows)
        lines = [(labels[row], row, points) for row in rows if (points := table.points(row, found))]
        if lines:
            panels[heading] = lines
    # A panel of the undefended model alone says nothing.
    telling = {
        title: lines for title, lines in panels.items() if any(_CLEAN not in label for label, _, _ in lines)
    }
    return telling or panels


def _labels(title: str, rows: Sequence[str]) -> tuple[str, dict[str, str]]:
    """A panel's heading and the label of each row: what all rows end with stands in the heading."""
    task = title.partition(",")[0]
    labels = {
        row: _BRACKETS.sub("", row.removeprefix(f"{task}: ")).removesuffix(", our recipe") for row in rows
    }
    _, comma, shared = next(iter(labels.values())).partition(", ")
    if not comma or not all(label.endswith(f", {shared}") for label in labels.values()):
        return title, labels
    heading = shared if shared.startswith(title) else f"{title}, {shared}"
    return heading, {row: label.removesuffix(f", {shared}") for row, label in labels.items()}


def _in_order(chart: Chart) -> list[str]:
    """All labels of a chart: those with a number or a place in the model by it, then the others."""
    every = [_labels(title, rows)[1].values() for title, rows in chart.lines.items()]
    names = list(dict.fromkeys(label for labels in every for label in labels))
    return sorted(names, key=lambda name: (0, _step(name)) if _is_step(name) else (1, name == _CLEAN))


def _is_step(name: str) -> bool:
    """Whether a label stands in an order: a cut, or a number."""
    return bool(_CUT.match(name.partition(",")[0])) or _is_number(name)


def _step(name: str) -> float:
    cut = name.partition(",")[0]
    return _CUT_ENDS[cut] if cut in _CUT_ENDS else float(cut.removeprefix("encoder."))


def _legend_columns(labels: Sequence[str]) -> int:
    """How many labels fit side by side; a column is as wide as its longest."""
    for count in (4, 3, 2):
        rows = -(-len(labels) // count)
        longest = [max(map(len, labels[start : start + rows])) for start in range(0, len(labels), rows)]
        if sum(0.6 * TEXT * length + 4 * TEXT for length in longest) <= 72 * WIDTH:
            return count
    return 1


def _columns(table: Table, chart: Chart) -> dict[str, float]:
    """Where each column stands: at its number if all are numbers, else one after the other."""
    drawn = {row for rows in chart.lines.values() for row in rows}
    names = list(dict.fromkeys(cell.column for cell in table.cells if cell.row in drawn))
    try:
        return {name: float(name) for name in sorted(names, key=float)}
    except ValueError:
        return {name: float(place) for place, name in enumerate(names)}


def _draw_line(axes: Any, points: Sequence[Sequence[float]], **look: Any) -> Any:
    """A line with the interval of each of its (x, value, low, high)."""
    x, y, low, high = zip(*points, strict=True)
    gap = [math.nan] * len(x)
    (line,) = axes.plot(x, y, **look)
    ends = [end for point in zip(low, high, gap, strict=True) for end in point]
    axes.plot([place for place in x for _ in range(3)], ends, color=look["color"], linewidth=0.9)
    return line


def _set_ticks(axes: Any, columns: dict[str, float], *, log: bool) -> None:
    """A tick for every column; its label without what all begin with, and none too near to the next."""
    from matplotlib.ticker import NullLocator

    if log:
        axes.set_xscale("log", base=2)
    places = [math.log2(place) if log else place for place in columns.values()]
    least = _NEAR * (places[-1] - places[0])
    same = len({name.partition(" ")[0] for name in columns}) == 1
    names = [(name.partition(" ")[2] if same else "") or name for name in columns]
    far = [following - here >= least for here, following in pairwise(places)]
    shown = [name if apart else "" for name, apart in zip(names, [*far, True], strict=True)]
    axes.set_xticks(list(columns.values()), shown)
    axes.xaxis.set_minor_locator(NullLocator())


def _is_number(name: str) -> bool:
    try:
        float(name)
    except ValueError:
        return False
    return True


def _looks(names: Sequence[str], scheme: Scheme) -> dict[str, dict[str, Any]]:
    """Colour, marker and stroke of each line, the same in every panel."""
    steps = [name for name in names if _is_step(name)]
    shades = {name: _shade(place / max(1, len(steps) - 1), scheme) for place, name in enumerate(steps)}
    looks: dict[str, dict[str, Any]] = {}
    uses = dict.fromkeys(_HUES, 0)
    others = list(scheme.series.values())
    for place, name in enumerate(names):
        known = next((key for key in _HUES if name.startswith(key)), None)
        marker = _MARKERS[place % len(_MARKERS)]
        if name == _CLEAN:
            looks[name] = {"color": scheme.ink, "linestyle": ":"}
        elif known is not None:
            marker = _MARKERS[list(_HUES).index(known)]
            stroke = _STROKES[uses[known] % len(_STROKES)]
            looks[name] = {"color": scheme.series[_HUES[known]], "marker": marker, "linestyle": stroke}
            uses[known] += 1
        else:
            colour = shades[name] if name in shades else others[place % len(others)]
            looks[name] = {"color": colour, "marker": marker}
    return looks


def _shade(part: float, scheme: Scheme) -> tuple[float, ...]:
    """A colour for a step in an order, from the first (0) to the last (1), that can be read on the page."""
    import matplotlib

    high, white = _DEPTH[scheme.name]
    colour = matplotlib.colormaps["viridis"](high * part)[:3]
    return tuple(value + (1 - value) * white * (1 - part) for value in colour)


def has_headline(table: Table, found: Found) -> bool:
    """Whether one of the lines of the two headline figures was run."""
    return any(table.points(f"{TASK}: {name}", found) for name in (RIGHT, PRIVUNIT))


def draw_headline(table: Table, found: Found, path: Path) -> list[Path]:
    """SST-2 in the table `mechanisms` against epsilon, and the ceilings if known."""
    columns = {column: float(column) for column in our_columns(table)}
    epsilons = list(columns.values())
    clean = non_private_accuracy(table, found)
    low, high = (round(real_epsilon(end), 2) for end in (epsilons[0], epsilons[-1]))

    def paint(figure: Any, scheme: Scheme) -> None:
        blue, green, sky = (scheme.series[hue] for hue in ("blue", "green", "sky"))
        lines: dict[str, tuple[str, dict[str, Any]]] = {
            PRIVUNIT: ("PrivUnit", {"color": green, "marker": "o"}),
            RIGHT: ("matrix Gaussian, S = 2C", {"color": blue, "marker": "s"}),
            PAPERS: (
                f"S = C (worth {low:g} to {high:g})",
                {"color": sky, "linestyle": "--", "linewidth": 1.2},
            ),
        }
        axes = figure.subplots()
        for name, (label, look) in lines.items():
            points = [(columns[column], *value) for column, *value in table.points(f"{TASK}: {name}", found)]
            if points:
                _draw_line(axes, points, label=label, **look)
        if clean is not None:
            _draw_ceilings(axes, clean, epsilons, pure=green, gaussian=blue)
            axes.axhline(clean, color=scheme.ink, linestyle=":", linewidth=1.2, label=f"no noise {clean:.3f}")
        _set_ticks(axes, columns, log=True)
        axes.set_ylim(bottom=0.5)
        axes.set(xlabel="epsilon per text", ylabel=f"accuracy on {TASK}")
        figure.legend(loc="outside lower center", ncols=2)

    return draw_schemes(path, 4.4, paint)


def draw_guess_rates(
    table: Table, found: Found, path: Path, *, protected: Mapping[str, Sequence[tuple[float, float]]]
) -> list[Path]:
    """The README's figure: accuracy against epsilon and, beside it, against the best guess between two texts.

    Solid lines are questions to models that were trained on raw texts. Dashed ones are ``protected`` as a
    whole: folded training records, by their front, and questions by K-ary response at the same epsilon.
    """
    columns = {column: float(column) for column in our_columns(table)}
    clean = non_private_accuracy(table, found)

    def paint(figure: Any, scheme: Scheme) -> None:
        looks = {
            PRIVUNIT: ("PrivUnit", {"color": scheme.series["green"], "marker": "o"}, (-5, 10, "right")),
            RIGHT: (
                "matrix Gaussian, delta 1e-5",
                {"color": scheme.series["blue"], "marker": "s"},
                (6, -11, "left"),
            ),
        }
        by_epsilon, by_guess = figure.subplots(1, 2, sharey=True)
        for name, (label, look, beside) in looks.items():
            points = [(columns[column], *value) for column, *value in table.points(f"{TASK}: {name}", found)]
            if points:
                _draw_line(by_epsilon, points, label=label, **look)
                guesses = [(100 * guess_rate(name, epsilon), *value) for epsilon, *value in points]
                _draw_line(by_guess, guesses, **look)
                _name_points(by_guess, guesses, [epsilon for epsilon, *_ in points], look["color"], beside)
        hues = ("orange", "pink")
        for (front, line), hue, marker in zip(protected.items(), hues, "D^", strict=True):
            look = {"color": scheme.series[hue], "marker": marker, "linestyle": "--"}
            by_epsilon.plot(*zip(*line, strict=True), label=front, **look)
            by_guess.plot(*zip(*((100 * expit(epsilon), y) for epsilon, y in line), strict=True), **look)
        for axes in (by_epsilon, by_guess):
            axes.margins(y=0.1)
            if clean is not None:
                axes.axhline(clean, color=scheme.ink, linestyle=":", linewidth=1.2)
        _set_ticks(by_epsilon, columns, log=True)
        by_epsilon.set(title="at equal epsilon", xlabel="epsilon per text", ylabel=f"accuracy on {TASK}")
        by_guess.set(title="at equal guess rate", xlabel="best guess of two texts, %")
        about = (
            "solid: questions alone are protected; dashed: training records too\n"
            "numbers beside points: epsilon per text"
        )
        figure.legend(loc="outside lower center", ncols=2, title=about, title_fontsize=TEXT)

    return draw_schemes(path, 4.0, paint)


def _name_points(
    axes: Any,
    points: Sequence[Sequence[float]],
    epsilons: Sequence[float],
    colour: str,
    beside: tuple[float, float, str],
) -> None:
    """Write each point's epsilon beside it; those of points that lie on one another together."""
    groups: dict[tuple[float, float], list[str]] = {}
    for (x, y, *_), epsilon in zip(points, epsilons, strict=True):
        near = next((place for place in groups if abs(place[0] - x) < 2.5), (x, y))
        groups.setdefault(near, []).append(f"{epsilon:g}")
    right, up, side = beside
    for place, names in groups.items():
        where = {"xytext": (right, up), "textcoords": "offset points", "ha": side}
        axes.annotate(", ".join(names), place, color=colour, **where)


def _draw_ceilings(axes: Any, clean: float, epsilons: list[float], *, pure: str, gaussian: str) -> None:
    low, high = epsilons[0], epsilons[-1]
    places = [low * (high / low) ** (k / (_CEILING_POINTS - 1)) for k in range(_CEILING_POINTS)]
    ceilings = (
        (pure, pure_ceiling, "ceiling of pure LDP"),
        (gaussian, partial(gaussian_ceiling, sensitivity=2.0), "ceiling of the Gaussian"),
    )
    for colour, ceiling, label in ceilings:
        heights = [ceiling(clean, epsilon) for epsilon in places]
        axes.plot(places, heights, color=colour, linewidth=5, alpha=0.25, label=label)
