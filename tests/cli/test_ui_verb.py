"""`dpf ui` as a process: its line when it is ready, an answer through it, and its end in order."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from service.webui import page_cases


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return page_cases.write_run(tmp_path_factory.mktemp("run"), cut="encoder.1")


@pytest.mark.slow
def test_the_page_answers_and_ends_in_order(run: Path, tmp_path: Path) -> None:
    ledger = tmp_path / "my.ledger"
    words = ["ui", str(run / "front"), "--ledger", str(ledger), "--budget", "20", "--port", "0", "--json"]
    with page_cases.provider(run) as server:
        process = subprocess.Popen(
            [sys.executable, "-m", "dp_forward.cli.main", *words, "--server", server],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        assert process.stdout is not None
        line = json.loads(process.stdout.readline())
        origin, _, key = line["address"].partition("/#key=")
        assert line.keys() == {"address", "port"}
        assert origin == f"http://127.0.0.1:{line['port']}"
        headers = {"content-type": "application/json", "x-dpf-key": key}
        question = json.dumps({"text": "a zebra film", "epsilon": 8.0})
        with httpx.Client(base_url=origin, headers=headers, trust_env=False, timeout=30) as browser:
            assert browser.post("/api/ask", content=question).json()["charge"] == 8.0
            while (found := browser.post("/api/look", content=question).json())["prepared"] < 1:
                pass
            assert len(found["with"]["words"]) == len(found["without"]["words"]) == 3
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert process.returncode == 0, "it ends in order"
    assert (out, err) == ("", ""), "nothing is logged"


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
