"""Charts as PNG: one colour for one mechanism in all figures, a sequence of colours for depth.

Guarantees:
    The same values give the same bytes, with the same matplotlib: its defaults are used whatever the reader
    has
    set, and no date or version is written into the file.
Edges:
    matplotlib is an optional extra (`train`); `check_figures` says so before anything is written.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from dp_forward.errors import InvalidInput
from reproduction.render.markdown import Found
from reproduction.tables.table import Chart, Table

__all__ = ["PALETTE", "canvas", "check_figures", "draw_chart", "has_figure", "save"]

_DPI: Final = 150
# Okabe and Ito's colours, which most colour-blind readers tell apart.
PALETTE: Final = {
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


def check_figures() -> None:
    """Refuse to begin where no figure could be drawn."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise InvalidInput(
            "figures", "be drawn with matplotlib", "none here", "pip install 'dp-forward[train]'."
        ) from None


def has_figure(table: Table, found: Found) -> bool:
    """Whether there is anything to draw."""
    if table.chart is None:
        return False
    rows = [row for lines in table.chart.lines.values() for row in lines]
    return any(_points(table, row, found) for row in rows)


@contextmanager
def canvas(width: float, height: float) -> Iterator[Any]:
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


def save(figure: Any, path: Path) -> None:
    """All of the file or nothing."""
    draft = path.with_name(path.name + ".new")
    figure.savefig(draft, dpi=_DPI, format="png", metadata={"Software": None})
    draft.replace(path)


def draw_chart(table: Table, found: Found, path: Path) -> None:
    """The table's chart: panels side by side, a line for every row that has a value, one legend below."""
    chart = table.chart
    assert chart is not None
    panels = {
        title: [(row, points) for row in rows if (points := _points(table, row, found))]
        for title, rows in chart.lines.items()
    }
    panels = {
        title: rows for title, rows in panels.items() if any(_defended(row) for row, _ in rows)
    } or panels
    labels = list(dict.fromkeys(_label(row, title) for title, rows in panels.items() for row, _ in rows))
    looks = _looks([_label(row, title) for title, rows in chart.lines.items() for row in rows])
    columns = _columns(table, chart)
    legend_columns = max(1, min(4, _LEGEND_CHARACTERS // (max(map(len, labels)) + 8)))
    width = 7.0 if len(panels) == 1 else 3.0 * len(panels)
    height = 3.7 + 0.19 * -(-len(labels) // legend_columns)
    with canvas(width, height) as figure:
        every_axes = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
        handles: dict[str, Any] = {}
        for axes, (title, rows) in zip(every_axes, panels.items(), strict=True):
            for row, points in rows:
                label = _label(row, title)
                handles[label] = _line(axes, points, columns, looks[label])
            _dress(axes, chart, columns)
            axes.set_title(title, fontsize=10)
        every_axes[0].set_ylabel(chart.y)
        figure.legend(
            [handles[label] for label in labels],
            labels,
            loc="outside lower center",
            ncols=legend_columns,
            fontsize=8,
            frameon=False,
            title=table.corner.split("\\")[0].strip(),
            title_fontsize=8,
        )
        save(figure, path)


def _defended(row: str) -> bool:
    """A panel of the undefended model alone says nothing."""
    return not row.endswith("without noise")


def _points(table: Table, row: str, found: Found) -> list[tuple[str, float, float, float]]:
    """(column, value, low, high) of a row's cells that were run."""
    points = []
    for column in table.columns:
        cell = table.at(row, column)
        value = None if cell is None else cell.value(found)
        if value is None or not isinstance(value.value, float):
            continue
        low = value.value if value.low is None else min(value.low, value.value)
        high = value.value if value.high is None else max(value.high, value.value)
        points.append((column, value.value, low, high))
    return points


def _label(row: str, panel: str) -> str:
    return row.removeprefix(f"{panel}: ")


def _columns(table: Table, chart: Chart) -> dict[str, float]:
    """Where each column stands: at its number if all are numbers, else one after the other."""
    drawn = {row for rows in chart.lines.values() for row in rows}
    names = list(dict.fromkeys(cell.column for cell in table.cells if cell.row in drawn))
    try:
        return {name: float(name) for name in names}
    except ValueError:
        return {name: float(place) for place, name in enumerate(names)}


def _line(
    axes: Any,
    points: Sequence[tuple[str, float, float, float]],
    columns: dict[str, float],
    look: dict[str, Any],
) -> Any:
    x = [columns[column] for column, *_ in points]
    y = [value for _, value, _, _ in points]
    off = [[value - low for _, value, low, _ in points], [high - value for _, value, _, high in points]]
    return axes.errorbar(x, y, yerr=off, elinewidth=0.8, capsize=2, **look)


def _dress(axes: Any, chart: Chart, columns: dict[str, float]) -> None:
    from matplotlib.ticker import NullLocator

    numbers = all(_is_number(name) for name in columns)
    if chart.log and numbers and min(columns.values()) > 0:
        axes.set_xscale("log", base=2)
    axes.set_xticks(list(columns.values()), list(columns))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel(chart.x)


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
        known = next((key for key in PALETTE if name.startswith(key)), None)
        if known == "without noise":
            looks[name] = {"color": PALETTE[known], "linestyle": "--", "linewidth": 1.2}
        elif known is not None:
            place = list(PALETTE).index(known)
            looks[name] = {"color": PALETTE[known], "marker": _MARKERS[place]}
        elif name in in_order:
            place = in_order.index(name)
            # Not to the end of the map: its yellow cannot be read on white.
            shade = 0.9 * place / max(1, len(in_order) - 1)
            looks[name] = {"color": colour_map(shade), "marker": _MARKERS[place % len(_MARKERS)]}
        else:
            looks[name] = {"color": _OTHERS[other % len(_OTHERS)], "marker": _MARKERS[other % len(_MARKERS)]}
            other += 1
    return looks
