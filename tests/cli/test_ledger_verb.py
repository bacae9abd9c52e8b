"""`dpf ledger`: results on stdout, one JSON object, exit code 1 for what is not sound."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dp_forward.cli.ledger import app
from dp_forward.errors import InvalidInput, LedgerCorrupt
from dp_forward.ledger import Charge, Ledger
from dp_forward.privacy.units import phrase

DAILY = {"per_day", "spent_today", "remaining_today"}
KEYS = {"spent", "cap", "remaining", "delta", "releases", "pending", "delivered", "unit", "sound", *DAILY}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "budget.ledger"
    with Ledger.create(file, cap_epsilon=8.0, delta=1e-5) as ledger:
        for number in (1, 2):
            ledger.reserve(bytes([number]) * 16, Charge.pure(1.0))
        ledger.ready(1, b"noisy")
        ledger.delivered(1)
    return file


@pytest.mark.parametrize("verb", ["show", "verify"])
def test_a_sound_ledger_is_told_as_json(path: Path, verb: str) -> None:
    result = CliRunner().invoke(app, [verb, str(path), "--json"])
    assert result.exit_code == 0
    told = json.loads(result.stdout)
    assert set(told) == KEYS
    assert told == {
        "spent": 2.0,
        "cap": 8.0,
        "remaining": 6.0,
        "delta": 1e-5,
        "releases": 2,
        "pending": 1,
        "delivered": 1,
        "per_day": None,
        "spent_today": 2.0,
        "remaining_today": None,
        "unit": None,
        "sound": True,
    }


@pytest.mark.parametrize("verb", ["show", "verify"])
def test_a_sound_ledger_is_told_in_words(path: Path, verb: str) -> None:
    result = CliRunner().invoke(app, [verb, str(path)])
    assert result.exit_code == 0
    assert "Sound: 2 releases cost epsilon 2.0 of 8.0 at delta 1e-05." in result.stdout


def test_a_budget_per_day_is_told(tmp_path: Path) -> None:
    path = str(tmp_path / "daily.ledger")
    made = CliRunner().invoke(app, ["create", path, "--per-day", "4", "--json"])
    assert json.loads(made.stdout)["cap"] == 1000.0  # the largest there is
    with Ledger.open(path) as ledger:
        ledger.reserve(bytes(16), Charge.pure(1.0))
    told = json.loads(CliRunner().invoke(app, ["show", path, "--json"]).stdout)
    assert {name: told[name] for name in DAILY} == {
        "per_day": 4.0,
        "spent_today": 1.0,
        "remaining_today": 3.0,
    }
    assert "Of 4.0 a day, 1.0 are spent today (UTC)." in CliRunner().invoke(app, ["show", path]).stdout
    neither = CliRunner().invoke(app, ["create", str(tmp_path / "none")])
    assert isinstance(neither.exception, InvalidInput)
    both = CliRunner().invoke(app, ["create", str(tmp_path / "odd"), "--epsilon", "2", "--per-day", "4"])
    assert isinstance(both.exception, InvalidInput)


def test_the_unit_is_told(tmp_path: Path) -> None:
    path = str(tmp_path / "token.ledger")
    arguments = ["create", path, "--epsilon", "8", "--unit", "phrase:5", "--json"]
    assert json.loads(CliRunner().invoke(app, arguments).stdout)["unit"] == "phrase:5"
    with Ledger.open(path) as ledger:
        ledger.reserve(bytes(16), Charge.pure(1.0), unit=phrase(5))
    for verb in ("show", "verify"):
        assert json.loads(CliRunner().invoke(app, [verb, path, "--json"]).stdout)["unit"] == "phrase:5"
        assert "at delta 1e-05 per phrase:5." in CliRunner().invoke(app, [verb, path]).stdout
    wrong = CliRunner().invoke(app, ["create", str(tmp_path / "other"), "--epsilon", "8", "--unit", "page"])
    assert isinstance(wrong.exception, InvalidInput)
    assert not (tmp_path / "other").exists()


def test_a_sum_that_speaks_of_no_unit_is_said_to(path: Path, tmp_path: Path) -> None:
    assert "the sum speaks of none" in CliRunner().invoke(app, ["show", str(path)]).stdout
    new = CliRunner().invoke(app, ["create", str(tmp_path / "new"), "--epsilon", "8"]).stdout
    assert "speaks of none" not in new


def test_a_damaged_ledger_is_told_as_json_with_exit_code_1(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:5000])
    result = CliRunner().invoke(app, ["verify", str(path), "--json"])
    assert result.exit_code == 1
    told = json.loads(result.stdout)
    assert set(told) == KEYS | {"reason"}
    assert told["sound"] is False
    assert told["spent"] is None
    assert "\n" not in told["reason"]


@pytest.mark.parametrize("arguments", [["show"], ["show", "--json"], ["verify"]])
def test_a_damaged_ledger_is_otherwise_left_to_the_main_program(path: Path, arguments: list[str]) -> None:
    path.write_bytes(b"not a ledger")
    result = CliRunner().invoke(app, [*arguments, str(path)])
    assert isinstance(result.exception, LedgerCorrupt)
    assert result.exception.exit_code == 1
    assert result.stdout == ""


def test_a_ledger_is_made_once(tmp_path: Path) -> None:
    path = str(tmp_path / "new.ledger")
    arguments = ["create", path, "--epsilon", "4", "--delta", "1e-6", "--json"]
    told = json.loads(CliRunner().invoke(app, arguments).stdout)
    assert (told["cap"], told["delta"], told["spent"], told["sound"]) == (4.0, 1e-6, 0.0, True)
    again = CliRunner().invoke(app, arguments)
    assert isinstance(again.exception, InvalidInput)


@pytest.mark.parametrize("verb", ["show", "verify", "create"])
def test_each_help_has_an_example(verb: str) -> None:
    assert f"Example: dpf ledger {verb} " in CliRunner().invoke(app, [verb, "--help"]).stdout
