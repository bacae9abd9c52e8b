"""What the training verbs share: data paths, numbers with commas, and the printed plan."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from dp_forward.cli import output
from dp_forward.errors import InvalidInput

__all__ = [
    "OWN_LEDGER",
    "Data",
    "LabelEpsilon",
    "LabelPrior",
    "Settings",
    "data_paths",
    "numbers",
    "print_plan",
    "settings_of",
    "told_if_finished",
]

Data = Annotated[
    list[str] | None,
    typer.Option("--data", help="Where a task's files lie, TASK=PATH; can be given several times."),
]
LabelEpsilon = Annotated[
    float | None,
    typer.Option("--label-epsilon", help="Randomize labels with this budget [public labels]."),
]
LabelPrior = Annotated[
    str | None, typer.Option("--label-prior", help="A public prior over the labels: 0.5,0.5.")
]

OWN_LEDGER = (
    "Charged in a ledger of its own, which knows of no other release of these records: name one --ledger for "
    "all of them, or add up."
)


@contextmanager
def told_if_finished(out: Path, mark: str) -> Iterator[None]:
    """Say afterwards, on stderr, that ``out`` was finished before; ``mark`` is the file that it ends with."""
    finished = (out / mark).is_file()
    yield
    if finished:
        output.warn(f"{out} was finished before: nothing was trained, released or charged now.")


def data_paths(given: Sequence[str] | None) -> dict[str, str] | None:
    """``["sst2=PATH"]`` to ``{"sst2": "PATH"}``."""
    if not given:
        return None
    from dp_forward.data.sources import parse_data_option

    return {task: str(path) for task, path in map(parse_data_option, given)}


Settings = Annotated[
    list[str] | None,
    typer.Option("--set", help="Any other key of a plan, NAME=VALUE; can be given several times."),
]


def settings_of(given: Sequence[str] | None) -> dict[str, Any]:
    """``["average=0.999"]`` to ``{"average": 0.999}``; values as in TOML, words without quotes too."""
    found: dict[str, Any] = {}
    for option in given or ():
        name, equals, value = option.partition("=")
        if not equals or not name.strip():
            raise InvalidInput(
                "set", "look like NAME=VALUE", repr(option), "For example --set average=0.999."
            )
        try:
            found[name.strip()] = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            found[name.strip()] = value.strip()
    return found


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
