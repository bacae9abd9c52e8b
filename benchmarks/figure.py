"""One figure of one result: steps, memory, growth, the corpus, the service, and how far each limit is."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

OK, MISSED, OTHER = "#3b7ea1", "#a02020", "#c46a4a"
NOT_OURS = ("opacus", "non private", "bare", "dp accounting")
COLUMNS = 2


def draw(record: Mapping[str, Any], path: Path) -> None:
    """All of the file or nothing. A part that was not run has no panel."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    charts = record["charts"]
    # From a limit of 0 there is no distance in factors.
    held = [row for row in record["measurements"] if row["threshold"]]
    upper = -(-len(charts) // COLUMNS)
    tall = 0.9 + 0.24 * len(held)
    figure = Figure(figsize=(11, 2.9 * upper + tall), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.add_gridspec(upper + 1, COLUMNS, height_ratios=[2.9] * upper + [tall])
    for place, (title, chart) in enumerate(charts.items()):
        axes = figure.add_subplot(grid[place // COLUMNS, place % COLUMNS])
        axes.set_title(title, fontsize=10)
        (_bars if chart["kind"] == "bars" else _lines)(axes, chart)
        axes.tick_params(labelsize=8)
    if held:
        _margins(figure.add_subplot(grid[upper, :]), held)
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(path.name + ".new")
    figure.savefig(draft, dpi=100, format="png")
    draft.replace(path)


def _bars(axes: Any, chart: Mapping[str, Any]) -> None:
    names = [name.replace("_", " ") for name in chart["values"]]
    values = list(chart["values"].values())
    colours = [OTHER if any(word in name for word in NOT_OURS) else OK for name in names]
    drawn = axes.barh(range(len(names)), values, color=colours, height=0.65)
    axes.bar_label(drawn, [f"{value:.3g}" for value in values], padding=3, fontsize=8)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.set_xlabel(chart["unit"], fontsize=8)
    axes.grid(axis="x", alpha=0.3)


def _lines(axes: Any, chart: Mapping[str, Any]) -> None:
    for name, points in chart["lines"].items():
        axes.plot(*zip(*points, strict=True), marker="o", markersize=3, linewidth=1.2, label=name)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    ticks = sorted({point[0] for points in chart["lines"].values() for point in points})
    axes.set_xticks(ticks, [f"{tick:,.0f}" for tick in ticks])
    axes.set_xlabel(chart["x"], fontsize=8)
    axes.set_ylabel(chart["y"], fontsize=8)
    axes.grid(alpha=0.3, which="both")
    if len(chart["lines"]) > 1:
        axes.legend(fontsize=7)


def _margins(axes: Any, held: list[Mapping[str, Any]]) -> None:
    """By which factor each number is on the right side of its limit; left of 1 it is missed."""
    names = [f"{row['part']}: {row['name'].replace('_', ' ')}" for row in held]
    for place, row in enumerate(held):
        room = margin(row)
        colour = OK if row["ok"] else MISSED
        axes.plot([1, room], [place, place], color=colour, linewidth=1)
        axes.plot([room], [place], marker="o", color=colour, markersize=5)
    axes.axvline(1, color=MISSED, linewidth=1.2)
    axes.set_yticks(range(len(held)), names, fontsize=8)
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlabel("times better than its limit; cut off at 0.1 and 100", fontsize=8)
    axes.set_title("limits", fontsize=10)
    axes.grid(axis="x", alpha=0.3)


def margin(row: Mapping[str, Any]) -> float:
    """How many times better than its limit a measurement is, within what can be drawn."""
    if row["value"] is None:
        return 0.1
    better, worse = row["threshold"], row["value"]
    if row["direction"] == "at least":
        better, worse = worse, better
    return float(min(100.0, max(0.1, better / max(worse, 1e-12))))
