"""Every format gives the same rows; a bad file is named, its content is not; no split is guessed."""

import csv
import gzip
import json
import tracemalloc
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from dp_forward.data import row_files
from dp_forward.data.row_files import find_split_files, is_data_file, read_rows
from dp_forward.errors import InvalidInput

SECRET = "zanzibar"
TEXTS = ['a "quoted" film', 'he said "', "naïve, café, 映画", "one\u2028line \x85 still", "  padded  "]


def write_tsv(path: Path) -> None:
    path.write_text(
        "sentence\tlabel\n" + "".join(f"{text}\t{i % 2}\n" for i, text in enumerate(TEXTS)), "utf-8"
    )


def write_csv(path: Path) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("sentence", "label"), *((text, i % 2) for i, text in enumerate(TEXTS))])


def write_json(path: Path) -> None:
    lines = (json.dumps({"sentence": text, "label": i % 2}) for i, text in enumerate(TEXTS))
    path.write_text("\n".join(lines), "utf-8")


def write_parquet(path: Path) -> None:
    table = pyarrow.table({"sentence": TEXTS, "label": [i % 2 for i in range(len(TEXTS))]})
    parquet.write_table(table, path)


WRITERS = {
    ".tsv": write_tsv,
    ".csv": write_csv,
    ".jsonl": write_json,
    ".json": write_json,
    ".parquet": write_parquet,
}


@pytest.mark.parametrize("suffix", WRITERS)
def test_every_format_gives_the_same_rows(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"train{suffix}"
    WRITERS[suffix](path)
    rows = list(read_rows(path))
    assert [row.fields["sentence"] for row in rows] == TEXTS
    assert [int(str(row.fields["label"])) for row in rows] == [0, 1, 0, 1, 0]
    assert rows[0].place.startswith(f"train{suffix}, ")


@pytest.mark.parametrize("suffix", [".tsv", ".csv", ".jsonl"])
def test_gzipped_text_is_read_alike_and_a_truncated_one_refused(tmp_path: Path, suffix: str) -> None:
    plain, packed = tmp_path / f"a{suffix}", tmp_path / f"a{suffix}.gz"
    WRITERS[suffix](plain)
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert [row.fields for row in read_rows(packed)] == [row.fields for row in read_rows(plain)]
    for damaged in (packed.read_bytes()[:-12], b"not gzip at all", packed.read_bytes()[:20] + b"\0" * 40):
        packed.write_bytes(damaged)
        with pytest.raises(InvalidInput, match=rf"whole, readable file; got \w+ in a{suffix}.gz"):
            list(read_rows(packed))


def test_a_truncated_parquet_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "train.parquet"
    write_parquet(path)
    for damaged in (path.read_bytes()[:-9], b"", b"PAR1"):
        path.write_bytes(damaged)
        with pytest.raises(InvalidInput, match=r"whole, readable file; got \w+ in train.parquet"):
            list(read_rows(path))


def test_a_quote_is_a_letter_in_tsv_and_a_quote_in_csv(tmp_path: Path) -> None:
    tsv, table = tmp_path / "a.tsv", tmp_path / "a.csv"
    tsv.write_text('sentence\tlabel\n"open\t0\nclosed"\t1\n', "utf-8")
    table.write_text('sentence,label\n"two\nlines, one ""field""",0\n', "utf-8")
    assert [row.fields["sentence"] for row in read_rows(tsv)] == ['"open', 'closed"']
    assert [row.fields["sentence"] for row in read_rows(table)] == ['two\nlines, one "field"']


def test_windows_line_ends_blank_lines_and_a_byte_order_mark_are_accepted(tmp_path: Path) -> None:
    for name, text in (
        ("a.tsv", "sentence\tlabel\r\n\r\ngood\t1\r\n\r\n"),
        ("a.csv", "sentence,label\r\n\r\ngood,1\r\n\r\n"),
        ("a.jsonl", '{"sentence": "good", "label": "1"}\r\n\r\n'),
    ):
        path = tmp_path / name
        path.write_bytes(b"\xef\xbb\xbf" + text.encode())
        assert [row.fields for row in read_rows(path)] == [{"sentence": "good", "label": "1"}]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "a.tsv",
            f"sentence\tlabel\n{SECRET}\t0\n{SECRET} caf\xe9\t1\n".encode("latin-1"),
            "UTF-8.*a.tsv, line 3",
        ),
        ("a.tsv", f"sentence\tlabel\n{SECRET}\t0\n".encode("utf-16"), "UTF-8.*a.tsv, line 1"),
        ("a.csv", f"sentence,label\n{SECRET} caf\xe9,1\n".encode("latin-1"), "UTF-8.*a.csv, line 2"),
        ("a.jsonl", f'{{"sentence": "{SECRET} caf\xe9"}}\n'.encode("latin-1"), "UTF-8.*a.jsonl, line 1"),
        ("a.tsv", f"sentence\tlabel\n{SECRET}\n".encode(), "2 fields in every row.*got 1 at a.tsv, line 2"),
        ("a.tsv", f"sentence\tlabel\nx\t0\n{SECRET}\t{SECRET}\t1\n".encode(), "got 3 at a.tsv, line 3"),
        ("a.csv", f"sentence,label\nx,0\n{SECRET},{SECRET},1\n".encode(), "got 3 at a.csv, line 3"),
        ("a.csv", f'sentence,label\nx,0\n"{SECRET}"{SECRET},1\n'.encode(), "quoted CSV.*line 3"),
        ("a.csv", f'sentence,label\n"{SECRET}\nnever closed,1\n'.encode(), "quoted CSV.*line 3"),
        ("a.csv", f'sentence,label\n"{SECRET}{"x" * 200_000}",1\n'.encode(), "quoted CSV.*line 2"),
        ("a.tsv", f"{SECRET}\t{SECRET}\nx\t1\n".encode(), "different name for every column.*line 1"),
        ("a.jsonl", f'{{"sentence": "x"}}\n["{SECRET}"]\n'.encode(), "one JSON object.*line 2"),
        ("a.jsonl", f'{{"sentence": "{SECRET}\n'.encode(), "one JSON object.*line 1"),
        ("a.jsonl", b"[" * 100_000, "one JSON object.*line 1"),
        ("a.jsonl", f'{{"{SECRET}": {"9" * 5000}}}'.encode(), "one JSON object.*line 1"),
    ],
)
def test_a_bad_row_is_named_by_its_line_and_never_shown(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(InvalidInput, match=message) as caught:
        list(read_rows(path))
    assert SECRET not in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None or caught.value.__suppress_context__


def test_a_parquet_text_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    raw = pyarrow.array([b"fine", SECRET.encode() + b"\xff"], pyarrow.binary())
    bad = pyarrow.Array.from_buffers(pyarrow.string(), 2, raw.buffers())
    parquet.write_table(pyarrow.table({"sentence": bad}), path)
    with pytest.raises(InvalidInput, match=r"a\.parquet") as caught:
        list(read_rows(path))
    assert SECRET not in str(caught.value)


def test_a_line_without_end_is_not_read_into_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_files, "_LONGEST_LINE", 1000)
    path = tmp_path / "a.tsv"
    path.write_text("sentence\tlabel\n" + "x" * 2000, "utf-8")
    with pytest.raises(InvalidInput, match=r"16 MiB.*line 2"):
        list(read_rows(path))


def test_an_unknown_format_is_refused(tmp_path: Path) -> None:
    for name in ("a.xlsx", "a", "a.gz", "a.parquet.gz", "a.pkl"):
        assert not is_data_file(Path(name))
        with pytest.raises(InvalidInput, match=r"end in one of \.tsv, \.csv"):
            read_rows(tmp_path / name)


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".tsv", ".tsv.gz", ".csv", ".jsonl", ".parquet"])
def test_memory_does_not_grow_with_the_rows(tmp_path: Path, suffix: str) -> None:
    def peak(rows: int) -> int:
        path = tmp_path / f"{rows}{suffix}"
        text = "a fairly ordinary sentence about a film"
        if suffix == ".parquet":
            parquet.write_table(pyarrow.table({"sentence": [text] * rows}), path)
        else:
            line = json.dumps({"sentence": text}) + "\n" if suffix == ".jsonl" else text + "\n"
            content = ("" if suffix == ".jsonl" else "sentence\n") + line * rows
            data = content.encode()
            path.write_bytes(gzip.compress(data) if suffix.endswith(".gz") else data)
        tracemalloc.start()
        try:
            assert sum(1 for _ in read_rows(path)) == rows
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    few, many = peak(2_000), peak(20_000)
    assert many < few + 200_000  # the 18,000 more rows hold over 700,000 characters


def test_an_array_of_objects_is_read_however_it_is_laid_out(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    objects = [{"sentence": f"{text} \\u2028 [{{", "label": {"deep": [i]}} for i, text in enumerate(TEXTS)]
    for content in (json.dumps(objects), json.dumps(objects, indent=2), f"\n {json.dumps(objects)} \n"):
        path.write_text(content, "utf-8")
        rows = list(read_rows(path))
        assert [row.fields for row in rows] == objects
        assert rows[-1].place == "a.json, row 5"
    path.write_text("[]", "utf-8")
    assert list(read_rows(path)) == []


@pytest.mark.parametrize(
    "content",
    [
        f'[{{"text": "{SECRET}"}} {{"text": "x"}}]',
        f'[{{"text": "{SECRET}"}},]',
        f'[{{"text": "{SECRET}"}}',
        f'[{{"text": "{SECRET}"}}, 7]',
        f'[{{"text": "{SECRET}"}}] {SECRET}',
        f'[{{"text": "x"}}, {{"text": {SECRET}}}]',
        "[",
    ],
)
def test_an_array_that_is_not_whole_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "a.json").write_text(content, "utf-8")
    where = "row 2" if content.endswith("7]") else "line 1"
    with pytest.raises(
        InvalidInput, match=f"JSON array of objects; got something else at a.json, {where}"
    ) as caught:
        list(read_rows(tmp_path / "a.json"))
    assert SECRET not in str(caught.value)


def test_without_a_header_columns_are_numbered(tmp_path: Path) -> None:
    for name, content in (("a.csv", "x,1\ny,2\n"), ("a.tsv", "x\t1\ny\t2\n")):
        (tmp_path / name).write_text(content, "utf-8")
        rows = list(read_rows(tmp_path / name, header=False))
        assert [row.fields for row in rows] == [{"1": "x", "2": "1"}, {"1": "y", "2": "2"}]
        assert rows[0].place == f"{name}, line 1"
    (tmp_path / "a.jsonl").write_text("{}", "utf-8")
    with pytest.raises(InvalidInput, match="CSV and TSV"):
        read_rows(tmp_path / "a.jsonl", header=False)


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
    assert find_split_files(tmp_path, "validation") == ([path], True)
    assert find_split_files(path, "validation") == ([path], True)


def test_a_file_that_says_another_split_is_refused(tmp_path: Path) -> None:
    (path,) = touch(tmp_path, "train.tsv")
    for split in ("validation", "test"):
        with pytest.raises(
            InvalidInput, match=f"hold the split {split}; got train.tsv, whose name says train"
        ):
            find_split_files(path, split)


def test_a_word_inside_a_word_tells_nothing(tmp_path: Path) -> None:
    for path in touch(tmp_path, "greatest.tsv", "device.csv", "train_and_test.tsv"):
        assert find_split_files(path, "test") == ([path], False)


def test_the_one_silent_file_of_a_folder_is_taken_for_its_rows(tmp_path: Path) -> None:
    (path,) = touch(tmp_path, "qqp_subset.tsv.gz")
    assert find_split_files(tmp_path, "train") == ([path], False)


def test_two_files_of_a_split_are_refused_unless_they_are_all_its_shards(tmp_path: Path) -> None:
    shards = touch(tmp_path, "train-00000-of-00002.parquet", "train-00001-of-00002.parquet")
    assert find_split_files(tmp_path, "train") == (list(shards), True)
    shards[0].unlink()
    (other,) = touch(tmp_path, "train.tsv")
    with pytest.raises(
        InvalidInput, match=r"one file of the split train; got train-00001-of-00002.parquet, train.tsv"
    ):
        find_split_files(tmp_path, "train")
    other.unlink()
    with pytest.raises(InvalidInput, match="all of its shards"):
        find_split_files(tmp_path, "train")


def test_a_split_without_a_file_is_refused_with_what_is_there(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="no data file"):
        find_split_files(tmp_path, "train")
    touch(tmp_path, "train.tsv", "test.tsv")
    with pytest.raises(
        InvalidInput, match=r"\(one of validation, valid, val, dev in its name\); got test.tsv, train.tsv"
    ):
        find_split_files(tmp_path, "validation")
    with pytest.raises(InvalidInput, match="a file or a folder"):
        find_split_files(tmp_path / "nowhere", "train")
