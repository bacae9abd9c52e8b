"""The page of the command line has every verb, written from the command line."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.syspath_prepend(str(DOCS / "_build"))
    import cli_page

    yield cli_page.verbs_page()
    sys.modules.pop("cli_page")


def test_every_verb_has_a_section_an_example_and_its_options(page: str) -> None:
    sections = page.split("\n## ")
    named = {section.splitlines()[0].removeprefix("## ") for section in sections}
    assert {"dpf calibrate", "dpf ask", "dpf ledger verify", "dpf attack inversion"} <= named
    for section in sections:
        name = section.splitlines()[0].removeprefix("## ")
        assert f"```console\n$ {name}" in section, f"{name} has no example"
        assert "--help" in section, f"{name} has no options"


def test_the_page_has_the_place_for_it() -> None:
    marked = (DOCS / "reference/cli.md").read_text(encoding="utf-8")
    assert (DOCS / "_build/cli_page.py").read_text(encoding="utf-8").count("every verb of dpf") == 1
    assert marked.count("<!-- every verb of dpf -->") == 1
