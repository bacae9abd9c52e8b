"""Options made from a plan: every setting in its group, the file below the flags."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner

from dp_forward.cli.main import app
from dp_forward.cli.options import PanelCommand
from dp_forward.cli.plan_options import plan_options
from dp_forward.errors import InvalidInput
from dp_forward.train.plan import Plan
from dp_forward.train.plan_base import COUNT, PlanBase, setting, setting_of


@dataclass(frozen=True, kw_only=True)
class _Plan(PlanBase):
    task: str = setting(help="Which.", group="data", missing="Name one.")
    bf16: bool = setting(False, help="Less precise.", group="advanced", switch="--bf16/--fp32")
    steps: int = setting(3, help="How many.", group="advanced", check=COUNT, short="-s")
    hidden: float = setting(0.5, help="By --set only.")


@plan_options(_Plan)
def _verb(settings: dict[str, Any], *, out: Annotated[str, typer.Option("--out")]) -> None:
    """Do it."""
    typer.echo(json.dumps({**settings, "out": out}))


def _call(*words: str) -> Any:
    tiny = typer.Typer(rich_markup_mode=None)
    tiny.command(cls=PanelCommand)(_verb)
    return CliRunner().invoke(tiny, list(words))


def test_only_what_was_said_reaches_the_verb_and_flags_win(tmp_path: Path) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text('task = "file"\nsteps = 7\n')
    said = _call(
        "--plan", str(plan), "--out", "x", "-s", "9", "--fp32", "--set", "hidden=0.25", "--set", "task=set"
    )
    assert json.loads(said.stdout) == {"task": "set", "steps": 9, "bf16": False, "hidden": 0.25, "out": "x"}
    assert json.loads(_call("--out", "x").stdout) == {"out": "x"}


def test_a_flag_wins_over_set() -> None:
    assert json.loads(_call("--out", "x", "--set", "steps=1", "--steps", "2").stdout)["steps"] == 2


def test_the_check_of_a_field_is_the_check_of_the_plan() -> None:
    assert _Plan.from_dict({"task": "a"}).steps == 3
    for settings, rule in ({"task": "a", "steps": 0}, "1 or more"), ({}, "Name one"):
        with pytest.raises(InvalidInput, match=rule):
            _Plan.from_dict(settings)


def test_help_has_a_section_for_each_group_with_the_defaults() -> None:
    text = _call("--help").stdout
    usual, advanced = text.split("Options:")[1].split("Advanced:")
    usual, data = usual.split("Data:")
    assert usual.index("--out") < usual.index("--plan")  # what is required comes first
    assert "--task" in data
    assert "[--fp32]" in advanced
    assert "[3]" in advanced
    assert "--hidden" not in text


def test_finetune_has_a_flag_for_every_setting_with_a_group() -> None:
    shown = CliRunner(env={"COLUMNS": "100"}).invoke(app, ["finetune", "--help"]).stdout
    named = {item.name: setting_of(item) for item in fields(Plan) if setting_of(item).group}
    flags = [(about.switch or "--" + name.replace("_", "-")).split("/")[0] for name, about in named.items()]
    assert len(flags) >= 33
    assert [flag for flag in flags if f"{flag} " not in shown] == []
