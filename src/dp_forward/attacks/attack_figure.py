"""What attacks reached, as bars: the interval on each, chance and the ceiling as marks.

Edges:
    matplotlib is an optional extra. `check_figure` says so before an attack takes its time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dp_forward.errors import InvalidInput

__all__ = ["Bar", "check_figure", "draw_attacks"]

_KINDS: Final = (".png", ".svg", ".pdf")
_UNDEFENDED, _DEFENDED = "#c46a4a", "#3b7ea1"


@dataclass(frozen=True, kw_only=True)
class Bar:
    """One attack on one target."""

    name: str
    success: float
    low: float
    high: float
    chance: float
    ceiling: float | None

    @classmethod
    def of(cls, name: str, found: Mapping[str, Any]) -> Bar:
        """From what `AttackResult.as_dict` gives."""
        return cls(name=name, **{key: found[key] for key in ("success", "low", "high", "chance", "ceiling")})


def check_figure(path: Path) -> None:
    """Refuse a figure that could not be written."""
    if path.suffix not in _KINDS:
        raise InvalidInput("figure", f"end in {', '.join(_KINDS)}", path.name, "Name it so.")
    if not path.absolute().parent.is_dir():
        raise InvalidInput("figure", "lie in a folder that is there", path, "Make the folder first.")
    _figure(1, 1)


def draw_attacks(panels: Mapping[str, Sequence[Bar]], path: Path) -> None:
    """One panel for each title, one bar for each attack in it; all of the file or nothing."""
    check_figure(path)
    tallest = max(len(bars) for bars in panels.values())
    figure = _figure(1.5 + 4.3 * len(panels), 1.3 + 0.36 * tallest)
    for axes, (title, bars) in zip(
        figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True
    ):
        places = range(len(bars))
        colours = [_UNDEFENDED if bar.ceiling is None else _DEFENDED for bar in bars]
        off = [[bar.success - bar.low for bar in bars], [bar.high - bar.success for bar in bars]]
        axes.barh(places, [bar.success for bar in bars], xerr=off, capsize=2, color=colours, height=0.6)
        for place, bar in zip(places, bars, strict=True):
            axes.plot(
                [bar.chance] * 2, [place - 0.4, place + 0.4], color="black", linewidth=1.2, linestyle=":"
            )
            if bar.ceiling is not None:
                axes.plot([bar.ceiling] * 2, [place - 0.4, place + 0.4], color="#a02020", linewidth=1.6)
        axes.set_yticks(list(places), [bar.name for bar in bars], fontsize=8)
        axes.invert_yaxis()
        axes.set(xlim=(0, 1.03), title=title)
        axes.grid(axis="x", alpha=0.3)
    figure.supxlabel("success, 95 %;  dotted: chance;  red: ceiling;  orange: nothing promised", fontsize=8)
    draft = path.with_name(path.name + ".new")
    figure.savefig(draft, dpi=110, format=path.suffix[1:])
    draft.replace(path)


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
