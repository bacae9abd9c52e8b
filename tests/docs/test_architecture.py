"""The pages that name files name files that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "dp_forward"
PLACES = (ROOT, PACKAGE, ROOT / "tests", *(folder for folder in PACKAGE.iterdir() if folder.is_dir()))


def missing(page: str) -> list[str]:
    """Paths in code quotes that are nowhere."""
    named = set(re.findall(r"`([\w/]+(?:\.py|/))`", page))
    tests = {path.name for path in (ROOT / "tests").rglob("test_*.py")}
    inner = {path.name for path in (ROOT / "src").rglob("*.py")}
    return sorted(
        name
        for name in named
        if not any((place / name).exists() for place in PLACES) and name not in tests | inner
    )


PAGES = ("docs/architecture.md", "docs/paper-map.md", "docs/explanation/errata.md", "CONTRIBUTING.md")


@pytest.mark.parametrize("page", PAGES)
def test_every_file_that_a_page_names_exists(page: str) -> None:
    assert missing((ROOT / page).read_text(encoding="utf-8")) == []


def test_the_check_finds_a_file_that_is_gone() -> None:
    assert missing("`serve/wire.py` and `privacy/`") == ["serve/wire.py"]
