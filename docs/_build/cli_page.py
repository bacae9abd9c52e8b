"""The reference of the command line, written from the command line itself.

`docs/reference/cli.md` holds a mark; the build puts `verbs_page()` in its place. So the page cannot be out of date.
"""

from __future__ import annotations

from collections.abc import Iterator
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
    said, _, example = (command.help or "").partition("Example:")
    parts = [f"## {' '.join(path)}", said.strip()]
    if example.strip():
        parts.append(f"```console\n$ {' '.join(example.split())}\n```")
    parts.append(f"```text\n{_settings(path)}\n```")
    return "\n\n".join(part for part in parts if part) + "\n"


def _settings(path: tuple[str, ...]) -> str:
    """The part of `--help` with the arguments and options."""
    from typer.testing import CliRunner

    from dp_forward.cli.main import app

    wide = {"COLUMNS": _WIDTH, "TERMINAL_WIDTH": _WIDTH, "NO_COLOR": "1"}
    shown = CliRunner(env=wide).invoke(app, [*path[1:], "--help"], prog_name="dpf")
    if shown.exit_code != 0:
        raise RuntimeError(f"`{' '.join(path)} --help` failed")
    lines = shown.stdout.splitlines()
    usage = next(line for line in lines if line.startswith("Usage:"))
    first = next(i for i, line in enumerate(lines) if line.startswith(("Arguments:", "Options:")))
    return "\n".join([usage, "", *lines[first:]]).rstrip()
