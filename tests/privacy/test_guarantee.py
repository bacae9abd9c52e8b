"""The promise in words, and paper mode."""

import json
import math

import pytest

from dp_forward.errors import InvalidInput, Unproved
from dp_forward.privacy import (
    TEXT,
    TOKEN,
    Budget,
    ClassicalGaussian,
    Deployment,
    MatrixGaussian,
    Notion,
    PaperReading,
    PrivUnit,
    RandomizedResponse,
    calibrate,
    compose,
    normalise,
    normalise_rows,
    phrase,
)
from dp_forward.privacy.rounding import nudge_up, percent_up, shown_down, shown_up

GAUSSIAN = calibrate(MatrixGaussian, Budget(8.0, 1e-5), bound=normalise(1.0), unit=TEXT)


def test_the_sentence_says_what_against_whom_and_how_well() -> None:
    guarantee = Deployment(GAUSSIAN).guarantee()
    assert guarantee.statement == (
        "(8.0, 1e-05)-LDP per text. Given any two texts, anyone who sees the releases, the provider "
        "included, tells which of the two it was with at most 79.8 % success (a coin has 50 %), and which "
        "of a hundred with at most 22.7 % (a blind guess has 1 %)."
    )
    assert str(guarantee) == guarantee.statement
    assert repr(guarantee) == "Guarantee((8.0, 1e-05)-LDP per text)"
    assert guarantee.unit == TEXT
    assert guarantee.guess_rate == GAUSSIAN.guess_rate()


def test_everything_is_in_the_json() -> None:
    fields = json.loads(
        json.dumps(Deployment(GAUSSIAN).guarantee(assumptions=("given the length bucket",)).as_dict())
    )
    assert set(fields) >= {
        "notion",
        "unit",
        "epsilon",
        "delta",
        "against",
        "assumptions",
        "guess_rate",
        "statement",
    }
    assert fields["assumptions"][-1] == "given the length bucket"


@pytest.mark.parametrize(
    ("mechanism", "notion"),
    [
        (GAUSSIAN, Notion.LDP),
        (calibrate(PrivUnit, Budget(1.0), bound=normalise_rows(), unit=TOKEN), Notion.TOKEN_SEQ_LDP),
        (calibrate(PrivUnit, Budget(1.0), bound=normalise_rows(), unit=phrase(3)), Notion.PHRASE_SEQ_LDP),
        (RandomizedResponse(1.0, 2), Notion.LABEL_LDP),
        (compose(GAUSSIAN, RandomizedResponse(1.0, 2)), Notion.RECORD_LDP),
        (calibrate(MatrixGaussian, Budget(1.0, 1e-5), sensitivity=1.0), Notion.DISTANCE),
    ],
    ids=repr,
)
def test_the_notion_follows_from_the_unit(mechanism, notion: Notion) -> None:
    assert Deployment(mechanism).guarantee().notion is notion
    assert Deployment(mechanism).guarantee().statement


def test_a_training_text_with_a_public_label_is_seq_ldp() -> None:
    assert "same label" in Deployment(GAUSSIAN).guarantee(notion=Notion.SEQ_LDP).statement
    with pytest.raises(InvalidInput, match="notion"):
        Deployment(GAUSSIAN).guarantee(notion=Notion.TOKEN_SEQ_LDP)


def test_a_deployment_with_public_labels_says_so_locally_and_centrally() -> None:
    public = Deployment(GAUSSIAN, public_label=True)
    assert public.guarantee().notion is Notion.SEQ_LDP
    assert public.central_notion is Notion.SEQ_DP
    assert Deployment(GAUSSIAN).central_notion is Notion.CENTRAL_DP
    per_token = calibrate(PrivUnit, Budget(1.0), bound=normalise_rows(), unit=TOKEN)
    assert Deployment(per_token, public_label=True).guarantee().notion is Notion.TOKEN_SEQ_LDP


@pytest.mark.parametrize("central", [Notion.CENTRAL_DP, Notion.SEQ_DP])
def test_no_local_promise_can_be_called_central(central: Notion) -> None:
    assert "collections" in central.neighbours
    with pytest.raises(InvalidInput, match="notion"):
        Deployment(GAUSSIAN).guarantee(notion=central)


def test_there_is_no_way_to_hand_it_an_epsilon() -> None:
    with pytest.raises(TypeError):
        Deployment(GAUSSIAN).guarantee(epsilon=0.1)  # type: ignore[call-arg]
    guarantee = Deployment(GAUSSIAN).guarantee()
    with pytest.raises(AttributeError):
        guarantee.epsilon = 0.1  # type: ignore[misc]
    assert Deployment(GAUSSIAN).guarantee(delta=1e-9).epsilon > 8
    assert Deployment(GAUSSIAN).guarantee(delta=0.0).epsilon == math.inf


def test_what_nobody_proved_gets_no_guarantee() -> None:
    with pytest.raises(Unproved):
        Deployment(ClassicalGaussian.baseline(Budget(8.0, 1e-5), sensitivity=2.0)).guarantee()
    with pytest.raises(InvalidInput):
        Deployment(GAUSSIAN).guarantee(delta=1.5)


def test_paper_mode_prints_both_numbers() -> None:
    reading = PaperReading.for_budget(Budget(8.0, 1e-5), bound=normalise(1.0))
    assert reading.sigma == pytest.approx(0.60023, abs=1e-5)
    assert reading.paper_epsilon == pytest.approx(8.0)
    assert reading.real.epsilon == pytest.approx(19.1212, abs=1e-3)
    for shown in (reading.statement, str(reading), repr(reading)):
        assert "S = C" in shown
        assert "19.12" in shown
    assert "S = C (the authors' experiments) calls sigma 0.60023 epsilon 8." in reading.statement
    assert "it is worth 19.12 at delta" in reading.statement, "others' epsilons are measured, not promised"
    assert reading.as_dict()["real_epsilon"] == reading.real.epsilon


def test_paper_mode_says_who_has_which_sensitivity() -> None:
    matrix = PaperReading(0.6, normalise(1.0)).statement
    row = PaperReading(0.6, normalise_rows(1.0), TOKEN).statement
    assert "S = 2C (the text, and the proof)" in matrix
    assert "S = 2C (the proof)" in row, "for a row the paper's appendix has C"
    assert "S = C (the paper's appendix)" in row
    longer = PaperReading(0.6, normalise_rows(1.0), phrase(4)).statement
    assert "S = C (half of the proof's, which nobody claims)" in longer


def test_paper_mode_counts_releases_that_the_authors_local_mode_does_not() -> None:
    once = PaperReading(0.6, normalise(1.0))
    thrice = PaperReading(0.6, normalise(1.0), releases=3)
    assert once.paper_epsilon == thrice.paper_epsilon
    assert thrice.real.epsilon > once.real.epsilon
    assert "over 3 releases" in thrice.statement


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (8.0, "8.0"),
        (7.9999999999, "8.0"),
        (8.000000001, "8.00001"),
        (1.2004581, "1.20046"),
        (1e-5, "1e-05"),
        (math.inf, "inf"),
        (0.0, "0.0"),
    ],
)
def test_shown_numbers_never_flatter(value: float, shown: str) -> None:
    assert shown_up(value) == shown
    assert float(shown_up(value)) >= value or value == 0
    assert nudge_up(value) >= value


def test_what_an_attack_has_shown_is_never_overstated() -> None:
    assert shown_down(7.27258, 3) == "7.27"
    assert shown_down(1.99999, 3) == "1.99"
    assert shown_down(math.inf) == "inf"


def test_percentages_round_up() -> None:
    assert percent_up(0.79751) == "79.8 %"
    assert percent_up(0.99966) == "99.97 %"
    assert percent_up(1.0) == "100 %"
