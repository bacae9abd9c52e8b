"""`dpf explain`, `dpf demo` and the command as a whole."""

import json
import math
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

import dp_forward
from dp_forward.cli.explain import RunAccuracy
from dp_forward.privacy import NoiseSpec

ROOT = Path(__file__).parents[2]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """As much of a run as is read: what crosses, and what was measured."""
    return write_report(tmp_path / "run", mechanism="k-ary-response", epsilon=2.0, columns=4)


def write_report(folder: Path, *, plan: dict[str, Any] | None = None, **noise: Any) -> Path:
    (folder / "front").mkdir(parents=True)
    labels = ["a", "b", "c", "d"]
    release = {"format": 1, "noise": NoiseSpec(**noise).as_dict(), "rows": 8, "labels": labels}
    report = {"accuracy": 0.7, "accuracy_without_noise": 0.8, "labels": labels, "plan": plan or {}}
    (folder / "front" / "release.json").write_text(json.dumps(release))
    (folder / "report.json").write_text(json.dumps(report))
    return folder


def test_a_guarantee_in_context_with_tables(dpf) -> None:
    said = dpf("explain", "--mechanism", "matrix-gaussian", "--epsilon", "8").out
    assert said.startswith("(8.0, 1e-05)-LDP per text, for any two texts.")
    assert "Before: 1 of 2 candidates, 50 %. After: at most 79.8 %." in said
    assert "Before: 1 of 10,000 candidates, 0.01 %. After: at most 1.98 %." in said
    assert "over all releases" in said
    assert "It does not say" in said
    assert "doubt between any two" in said
    assert "whatever it shows" in dpf("explain", "-m", "privunit", "-e", "4").out


def test_the_shuffled_promise_stands_beside_the_local_one(dpf) -> None:
    words = ["explain", "-m", "privunit", "-e", "4", "--shuffle", "10000"]
    result, said = dpf(*words, "--json").json, dpf(*words).out
    local, central = ([row[name] for row in result["in_context"]] for name in ("after", "after_shuffled"))
    assert all(mixed < own for own, mixed in zip(local, central, strict=True))
    epsilon, delta = result["shuffled"]["epsilon"], result["shuffled"]["delta"]
    for row in result["in_context"]:
        others, odds = row["candidates"] - 1, math.exp(epsilon)
        assert row["after_shuffled"] == pytest.approx((odds + others * delta) / (odds + others))
        assert row["posterior"][1] == pytest.approx(row["after"])
    assert "Of the shuffled batch alone: at most" in said
    assert "if all of these are true:\n  * the shuffler is honest: it mixes each batch" in said
    assert "delta adds less than 0.001 % to them" in said


@pytest.mark.slow
def test_repeating_a_release_costs_what_the_table_says(dpf) -> None:
    result = dpf("explain", "-m", "gaussian", "-e", "1", "--json").json
    rows = {row["releases"]: row["epsilon"] for row in result["repeated"]}
    assert rows[10] == pytest.approx(3.618591574325964, rel=1e-8)
    assert rows[100] == pytest.approx(14.429269997601951, rel=1e-8)
    pure = dpf("explain", "-m", "privunit", "-e", "1", "--json").json
    assert pure["repeated"][2]["epsilon"] == pytest.approx(3.0)


def test_the_table_of_epsilons_is_that_of_the_mechanism(dpf) -> None:
    rows = dpf("explain", "-m", "k-ary-response", "--labels", "2", "-e", "1", "--json").json["epsilons"]
    assert [row["epsilon"] for row in rows] == [0.5, 1.0, 2.0, 4.0, 8.0]
    assert [row["guess_rate"] for row in rows] == sorted(row["guess_rate"] for row in rows)
    assert rows[3]["guess_rate_of_100"] == pytest.approx(math.exp(4) / (math.exp(4) + 99))
    assert all(2 < len(row["good_for"].split()) < 5 for row in rows)


def test_the_epsilon_of_a_wanted_best_guess_keeps_it_and_is_the_largest(dpf, run: Path) -> None:
    for words in (["-m", "privunit"], ["-m", "gaussian"], ["-m", "k-ary-response", "--labels", "3"]):
        found = dpf("explain", *words, "--best-guess", "0.9", "--json").json
        more = dpf("explain", *words, "-e", str(found["epsilon"] * 1.002), "--json").json
        assert found["in_context"][0]["after"] <= 0.9 < more["in_context"][0]["after"]
    assert dpf("explain", "-m", "privunit", "--best-guess", "0.9", "--json").json["epsilon"] <= math.log(9)
    rows = dpf("explain", "--run", run, "--best-guess", "0.9", "--json").json["epsilons"]
    keep = 1 / (1 + 3 * math.exp(-2.197))
    assert [row["epsilon"] for row in rows] == [0.5, 1.0, 2.0, 2.197, 4.0, 8.0]
    assert rows[3]["accuracy"] == pytest.approx(0.8 * keep + 0.2 * (1 - keep) / 3)
    for wrong in (["--best-guess", "0.5"], ["--best-guess", "1"], ["--best-guess", "0.9", "-e", "4"]):
        assert dpf("explain", "-m", "privunit", *wrong).code == 2


def test_releases_of_a_response_add_up_to_round_numbers_and_never_to_certainty(dpf) -> None:
    said = dpf("explain", "-m", "k-ary-response", "--labels", "2", "-e", "4").out
    rows = [[cell.strip() for cell in line.split("│")[1:4]] for line in said.splitlines() if "│" in line]
    assert [row[1] for row in rows[-5:]] == ["4", "8", "12", "40", "400"]
    assert [row[2] for row in rows[-5:]] == ["98.3 %", "99.97 %", *["> 99.99 %"] * 3]


def test_a_run_is_explained_with_its_own_accuracy(dpf, run: Path) -> None:
    for place in (run, run / "front"):
        result = dpf("explain", "--run", place, "--json").json
        assert (result["mechanism"], result["epsilon"]) == ("k-ary-response", 2.0)
    keep = math.exp(1) / (math.exp(1) + 3)
    found = {row["epsilon"]: row["accuracy"] for row in result["epsilons"]}
    assert found[1.0] == pytest.approx(0.8 * keep + 0.2 * (1 - keep) / 3)
    assert list(found.values()) == sorted(found.values())
    said = dpf("explain", "--run", run, "-e", "1").out
    assert "1.0-LDP" in said
    assert "follows exactly from the run's own: 0.8 without noise" in said


def test_no_accuracy_is_invented(dpf, tmp_path: Path) -> None:
    run = write_report(tmp_path / "run", mechanism="privunit", epsilon=4.0)
    result = dpf("explain", "--run", run, "--json").json
    assert [row["accuracy"] for row in result["epsilons"]] == [None, None, None, 0.7, None]
    assert "where the run measured it, at epsilon 4" in dpf("explain", "--run", run).out
    report = json.loads((run / "report.json").read_text()) | {
        "accuracy": None,
        "accuracy_without_noise": None,
    }
    (run / "report.json").write_text(json.dumps(report))
    said = dpf("explain", "--run", run).out
    assert "The run measured no accuracy: dpf evaluate does." in said
    assert "accuracy ┃" not in said


@pytest.mark.parametrize("plan", [{"task": "qqp"}, {"task": "mine", "text_column": ["first", "second"]}])
def test_a_run_says_whether_it_is_about_pairs(tmp_path: Path, run: Path, plan: dict[str, Any]) -> None:
    pairs = write_report(tmp_path / "pairs", plan=plan, epsilon=4.0)
    assert RunAccuracy.read(pairs).pair
    assert not RunAccuracy.read(run).pair
    assert not RunAccuracy.read(write_report(tmp_path / "sst", plan={"task": "sst2"}, epsilon=1.0)).pair


def test_what_is_no_run_and_what_is_missing_is_refused(dpf, run: Path, tmp_path: Path) -> None:
    assert dpf("explain", "--run", tmp_path).code == 2
    assert dpf("explain", "-e", "4").code == 2
    assert dpf("explain", "-m", "privunit").code == 2
    assert dpf("explain", "--run", run, "-m", "privunit").code == 2
    (run / "report.json").write_text('{"labels": ["others"]}')
    assert "a report of its own" in dpf("explain", "--run", run).err


@pytest.mark.parametrize(
    "more",
    [
        ["-m", "mvg", "--rows", "4", "--cols", "4"],
        ["-m", "randomized-response", "--labels", "2"],
        ["-m", "k-ary-response", "--labels", "3"],
    ],
)
def test_every_mechanism_can_be_explained(dpf, more) -> None:
    assert dpf("explain", "-e", "2", *more).code == 0


def test_what_has_no_guarantee_is_not_explained(dpf) -> None:
    result = dpf("explain", "-m", "classical-gaussian", "-e", "8")
    assert result.code == 2
    assert result.err.count("\n") == 1


@pytest.mark.slow
def test_the_demo_refutes_the_false_and_not_the_honest(dpf) -> None:
    result = dpf("demo", "--proof", "--json").json
    verdicts = {row["sampler"]: row["refuted"] for row in result["audits"]}
    assert list(verdicts.values()) == [False, True, True, False]
    assert result["ledger"]["releases"] == 4
    assert result["ledger"]["spent"] <= result["ledger"]["cap"]
    assert result["guarantee"]["epsilon"] == pytest.approx(4.0)
    assert "REFUTED" in dpf("demo", "--proof").out


@pytest.mark.slow
def test_the_command_is_installed_and_knows_its_version() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "dp_forward.cli.main", "--version"], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == f"dp-forward {dp_forward.__version__}"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert dp_forward.__version__ == project["version"]


@pytest.mark.slow
def test_every_help_ends_with_an_example_that_runs(dpf) -> None:
    for verb in ("calibrate", "account", "explain"):
        text = dpf(verb, "--help").out
        example = text.split("Example: ")[1].split("\n\n")[0].split("\nOptions")[0]
        words = " ".join(example.split()).split()
        assert words[0] == "dpf"
        assert dpf(*words[1:]).code == 0


@pytest.mark.slow
def test_the_command_line_loads_no_torch() -> None:
    code = "import sys, dp_forward.cli.main; print('torch' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "False"
