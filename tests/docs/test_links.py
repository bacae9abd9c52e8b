"""Every link between Markdown files leads somewhere: files and anchors, without building the site."""

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md"))]
WRITTEN_BY_THE_BUILD = {DOCS / "reference/cli.md", *(DOCS / "reference/api").glob("*.md")}
"""Their anchors exist only in the site; `mkdocs build --strict` checks those."""

_FENCE = re.compile(r"^(```|~~~).*?^\1[ \t]*$", flags=re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[(?:[^\]`]|`[^`]*`)*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#{1,6} +(.+?) *#*$", flags=re.MULTILINE)


@cache
def text_of(page: Path) -> str:
    return _FENCE.sub("", page.read_text(encoding="utf-8"))


def slug(heading: str) -> str:
    """As Python-Markdown makes it: letters, digits, underscores and hyphens, in lower case."""
    bare = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").replace("*", "")
    ascii_only = bare.encode("ascii", "ignore").decode()
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", ascii_only).strip().lower())


@cache
def anchors_of(page: Path) -> frozenset[str]:
    return frozenset(map(slug, _HEADING.findall(text_of(page))))


def broken_links(page: Path) -> list[str]:
    broken = []
    for link in _LINK.findall(text_of(page)):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        known = target.suffix != ".md" or target in WRITTEN_BY_THE_BUILD or not anchor
        if not target.exists() or not (known or anchor in anchors_of(target)):
            broken.append(link)
    return broken


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_link_leads_somewhere(page: Path) -> None:
    assert broken_links(page) == []


def test_a_missing_file_and_a_missing_anchor_are_found(tmp_path: Path) -> None:
    there = tmp_path / "there.md"
    there.write_text("# A heading, `with` code\n", encoding="utf-8")
    page = tmp_path / "page.md"
    page.write_text(
        "[a](there.md#a-heading-with-code) [b](there.md#no) [c](gone.md)\n"
        "[`x[0]`](gone.py) [mail](mailto:a@b)\n```\n[d](not-a-link.md)\n```\n",
        encoding="utf-8",
    )
    assert broken_links(page) == ["there.md#no", "gone.md", "gone.py"]


def test_every_page_is_in_the_navigation() -> None:
    """A page that nothing leads to is lost; those of the paper's tables come in by themselves."""
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    named = set(re.findall(r"[\w./-]+\.md", nav))
    pages = {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")}
    added_by_the_build = {page for page in pages if page.startswith("paper/") or "/" not in page}
    assert named <= pages
    assert pages - named <= added_by_the_build
