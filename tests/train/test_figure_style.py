"""The colours can be read on their pages, and the style is ours whatever the reader has set."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from dp_forward.train.figure_style import DARK, LIGHT, Scheme, styled
from dp_forward.train.report import draw_bars

PAGES = {"light": ("#ffffff",), "dark": ("#0d1117", "#1e2129")}
"""White; the dark pages of GitHub and of the site."""


SEEN_BY = {  # Machado, Oliveira and Fernandes 2009, full severity, in linear RGB
    "everybody": np.eye(3),
    "protan": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deutan": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.01182, 0.04294, 0.968881],
    ],
    "tritan": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.3039],
    ],
}
TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


def linear(colour: str) -> np.ndarray:
    shares = np.array([int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)])
    return np.where(shares <= 0.04045, shares / 12.92, ((shares + 0.055) / 1.055) ** 2.4)


def luminance(colour: str) -> float:
    return float(TO_XYZ[1] @ linear(colour))


def lab(colour: str, eye: str) -> np.ndarray:
    """CIELAB of a colour as an eye sees it."""
    seen = np.clip(np.array(SEEN_BY[eye]) @ linear(colour), 0, 1)
    share = TO_XYZ @ seen / TO_XYZ.sum(axis=1)
    x, y, z = np.where(share > 0.008856, np.cbrt(share), 7.787 * share + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def nearest(colours: list[str], eye: str) -> float:
    """The least distance between two of them."""
    return min(float(np.linalg.norm(lab(a, eye) - lab(b, eye))) for a, b in combinations(colours, 2))


def contrast(one: str, other: str) -> float:
    low, high = sorted(map(luminance, (one, other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", [LIGHT, DARK], ids=lambda scheme: scheme.name)
def test_colours_can_be_read_on_their_pages_and_told_apart(scheme: Scheme) -> None:
    for page in PAGES[scheme.name]:
        assert contrast(scheme.ink, page) >= 7
        assert all(contrast(colour, page) >= 3 for colour in scheme.series.values())
    assert {eye: nearest(list(scheme.series.values()), eye) >= 20 for eye in SEEN_BY} == dict.fromkeys(
        SEEN_BY, True
    )


def test_red_and_green_of_one_lightness_would_be_found() -> None:
    assert nearest(["#c04040", "#6f7a10"], "everybody") > 40
    assert nearest(["#c04040", "#6f7a10"], "deutan") < 20


def test_the_colours_of_a_light_page_cannot_be_read_on_a_dark_one() -> None:
    assert any(contrast(colour, PAGES["dark"][1]) < 3 for colour in LIGHT.series.values())


@pytest.mark.slow
def test_the_readers_settings_do_not_count_and_come_back() -> None:
    import matplotlib

    with matplotlib.rc_context({"font.size": 30.0, "axes.grid": False}):
        with styled(DARK, 2.0) as figure:
            axes = figure.subplots()
            assert axes.xaxis.label.get_fontsize() == 10.0
            assert axes.xaxis.label.get_color() == DARK.ink
        assert matplotlib.rcParams["font.size"] == 30.0


@pytest.mark.slow
def test_a_dollar_in_a_label_is_a_dollar(tmp_path: Path) -> None:
    rows = [("$5 \\or", 0.1, 0.0, 0.2), ("$6", 0.1, 0.0, 0.2)]
    assert draw_bars(rows, tmp_path / "shares.svg", title="from $1 to $\\x", measure="share")
    assert "from $1 to $\\x" in (tmp_path / "shares.svg").read_text(encoding="utf-8")
