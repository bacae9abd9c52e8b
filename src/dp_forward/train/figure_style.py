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


@dataclass(frozen=True)
class Scheme:
    """The colours on a light or on a dark page.

    The series stay apart for the three kinds of colour blindness. Their contrast to the page is 3 or more.
    """

    name: str
    ink: str
    grid: str
    series: Mapping[str, str]


_ON_WHITE: Final = ("#0a4aa5", "#c48000", "#00804f", "#cf388e", "#b02a06", "#4694f0")
_ON_BLACK: Final = ("#6a9cf5", "#ffd54a", "#3fdc8a", "#f08fb4", "#f0743a", "#b6eaff")
LIGHT: Final = Scheme("light", "#1f2328", "#d7dce1", dict(zip(_HUES, _ON_WHITE, strict=True)))
DARK: Final = Scheme("dark", "#e6edf3", "#3d444d", dict(zip(_HUES, _ON_BLACK, strict=True)))


@contextmanager
def styled(scheme: Scheme, height: float, *, width: float = WIDTH) -> Iterator[Any]:
    """An empty figure of so many inches; what is drawn and saved within the block has the style.

    The reader's own settings of matplotlib, an optional extra (`train`), do not count. A dollar in a label
    is a dollar.
    """
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rc("axes", edgecolor=scheme.ink, labelcolor=scheme.ink)
        matplotlib.rc("axes", axisbelow=True, facecolor="none", grid=True, titlesize=TEXT, titleweight="bold")
        matplotlib.rc("axes.spines", left=False, right=False, top=False)
        matplotlib.rc("font", size=TEXT)
        matplotlib.rc("grid", color=scheme.grid, linewidth=0.6)
        matplotlib.rc("legend", fontsize=TEXT, frameon=False)
        matplotlib.rc("lines", linewidth=1.8, markersize=5.0)
        matplotlib.rc("svg", fonttype="none", hashsalt="dp-forward")
        matplotlib.rc("text", color=scheme.ink, parse_math=False)
        matplotlib.rc("xtick", color=scheme.ink, bottom=False)
        matplotlib.rc("ytick", color=scheme.ink, left=False)
        yield Figure(figsize=(width, height), layout="constrained")
