"""`dpf account`."""

import functools
import re

import pytest

from dp_forward.privacy import shuffling

KEYS = {
    "local_epsilon",
    "delta",
    "central_epsilon_upper",
    "central_epsilon_lower",
    "paper_estimate",
    "guess_rate",
    "statement",
}


@pytest.mark.slow
def test_shuffled_privunit_has_its_proved_central_epsilon(dpf) -> None:
    result = dpf(
        "account",
        "--mechanism",
        "privunit",
        "--epsilon",
        "4",
        "--shuffle",
        "67349",
        "--delta",
        "1e-5",
        "--json",
    ).json
    assert set(result) >= KEYS
    assert result["central_epsilon_upper"] == pytest.approx(0.1090, abs=5e-5)
    assert result["central_bound"] == "blanket"
    assert result["local_epsilon"] == pytest.approx(4.0)
    assert 0 <= result["central_epsilon_lower"] <= result["central_epsilon_upper"]
    assert result["paper_estimate"] is None
    assert result["central"]["upper"]["kind"] == "proved"
    assert "shuffler" in result["central"]["upper"]["trusted"]


def test_without_a_shuffler_nothing_central_is_printed(dpf) -> None:
    result = dpf("account", "-m", "gaussian", "--sigma", "1.2004581443988", "--json").json
    assert result["local_epsilon"] == pytest.approx(8.0, rel=1e-6)
    assert result["central_epsilon_upper"] is None
    assert result["central_epsilon_lower"] is None


@pytest.mark.slow
def test_the_authors_central_8_is_told_as_it_is(dpf, monkeypatch: pytest.MonkeyPatch) -> None:
    once = functools.cache(shuffling.paper_estimate)  # told in two ways, computed once
    monkeypatch.setattr(shuffling, "paper_estimate", once)
    monkeypatch.setattr(shuffling.central_epsilon, "paper_estimate", once)
    noise = ["--mechanism", "gaussian", "--sigma", "0.6387", "--releases", "3"]
    words = ["account", *noise, "--shuffle", "67349", "--paper"]
    result = dpf(*words, "--json").json
    assert result["paper_estimate"] == pytest.approx(8.0, abs=0.02)
    assert result["central_epsilon_lower"] == pytest.approx(7.27, abs=0.02)
    assert result["central_epsilon_upper"] == pytest.approx(result["local_epsilon"])
    assert result["central"]["estimate"]["kind"] == "estimate"
    assert result["central"]["lower"]["kind"] == "attack"
    said = dpf(*words).out
    assert "No amplification is proved" in said
    assert "no theorem" in said
    assert re.search(
        r"0\.070\d+ by S = C \(the authors' experiments\), 8\.005 by S = 2C \(the text, and", said
    )
    assert "The paper would print" not in said, "the text and the experiments are kept apart"


@pytest.mark.slow
def test_text_and_label_cost_less_than_their_sum(dpf) -> None:
    result = dpf(
        "account", "-m", "gaussian", "-e", "8", "--label-epsilon", "2.1972245773", "--labels", "2", "--json"
    ).json
    assert result["local_epsilon"] == pytest.approx(8 + 2.1972245773, rel=0.01)
    assert result["local_epsilon"] < 8 + 2.1972245773
    assert result["unit"] == "record"


@pytest.mark.slow
def test_pure_releases_add_and_go_through_the_shuffler_together(dpf) -> None:
    result = dpf(
        "account",
        "-m",
        "privunit",
        "-e",
        "1",
        "--releases",
        "3",
        "--label-epsilon",
        "1",
        "--labels",
        "2",
        "--shuffle",
        "67349",
        "--json",
    ).json
    four = dpf("account", "-m", "privunit", "-e", "4", "--shuffle", "67349", "--json").json
    assert result["local_epsilon"] == pytest.approx(4.0)
    # As the clones see it both cost the same; the blanket of small parts hides better.
    assert result["central_epsilon_upper"] < four["central_epsilon_upper"]
    rounds = dpf("account", "-m", "privunit", "-e", "1", "-k", "3", "--shuffle", "67349", "--json").json
    assert rounds["central_bound"] == "composed blanket"
    assert rounds["central_epsilon_upper"] < result["central_epsilon_upper"]


def test_a_share_of_t_star_is_told_apart(dpf) -> None:
    words = ["account", "-m", "privunit", "-e", "4", "--label-epsilon", "2.197", "--labels", "2"]
    words += ["--shuffle", "67349", "--delta", "1e-5", "--json"]
    assert 0.352 < dpf(*words).json["central_epsilon_upper"] <= 0.353
    assert 0.395 < dpf(*words, "--threshold-share", "0.2").json["central_epsilon_upper"] <= 0.397
    refused = dpf("account", "-m", "gaussian", "--sigma", "1", "--threshold-share", "0.2")
    assert refused.code != 0


def test_three_gaussian_releases_add_their_squares(dpf) -> None:
    result = dpf(
        "account", "-m", "matrix-gaussian", "--sigma", "2", "--norm", "1", "--releases", "3", "--json"
    ).json
    assert result["local_epsilon"] == pytest.approx(8.385418924, rel=1e-8)


@pytest.mark.slow
def test_a_sampler_is_another_trusted_part(dpf) -> None:
    result = dpf(
        "account",
        "-m",
        "gaussian",
        "--sigma",
        "0.9196390797",
        "--releases",
        "3",
        "--sampler",
        "67349",
        "--json",
    ).json
    assert result["central_epsilon_upper"] == pytest.approx(1.0, rel=2e-3)
    assert "sampler" in result["central"]["upper"]["trusted"]


@pytest.mark.slow
def test_a_decision_is_shuffled_as_a_label_is(dpf) -> None:
    asked = ("-e", "2", "--labels", "4", "--shuffle", "1000", "--json")
    label = dpf("account", "-m", "randomized-response", *asked).json
    decision = dpf("account", "-m", "k-ary-response", *asked).json
    for key in ("local_epsilon", "central_epsilon_upper", "central_epsilon_lower"):
        assert decision[key] == label[key]
    assert decision["unit"] == "text"
    with_label = dpf("account", "-m", "k-ary-response", *asked, "--label-epsilon", "1").json
    assert with_label["local_epsilon"] == pytest.approx(3.0)
    assert with_label["unit"] == "record"


def test_randomized_response_alone_is_accounted_for(dpf) -> None:
    result = dpf(
        "account", "-m", "randomized-response", "-e", "2", "--labels", "4", "--shuffle", "1000", "--json"
    )
    assert result.json["local_epsilon"] == pytest.approx(2.0)
    assert result.json["unit"] == "label"


@pytest.mark.parametrize(
    "words",
    [
        "-m gaussian",
        "-m gaussian --sigma 1 -e 1",
        "-m gaussian --sigma 0",
        "-m gaussian --sigma 1 --shuffle 0",
        "-m gaussian --sigma 1 --shuffle 10 --sampler 10",
        "-m gaussian --sigma 1 --label-epsilon 1",
        "-m privunit --sigma 1",
        "-m privunit -e 1 --sampler 10",
        "-m privunit -e 1 --paper",
        "-m mvg -e 1",
        "-m randomized-response -e 1 --labels 2 --label-epsilon 1",
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(dpf, words: str) -> None:
    result = dpf("account", *words.split())
    assert result.code == 2, result.out
    assert result.out == ""
    assert result.err.count("\n") == 1
    assert result.err.startswith("dpf: `")


@pytest.mark.slow
@pytest.mark.parametrize("where", [("--shuffle", "10000"), ("--sampler", "10000")])
@pytest.mark.parametrize("unit", ["token", "phrase:2"])
def test_no_central_epsilon_is_printed_for_less_than_a_text(dpf, unit: str, where: tuple[str, str]) -> None:
    words = ["account", "--mechanism", "matrix-gaussian", "--sigma", "2", "--delta", "1e-5", "--rows", "16"]
    refused = dpf(*words, "--unit", unit, *where)
    assert (refused.code, "strangers" in refused.err.lower()) == (2, True)
    assert dpf(*words, "--unit", unit).code == 0
