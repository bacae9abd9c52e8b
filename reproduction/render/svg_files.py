"""A figure as two SVG files, for light and for dark pages, and the markup that shows the right one.

Two files, since no single one works everywhere: Safari does not reliably tell an SVG in an image which scheme
the page has, GitHub picks from a ``<picture>``, and the site has a switch of its own. The pages hold the
``<picture>``; `docs/_build/hooks.py` makes of it the two images that the switch knows.

Guarantees:
    The same values give the same bytes, with the same matplotlib: no date or version is written. A file
    holds no script and refers to nothing outside of it.
Edges:
    Text stays text, in the reader's own sans-serif font. The layout is made with DejaVu Sans, which is wider
    than the fonts that are asked for, so nothing overlaps.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from dp_forward.storage.files import write_file
from dp_forward.train.figure_style import DARK, LIGHT, Scheme, styled

__all__ = ["draw_schemes", "picture"]

_FONTS: Final = "-apple-system, 'Segoe UI', Helvetica, Arial, sans-serif"
_NO_METADATA: Final = dict.fromkeys(("Creator", "Date", "Format", "Type"))


def draw_schemes(path: Path, height: float, paint: Callable[[Any, Scheme], None]) -> list[Path]:
    """Draw NAME-light.svg and NAME-dark.svg for ``path`` NAME, on no background, and say where they are."""
    written = []
    for scheme in (LIGHT, DARK):
        file = io.StringIO()
        with styled(scheme, height) as figure:
            paint(figure, scheme)
            figure.savefig(file, format="svg", facecolor="none", metadata=_NO_METADATA)
        written.append(path.with_name(f"{path.name}-{scheme.name}.svg"))
        write_file(written[-1], _tidy(file.getvalue()))
    return written


def picture(path: str, alt: str) -> str:
    """The markup of a figure, by its path from the page."""
    source = f'<source media="(prefers-color-scheme: dark)" srcset="{path}-dark.svg">'
    return f'<picture>{source}<img alt="{alt}" src="{path}-light.svg"></picture>'


def _tidy(svg: str) -> str:
    """A third of the size: each style once, as a class, and no more digits than one can see.

    The document type, which names a file elsewhere, is left out.
    """
    classes: dict[str, str] = {}

    def name_style(style: re.Match[str]) -> str:
        text = re.sub(r"'DejaVu Sans'[^;]*", _FONTS, style[1])
        return f'class="{classes.setdefault(text, f"s{len(classes)}")}"'

    def shorten(tag: re.Match[str]) -> str:
        short = re.sub(r"\d+\.\d{3,}", lambda number: f"{float(number[0]):.2f}", tag[0])
        short = re.sub(r' transform="rotate\(-0 [^"]*"', "", re.sub(r'^<g id="[^"]*"', "<g", short))
        return re.sub(r'style="([^"]*)"', name_style, re.sub(r"\s+", " ", short))

    short = re.sub(r"<[^>]+>", shorten, re.sub(r"^.*?(?=<svg )", "", svg, flags=re.DOTALL))
    rules = "".join(f".{name}{{{style}}}\n" for style, name in classes.items())
    return re.sub(r"\n +", "\n", short.replace("</style>", f"\n{rules}</style>", 1))
