"""Every command and script of the README and of the tutorials runs, as a reader would run it."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs import page_commands

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs" / "tutorial").glob("*.md"))]

PAGE = """
Text.

<!-- file: note.txt -->
```text
one
```

```python
print(open("note.txt").read())
```

```console
$ test "$(cat note.txt)" = one
output of it
$ sh -c 'exit 3'   # exit code 3
```

<!-- not run: needs a GPU -->
```console
false
```

1. In a list:

    ```console
    make test
    python -m http.server 8765 --help
    dpf serve run/back --port 8765
    dpf serve users list --store x
    ```
"""


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_commands_of_a_page_run_in_an_empty_folder(page: Path, tmp_path: Path) -> None:
    assert len(list(page_commands.run_page(page.read_text(encoding="utf-8"), tmp_path, smoke=True))) >= 4


def test_a_page_is_read_as_a_reader_reads_it() -> None:
    assert [(step.kind, step.what.strip(), step.code) for step in page_commands.steps_of(PAGE)] == [
        ("file", "one", 0),
        ("python", 'print(open("note.txt").read())', 0),
        ("command", 'test "$(cat note.txt)" = one', 0),
        ("command", "sh -c 'exit 3'   # exit code 3", 3),
        ("command", "python -m http.server 8765 --help", 0),
        ("server", "dpf serve run/back --port 8765", 0),
        ("command", "dpf serve users list --store x", 0),
    ]


def test_a_page_runs_up_to_what_fails(tmp_path: Path) -> None:
    assert len(list(page_commands.run_page(PAGE.partition("1. In a list")[0], tmp_path))) == 4
    for wrong in ("false", "python -c 'raise ValueError' || true", "sh -c 'exit 3'"):
        with pytest.raises(AssertionError):
            list(page_commands.run_page(f"```console\n$ {wrong}\n```\n", tmp_path))
