"""The README runs: its code, its commands, and its numbers come out of a command."""

import re
import shlex
from pathlib import Path

import pytest

from dp_forward.cli import proof
from dp_forward.cli.main import run
from dp_forward.privacy.guarantee import percent_up
from dp_forward.privacy.rounding import shown_up

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def test_the_python_of_the_readme_runs_and_prints_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    for block in re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL):
        exec(compile(block, "README.md", "exec"), {})
    printed = capsys.readouterr().out
    for promised in re.findall(r"# (\w+\(.*-> .*)", README):
        assert promised in printed


def test_the_commands_of_the_readme_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    commands = re.findall(r"^\$ dpf (.*)$", README, flags=re.MULTILINE)
    assert len(commands) >= 5
    for command in commands:
        with pytest.raises(SystemExit) as stop:
            run(shlex.split(command, comments=True))
        assert stop.value.code == 0, command


def test_the_numbers_of_the_readme_are_those_of_the_proof() -> None:
    rows = re.findall(r"^\| (\d+) \| (.*) \|$", README, flags=re.MULTILINE)
    assert len(rows) == 5
    for epsilon, cells in rows:
        found = proof.noise_for(float(epsilon))
        assert cells.split(" | ") == [
            shown_up(found["gaussian_sigma"], 5),
            shown_up(found["privunit_sigma"], 5),
            f"{found['gaussian_sigma'] / found['privunit_sigma']:.2f}",
            percent_up(found["gaussian_guess_rate"]),
            percent_up(found["privunit_guess_rate"]),
            shown_up(found["paper_really"], 3),
        ]
