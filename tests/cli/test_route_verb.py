"""`dpf route` with the real MiniLM: prepare, serve, ask, and ask again for free."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tiny_models
from dp_forward.cli.serve import serve_locally

FAQ = Path(__file__).parents[2] / "examples" / "route" / "faq.csv"


@pytest.mark.slow
@pytest.mark.skipif(tiny_models.minilm_folder() is None, reason="the demo extra is not installed")
def test_a_private_question_is_answered_with_the_text_of_an_entry(
    dpf: Callable[..., Any], tmp_path: Path
) -> None:
    made = dpf("route", str(FAQ), "--epsilon", "30", "--out", str(tmp_path / "route"), "--json").json
    assert (made["entries"], made["replies"], made["epsilon"]) == (20, 20, 30.0)
    assert made["keep"] > 1 - 1e-11  # so what is asked below has one answer
    questions = ("I forgot my login password, what now?", "do you deliver to Norway")
    with serve_locally(tmp_path / "route") as server:
        ask = ("ask", str(tmp_path / "route"), *questions, "--server", server, "--ledger")
        ask = (*ask, str(tmp_path / "me.ledger"))
        first = dpf(*ask, "--budget", "60", "--json").json
        again = dpf(*ask).out
    assert [answer["charge"] for answer in first] == [30.0, 30.0]
    assert [answer["label"] for answer in first] == [
        "How do I reset my password?",
        "Do you ship to other countries?",
    ]
    assert first[1]["reply"].startswith("We ship to all of Europe.")
    assert "1. How do I reset my password? (kept by the noise in 99.99 %; stored answer, nothing" in again
    assert again.count("stored answer, nothing was sent") == 2
    assert "\n   We ship to all of Europe." in again


def test_a_folder_that_holds_something_is_not_written_over(dpf: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").write_text("")
    refused = dpf("route", str(FAQ), "--epsilon", "1", "--out", str(tmp_path / "kept"))
    assert (refused.code, refused.out) == (2, "")
    assert "Users may have the front" in refused.err
