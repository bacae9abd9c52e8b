"""`dpf audit`: passes on the real service, fails on a mutant, and says so in JSON and by its exit code."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tiny_user
from audit.mutants import kept_too_often, less_noise, mask_in_header
from dp_forward.noise.released import released_label
from dp_forward.privacy import NoiseSpec

KEYS = {
    "claimed_epsilon",
    "epsilon_lower_bound",
    "mu_claimed",
    "mu_measured",
    "z",
    "refuted",
    "draws",
    "statistic",
    "cap_share_claimed",
    "cap_share_measured",
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    return tiny_user.write_user(folder, noise=NoiseSpec(mechanism="matrix-gaussian", epsilon=8.0))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["matrix-gaussian", "privunit"])
def test_a_mechanism_alone_is_audited(dpf: Callable[..., Any], name: str) -> None:
    words = ["audit", "--mechanism", name, "--epsilon", "8", "--draws", "1500"]
    done = dpf(*words, "--json")
    assert done.code == 0, done.out
    assert done.json.keys() >= KEYS
    assert done.json["refuted"] is False
    assert (done.json["mu_claimed"] is None) == (name == "privunit")
    assert 0 < done.json["epsilon_lower_bound"] < done.json["claimed_epsilon"]
    assert "releasing" in done.err
    shown = dpf(*words)
    assert "Not refuted. An honest system is refuted in at most one of " in shown.out


@pytest.mark.slow
def test_a_mutant_is_refuted_with_exit_code_1(dpf: Callable[..., Any]) -> None:
    with less_noise(0.9)():
        done = dpf("audit", "-m", "matrix-gaussian", "-e", "8", "--draws", "1500", "--json")
    assert done.code == 1
    assert done.json["refuted"] is True
    assert any("variance" in what for what in done.json["refuted_by"])
    found = next(one for one in done.json["refuting"] if "variance across" in one["what"])
    assert (found["claimed"], found["measured"]) == (1.0, pytest.approx(0.81, abs=0.01))
    assert done.json["false_alarm_rate"] < 1e-4
    with kept_too_often():
        other = dpf("audit", "-m", "matrix-gaussian", "-e", "8", "--draws", "1500")
    assert other.code == 0, "the control: a mutant elsewhere"


@pytest.mark.slow
def test_a_decision_is_audited_and_a_tenth_less_noise_is_seen(
    dpf: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["audit", "--mechanism", "k-ary-response", "--epsilon", "2", "--labels", "3", "--json"]
    done = dpf(*words)
    assert done.code == 0, done.out
    assert done.json.keys() >= KEYS
    assert done.json["cap_share_claimed"] == pytest.approx(0.787, abs=1e-3)
    assert dpf(*words[:5]).code == 2
    honest = released_label._answered

    def louder(position: Any, kinds: int, epsilon: float, entropy: Any) -> Any:
        return honest(position, kinds, epsilon / 0.9, entropy)

    monkeypatch.setattr(released_label, "_answered", louder)
    done = dpf(*words)
    assert done.code == 1
    assert "opposed inputs: share of the decision" in done.json["refuted_by"]


@pytest.mark.slow
def test_a_service_that_is_asked_for_decisions_passes(dpf: Callable[..., Any], tmp_path: Path) -> None:
    noise = NoiseSpec(mechanism="k-ary-response", epsilon=2.0, columns=2)
    tiny_user.write_user(tmp_path, noise=noise, cut="output", width=2)
    done = dpf("audit", str(tmp_path), "--draws", "16", "--json")
    assert done.code == 0, done.json["refuted_by"]
    wire = done.json["audits"]["two texts, over the wire"]
    assert {one["what"] for one in wire["findings"]} >= {"share of the decision"}


@pytest.mark.slow
def test_a_real_service_passes(dpf: Callable[..., Any], run: Path) -> None:
    done = dpf("audit", str(run), "--draws", "16", "--json")
    assert done.code == 0, done.json["refuted_by"]
    assert done.json.keys() >= KEYS
    wire = done.json["audits"]["two texts, over the wire"]
    assert wire["draws"] == 16
    assert {finding["what"] for finding in done.json["findings"]} >= {
        "lengths of a frame",
        "noise shared by threads or forks",
        "releases of a text whose answer was lost",
    }


@pytest.mark.slow
def test_a_broken_service_is_refuted(dpf: Callable[..., Any], run: Path) -> None:
    with mask_in_header():
        done = dpf("audit", str(run), "--draws", "16")
    assert done.code == 1
    assert "REFUTED by" in done.out
    assert "leans most (claimed 0.5, found 1)" in done.out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "named"),
    [
        ([], "run"),
        (["-m", "privunit"], "epsilon"),
        (["-m", "mvg", "-e", "8"], "mechanism"),
        (["-m", "privunit", "-e", "8", "--draws", "2"], "draws"),
        (["nowhere"], "front"),
        (["nowhere", "-m", "privunit", "-e", "8"], "run"),
        (["nowhere", "-e", "8"], "epsilon"),
    ],
)
def test_nonsense_is_refused_in_one_line(dpf: Callable[..., Any], words: list[str], named: str) -> None:
    done = dpf("audit", *words)
    assert done.code == 2
    assert named in done.err
    assert done.err.strip().count("\n") == 0


@pytest.mark.slow
def test_a_run_without_noise_has_nothing_to_audit(dpf: Callable[..., Any], tmp_path: Path) -> None:
    tiny_user.write_user(tmp_path, noise=None)
    done = dpf("audit", str(tmp_path))
    assert done.code == 2
    assert "noise" in done.err
