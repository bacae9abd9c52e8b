"""No split is guessed: a wrong guess would test on what was trained on."""

from pathlib import Path

import pytest

from dp_forward.data.locate import locate
from dp_forward.errors import InvalidInput


def touch(folder: Path, *names: str) -> list[Path]:
    for name in names:
        (folder / name).touch()
    return [folder / name for name in names]


@pytest.mark.parametrize(
    "name", ["dev.tsv", "validation.jsonl.gz", "imdb_valid.csv", "val-00000-of-00001.parquet"]
)
def test_a_word_in_the_name_tells_the_split(tmp_path: Path, name: str) -> None:
    (path,) = touch(tmp_path, name)
    touch(tmp_path, "train.tsv", "test.tsv", "notes.md", "labels.pkl")
    assert locate(tmp_path, "validation") == ((path,), True)
    assert locate(path, "validation") == ((path,), True)


def test_a_file_that_says_another_split_is_refused(tmp_path: Path) -> None:
    (path,) = touch(tmp_path, "train.tsv")
    for split in ("validation", "test"):
        with pytest.raises(
            InvalidInput, match=f"hold the split {split}; got train.tsv, whose name says train"
        ):
            locate(path, split)


def test_a_word_inside_a_word_tells_nothing(tmp_path: Path) -> None:
    for path in touch(tmp_path, "greatest.tsv", "device.csv", "train_and_test.tsv"):
        assert locate(path, "test") == ((path,), False)


def test_the_one_silent_file_of_a_folder_is_taken_for_its_rows(tmp_path: Path) -> None:
    (path,) = touch(tmp_path, "qqp_subset.tsv.gz")
    assert locate(tmp_path, "train") == ((path,), False)


def test_two_files_of_a_split_are_refused_unless_they_are_all_its_shards(tmp_path: Path) -> None:
    shards = touch(tmp_path, "train-00000-of-00002.parquet", "train-00001-of-00002.parquet")
    assert locate(tmp_path, "train") == (tuple(shards), True)
    shards[0].unlink()
    (other,) = touch(tmp_path, "train.tsv")
    with pytest.raises(
        InvalidInput, match=r"one file of the split train; got train-00001-of-00002.parquet, train.tsv"
    ):
        locate(tmp_path, "train")
    other.unlink()
    with pytest.raises(InvalidInput, match="all of its shards"):
        locate(tmp_path, "train")


def test_a_split_without_a_file_is_refused_with_what_is_there(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="no data file"):
        locate(tmp_path, "train")
    touch(tmp_path, "train.tsv", "test.tsv")
    with pytest.raises(
        InvalidInput, match=r"\(one of validation, valid, val, dev in its name\); got test.tsv, train.tsv"
    ):
        locate(tmp_path, "validation")
    with pytest.raises(InvalidInput, match="a file or a folder"):
        locate(tmp_path / "nowhere", "train")
