"""The reference of the command line, written from the command line itself.

`docs/reference/cli.md` holds a mark; the build puts `verbs_page()` in its place. So the page cannot be out of date.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from textwrap import dedent
from typing import Any, Final

__all__ = ["MARK", "verbs_page"]

MARK: Final = "<!-- every verb of dpf -->"
_WIDTH: Final = "100"


def verbs_page() -> str:
    """Every verb as Markdown: what it does, an example, its arguments and options."""
    import typer

    from dp_forward.cli.main import app

    whole: Any = typer.main.get_command(app)
    return "\n".join(_section(path, command) for path, command in _verbs(whole, ("dpf",)))


def _verbs(group: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, command in group.commands.items():
        if command.params:  # dpf serve is a verb and has verbs
            yield (*path, name), command
        yield from _verbs(command, (*path, name)) if hasattr(command, "commands") else ()


def _section(path: tuple[str, ...], command: Any) -> str:
    usage, panels = _shown_help(path)
    parts = [f"## {' '.join(path)}", command.help, f"```console\n$ {command.example}\n```", usage]
    for title, rows in panels:
        parts.append(
            f"### {title} {{ #{'-'.join((*path, *title.lower().split()))} }}\n\n```text\n{rows}\n```"
        )
    return "\n\n".join(parts) + "\n"


def _shown_help(path: tuple[str, ...]) -> tuple[str, list[tuple[str, str]]]:
    """The usage, and the panels of `--help`: the title and the rows of each."""
    from typer.testing import CliRunner

    from dp_forward.cli.main import app

    wide = {"COLUMNS": _WIDTH, "TERMINAL_WIDTH": _WIDTH, "NO_COLOR": "1"}
    shown = CliRunner(env=wide).invoke(app, [*path[1:], "--help"], prog_name="dpf")
    if shown.exit_code != 0:
        raise RuntimeError(f"`{' '.join(path)} --help` failed")
    usage, *blocks = shown.stdout.split("\n\n")
    panels = [block.split(":\n", 1) for block in blocks if re.match(r"[A-Z][\w ,]*:\n", block)]
    return f"```text\n{usage.strip()}\n```", [(title, dedent(rows)) for title, rows in panels]
