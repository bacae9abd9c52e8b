"""The README runs: its code, its commands, and its numbers come out of a command."""

import re
import shlex
from pathlib import Path

import pytest
import typer

from dp_forward.cli import demo
from dp_forward.cli import main as cli
from dp_forward.privacy.rounding import percent_up, shown_up
from dp_forward.split import FAMILIES
from reproduction import __main__ as reproduction

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
COMMAND = "(dpf|python -m reproduction)"


@pytest.mark.slow
def test_the_python_of_the_readme_runs_and_prints_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    for block in re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL):
        exec(compile(block, "README.md", "exec"), {})
    printed = capsys.readouterr().out
    for promised in re.findall(r"# (\w+\(.*-> .*)", README):
        assert promised in printed


@pytest.mark.slow
def test_the_commands_of_the_readme_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    commands = re.findall(rf"^\$ {COMMAND} (.*)$", README, flags=re.MULTILINE)
    assert len(commands) >= 5
    for program, command in commands:
        run = cli.run if program == "dpf" else reproduction.main
        with pytest.raises(SystemExit) as stop:
            run(shlex.split(command, comments=True))
        assert stop.value.code == 0, command


def _parsed(arguments: list[str], program: str = "dpf") -> None:
    """Read a command line as the program would and run nothing: an unknown verb or option is an error."""
    app = cli.app if program == "dpf" else reproduction.app
    command, context = typer.main.get_command(app), None
    while hasattr(command, "resolve_command"):  # dpf serve has verbs, and is one
        context = command.context_class(command, parent=context)
        _, command, arguments = command.resolve_command(context, arguments)
    command.make_context(command.name, list(arguments), parent=context)


@pytest.mark.slow
def test_the_commands_that_are_only_shown_can_be_read() -> None:
    shown = re.findall(rf"^{COMMAND} (.*)$", README, flags=re.MULTILINE)
    assert {program for program, _ in shown} == {"dpf", "python -m reproduction"}
    for program, command in shown:
        _parsed(shlex.split(command, comments=True), program)


@pytest.mark.slow
def test_a_shown_command_with_an_unknown_option_would_be_seen() -> None:
    for wrong in (
        ["serve", "run/back", "--no-such-option"],
        ["no-such-verb"],
        ["attack", "no-such-attack", "run"],
    ):
        with pytest.raises(Exception, match="No such"):
            _parsed(wrong)


def test_the_readme_is_short_and_its_files_are_named_rightly() -> None:
    assert len(README.splitlines()) <= 180
    assert f"| {len(FAMILIES)} Hugging Face families |" in README


@pytest.mark.slow
def test_the_numbers_of_the_readme_are_those_of_the_proof() -> None:
    rows = re.findall(r"^\| (\d+) \| (.*) \|$", README, flags=re.MULTILINE)
    assert len(rows) == 5
    for epsilon, cells in rows:
        found = demo.noise_for(float(epsilon))
        assert cells.split(" | ") == [
            shown_up(found["gaussian_sigma"], 5),
            shown_up(found["privunit_sigma"], 5),
            f"{found['gaussian_sigma'] / found['privunit_sigma']:.2f}",
            percent_up(found["gaussian_guess_rate"]),
            percent_up(found["privunit_guess_rate"]),
            f"{found['paper_really']:.4g}",
        ]
