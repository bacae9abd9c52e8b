"""Help that can be read: verbs and options in panels, the usual ones first, an example at the end."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import typer

from dp_forward.cli.main import app
from dp_forward.cli.options import _PANELS

Verb = tuple[str, ...]
ROOT: Any = typer.main.get_command(app)


def _verbs(group: Any, path: Verb = ()) -> Iterator[tuple[Verb, Any]]:
    for name, command in group.commands.items():
        yield from _verbs(command, (*path, name)) if hasattr(command, "commands") else ()
        if command.params:
            yield (*path, name), command


VERBS = dict(_verbs(ROOT))


def _titles(text: str) -> list[str]:
    return [line[:-1] for line in text.split("\n") if line.endswith(":") and not line.startswith(" ")]


def test_verbs_stand_in_panels_with_a_summary_that_is_not_cut(dpf: Callable[..., Any]) -> None:
    text = dpf("--help").out
    panels = ["Start here", "Understand", "Data and training", "Check"]
    assert _titles(text) == ["Options", *panels, "Exit codes"]
    assert text.index("demo") < text.index("finetune") < text.index("explain") < text.index("audit")
    assert "..." not in text.replace("[ARGS]...", "")
    for group in ("attack", "ledger", "baseline", "serve users"):
        assert "..." not in dpf(*group.split(), "--help").out.replace("[ARGS]...", "")
    for name in ROOT.commands:
        assert f"\n  {name} " in text


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_usual_options_come_first_and_are_few(dpf: Callable[..., Any], verb: Verb) -> None:
    text = dpf(*verb, "--help").out
    command, titles = VERBS[verb], _titles(text)
    flags = [one for one in command.params if one.param_type_name == "option"]
    usual = [one for one in flags if command.panel_of(one) == "Options"]
    assert titles[: 2 if "Arguments" in titles else 1][-1] == "Options"
    assert "Advanced" not in titles[:-1]
    assert len(usual) <= 17
    assert len(flags) <= 8 or len(usual) < len(flags)
    required = [not one.required for one in usual]
    shown = text.split("Options:")[1]
    places = [shown.index(f"{one.opts[0]} ") for one in sorted(usual, key=lambda one: not one.required)]
    assert max([0, *places[: required.count(False)]]) <= min(places[required.count(False) :], default=1 << 20)


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_every_argument_says_what_it_is(dpf: Callable[..., Any], verb: Verb) -> None:
    text = dpf(*verb, "--help").out
    assert "\\[" not in text
    arguments = text.partition("Arguments:\n")[2].partition("\n\n")[0]
    assert all(len(row.split("  ")) > 2 or row[:6].isspace() for row in arguments.splitlines())


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_help_ends_with_an_example_that_the_verb_understands(dpf: Callable[..., Any], verb: Verb) -> None:
    last = dpf(*verb, "--help").out.rstrip().split("\n")[-1]
    assert last.startswith(f"Example: dpf {' '.join(verb)}")
    words = shlex.split(last.removeprefix("Example: dpf "))[len(verb) :]
    with VERBS[verb].make_context(verb[-1], words) as context:  # an unknown flag or a wrong type is an error
        assert context.params.keys() >= {one.name for one in VERBS[verb].params if one.required}


def test_every_panel_names_parameters_that_exist() -> None:
    known = {one.name for command in VERBS.values() for one in command.params}
    known |= {f"{verb[-1]}.{one.name}" for verb, command in VERBS.items() for one in command.params}
    assert [name for names in _PANELS.values() for name in names.split() if name not in known] == []
