"""A user's own file becomes a task: columns by name, labels inferred, a share split off, refusals."""

from __future__ import annotations

import csv
import gzip
import json
import tracemalloc
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers

from dp_forward.data import FixedLength, read_records
from dp_forward.data.own_data import encode_texts, name_task, task_from_labels, task_of
from dp_forward.data.records import Record, split_by_label
from dp_forward.errors import InvalidInput

SECRET = "zanzibar"
TOPICS = ("billing", "delivery", "login", "other")


def tickets(count: int = 40, topics: tuple[Any, ...] = TOPICS) -> list[tuple[str, Any]]:
    return [(f"{SECRET} number {i}, again", topics[i % len(topics)]) for i in range(count)]


def write(
    path: Path, rows: list[tuple[Any, ...]], header: tuple[str, ...] | None = ("text", "label")
) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([*([header] if header else []), *rows])
    return path


def infer(path: Path, **settings: Any) -> Any:
    return task_of({"task": "tickets", "data": {"tickets": str(path)}, **settings})


def test_a_file_with_usual_columns_is_a_task(tmp_path: Path) -> None:
    task = infer(write(tmp_path / "tickets.csv", tickets(), ("Body", "Topic")))
    assert (task.text_fields, task.label_field, task.labels) == (("Body",), "Topic", TOPICS)
    assert (task.validation_share, task.own) == (0.1, True)
    parts = {split: list(read_records(task, split)) for split in ("train", "validation")}
    assert [len(part) for part in parts.values()] == [36, 4]
    assert {record.label for record in parts["validation"]} == {0, 1, 2, 3}
    texts = [record.text for part in parts.values() for record in part]
    assert sorted(texts) == sorted(text for text, _ in tickets())


@pytest.mark.parametrize(
    ("topics", "expected"),
    [
        ((10, 2, 1), ("1", "2", "10")),
        (("5", "1", "0.5"), ("0.5", "1", "5")),
        (("b", "10", "A"), ("10", "A", "b")),
        ((True, False), ("False", "True")),
    ],
)
def test_labels_are_words_or_numbers_in_order(tmp_path: Path, topics: tuple[Any, ...], expected: Any) -> None:
    lines = [json.dumps({"text": text, "label": label}) for text, label in tickets(30, topics)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines), "utf-8")
    task = infer(tmp_path / "a.jsonl")
    assert task.labels == expected
    assert [task.label_of(topic) for topic in topics] == [expected.index(str(topic)) for topic in topics]
    assert task.label_of("0") is None, "the number of a label is not the label"


def test_every_form_of_a_file_is_the_same_task(tmp_path: Path) -> None:
    rows = [{"text": text, "label": label} for text, label in tickets()]
    (tmp_path / "a.json").write_text(json.dumps(rows), "utf-8")
    (tmp_path / "b.json").write_text(json.dumps(rows, indent=1), "utf-8")
    (tmp_path / "c.jsonl.gz").write_bytes(gzip.compress("\n".join(map(json.dumps, rows)).encode()))
    write(tmp_path / "d.csv", tickets())
    folder = tmp_path / "folder"
    folder.mkdir()
    write(folder / "part-1.csv", tickets()[:20])
    write(folder / "part-2.csv", tickets()[20:])
    wanted = list(read_records(infer(tmp_path / "d.csv"), "train"))
    for name in ("a.json", "b.json", "c.jsonl.gz", "folder"):
        assert list(read_records(infer(tmp_path / name), "train")) == wanted, name


def test_a_part_to_measure_on_is_used_where_there_is_one(tmp_path: Path) -> None:
    write(tmp_path / "train.csv", tickets())
    write(tmp_path / "dev.csv", tickets(8))
    task = infer(tmp_path)
    assert (task.validation_share, task.splits) == (0.0, ("train", "validation"))
    assert [len(list(read_records(task, split))) for split in ("train", "validation")] == [40, 8]
    rows = [(*row, "test" if i >= 32 else "train") for i, row in enumerate(tickets())]
    task = infer(write(tmp_path / "one.csv", rows, ("text", "label", "split")))
    assert (task.validation_share, task.splits) == (0.0, ("train", "test"))
    assert len(list(read_records(task, "test"))) == 8
    odd = write(tmp_path / "odd.csv", [(*row, "A") for row in tickets()], ("text", "label", "split"))
    with pytest.raises(
        InvalidInput, match=r"say train, validation, test in the column `split`.*odd.csv, line 2"
    ):
        infer(odd)


def test_the_split_is_by_label_and_seed() -> None:
    records = [Record(str(i), None, int(i % 7 == 0)) for i in range(700)]

    def held(seed: int, share: float = 0.1) -> list[str]:
        return [record.text for record, out in split_by_label(records, share, seed=seed) if out]

    assert held(0) == held(0) != held(1)
    assert Counter(int(text) % 7 == 0 for text in held(0)) == {False: 60, True: 10}
    few = [Record(str(i), None, i % 3) for i in range(15)]
    for seed in range(50):
        assert sum(out for _, out in split_by_label(few, 0.1, seed=seed)) == 3, "one of every label"


def test_every_record_can_be_held_out() -> None:
    records = [Record(str(i), None, 0) for i in range(30)]
    found = {r.text for seed in range(300) for r, out in split_by_label(records, 0.1, seed=seed) if out}
    assert found >= {str(i) for i in [*range(5), *range(10, 30)]}


def test_a_file_without_a_header_is_told_apart_by_its_values(tmp_path: Path) -> None:
    straight = write(tmp_path / "a.csv", tickets(), None)
    turned = write(tmp_path / "b.csv", [(label, text) for text, label in tickets()], None)
    assert infer(straight, header=False).text_fields == ("1",)
    task = infer(turned, header=False)
    assert (task.text_fields, task.label_field) == (("2",), "1")
    assert len(list(read_records(task, "train"))) == 36, "the first line is a record"
    wide = write(tmp_path / "c.csv", [("x", *row) for row in tickets()], None)
    with pytest.raises(InvalidInput, match="usual name"):
        infer(wide, header=False)
    assert infer(wide, header=False, text_column=["2"], label_column="3").labels == TOPICS


def test_pairs_have_two_columns(tmp_path: Path) -> None:
    rows = [(text, "and this", label) for text, label in tickets()]
    path = write(tmp_path / "a.csv", rows, ("question", "answer", "label"))
    task = infer(path, text_column=("question", "answer"))
    assert next(read_records(task, "train")).second == "and this"


@pytest.mark.parametrize(
    ("header", "settings", "message"),
    [
        (("text", "body", "label"), {}, r"name of a text .*; got text, body, label at a.csv, line 2"),
        (("text", "class", "label"), {}, r"name of a label .*; got text, class, label at"),
        (
            ("text", "date", "score"),
            {"text_column": None},
            r"name of a label .*; got text, date, score at .*Name it: label_column=NAME",
        ),
        (("text", "date", "score"), {}, "Rename the one of the labels"),  # nobody can name it
        (("a", "b", "c"), {}, "got 3 columns without a usual name at"),
        (("a", "b", "label"), {"text_column": ["z"]}, "text_column names; got a, b, label at"),
        ((f"{SECRET} one", "two", "label"), {}, "3 columns without a usual name"),
        ((SECRET, "two", "billing"), {}, "3 columns without a usual name"),
        ((SECRET, "x", "post"), {}, "3 columns without a usual name"),
    ],
)
def test_a_file_that_can_be_read_in_two_ways_is_refused(
    tmp_path: Path, header: tuple[str, ...], settings: dict[str, Any], message: str
) -> None:
    path = write(tmp_path / "a.csv", [(text, "x", label) for text, label in tickets()], header)
    with pytest.raises(InvalidInput, match=message) as caught:
        infer(path, **settings)
    assert SECRET not in str(caught.value)


BAD = {
    "empty file": ("", "hold records; got none in a.csv"),
    "only a header": ("text,label\n", "hold records; got none in a.csv"),
    "one label": ("text,label\n" + "x,billing\n" * 6, "two labels or more; got one label in all 6 records"),
    "a rare label": (
        "text,label\n" + "x,billing\n" * 6 + f"y,{SECRET}\n" * 4,
        "5 records of every label; got 4 of a label, first at a.csv, line 8",
    ),
    "a missing label": ("text,label\nx,billing\nx,\n", "label in `label`; got an empty one at a.csv, line 3"),
    "a missing text": (
        f"text,label\n{SECRET},billing\n ,billing\n",
        "`text`; got an empty one at a.csv, line 3",
    ),
    "ragged": ("text,label\nx,billing\nx,y,billing\n", "2 fields in every row.*got 3 at a.csv, line 3"),
    "ids twice": (
        "id,text,label\n" + "".join(f"{i % 11},{SECRET},l{i % 2}\n" for i in range(12)),
        "different `id` in every row; got one again at a.csv, line 13",
    ),
    "a text as label": (f"text,label\nx,{SECRET * 30}\n", "printable labels of at most 200.*a.csv, line 2"),
    "too many": (
        "text,label\n" + "".join(f"x,{SECRET}{i}\n" for i in range(1001)),
        "at most 1000 labels; got one more at a.csv, line 1002",
    ),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_file_is_refused_in_one_line_without_its_content(tmp_path: Path, kind: str) -> None:
    content, message = BAD[kind]
    (tmp_path / "a.csv").write_text(content, "utf-8")
    with pytest.raises(InvalidInput, match=message) as caught:
        infer(tmp_path / "a.csv")
    assert SECRET not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_wrong_bytes_are_refused_by_their_line(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(f"text,label\n{SECRET},a\n{SECRET} caf\xe9,b\n".encode("latin-1"))
    with pytest.raises(InvalidInput, match=r"UTF-8; got other bytes at a.csv, line 3"):
        infer(tmp_path / "a.csv")


def test_ids_that_differ_are_no_error(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", [(i, *row) for i, row in enumerate(tickets())], ("id", "text", "label"))
    assert infer(path).labels == TOPICS


def test_where_everything_is_said_nothing_is_read(tmp_path: Path) -> None:
    settings = {
        "text_column": ["text"],
        "label_column": "label",
        "labels": ["a", "b"],
        "validation_share": 0.2,
    }
    task = infer(tmp_path / "moved.csv", **settings, seed=3)
    assert (task.labels, task.validation_share, task.split_seed) == (("a", "b"), 0.2, 3)


def test_a_label_that_training_has_not_is_refused_and_not_shown(tmp_path: Path) -> None:
    write(tmp_path / "train.csv", tickets())
    write(tmp_path / "dev.csv", [("x", SECRET)])
    with pytest.raises(
        InvalidInput, match=r"one of the 4 labels of the task; got another at dev.csv, line 2"
    ):
        list(read_records(infer(tmp_path), "validation"))


def test_a_second_file_without_a_header_does_not_leak_its_first_row(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", tickets())
    write(tmp_path / "b.csv", [(SECRET, "billing"), ("more", "billing")], None)
    with pytest.raises(InvalidInput, match=r"b.csv, line 2") as caught:
        infer(tmp_path)
    assert SECRET not in str(caught.value)


def test_a_source_has_a_name(tmp_path: Path) -> None:
    path = write(tmp_path / "my tickets.csv", tickets())
    assert name_task(str(path)) == ("my-tickets", str(path))
    assert name_task("SST2") == ("sst2", None)
    assert name_task("hf:someone/news:en") == ("news", "hf:someone/news:en")
    assert name_task(str(write(tmp_path / "train.csv", tickets())))[0] == tmp_path.name.strip("-.")
    for name, message in {
        "sst-2": "Did you mean sst2",
        str(tmp_path / "none.csv"): "Check the path",
        str(write(tmp_path / "imdb.csv", tickets())): "--task NAME",
        str(write(tmp_path / "plan.toml", [])): "--plan",
        str(write(tmp_path / "a.xlsx", [])): "Convert it",
    }.items():
        with pytest.raises(InvalidInput, match=message):
            name_task(name)


@pytest.mark.slow
def test_a_data_set_of_hugging_face_brings_its_words_and_splits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    texts, labels = zip(*tickets(), strict=True)
    data = datasets.Dataset.from_dict(
        {"text": list(texts), "label": [TOPICS.index(label) for label in labels]}
    )
    data = data.cast_column("label", datasets.ClassLabel(names=list(TOPICS)))
    data.to_parquet(str(tmp_path / "train.parquet"))
    settings = {"task": "news", "data": {"news": f"hf:{tmp_path}"}}
    task = task_of(settings)
    assert (task.labels, task.splits, task.validation_share) == (TOPICS, ("train",), 0.1)
    assert len(list(read_records(task, "validation"))) == 4
    data.select(range(8)).to_parquet(str(tmp_path / "test.parquet"))
    task = task_of(settings)
    assert (task.splits, task.validation_share) == (("train", "test"), 0.0)
    assert [record.label for record in read_records(task, "test")] == [0, 1, 2, 3] * 2


@pytest.mark.slow
def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    def peak(count: int) -> int:
        path = write(tmp_path / f"{count}.csv", tickets(count))
        tracemalloc.start()
        try:
            infer(path)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    assert peak(20_000) < peak(2_000) + 100_000  # 18,000 more rows of over 30 characters


@pytest.fixture(scope="module")
def tokens() -> FixedLength:
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "number", "again"]
    vocabulary = {word: i for i, word in enumerate(words)}
    return FixedLength(transformers.BertTokenizerFast(vocab=vocabulary), 6)


def test_lists_arrays_columns_and_data_sets_give_the_same(tokens: FixedLength) -> None:
    pandas, datasets = pytest.importorskip("pandas"), pytest.importorskip("datasets")
    texts, labels = zip(*tickets(), strict=True)
    columns = {"text": list(texts), "label": list(labels)}
    table, stored = pandas.DataFrame(columns), datasets.Dataset.from_dict(columns)
    named = stored.class_encode_column("label")
    task, first = encode_texts(list(texts), list(labels), tokens)
    assert task.labels == TOPICS
    assert first.cut == 40, "all are longer than six tokens"
    for given in (
        (np.array(texts), np.array(labels)),
        (table["text"], table["label"]),
        (stored, None),
        (stored, "label"),
        (named, None),
    ):
        again, encoded = encode_texts(*given, tokens)
        assert (again.labels, encoded.fingerprint()) == (task.labels, first.fingerprint())
    assert encode_texts(texts, None, tokens, task=task)[1].labels is None
    assert task_from_labels(np.array([3, 1, 2] * 5)).labels == ("1", "2", "3")


@pytest.mark.parametrize(
    ("texts", "labels", "message"),
    [
        (["a", "b"], ["x"], "1 for 2 texts"),
        (["a", ""] * 5, ["x", "y"] * 5, "an empty one at record 1"),
        (["a", None] * 5, ["x", "y"] * 5, "an empty one at record 1"),
        (["a", 7] * 5, ["x", "y"] * 5, "`texts` must hold a text in `text`; got a int at record 1"),
        (["a", "half \ud800"] * 5, ["x", "y"] * 5, "valid Unicode; got half a character at record 1"),
        (["a", "b"] * 5, ["x", None] * 5, "none at record 1"),
        (["a"] * 6, ["x"] * 6, "two labels"),
        (["a"] * 9, ["x"] * 6 + ["y"] * 3, "5 records of every label; got 3 of a label, first at record 6"),
        ("a text", ["x"], "list or a column"),
    ],
)
def test_columns_that_do_not_fit_are_refused(
    tokens: FixedLength, texts: Any, labels: Any, message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        encode_texts(texts, labels, tokens)
