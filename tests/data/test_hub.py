"""Hugging Face data sets, from local folders only: nothing is fetched."""

import sys
from pathlib import Path

import pytest

from dp_forward.data import Record, find_task, read_records
from dp_forward.errors import InvalidInput

datasets = pytest.importorskip("datasets")
SST2, QQP = find_task("sst2"), find_task("qqp")


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
