"""The Python of the documentation runs, and prints what it says.

A block under `<!-- not run: why -->` needs a server, files or a GPU: it must compile. A comment `# prints: X`
in a block promises the line X on stdout.
"""

import re
from pathlib import Path
from typing import NamedTuple

import pytest

DOCS = Path(__file__).parents[2] / "docs"
FOLDERS = ("tutorial", "how-to", "explanation")
_BLOCK = re.compile(r"(<!-- not run: [^>]*-->\n+)?^```python\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    name: str
    code: str
    runs: bool


def blocks_of(text: str, name: str) -> list[Block]:
    found = enumerate(_BLOCK.findall(text), start=1)
    return [Block(f"{name}, block {number}", code, not skipped) for number, (skipped, code) in found]


BLOCKS = [
    block
    for folder in FOLDERS
    for page in sorted((DOCS / folder).glob("*.md"))
    for block in blocks_of(page.read_text(encoding="utf-8"), page.relative_to(DOCS).as_posix())
]


@pytest.mark.slow
@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.name)
def test_the_python_of_a_page_runs_and_prints_what_it_says(
    block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    compiled = compile(block.code, block.name, "exec")
    if not block.runs:
        return
    monkeypatch.chdir(tmp_path)
    exec(compiled, {})
    printed = capsys.readouterr().out.splitlines()
    for promised in re.findall(r"# prints: (.*)$", block.code, flags=re.MULTILINE):
        assert promised in printed


def test_most_blocks_run() -> None:
    assert len([block for block in BLOCKS if block.runs]) >= 5


def test_a_block_is_left_out_only_where_the_page_says_why() -> None:
    page = "```python\n1\n```\n\n<!-- not run: needs a server -->\n```python\n2\n```\n```python\n3\n```\n"
    assert [(block.code, block.runs) for block in blocks_of(page, "p")] == [
        ("1\n", True),
        ("2\n", False),
        ("3\n", True),
    ]
