"""`dpf explain`, `dpf demo` and the command as a whole."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import dp_forward

ROOT = Path(__file__).parents[2]


def test_a_guarantee_in_words_with_a_table(dpf) -> None:
    said = dpf("explain", "--mechanism", "matrix-gaussian", "--epsilon", "8").out
    assert "(8.0, 1e-05)-LDP per text" in said
    assert "79.8 %" in said
    assert "It does not say" in said
    assert "100" in said


@pytest.mark.slow
def test_repeating_a_release_costs_what_the_table_says(dpf) -> None:
    result = dpf("explain", "-m", "gaussian", "-e", "1", "--json").json
    rows = {row["releases"]: row["epsilon"] for row in result["repeated"]}
    assert rows[10] == pytest.approx(3.618591574325964, rel=1e-8)
    assert rows[100] == pytest.approx(14.429269997601951, rel=1e-8)
    pure = dpf("explain", "-m", "privunit", "-e", "1", "--json").json
    assert pure["repeated"][2]["epsilon"] == pytest.approx(3.0)


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
