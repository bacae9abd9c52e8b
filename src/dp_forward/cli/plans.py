"""What the training verbs share: data paths, numbers with commas, and the printed plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from dp_forward.errors import InvalidInput

__all__ = ["Data", "data_paths", "numbers", "print_plan"]

Data = Annotated[
    list[str] | None,
    typer.Option("--data", help="Where a task's files lie, TASK=PATH; can be given several times."),
]


def data_paths(given: Sequence[str] | None) -> dict[str, str] | None:
    """``["sst2=PATH"]`` to ``{"sst2": "PATH"}``."""
    if not given:
        return None
    from dp_forward.data.sources import parse_data_option

    return {task: str(path) for task, path in map(parse_data_option, given)}


def numbers(name: str, text: str | None) -> list[float] | None:
    """``"0.5,0.5"`` to a list."""
    if text is None:
        return None
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise InvalidInput(name, "be numbers with commas between", repr(text), "Try 0.5,0.5.") from None


def print_plan(plan: Mapping[str, Any]) -> None:
    """The effective plan on stderr, before anything runs."""
    typer.echo("The plan:", err=True)
    for name, value in plan.items():
        if value is not None and value != {}:
            typer.echo(f"  {name} = {value}", err=True)
