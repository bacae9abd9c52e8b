"""`dpf ledger`: results on stdout, one JSON object, exit code 1 for what is not sound."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dp_forward.cli import output
from dp_forward.cli.ledger import app
from dp_forward.errors import InvalidInput, LedgerCorrupt
from dp_forward.ledger import Cap, Charge, Ledger
from dp_forward.privacy.units import phrase
from ledger.old_ledger import write_old_ledger

DAILY = {"per_day", "charged_today", "spent_today", "remaining_today"}
CHARGED = {"cap", "delta", "shares", "charged", "spent", "remaining", "promise"}
KEYS = {*CHARGED, *DAILY, "releases", "pending", "delivered", "unit", "sound"}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "budget.ledger"
    with Ledger.create(file, cap=Cap.pure(8.0)) as ledger:
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
    promise = told.pop("promise")
    assert told == {
        "cap": 8.0,
        "delta": 0.0,
        "shares": {"epsilon": 8.0, "mu": 0.0},
        "charged": {"epsilon": 2.0, "mu": 0.0},
        "spent": 2.0,
        "remaining": 6.0,
        "releases": 2,
        "pending": 1,
        "delivered": 1,
        "per_day": None,
        "charged_today": {"epsilon": 2.0, "mu": 0.0},
        "spent_today": 2.0,
        "remaining_today": None,
        "unit": None,
        "sound": True,
    }
    assert promise.startswith("All releases together are 8.0-DP, in whatever order")


@pytest.mark.parametrize("verb", ["show", "verify"])
def test_a_sound_ledger_is_told_in_words(path: Path, verb: str) -> None:
    result = CliRunner().invoke(app, [verb, str(path)])
    assert result.exit_code == 0
    assert "Sound. All releases together are 8.0-DP, in whatever order they come" in result.stdout
    assert "2 releases have charged epsilon 2.0, a valid epsilon at any time." in result.stdout


def test_what_gaussian_releases_charged_is_told_as_a_mu_and_no_epsilon(tmp_path: Path) -> None:
    path = str(tmp_path / "gaussian.ledger")
    CliRunner().invoke(app, ["create", path, "--epsilon", "8", "--delta", "1e-5"])
    with Ledger.open(path) as ledger:
        ledger.reserve(bytes(16), Charge.gaussian(0.5))
    told = json.loads(CliRunner().invoke(app, ["show", path, "--json"]).stdout)
    assert (told["cap"], told["delta"], told["spent"]) == (8.0, 1e-5, None)
    assert told["charged"] == {"epsilon": 0.0, "mu": 0.5}
    words = CliRunner().invoke(app, ["show", path]).stdout
    assert "All releases together are (8.0, 1e-05)-DP" in words
    assert "1 releases have charged mu 0.5 of 1.666" in words
    assert "no promise: the cap is" in words


def test_a_ledger_for_both_kinds_is_made_with_its_shares(tmp_path: Path) -> None:
    path = str(tmp_path / "both.ledger")
    arguments = ["create", path, "--epsilon", "8", "--delta", "1e-5", "--pure-share", "2", "--json"]
    told = json.loads(CliRunner().invoke(app, arguments).stdout)
    assert told["shares"] == {"epsilon": 2.0, "mu": pytest.approx(1.31669, rel=1e-5)}
    for wrong in (["--pure-share", "2"], ["--delta", "1e-5", "--pure-share", "8"]):
        result = CliRunner().invoke(app, ["create", str(tmp_path / "odd"), "--epsilon", "8", *wrong])
        assert isinstance(result.exception, InvalidInput)
    assert not (tmp_path / "odd").exists()


@pytest.mark.slow
def test_an_older_ledger_is_restated_on_stderr_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "old.ledger"
    write_old_ledger(path, [Charge.pure(1.0)])
    for said in (True, False):
        with pytest.raises(SystemExit):
            output.run_app(app, ["show", str(path), "--json"], name="dpf")
        captured = capsys.readouterr()
        assert json.loads(captured.out)["cap"] == 15.9999
        assert captured.err.startswith("dpf: warning: The ledger old.ledger was made by an older") == said
        assert captured.err.count("\n") == said


def test_a_budget_per_day_is_told(tmp_path: Path) -> None:
    path = str(tmp_path / "daily.ledger")
    made = json.loads(CliRunner().invoke(app, ["create", path, "--per-day", "4", "--json"]).stdout)
    assert (made["cap"], made["remaining"], made["shares"]) == (None, None, None)
    with Ledger.open(path) as ledger:
        ledger.reserve(bytes(16), Charge.pure(1.0))
    told = json.loads(CliRunner().invoke(app, ["show", path, "--json"]).stdout)
    assert {name: told[name] for name in DAILY} == {
        "per_day": 4.0,
        "charged_today": {"epsilon": 1.0, "mu": 0.0},
        "spent_today": 1.0,
        "remaining_today": 3.0,
    }
    words = CliRunner().invoke(app, ["show", path]).stdout
    assert "whoever sees k days learns up to k times 4.0" in words
    assert "epsilon 1.0, a valid epsilon at any time; today (UTC) 1.0." in words
    for neither in ([], ["--per-day", "4", "--delta", "1e-5"]):
        refused = CliRunner().invoke(app, ["create", str(tmp_path / "none"), *neither])
        assert isinstance(refused.exception, InvalidInput)
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
        assert "are 8.0-DP per phrase of 5 tokens, in" in CliRunner().invoke(app, [verb, path]).stdout
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
    assert (told["cap"], told["delta"], told["remaining"], told["sound"]) == (4.0, 1e-6, 4.0, True)
    again = CliRunner().invoke(app, arguments)
    assert isinstance(again.exception, InvalidInput)


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["show", "verify", "create"])
def test_each_help_has_an_example(verb: str) -> None:
    assert f"Example: dpf ledger {verb} " in CliRunner().invoke(app, [verb, "--help"]).stdout
