"""Every figure is shown by a page, in both schemes, can be read, and needs nothing but itself."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[2]
FIGURES = ROOT / "docs" / "figures"
DRAWINGS = sorted(FIGURES.glob("*.svg"))
BY_HAND = ("architecture", "two-machines")
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGE_WIDTH, LEAST_TEXT, MOST_BYTES = 700, 11, 60_000
_SHOWN = re.compile(r'<picture>.*?srcset="([^"]+)".*?src="([^"]+)".*?</picture>|!\[[^\]]*\]\(([^)]+\.\w+)\)')


def shown_by(page: Path) -> list[Path]:
    """The image files of a page; of a picture both."""
    found = _SHOWN.findall(page.read_text(encoding="utf-8"))
    return [(page.parent / name).resolve() for names in found for name in names if name]


def faults(svg: str) -> list[str]:
    """What a drawing must not hold: scripts, handlers, and references to anything outside of it."""
    found = [mark for mark in ("<!DOCTYPE", "<!ENTITY", "<?xml-stylesheet", "@import") if mark in svg]
    for element in ElementTree.fromstring(svg).iter():
        tag = element.tag.rpartition("}")[2]
        if tag in ("script", "foreignObject", "image", "iframe", "a"):
            found.append(tag)
        for name, value in element.attrib.items():
            bare = name.rpartition("}")[2]
            if bare.startswith("on") or (bare in ("href", "src") and not value.startswith("#")):
                found.append(bare)
        said = " ".join([*element.attrib.values(), element.text or ""])
        found += [link for link in re.findall(r"url\(([^)]*)\)", said) if not link.startswith("#")]
    return found


def least_text(svg: str) -> float:
    """Pixels of the smallest text on a page of 700 px."""
    head = ElementTree.fromstring(svg).attrib
    width = float(head["width"].removesuffix("pt")) * (4 / 3 if head["width"].endswith("pt") else 1)
    sizes = re.findall(r'font-size(?:="|: )([\d.]+)', svg)
    return min(map(float, sizes)) * min(width, PAGE_WIDTH) / float(head["viewBox"].split()[2])


def test_every_figure_is_shown_by_a_page_and_is_there() -> None:
    shown = {path for page in PAGES for path in shown_by(page)}
    assert [path for path in shown if not path.exists()] == []
    assert set(FIGURES.iterdir()) - shown == set()


def test_every_drawing_is_there_in_both_schemes_and_pages_show_both() -> None:
    names = {path.stem.rpartition("-")[0] for path in DRAWINGS}
    assert len(names) >= 10
    assert {path.name for path in DRAWINGS} == {
        f"{name}-{of}.svg" for name in names for of in ("light", "dark")
    }
    for page in PAGES:
        for dark, light, alone in _SHOWN.findall(page.read_text(encoding="utf-8")):
            assert not alone.endswith(".svg"), f"{page.name} shows {alone} in one scheme only"
            assert dark == light.replace("-light.svg", "-dark.svg")


@pytest.mark.parametrize("path", DRAWINGS, ids=lambda path: path.stem)
def test_a_drawing_is_small_can_be_read_and_stands_alone(path: Path) -> None:
    svg = path.read_text(encoding="utf-8")
    assert faults(svg) == []
    assert len(svg.encode()) < MOST_BYTES
    assert least_text(svg) >= LEAST_TEXT


def test_a_drawing_that_runs_or_fetches_something_is_found() -> None:
    inside = '<script>1</script><use href="#a"/><use href="http://b"/><g onload="c()" fill="url(d.svg#e)"/>'
    hostile = f'<svg xmlns="http://www.w3.org/2000/svg"><style>.a{{fill:url(#a)}}</style>{inside}</svg>'
    assert faults(hostile) == ["script", "href", "onload", "d.svg#e"]


def test_small_text_is_found() -> None:
    text = '<text font-size="11">a</text>'
    for width, least in ((980, 11 * 700 / 980), (600, 11 * 600 / 980)):
        svg = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" viewBox="0 0 980 1">{text}</svg>'
        assert least_text(svg) == pytest.approx(least)


@pytest.mark.parametrize("name", BY_HAND)
def test_a_drawing_by_hand_differs_in_its_colours_only_and_says_what_it_shows(name: str) -> None:
    light, dark = (
        (FIGURES / f"{name}-{scheme}.svg").read_text(encoding="utf-8") for scheme in ("light", "dark")
    )
    style = re.compile(r"<style>.*?</style>", flags=re.DOTALL)
    assert style.sub("", light) == style.sub("", dark)
    names = [
        re.findall(r"^(.*?) \{", found[0], flags=re.MULTILINE) for found in map(style.findall, (light, dark))
    ]
    assert names[0] == names[1]
    assert "<title" in light
    assert "<desc" in light


@pytest.fixture
def hooks(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "_build"))
    import hooks

    yield hooks
    for name in ("hooks", "cli_page"):
        sys.modules.pop(name, None)


def test_the_site_gets_both_images_of_every_picture(hooks: ModuleType) -> None:
    for page in PAGES[1:]:
        written = page.read_text(encoding="utf-8")
        uri = page.relative_to(ROOT / "docs").as_posix()
        of_the_page = SimpleNamespace(file=SimpleNamespace(src_uri=uri))
        if written.count("<picture>") and "every verb of dpf" not in written:
            made = hooks.on_page_markdown(written, page=of_the_page, config=None, files=None)
            assert "<picture>" not in made
            assert made.count("-light.svg#only-light)") == written.count("<picture>")
            assert made.count("-dark.svg#only-dark)") == written.count("<picture>")
