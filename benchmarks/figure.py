"""The figures of one result: what each part took (NAME), and how far each limit is (NAME-limits)."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

from dp_forward.train.figure_style import Scheme
from reproduction.render.svg_files import draw_schemes

NOT_OURS = ("opacus", "non private", "bare", "dp accounting")
ROW, LINES = 0.23, 1.9
"""Inches of a bar, and of a panel of lines."""


def draw(record: Mapping[str, Any], path: Path) -> list[Path]:
    """Where the figures are. A part that was not run has no panel."""
    charts = record["charts"]
    # From a limit of 0 there is no distance in factors.
    held = [row for row in record["measurements"] if row["threshold"]]
    path.parent.mkdir(parents=True, exist_ok=True)
    heights = [0.75 + ROW * len(one["values"]) if one["kind"] == "bars" else LINES for one in charts.values()]

    def panels(figure: Any, scheme: Scheme) -> None:
        places = figure.subfigures(len(charts), 1, height_ratios=heights, squeeze=False)[:, 0]
        for place, (title, chart) in zip(places, charts.items(), strict=True):
            axes = place.subplots()
            axes.set_title(title)
            (_bars if chart["kind"] == "bars" else _lines)(axes, chart, scheme)

    written = draw_schemes(path, sum(heights), panels) if charts else []
    if held:
        groups = {part: list(rows) for part, rows in groupby(held, key=lambda row: row["part"])}
        tall = 0.8 + ROW * (len(held) + len(groups))
        limits = path.with_name(f"{path.name}-limits")
        written += draw_schemes(
            limits, tall, lambda figure, scheme: _margins(figure.subplots(), groups, scheme)
        )
    return written


def _bars(axes: Any, chart: Mapping[str, Any], scheme: Scheme) -> None:
    names = [name.replace("_", " ") for name in chart["values"]]
    values = list(chart["values"].values())
    other, ours = scheme.series["orange"], scheme.series["blue"]
    colours = [other if any(word in name for word in NOT_OURS) else ours for name in names]
    drawn = axes.barh(range(len(names)), values, color=colours, alpha=0.85, height=0.65)
    axes.bar_label(drawn, [f"{v:,.0f}" if v >= 100 else f"{v:.3g}" for v in values], padding=3)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.set_xlabel(chart["unit"])
    axes.grid(visible=False, axis="y")


def _lines(axes: Any, chart: Mapping[str, Any], scheme: Scheme) -> None:
    from matplotlib.ticker import LogLocator, NullLocator

    looks = zip(scheme.series.values(), "osD^vP", strict=True)
    for (name, points), (colour, marker) in zip(chart["lines"].items(), looks, strict=False):
        axes.plot(*zip(*points, strict=True), color=colour, marker=marker, linewidth=1.2, label=name)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    ticks = sorted({point[0] for points in chart["lines"].values() for point in points})
    axes.set_xticks(ticks, [f"{tick:,.0f}" for tick in ticks])
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:g}")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_locator(NullLocator())
    axes.set(xlabel=chart["x"], ylabel=chart["y"])
    if len(chart["lines"]) > 1:
        axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))


def _margins(axes: Any, groups: Mapping[str, list[Mapping[str, Any]]], scheme: Scheme) -> None:
    """By which factor each number is on the right side of its limit; left of 1 it is missed."""
    from matplotlib.ticker import NullLocator

    kept, missed = (scheme.series[hue] for hue in ("blue", "vermilion"))
    names: list[str] = []
    for part, rows in groups.items():
        names.append(part)
        for row in rows:
            room, place = margin(row), len(names)
            colour, marker = (kept, "o") if row["ok"] else (missed, "X")
            axes.plot([1, room], [place, place], color=colour, linewidth=1)
            axes.plot([room], [place], marker=marker, color=colour)
            names.append(row["name"].replace("_", " "))
    axes.axvline(1, color=missed, linewidth=1.2)
    for label, name in zip(axes.set_yticks(range(len(names)), names), names, strict=True):
        label.label1.set_weight("bold" if name in groups else "normal")
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("times better than its limit\n(0.1 to 100 at most; red line: the limit)")
    axes.grid(visible=False, axis="y")


def margin(row: Mapping[str, Any]) -> float:
    """How many times better than its limit a measurement is, within what can be drawn."""
    if row["value"] is None:
        return 0.1
    better, worse = row["threshold"], row["value"]
    if row["direction"] == "at least":
        better, worse = worse, better
    return float(min(100.0, max(0.1, better / max(worse, 1e-12))))
