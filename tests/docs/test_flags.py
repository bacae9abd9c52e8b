"""Every flag that a page, a notebook or the help writes after a verb of `dpf` is an option of that verb."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from dp_forward.cli.main import app

ROOT = Path(__file__).parents[2]
FOLDERS = ("docs", "examples", "deploy", "reproduction", ".github")
FILES = [
    *ROOT.glob("*.md"),
    *(page for folder in FOLDERS for kind in ("*.md", "*.ipynb") for page in (ROOT / folder).rglob(kind)),
    *(ROOT / "src").rglob("*.py"),
]
_CALL = re.compile(r"\bdpf((?: [a-z][a-z-]*)+)([^`\n|;]*)")
_FLAG = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")


def _options(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], set[str]]]:
    own = {flag for one in command.params for flag in (*one.opts, *one.secondary_opts)}
    yield path, own | {"--help"}
    for name, verb in getattr(command, "commands", {}).items():
        yield from _options(verb, (*path, name))


OPTIONS = dict(_options(typer.main.get_command(app)))


def text_of(path: Path) -> str:
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        text = "\n".join("".join(cell["source"]) for cell in json.loads(text)["cells"])
    return text.replace("\\\n", " ")


def unknown_flags(text: str) -> list[str]:
    """Each flag that is none of its verb, as `dpf VERB --flag`."""
    found = []
    for words, rest in _CALL.findall(text):
        verb: tuple[str, ...] = ()
        for word in words.split():
            verb = (*verb, word) if (*verb, word) in OPTIONS else verb
        flags = _FLAG.findall(re.split(r"\bdpf ", rest)[0]) if verb else []
        found += [" ".join(("dpf", *verb, flag)) for flag in flags if flag not in OPTIONS[verb]]
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_flag_that_is_written_after_a_verb_is_one_of_its_options(path: Path) -> None:
    assert unknown_flags(text_of(path)) == []


def test_a_flag_of_another_verb_is_noticed() -> None:
    assert unknown_flags(
        "`dpf audit run --server X`, `dpf ask f --server X`, dpf serve users add a --store s"
    ) == ["dpf audit --server"]
    assert unknown_flags("dpf attack inversion f \\\n --bf17".replace("\\\n", " ")) == [
        "dpf attack inversion --bf17"
    ]
    assert sum(bool(_CALL.search(text_of(path))) for path in FILES) > 40
