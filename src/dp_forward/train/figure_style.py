"""One style for every figure: of a run, of the paper's tables and of the benchmarks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

WIDTH: Final = 6.0
"""Inches of a figure: 576 px on a page, and 8 px of text are left where it is shrunk to 340 px."""
TEXT: Final = 10.0
_HUES: Final = ("blue", "orange", "green", "pink", "vermilion", "sky")


@dataclass(frozen=True, kw_only=True)
class Scheme:
    """The colours on a light or on a dark page.

    The series stay apart for the three kinds of colour blindness. Their contrast to the page is 3 or more.
    """

    name: str
    ink: str
    grid: str
    series: Mapping[str, str]


def _scheme(name: str, ink: str, grid: str, *series: str) -> Scheme:
    return Scheme(name=name, ink=ink, grid=grid, series=dict(zip(_HUES, series, strict=True)))


_ON_WHITE: Final = ("#0a4aa5", "#c48000", "#00804f", "#cf388e", "#b02a06", "#4694f0")
_ON_BLACK: Final = ("#6a9cf5", "#ffd54a", "#3fdc8a", "#f08fb4", "#f0743a", "#b6eaff")
LIGHT: Final = _scheme("light", "#1f2328", "#d7dce1", *_ON_WHITE)
DARK: Final = _scheme("dark", "#e6edf3", "#3d444d", *_ON_BLACK)


@contextmanager
def styled(scheme: Scheme, height: float, *, width: float = WIDTH) -> Iterator[Any]:
    """An empty figure of so many inches; what is drawn and saved within the block has the style.

    The reader's own settings of matplotlib, an optional extra (`train`), do not count. A dollar in a label
    is a dollar.
    """
    import matplotlib
    from matplotlib.figure import Figure

    colours = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color")
    settings: Any = dict.fromkeys(colours, scheme.ink) | {
        "axes.axisbelow": True,
        "axes.facecolor": "none",
        "axes.grid": True,
        "axes.spines.left": False,
        "axes.spines.right": False,
        "axes.spines.top": False,
        "axes.titlesize": TEXT,
        "axes.titleweight": "bold",
        "font.size": TEXT,
        "grid.color": scheme.grid,
        "grid.linewidth": 0.6,
        "legend.fontsize": TEXT,
        "legend.frameon": False,
        "lines.linewidth": 1.8,
        "lines.markersize": 5.0,
        "svg.fonttype": "none",
        "svg.hashsalt": "dp-forward",
        "text.parse_math": False,
        "xtick.bottom": False,
        "ytick.left": False,
    }
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(settings)
        yield Figure(figsize=(width, height), layout="constrained")
