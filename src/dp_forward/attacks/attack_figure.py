"""Bar chart of attack results: the interval on each bar, chance and the ceiling as marks.

Edges:
    matplotlib is an optional extra. `check_figure` says so before an attack takes its time.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from dp_forward.errors import InvalidInput
from dp_forward.storage.files import draft_of

__all__ = ["check_figure", "draw_attacks"]

_KINDS: Final = (".png", ".svg", ".pdf")


def check_figure(path: Path) -> None:
    """Refuse a figure that could not be written."""
    if path.suffix not in _KINDS:
        raise InvalidInput("figure", f"end in {', '.join(_KINDS)}", path.name, "Name it so.")
    if not path.absolute().parent.is_dir():
        raise InvalidInput("figure", "lie in a folder that is there", path, "Make the folder first.")
    _figure(1, 1)


def draw_attacks(panels: Mapping[str, Mapping[str, Mapping[str, Any]]], path: Path) -> None:
    """Draw a panel for each title and in it a bar for each name and `AttackResult.as_dict`; written whole."""
    check_figure(path)
    tallest = max(len(bars) for bars in panels.values())
    figure = _figure(1.5 + 4.3 * len(panels), 1.3 + 0.36 * tallest)
    places = figure.subplots(1, len(panels), squeeze=False)[0]
    for axes, (title, results) in zip(places, panels.items(), strict=True):
        bars = list(results.values())
        success = [bar["success"] for bar in bars]
        colours = ["#c46a4a" if bar["ceiling"] is None else "#3b7ea1" for bar in bars]
        off = [[b["success"] - b["low"] for b in bars], [b["high"] - b["success"] for b in bars]]
        axes.barh(range(len(bars)), success, xerr=off, capsize=2, color=colours, height=0.6)
        for place, bar in enumerate(bars):
            span = [place - 0.4, place + 0.4]
            axes.plot([bar["chance"]] * 2, span, color="black", linewidth=1.2, linestyle=":")
            if bar["ceiling"] is not None:
                axes.plot([bar["ceiling"]] * 2, span, color="#a02020", linewidth=1.6)
        axes.set_yticks(range(len(bars)), list(results), fontsize=8)
        axes.invert_yaxis()
        axes.set(xlim=(0, 1.03), title=title)
        axes.grid(axis="x", alpha=0.3)
    figure.supxlabel("success, 95 %;  dotted: chance;  red: ceiling;  orange: nothing promised", fontsize=8)
    with draft_of(path) as draft:
        figure.savefig(draft, dpi=110, format=path.suffix[1:])


def _figure(width: float, height: float) -> Any:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise InvalidInput(
            "figure", "be drawn with matplotlib", "none here", "pip install 'dp-forward[train]'."
        ) from None
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure
