"""Attribute inference: it succeeds on an undefended front, and stays under its ceiling through noise."""

import json
from pathlib import Path

import numpy as np
import pytest

from corpus.release_cases import ROWS, Numbers, pair, texts
from dp_forward.attacks.attribute import GENRES, attribute_attack, keyword_genres, read_labelled
from dp_forward.attacks.ceiling import attribute_ceiling
from dp_forward.data import EncodedTexts, FixedLength, Record
from dp_forward.errors import InvalidInput
from dp_forward.privacy import NoiseSpec


def _attacked(cut: str, mechanism: str | None, *, epsilon: float = 8.0, shuffled: bool = False, **settings):
    train, test = texts(600, seed=1), texts(300, seed=2)
    if shuffled:
        train = train.with_labels(np.random.default_rng(0).permutation(train.labels))
    noise = None if mechanism is None else NoiseSpec(mechanism=mechanism, epsilon=epsilon).build()
    settings = {"epochs": 6, "device": "cpu"} | settings
    return noise, attribute_attack(pair(cut).front, noise, train, test, **settings)


@pytest.mark.slow
@pytest.mark.parametrize("cut", ["embeddings", "encoder.1", "output"])
def test_an_undefended_front_tells_the_attribute(cut: str) -> None:
    _, found = _attacked(cut, None)
    assert found.low > found.chance + 0.1
    assert found.ceiling is None
    assert found.trials == 300
    assert found.details["noise"] == "none"


@pytest.mark.slow
def test_labels_that_the_texts_do_not_tell_are_not_found() -> None:
    _, found = _attacked("encoder.1", None, shuffled=True)
    assert found.success < found.chance + 0.08


@pytest.mark.slow
@pytest.mark.parametrize("name", ["privunit", "matrix-gaussian"])
def test_noise_brings_it_to_the_majority_and_under_the_ceiling(name: str) -> None:
    noise, found = _attacked("embeddings", name, epsilon=1.0)
    assert found.success < found.chance + 0.1
    assert found.ceiling == attribute_ceiling(noise, found.chance) < 1
    assert found.within_ceiling
    assert found.details["noise"] == "released"


@pytest.mark.slow
def test_little_noise_does_not() -> None:
    """The control: the attacker does learn through noise, where there is little of it."""
    _, found = _attacked("output", "privunit", epsilon=200.0)
    assert found.low > found.chance + 0.04


def test_a_mechanism_that_cannot_be_released_is_simulated_and_said_so() -> None:
    train, test = texts(60, seed=1), texts(40, seed=2)
    mvg = NoiseSpec(mechanism="mvg", epsilon=4.0, rows=ROWS, columns=32).build()
    found = attribute_attack(pair().front, mvg, train, test, epochs=1, device="cpu")
    assert found.details["noise"] == "simulated"


@pytest.mark.slow
def test_the_same_seed_finds_the_same_and_progress_is_told() -> None:
    told: list[int] = []
    runs = [_attacked("encoder.1", None, pool="mean", progress=told.append)[1] for _ in range(2)]
    assert runs[0].as_dict() == runs[1].as_dict()
    assert runs[0].details["pool"] == "mean"
    assert told[6] == 7
    assert _attacked("encoder.1", None)[1].details["pool"] == "flatten"


def test_what_does_not_fit_is_refused() -> None:
    front, some = pair().front, texts(30)
    for train, test in ((texts(19), some), (some, texts(19)), (texts(30, labelled=False), some)):
        with pytest.raises(InvalidInput, match=r"train|test"):
            attribute_attack(front, None, train, test, device="cpu")
    with pytest.raises(InvalidInput, match="pool"):
        attribute_attack(front, None, some, some, pool="max", device="cpu")
    with pytest.raises(InvalidInput, match="epochs"):
        attribute_attack(front, None, some, some, epochs=0, device="cpu")


def test_the_first_of_the_four_words_is_the_genre() -> None:
    found = list(
        keyword_genres(
            ["a drama, no comedy", "a comedy, no drama", "nothing", "Horror", "melodramas", "full of actions"]
        )
    )
    assert [GENRES[record.label] for record in found] == ["drama", "comedy", "drama", "action"]
    assert found[1].text == "a comedy, no drama"


def test_any_labelled_file_can_be_read(tmp_path: Path) -> None:
    tsv = tmp_path / "some.tsv"
    tsv.write_text("words\twhere\n5 6\tnorth\n7 8\t\n9 10\teast\n", encoding="utf-8")
    values, records = read_labelled(tsv, text="words", attribute="where")
    assert values == ("east", "north")
    assert records == [Record("5 6", None, 1), Record("9 10", None, 0)]
    assert len(EncodedTexts.from_records(records, FixedLength(Numbers(), ROWS))) == 2
    lines = tmp_path / "some.jsonl"
    rows = [{"text": "5", "attribute": 2}, {"text": "6", "attribute": 10}, {"text": "7", "attribute": None}]
    lines.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    assert read_labelled(lines)[0] == ("10", "2")


def test_a_file_that_is_not_labelled_is_refused_without_its_words(tmp_path: Path) -> None:
    for number, content in enumerate(
        (
            "text\tother\nsecret\tx\n",
            "text\tattribute\nsecret\tx\n",
            "text\tattribute\n \tx\nsecret\ty\n",
            "text\tattribute\n",
        )
    ):
        path = tmp_path / f"{number}.tsv"
        path.write_text(content, encoding="utf-8")
        with pytest.raises(InvalidInput) as refused:
            read_labelled(path)
        assert "secret" not in str(refused.value)
