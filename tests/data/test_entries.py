"""Public lists of questions and answers."""

from __future__ import annotations

from pathlib import Path

import pytest

from dp_forward.data.entries import read_entries
from dp_forward.errors import InvalidInput


def test_columns_are_found_by_their_usual_names(tmp_path: Path) -> None:
    file = tmp_path / "faq.tsv"
    file.write_text("id\tPrompt\tResponse\n1\tone  thing\tyes\n2\tanother\t\n")
    assert read_entries(file) == {"one thing": "yes", "another": None}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("question,answer\na,b\n", "number 2 to 1000"),
        ("question,answer\nthing,b\nthing,c\n", "once each"),
        (f"question,answer\n{'x' * 201},b\nb,c\n", "at most 200 letters"),
        ("body,answer\na,b\nc,d\n", "usual name of a question"),
    ],
)
def test_a_file_that_is_no_list_of_entries_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "faq.csv").write_text(text)
    with pytest.raises(InvalidInput, match=message) as refused:
        read_entries(tmp_path / "faq.csv")
    assert "thing" not in str(refused.value)
