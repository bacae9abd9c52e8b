"""From files to checked records; an error tells where, never what."""

import gzip
import json
from itertools import islice
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from dp_forward.data import Record, find_task, read_records
from dp_forward.data.row_files import Row
from dp_forward.errors import InvalidInput

SST2, IMDB, QQP = find_task("sst2"), find_task("imdb"), find_task("qqp")
SECRET = "zanzibar"
SUBSET = (
    "question1\tquestion2\tis_duplicate\tsource\n"
    'Why "so"?\tWhy so?\t1\tcs224n-dev\n'
    "Who?\tWhen?\t0\tbalanced-dev\n"
    "Where?\tWhere to?\t0\tbalanced-test\n"
    "Empty?\t\t0\tbalanced-test\n"
)


def test_glue_files_load_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "train.tsv").write_text('sentence\tlabel\nhide " new \t0\na fine film \t1\n', "utf-8")
    (tmp_path / "dev.tsv").write_text("sentence\tlabel\nunflinchingly bleak \t0\n", "utf-8")
    (tmp_path / "test.tsv").write_text("index\tsentence\n0\tuneasy mishmash\n", "utf-8")
    assert list(read_records(SST2, "train", source=tmp_path)) == [
        Record('hide " new ', None, 0),
        Record("a fine film ", None, 1),
    ]
    assert list(read_records(SST2, "dev", source=str(tmp_path))) == [Record("unflinchingly bleak ", None, 0)]
    assert list(read_records(SST2, "test", source=tmp_path)) == [Record("uneasy mishmash", None, None)]


def test_gzipped_json_lines_with_more_fields_load_as_they_are(tmp_path: Path) -> None:
    line = json.dumps(
        {"id": "train/neg/0", "label": 0, "rating": 3, "title": "tt1", "text": "A man.<br />A pig."}
    )
    (tmp_path / "imdb_train.jsonl.gz").write_bytes(gzip.compress(line.encode()))
    assert list(read_records(IMDB, "train", source=tmp_path)) == [Record("A man.<br />A pig.", None, 0)]


def test_the_rows_of_one_pair_file_are_told_apart_by_their_source(tmp_path: Path) -> None:
    path = tmp_path / "qqp_subset.tsv.gz"
    path.write_bytes(gzip.compress(SUBSET.encode()))
    for source in (path, tmp_path):
        # The pair with an empty question is left out, as the task says.
        assert list(read_records(QQP, "train", source=source)) == [
            Record("Who?", "When?", 0),
            Record("Where?", "Where to?", 0),
        ]
        assert list(read_records(QQP, "validation", source=source)) == [Record('Why "so"?', "Why so?", 1)]
        with pytest.raises(InvalidInput, match="records of the split test; got none"):
            list(read_records(QQP, "test", source=source))


def test_a_file_that_says_no_split_is_train_only(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("text,label\nfine,pos\n", "utf-8")
    assert list(read_records(SST2, "train", source=path)) == [Record("fine", None, 1)]
    with pytest.raises(InvalidInput, match=r"say which rows are validation.*column `split`"):
        list(read_records(SST2, "validation", source=path))
    path.write_text("text,label,split\nfine,pos,train\nbad,neg,dev\n", "utf-8")
    assert [list(read_records(SST2, split, source=path)) for split in ("train", "validation")] == [
        [Record("fine", None, 1)],
        [Record("bad", None, 0)],
    ]


def test_a_parquet_pair_with_the_hub_names_loads(tmp_path: Path) -> None:
    table = pyarrow.table({"question1": ["Who?"], "question2": ["When?"], "label": [0], "idx": [7]})
    for index in range(2):
        parquet.write_table(table, tmp_path / f"train-0000{index}-of-00002.parquet")
    assert list(read_records(QQP, "train", source=tmp_path)) == [Record("Who?", "When?", 0)] * 2


def test_a_missing_column_is_named_with_those_that_are_there(tmp_path: Path) -> None:
    path = tmp_path / "train.tsv"
    path.write_text("phrase\tlabel\nfine\t1\n", "utf-8")
    with pytest.raises(
        InvalidInput, match=r"column `sentence` or `text`; got phrase, label at train.tsv, line 2"
    ):
        next(read_records(SST2, "train", source=path))
    path.write_text("sentence\tscore\nfine\t1\n", "utf-8")
    with pytest.raises(InvalidInput, match=r"column `label`; got sentence, score at"):
        next(read_records(SST2, "train", source=path))


@pytest.mark.parametrize(
    "header", [f"{SECRET} it is\t1", f"{SECRET}\t1", f"{SECRET}\tpositive", f"1\t{SECRET}"]
)
def test_a_file_without_a_header_does_not_leak_its_first_row(tmp_path: Path, header: str) -> None:
    path = tmp_path / "train.tsv"
    path.write_text(f"{header}\n{SECRET} again\t0\n", "utf-8")
    with pytest.raises(InvalidInput, match="2 columns that do not look like names") as caught:
        next(read_records(SST2, "train", source=path))
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            {"sentence": SECRET, "label": 2},
            r"label of negative, positive or 0 to 1; got 2 at train.jsonl, line 3",
        ),
        ({"sentence": SECRET, "label": -1}, "got -1 at train.jsonl, line 3"),
        ({"sentence": "x", "label": SECRET}, "got something else at train.jsonl, line 3"),
        ({"sentence": "x", "label": None}, "got something else at train.jsonl, line 3"),
        ({"sentence": "x", "label": "12345678901"}, "got something else at"),
        ({"sentence": "x", "label": {SECRET: 1}}, "got something else at"),
        ({"sentence": SECRET}, "column `label`"),
        ({"sentence": " \t", "label": 1}, "text in `sentence`; got an empty one at train.jsonl, line 3"),
        ({"sentence": None, "label": 1}, "text in `sentence`; got an empty one at"),
        ({"sentence": [SECRET], "label": 1}, "text in `sentence`; got a list at"),
        ({"sentence": f"{SECRET} \ud800", "label": 1}, "valid Unicode; got half a character at"),
    ],
)
def test_a_bad_row_is_refused_when_it_is_reached_and_not_shown(
    tmp_path: Path, line: dict[str, object], message: str
) -> None:
    path = tmp_path / "train.jsonl"
    good = {"sentence": "a fine film", "label": 1}
    path.write_text("\n".join(map(json.dumps, (good, good, line))), "utf-8")
    records = read_records(SST2, "train", source=path)
    assert len(list(islice(records, 2))) == 2
    with pytest.raises(InvalidInput, match=message) as caught:
        next(records)
    assert SECRET not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_only_an_unlabelled_split_may_lack_labels(tmp_path: Path) -> None:
    (tmp_path / "test.tsv").write_text("sentence\tlabel\nfine\t-1\nbad\t0\n", "utf-8")
    assert [record.label for record in read_records(SST2, "test", source=tmp_path)] == [None, 0]
    (tmp_path / "test.tsv").write_text("text\nfine\n", "utf-8")
    with pytest.raises(InvalidInput, match="column `label`"):
        next(read_records(IMDB, "test", source=tmp_path))


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "train.tsv"
    for content in ("", "sentence\tlabel\n", "\n\n"):
        path.write_text(content, "utf-8")
        with pytest.raises(InvalidInput, match=r"records of the split train; got none in train.tsv"):
            list(read_records(SST2, "train", source=path))


def test_what_is_not_there_is_refused_before_the_first_record(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="a file or a folder"):
        read_records(SST2, "train", source=tmp_path / "nowhere")
    with pytest.raises(InvalidInput, match="train, validation, test"):
        read_records(SST2, "holdout")
    with pytest.raises(InvalidInput, match=r"one of train, test for imdb; got validation"):
        read_records(IMDB, "validation")


def test_a_split_is_read_no_further_than_asked(tmp_path: Path) -> None:
    path = tmp_path / "train.tsv"
    path.write_text("sentence\tlabel\nfine\t1\nbad\t0\nragged\n", "utf-8")
    assert len(list(islice(read_records(SST2, "train", source=path), 2))) == 2


def test_a_record_shows_neither_text_nor_label() -> None:
    record = Record("a secret plan", "and its reply", 1)
    for shown in (repr(record), str(record), f"{record}", repr([record])):
        assert "secret" not in shown
        assert "reply" not in shown
        assert "1" not in shown
    assert repr(record) == "Record(two texts, labelled)"
    assert repr(Record("a secret plan")) == "Record(one text, no label)"


def test_a_row_shows_its_place_only() -> None:
    assert repr(Row("train.tsv, line 3", {"sentence": "a secret plan"})) == "Row(train.tsv, line 3, 1 fields)"
