"""`dpf shuffle` as a process: killed while it seals, started again, reloaded, ended in order."""

from __future__ import annotations

import inspect
import json
import signal
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.responses import Response

import tiny_user
from dp_forward.cli.serve import serve
from dp_forward.cli.shuffle import shuffle
from dp_forward.cli.ui import ui
from dp_forward.service.collector.collection_store import Collection
from dp_forward.service.server.settings import ServerSettings
from dp_forward.service.server.users import UserStore
from service.collector.collect_cases import summary
from service.shuffler.shuffle_cases import OCTETS, TOKEN, collector_app, content, made, running, stored
from warm_process import Verb

LOCAL = ServerSettings(port=0)


@pytest.fixture
def word(tmp_path: Path) -> Path:
    path = tmp_path / "word"
    path.write_text(TOKEN + "\n")
    return path


def started(log: Path, *words: str) -> tuple[Verb, str]:
    verb = Verb("shuffle", *words, "--port", "0", "--json", log=log)
    return verb, verb.first_line()["address"]


def post(address: str, records: list[bytes]) -> dict[str, int]:
    reply = httpx.post(f"{address}/v1/records", content=b"".join(records), headers=OCTETS, timeout=60)
    assert reply.status_code == 200, reply.text
    return reply.json()  # type: ignore[no-any-return]


@pytest.mark.slow
def test_a_shuffler_that_is_killed_goes_on_and_one_that_is_stopped_ends_in_order(
    tmp_path: Path, word: Path
) -> None:
    folder = tmp_path / "collected"
    app = collector_app(folder, LOCAL)
    shut, asked = threading.Event(), threading.Event()
    shut.set()

    async def gate(request: Request, on: Callable[[Request], Any]) -> Response:
        if request.url.path.endswith("/seal") and shut.is_set():
            asked.set()
            return Response(status_code=503)
        return await on(request)  # type: ignore[no-any-return]

    app.add_middleware(BaseHTTPMiddleware, dispatch=gate)

    records = made(55)
    with running(app, LOCAL) as behind:
        words = ["--collector", behind, "--collector-token-file", str(word)]
        words += ["--store", str(tmp_path / "store"), "--least", "40"]
        first, address = started(tmp_path / "first", *words)
        assert post(address, records[:40]) == {"stored": 40, "known": 0}
        assert asked.wait(30)
        assert post(address, records[40:45]) == {"stored": 5, "known": 0}
        first.kill()
        assert summary(Collection.open(folder)) == {"records": 0, "waiting": 40, "batches": 0}
        shut.clear()
        second, address = started(tmp_path / "second", *words)
        assert post(address, records) == {"stored": 10, "known": 45}
        until = time.monotonic() + 30
        while not summary(Collection.open(folder))["batches"] and time.monotonic() < until:
            time.sleep(0.05)
        second.signal(signal.SIGTERM)
        assert second.finish(30) == 0
        assert json.loads(second.output.splitlines()[1]) == {"batches": 1, "records": 40, "waiting": 15}
    assert Counter(inside for _, inside, _ in stored(folder)) == Counter(map(content, records[:40]))
    assert summary(Collection.open(folder)) == {"records": 40, "waiting": 0, "batches": 1}


@pytest.mark.slow
def test_a_batch_goes_in_bodies_of_the_collector_not_of_a_user(tmp_path: Path, word: Path) -> None:
    """One record of each user may be in a batch, and all of them are in one request."""
    app, bodies = collector_app(tmp_path / "collected", LOCAL), list[str]()

    async def watch(request: Request, on: Callable[[Request], Any]) -> Response:
        bodies.extend([request.url.path] if request.url.path.endswith("/records") else [])
        return await on(request)  # type: ignore[no-any-return]

    app.add_middleware(BaseHTTPMiddleware, dispatch=watch)
    with closing(UserStore(tmp_path / "users")) as users:
        tokens = [users.add(f"user-{number}") for number in range(6)]
    with running(app, LOCAL) as behind:
        words = [
            "--collector",
            behind,
            "--collector-token-file",
            str(word),
            "--store",
            str(tmp_path / "store"),
        ]
        verb, address = started(tmp_path / "log", *words, "--least", "6", "--users", str(tmp_path / "users"))
        for token, record in zip(tokens, made(6), strict=True):
            asked = {**OCTETS, "authorization": f"Bearer {token}"}
            assert httpx.post(f"{address}/v1/records", content=record, headers=asked).status_code == 200
        until = time.monotonic() + 30
        while not summary(Collection.open(tmp_path / "collected"))["batches"] and time.monotonic() < until:
            time.sleep(0.05)
        verb.signal(signal.SIGTERM)
        assert verb.finish(30) == 0
    assert json.loads(verb.output.splitlines()[1]) == {"batches": 1, "records": 6, "waiting": 0}
    assert len(bodies) == 1


@pytest.mark.slow
def test_a_reload_reads_tokens_and_certificates_anew_and_no_request_fails(tmp_path: Path, word: Path) -> None:
    shared, audit, problems = tmp_path / "shared", tmp_path / "audit", list[str]()
    shared.write_text("the-first-shared-word")
    cert, key = tiny_user.self_signed(tmp_path)

    def events() -> list[str]:
        return [json.loads(line)["event"] for line in audit.read_text().splitlines()]

    def wait_for(*wanted: str) -> None:
        until = time.monotonic() + 60
        while events() != list(wanted):
            assert time.monotonic() < until, events()
            time.sleep(0.02)

    with running(collector_app(tmp_path / "collected", LOCAL), LOCAL) as behind:
        words = ["--collector", behind, "--collector-token-file", str(word), "--token-file", str(shared)]
        words += ["--store", str(tmp_path / "store"), "--least", "40", "--audit-log", str(audit)]
        words += ["--tls-cert", str(cert), "--tls-key", str(key)]
        verb, address = started(tmp_path / "log", *words)

        def ask(token: str, authority: str) -> int:
            headers, trusted = (
                {"authorization": f"Bearer {token}"},
                ssl.create_default_context(cadata=authority),
            )
            url = f"{address}/v1/collection"
            return httpx.get(url, headers=headers, verify=trusted, trust_env=False, timeout=60).status_code

        first, stopping = cert.read_text(), threading.Event()

        def keep_asking() -> None:
            """With the old word and certificate until they are no longer served."""
            while not stopping.is_set():
                try:
                    status = httpx.get(f"{address}/healthz", verify=False, timeout=60).status_code
                    problems.extend([str(status)] if status != 200 else [])
                except httpx.HTTPError as error:
                    problems.append(repr(error))

        assert ask("the-first-shared-word", first) == 200
        threads = [threading.Thread(target=keep_asking) for _ in range(2)]
        for thread in threads:
            thread.start()
        key.write_text("nothing")  # the control: a state that cannot be served
        verb.signal(signal.SIGHUP)
        wait_for("start", "reload_failed")
        assert ask("the-first-shared-word", first) == 200
        tiny_user.self_signed(tmp_path)
        shared.write_text("the-second-shared-word")
        verb.signal(signal.SIGHUP)
        wait_for("start", "reload_failed", "reload")
        assert ask("the-second-shared-word", cert.read_text()) == 200
        assert ask("the-first-shared-word", cert.read_text()) == 401
        with pytest.raises(httpx.ConnectError):
            ask("the-second-shared-word", first)
        stopping.set()
        for thread in threads:
            thread.join()
        verb.signal(signal.SIGTERM)
        assert verb.finish(30) == 0
    assert problems == []
    assert [json.loads(line).keys() for line in verb.output.splitlines()][1] == {
        "batches",
        "records",
        "waiting",
    }
    assert json.loads(audit.read_text().splitlines()[-1])["event"] == "token_refused"
    assert "the old state stays: `tls` must be a certificate and its key" in verb.errors


@pytest.mark.parametrize(
    ("words", "wrong"),
    [
        (["--host", "0.0.0.0"], "token"),
        (["--host", "0.0.0.0", "--users", "USERS"], "without TLS"),
        (["--token-file", "WORD"], "differ"),
        (["--records-per-user", "3"], "--users"),
        (["--collector", "http://10.1.2.3"], "https"),
        (["--proxy", "http://10.1.2.3:80"], "proxy"),
        (["--collector", "https://a.example", "--ca", "WORD"], "ca"),
    ],
)
def test_what_is_unsafe_is_refused_in_one_line(
    dpf: Callable[..., Any], tmp_path: Path, word: Path, words: list[str], wrong: str
) -> None:
    usual = ["--collector", "http://127.0.0.1:1", "--collector-token-file", str(word)]
    usual += ["--store", str(tmp_path / "store"), "--least", "40"]
    refused = dpf("shuffle", *usual, *(str(word) if one == "WORD" else one for one in words))
    assert refused.code == 2
    assert wrong in refused.err
    assert refused.err.strip().count("\n") == 0
    assert TOKEN not in refused.err
    assert not (tmp_path / "store").exists()


def test_the_services_of_one_machine_have_ports_of_their_own() -> None:
    ports = [inspect.signature(verb).parameters["port"].default for verb in (serve, shuffle, ui)]
    assert len(set(ports)) == len(ports)
