"""Logs hold events and counts, as text or as JSON, and nothing that a client sent."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from dp_forward.errors import InvalidInput
from dp_forward.service.server.audit_log import AuditLog
from dp_forward.service.server.settings import ServerSettings
from dp_forward.service.server.uvicorn_runner import _allow_files, _LineFormatter, run_reloading


def record(message: str, *, failed: bool = False, **more: object) -> logging.LogRecord:
    error = None
    if failed:
        try:
            raise ValueError("a quiet, generous film")
        except ValueError:
            error = sys.exc_info()
    made = logging.LogRecord("dp_forward.service", logging.ERROR, "", 0, message, (), error)
    made.__dict__.update(more)
    return made


def test_an_event_is_one_object_on_one_line_and_an_error_is_a_type_and_a_place() -> None:
    line = _LineFormatter(json_lines=True).format(
        record("one\ntwo", failed=True, counts={"ok": 2, "busy": 1})
    )
    assert "\n" not in line
    found = json.loads(line)
    assert found.keys() == {"time", "level", "event", "error", "counts"}
    assert (found["level"], found["event"], found["counts"]) == ("error", "one", {"ok": 2, "busy": 1})
    assert found["error"].startswith("ValueError in test_uvicorn_runner.py:")
    assert "film" not in line


def test_text_is_the_event_alone() -> None:
    formatter = _LineFormatter(json_lines=False)
    assert formatter.format(record("a warning")) == "a warning"
    assert "film" not in formatter.format(record("it failed", failed=True))


def test_more_connections_than_the_system_allows_are_cut_to_what_it_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    resource = pytest.importorskip("resource")
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (256, 1000))
    monkeypatch.setattr(resource, "setrlimit", lambda kind, limits: asked.append(limits))
    assert _allow_files(100) == 100
    assert asked == []
    assert _allow_files(500) == 500
    assert _allow_files(5000) == 1000 - 128
    assert asked == [(628, 1000), (1000, 1000)]


def test_a_certificate_that_is_none_is_refused_in_one_line(tmp_path: Path) -> None:
    for name in ("cert", "key"):
        (tmp_path / name).write_text("nothing")
    with pytest.raises(InvalidInput, match="be a certificate and its key"):
        ServerSettings(port=0, tls_cert=tmp_path / "cert", tls_key=tmp_path / "key")


def test_a_reload_that_is_asked_for_during_the_first_reading_comes_after_it() -> None:
    served, states = list[int](), iter([1, 2])

    def read() -> int:
        state = next(states)
        if state == 1:
            os.kill(os.getpid(), signal.SIGHUP)
        return state

    def serve(state: int, how: dict[str, Any]) -> bool:
        how["listening"].close()
        served.append(state)
        return not how["due"]()

    run_reloading(socket.create_server(("127.0.0.1", 0)), read, serve, AuditLog(None))
    assert served == [1, 2]
