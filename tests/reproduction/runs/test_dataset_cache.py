"""Texts are read once, and cut where fewer rows are wanted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

import tiny_models
import tiny_task
from dp_forward.data import EncodedTexts, FixedLength, Record
from dp_forward.errors import InvalidInput
from dp_forward.train.plan import Plan
from reproduction.runs import dataset_cache as module
from reproduction.runs.dataset_cache import DatasetCache, shorten_texts

RECORDS = [
    Record("a quiet film", None, 1),
    Record("an endless , loud and joyless film that never ends " * 3, None, 0),
    Record("bad", None, 0),
    Record("a film about a film", None, 1),
]
PAIRS = [Record("Who is it?", "Who?", 1), Record("Why?", "When is it going to be?", 0)]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(tiny_models.minilm_folder())


@pytest.fixture
def world(tmp_path: Path) -> tuple[str, dict[str, str]]:
    """A model folder whose tokenizer reads, and data in files: single texts and pairs."""
    model = tiny_task.write_checkpoint(tmp_path / "model")
    task = tiny_task.write_task(tmp_path / "sst2", train=40, validation=8)
    pairs = tmp_path / "qqp"
    pairs.mkdir()
    some = tiny_task.sentences(16, seed=5)
    lines = [f"{text}\t{text[::-1]} film\t{label}" for text, label in some]
    head = "question1\tquestion2\tis_duplicate"
    for split in ("train", "validation"):
        (pairs / f"{split}.tsv").write_text("\n".join([head, *lines]) + "\n", encoding="utf-8")
    return str(model), {"sst2": str(task), "qqp": str(pairs)}


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rows of every real read."""
    seen: list[int] = []
    real = module.read_texts

    def counted(task: Any, split: str, tokens: Any, **others: Any) -> Any:
        seen.append(tokens.length)
        return real(task, split, tokens, **others)

    monkeypatch.setattr(module, "read_texts", counted)
    return seen


def test_fewer_rows_are_cut_and_equal_to_reading(world: tuple[str, dict[str, str]], reads: list[int]) -> None:
    model, data = world
    cache = DatasetCache(data)
    cache.texts("sst2", "train", model=model, rows=12)
    assert cache.texts("sst2", "train", model=model, rows=12).length == 12
    cut = cache.texts("sst2", "train", model=model, rows=6)
    assert reads == [12]
    read = DatasetCache(data).texts("sst2", "train", model=model, rows=6)
    assert reads == [12, 6]
    assert cut.fingerprint() == read.fingerprint()
    assert (read.lengths == 6).any(), "some texts were cut"


def test_pairs_are_read_again(world: tuple[str, dict[str, str]], reads: list[int]) -> None:
    model, data = world
    cache = DatasetCache(data)
    cache.texts("qqp", "train", model=model, rows=12)
    found = cache.texts("qqp", "train", model=model, rows=8)
    assert reads == [12, 8]
    assert found.fingerprint() == DatasetCache(data).texts("qqp", "train", model=model, rows=8).fingerprint()


def test_another_choice_of_texts_is_read_again(world: tuple[str, dict[str, str]], reads: list[int]) -> None:
    model, data = world
    cache = DatasetCache(data)
    cache.texts("sst2", "train", model=model, rows=12)
    assert len(cache.texts("sst2", "train", model=model, rows=6, limit=10)) == 10
    assert len(cache.texts("sst2", "validation", model=model, rows=6)) == 8
    assert cache.texts("sst2", "train", model=model, rows=16).length == 16, "more rows cannot be cut"
    assert reads == [12, 6, 6, 16]


def test_what_was_prepared_is_not_read_again(world: tuple[str, dict[str, str]], reads: list[int]) -> None:
    model, data = world
    plan = Plan.from_dict({"task": "sst2", "model": model, "rows": 12, "epsilon": 8.0})
    cache = DatasetCache(data)
    cache.prepare(plan, model)
    assert reads == [12, 12]
    train, evaluation, public = cache._splits(plan, model)
    assert reads == [12, 12]
    assert (len(train), len(evaluation), public) == (40, 8, None)


def test_a_name_can_lie_in_a_folder(world: tuple[str, dict[str, str]]) -> None:
    model, data = world
    cache = DatasetCache(data, models={"a-name": model})
    named = cache.texts("sst2", "train", model="a-name", rows=6)
    assert named.fingerprint() == cache.texts("sst2", "train", model=model, rows=6).fingerprint()


@pytest.mark.parametrize("rows", [3, 4, 7, 15, 16])
def test_fewer_rows_are_what_the_tokenizer_gives(tokenizer: Any, rows: int) -> None:
    encoded = EncodedTexts.from_records(RECORDS, FixedLength(tokenizer, 16))
    fewer = EncodedTexts.from_records(RECORDS, FixedLength(tokenizer, rows))
    assert shorten_texts(encoded, rows).fingerprint() == fewer.fingerprint()
    assert encoded.length == 16


def test_only_single_texts_padded_on_the_right_can_be_cut(tokenizer: Any) -> None:
    encoded = EncodedTexts.from_records(RECORDS, FixedLength(tokenizer, 16))
    pairs = EncodedTexts.from_records(PAIRS, FixedLength(tokenizer, 16))
    left = EncodedTexts.from_records(RECORDS, FixedLength(tokenizer, 16, causal=True))
    for texts, rows in ((pairs, 8), (left, 8), (encoded, 17)):
        with pytest.raises(InvalidInput, match="Read them anew"):
            shorten_texts(texts, rows)
    with pytest.raises(InvalidInput, match="rows"):
        shorten_texts(encoded, 2)
