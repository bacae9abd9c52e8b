"""A record that lands in a log tells nothing."""

from dp_forward.data.records import Record, Row


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
