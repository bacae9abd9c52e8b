"""A figure as two files: the same bytes each time, and the words as they were written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dp_forward.train.figure_style import DARK, LIGHT, Scheme
from reproduction.render.svg_files import draw_schemes, picture


def paint(figure: Any, scheme: Scheme) -> None:
    axes = figure.subplots()
    axes.plot([1, 2, 3], [0.12345678, 2, 1], color=scheme.series["blue"], marker="o", alpha=0.25)
    axes.set(title='no noise: 0.90123, a < b & c > d, style="x"', xlabel="one\ntwo")


@pytest.mark.slow
def test_both_schemes_are_drawn_and_twice_the_same(tmp_path: Path) -> None:
    first, second = (draw_schemes(tmp_path / name, 2.0, paint) for name in ("a", "b"))
    assert [path.name for path in first] == ["a-light.svg", "a-dark.svg"]
    for one, again, scheme in zip(first, second, (LIGHT, DARK), strict=True):
        assert one.read_bytes() == again.read_bytes()
        assert scheme.ink in one.read_text(encoding="utf-8")
    assert first[0].read_bytes() != first[1].read_bytes()


@pytest.mark.slow
def test_places_are_shortened_and_words_are_not(tmp_path: Path) -> None:
    svg = draw_schemes(tmp_path / "a", 2.0, paint)[0].read_text(encoding="utf-8")
    assert 'no noise: 0.90123, a &lt; b &amp; c &gt; d, style="x"</text>' in svg
    assert "opacity: 0.25" in svg
    assert "DejaVu" not in svg
    assert svg.startswith("<svg ")
    assert "<metadata" not in svg


def test_a_picture_names_both_files_and_what_they_show() -> None:
    made = picture("../figures/a", "An arrow")
    assert 'srcset="../figures/a-dark.svg"' in made
    assert '<img alt="An arrow" src="../figures/a-light.svg">' in made
