"""`dpf calibrate`."""

import pytest

KEYS = {"mechanism", "epsilon", "delta", "unit", "sensitivity", "sigma", "mu", "guess_rate", "statement"}


def test_the_matrix_gaussian_at_the_reference_point(dpf) -> None:
    result = dpf("calibrate", "--mechanism", "matrix-gaussian", "--epsilon", "8", "--delta", "1e-5", "--json")
    assert result.code == 0
    assert set(result.json) >= KEYS
    assert result.json["sigma"] == pytest.approx(1.20046, abs=1e-5)
    assert result.json["sensitivity"] == 2.0
    assert result.json["mu"] == pytest.approx(1.66603, abs=1e-5)
    assert result.json["guess_rate"] == pytest.approx(0.798, abs=1e-3)


@pytest.mark.slow
def test_privunit_tells_its_threshold_and_needs_no_delta(dpf) -> None:
    result = dpf("calibrate", "--mechanism", "privunit", "--epsilon", "8", "--delta", "1e-5", "--json").json
    assert set(result) >= KEYS | {"threshold", "cap_probability", "scale"}
    assert result["sigma"] == pytest.approx(0.3646, abs=1e-4)
    assert result["sigma"] == pytest.approx(1 / result["scale"])
    assert result["delta"] == 0.0
    chosen = dpf("calibrate", "-m", "privunit", "-e", "8", "--cap-probability", "0.8", "--json").json
    assert chosen["cap_probability"] == pytest.approx(0.8)
    assert (
        dpf("calibrate", "-m", "privunit", "-e", "8", "--threshold", "1", "--json").json["threshold"] == 1.0
    )


@pytest.mark.parametrize(
    "mechanism", ["gaussian", "classical-gaussian", "mvg", "randomized-response", "k-ary-response"]
)
def test_every_mechanism_answers_with_the_same_keys(dpf, mechanism: str) -> None:
    more = {"mvg": ["--rows", "128", "--cols", "768"]}.get(mechanism, [])
    more += ["--labels", "3"] if mechanism.endswith("response") else []
    result = dpf("calibrate", "-m", mechanism, "-e", "0.9", "--json", *more)
    assert result.code == 0, result.err
    assert set(result.json) >= KEYS


@pytest.mark.slow
def test_a_decision_is_kept_as_often_as_a_label_and_protects_the_text(dpf) -> None:
    asked = ("-e", "2", "--labels", "4", "--json")
    label = dpf("calibrate", "-m", "randomized-response", *asked).json
    decision = dpf("calibrate", "-m", "k-ary-response", *asked).json
    assert decision["keep_probability"] == label["keep_probability"] == pytest.approx(0.7112, abs=1e-4)
    assert (label["unit"], decision["unit"], decision["delta"]) == ("label", "text", 0.0)
    assert decision["guarantee"] == "2.0-LDP per text"
    assert dpf("calibrate", "-m", "k-ary-response", "-e", "2").code == 2
    assert dpf("calibrate", "-m", "k-ary-response", *asked, "--prior", "0.5,0.5").code == 2


def test_a_prior_over_labels_can_be_declared(dpf) -> None:
    result = dpf("calibrate", "-m", "randomized-response", "-e", "1", "--prior", "0.9,0.05,0.05", "--json")
    assert result.json["labels"] == 3


def test_mvg_is_beyond_1e8_in_variance(dpf) -> None:
    result = dpf("calibrate", "-m", "mvg", "-e", "8", "--rows", "128", "--cols", "768", "--json").json
    assert result["sigma"] ** 2 > 1e8


def test_the_classical_formula_beyond_its_theorem_says_none(dpf) -> None:
    result = dpf("calibrate", "-m", "classical-gaussian", "-e", "16", "--json")
    assert result.code == 0
    assert result.json["guarantee"] == "none"
    assert result.json["epsilon"] is None
    assert result.json["analytic_epsilon"] > 16
    assert "no guarantee" in result.err


@pytest.mark.slow
def test_paper_mode_stands_beside_the_right_number(dpf) -> None:
    result = dpf("calibrate", "-m", "matrix-gaussian", "-e", "8", "--paper", "--json").json
    assert result["paper"]["sigma"] == pytest.approx(0.60023, abs=1e-5)
    assert result["paper"]["real_epsilon"] == pytest.approx(19.12, abs=0.01)
    words = dpf("calibrate", "-m", "matrix-gaussian", "-e", "8", "--paper").out
    assert "S = C (the authors' experiments) calls sigma 0.60023 epsilon 8." in words
    assert "19.12" in words


@pytest.mark.slow
def test_units_and_releases_change_the_noise(dpf) -> None:
    def sigma(*words: str) -> float:
        return dpf("calibrate", "-m", "gaussian", "-e", "8", "--json", *words).json["sigma"]

    assert sigma("--unit", "phrase:4") == pytest.approx(2 * sigma("--unit", "token"))
    assert sigma("--releases", "9") == pytest.approx(3 * sigma())
    assert sigma("--norm", "10", "--bound", "clip") == pytest.approx(10 * sigma())


@pytest.mark.parametrize(
    "words",
    [
        "-m gaussian -e 0",
        "-m gaussian -e 1 -d 0",
        "-m gaussian -e 1 --unit sentence",
        "-m gaussian -e 1 --threshold 1",
        "-m classical-gaussian -e 1 --releases 2",
        "-m mvg -e 1",
        "-m mvg -e 1 --rows -1 --cols 3",
        "-m privunit -e 1 --bound clip",
        "-m privunit -e 1 --paper",
        "-m randomized-response -e 1",
        "-m randomized-response -e 1 --prior a,b",
        "-m randomized-response -e 1 --prior 0.5,0.5 --labels 3",
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(dpf, words: str) -> None:
    result = dpf("calibrate", *words.split())
    assert result.code == 2
    assert result.out == ""
    assert result.err.startswith("dpf: `")
    assert result.err.count("\n") == 1
    assert "Traceback" not in result.err


@pytest.mark.parametrize("words", ["-m laplace -e 1", "-m gaussian", "-m gaussian -e x", "--wrong", "-e 1"])
def test_usage_errors_have_exit_code_2_and_no_traceback(dpf, words: str) -> None:
    result = dpf("calibrate", *words.split())
    assert result.code == 2
    assert "Traceback" not in result.err


def test_a_central_epsilon_finds_the_privunit_of_least_noise(dpf) -> None:
    words = ["calibrate", "-m", "privunit", "--central-epsilon", "0.5", "--delta", "1e-6"]
    found = dpf(*words, "--shuffle", "67349", "--json").json
    assert 0.499 < found["central_epsilon_upper"] <= 0.5
    assert 0 < found["central_epsilon_lower"] < found["central_epsilon_upper"]
    assert (found["central_bound"], found["central_delta"]) == ("blanket", 1e-6)
    assert found["sigma"] < 0.44
    for wrong in ([], ["--shuffle", "67349", "-e", "4"], ["--shuffle", "67349", "--threshold", "0"]):
        assert dpf(*words, *wrong).code != 0
    assert dpf("calibrate", "-m", "privunit").code != 0
