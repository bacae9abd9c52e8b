"""`dpf ui` as a process: its line when it is ready, an answer through it, and its end in order."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from service.webui import page_cases
from warm_process import Verb


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return page_cases.write_run(tmp_path_factory.mktemp("run"), cut="encoder.1")


@pytest.mark.slow
def test_the_page_answers_and_ends_in_order(run: Path, tmp_path: Path) -> None:
    ledger = tmp_path / "my.ledger"
    words = ["ui", str(run / "front"), "--ledger", str(ledger), "--budget", "20", "--port", "0", "--json"]
    with page_cases.provider(run) as server:
        verb = Verb(*words, "--server", server, log=tmp_path / "log")
        line = verb.first_line()
        origin, _, key = line["address"].partition("/#key=")
        assert line.keys() == {"address", "port"}
        assert origin == f"http://127.0.0.1:{line['port']}"
        headers = {"content-type": "application/json", "x-dpf-key": key}
        question = {"text": "a zebra film", "epsilon": 8.0}
        with httpx.Client(base_url=origin, headers=headers, trust_env=False, timeout=30) as browser:
            assert browser.post("/api/ask", json=question | {"resend": False}).json()["charge"] == 8.0
            while (found := browser.post("/api/look", json=question).json())["prepared"] < 1:
                pass
            assert len(found["with"]["words"]) == len(found["without"]["words"]) == 3
        verb.signal(signal.SIGINT)
        assert verb.finish(30) == 0, "it ends in order"
    assert (len(verb.output.splitlines()), verb.errors) == (1, ""), "nothing is logged"


@pytest.mark.slow
def test_a_run_says_that_it_is_about_pairs_and_how_accurate_it_is(tmp_path: Path) -> None:
    run = page_cases.write_run(tmp_path / "run", mechanism="k-ary-response")
    report = json.loads((run / "report.json").read_text())
    (run / "report.json").write_text(json.dumps(report | {"plan": {"task": "qqp"}}))
    words = [
        "ui",
        str(run),
        "--ledger",
        str(tmp_path / "my.ledger"),
        "--budget",
        "20",
        "--port",
        "0",
        "--json",
    ]
    with page_cases.provider(run) as server:
        verb = Verb(*words, "--server", server, log=tmp_path / "log")
        origin, _, key = verb.first_line()["address"].partition("/#key=")
        headers = {"content-type": "application/json", "x-dpf-key": key}
        state = httpx.post(f"{origin}/api/state", content=b"{}", headers=headers, trust_env=False).json()
        verb.signal(signal.SIGINT)
        assert verb.finish(30) == 0
    assert state["pair"]
    assert state["reconstruction"] is None
    assert "% of answers to be right" in state["epsilons"][-1]["accuracy"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ["ui", "FRONT", "--ledger", "LEDGER"],
        ["ui", "FRONT", "--ledger", "LEDGER", "--budget", "8", "--server", "http://10.1.2.3"],
        ["ui", "FRONT", "--ledger", "LEDGER", "--budget", "8", "--vocabulary", "0"],
        ["ui", "FRONT", "--ledger", "LEDGER", "--budget", "8", "--port", "70000"],
        ["ui", "FRONT", "--ledger", "LEDGER", "--budget", "8", "--host", "0.0.0.0"],
        ["ui", "BACK", "--ledger", "LEDGER", "--budget", "8"],
    ],
)
def test_what_is_missing_or_unsafe_is_refused(
    dpf: Callable[..., Any], run: Path, tmp_path: Path, words: list[str]
) -> None:
    places = {"FRONT": str(run / "front"), "BACK": str(run / "back"), "LEDGER": str(tmp_path / "ledger")}
    refused = dpf(*(places.get(word, word) for word in words))
    assert refused.code == 2
    assert refused.out == ""
