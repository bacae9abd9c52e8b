"""The tables of the pages are those of the results."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from benchmarks.report import ROOT
from benchmarks.tables import PLACES, filled


@pytest.mark.parametrize(("page", "name", "results", "table"), PLACES, ids=[place[1] for place in PLACES])
def test_a_table_of_a_page_is_that_of_its_results(
    page: str, name: str, results: str, table: Callable[[dict[str, Any]], str]
) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    record = json.loads((ROOT / results).read_text(encoding="utf-8"))
    assert filled(text, name, table(record)) == text
    assert filled(text, name, "another") != text, "the control"
