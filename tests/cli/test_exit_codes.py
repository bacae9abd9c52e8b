"""Every exit code is documented, in help and in the docs, and is reached by a real command."""

from __future__ import annotations

import http.server
import json
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import tiny_task
import tiny_user
from dp_forward.cli.main import EXIT_CODES
from dp_forward.ledger import Cap, Ledger
from dp_forward.privacy import NoiseSpec
from warm_process import Verb

PAGE = Path(__file__).parents[2] / "docs/reference/errors.md"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("world")
    tiny_task.write_task(root / "sst2", train=12, validation=4)
    tiny_user.write_user(root / "run", noise=NoiseSpec(epsilon=4.0), labels=("negative", "positive"))
    return root


@pytest.fixture
def another_server() -> Iterator[str]:
    """Something that speaks HTTP and JSON, and is no provider."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps({"hello": "world"}).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *words: Any) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_the_codes_of_help_are_those_of_the_docs(dpf: Callable[..., Any]) -> None:
    shown = dpf("--help").out.split("Exit codes:")[1]
    rows = re.findall(r"^\| (\d+) \|", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert rows == list(EXIT_CODES) == re.findall(r"^  (\d+) ", shown, flags=re.MULTILINE)


def test_0_is_done_and_2_is_usage(dpf: Callable[..., Any], tmp_path: Path) -> None:
    assert dpf("explain", "-m", "privunit", "-e", "4").code == 0
    assert dpf("explain", "-m", "privunit", "-e", "-4").code == 2  # a value
    assert dpf("explain", "-m", "privunit", "--sigma", "4").code == 2  # an option
    assert dpf("nothing").code == 2  # a verb
    assert dpf("explain", "-m", "classical-gaussian", "-e", "4").code == 2  # not proved


def test_1_is_not_sound_or_a_disk_that_does_not_answer(dpf: Callable[..., Any], tmp_path: Path) -> None:
    path = tmp_path / "my.ledger"
    Ledger.create(path, cap=Cap.pure(8.0)).close()
    assert dpf("ledger", "verify", str(path)).code == 0
    path.write_bytes(path.read_bytes()[:-700])
    assert dpf("ledger", "verify", str(path)).code == 1
    (tmp_path / "file").touch()
    refused = dpf("demo", "--out", str(tmp_path / "file"))
    assert (refused.code, refused.err.strip()) == (
        1,
        f"dpf: `{tmp_path / 'file'}` cannot be used: File exists.",
    )


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_behind_stdout_is_one_line(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "from dp_forward.cli.main import run; run()"]
    with Path("/dev/full").open("w") as full:
        pipes: Any = {"stdout": full, "stderr": subprocess.PIPE, "text": True}
        found = subprocess.run(
            [*command, "calibrate", "-m", "privunit", "-e", "4"], **pipes, cwd=tmp_path, check=False
        )
    assert (found.returncode, found.stderr) == (
        1,
        "dpf: its output cannot be written: No space left on device.\n",
    )


@pytest.mark.slow
def test_3_is_an_exhausted_budget(dpf: Callable[..., Any], world: Path, tmp_path: Path) -> None:
    release = ["release", str(world / "run"), "--task", "sst2", "--data", f"sst2={world / 'sst2'}", "--out"]
    assert dpf(*release, str(tmp_path / "first")).code == 0
    refused = dpf(*release, str(tmp_path / "second"))
    assert refused.code == 3
    assert "Say --budget 8.0 if that is meant; --ledger FILE charges" in refused.err


@pytest.mark.slow
def test_4_is_another_protocol(
    dpf: Callable[..., Any], world: Path, tmp_path: Path, another_server: str
) -> None:
    ledger = ["--ledger", str(tmp_path / "my.ledger"), "--budget", "9"]
    refused = dpf("ask", str(world / "run"), "hello", "--server", another_server, *ledger)
    assert (refused.code, "hello" in refused.err) == (4, False)


@pytest.mark.slow
def test_130_is_ctrl_c_and_long_work_says_what_is_left(tmp_path: Path) -> None:
    audit = Verb("audit", "-m", "matrix-gaussian", "-e", "8", "--draws", "4000000", log=tmp_path / "audit")
    until = time.monotonic() + 60
    while not (tmp_path / "audit.err").exists() or "left" not in audit.errors:
        assert audit.running
        assert time.monotonic() < until
        time.sleep(0.05)
    audit.signal(signal.SIGINT)
    assert audit.finish(30) == 130
    assert re.search(r"releasing: \d+ of 8000000, \d+ s elapsed, about \d+ (s|min) left", audit.errors)
