"""Workers on one socket: reloaded without a lost request, started again when killed, gone with the parent."""

from __future__ import annotations

import contextlib
import json
import os
import random
import secrets
import signal
import socket
import sqlite3
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

import tiny_user
from dp_forward.noise import release
from dp_forward.privacy import NoiseSpec
from dp_forward.service.protocol.collection import pack_record
from dp_forward.service.protocol.frame import frame_of
from dp_forward.service.protocol.manifest import Manifest
from dp_forward.service.server.users import UserStore
from dp_forward.split.artifacts import load_provider_side
from warm_process import Script, Verb

CAP = 100_000


class Provider:
    """A run that can be changed, a store with one user, and `dpf serve` on both."""

    def __init__(self, folder: Path, store: str | None = None, *, per_day: int = CAP) -> None:
        self.folder, self.audit, self.store = folder, folder / "audit", store or str(folder / "store")
        for seed, name in enumerate(("first", "second")):
            tiny_user.write_user(folder / name, noise=NoiseSpec(epsilon=8.0), seed=seed)
        self.digest = json.loads((folder / "first" / "split.json").read_text())["digest_front"]
        self.manifest = Manifest.of(load_provider_side(folder / "first" / "back"), self.digest)
        self.serve_from("first")
        self.fixed = self.frame(0)
        with contextlib.closing(UserStore(self.store)) as users:
            self.token = users.add("alice", per_day=per_day)

    def serve_from(self, name: str) -> None:
        link = self.folder / "link"
        link.symlink_to(self.folder / name / "back")
        link.replace(self.folder / "back")

    @contextlib.contextmanager
    def serve(self, *more: str) -> Iterator[Verb]:
        words = ["serve", str(self.folder / "back"), "--front-digest", self.digest, "--port", "0"]
        words += ["--store", self.store, "--audit-log", str(self.audit)]
        self.server = Verb(*words, *more, log=self.folder / "log")
        try:
            self.address = self.server.first_line()["address"]
            yield self.server
        finally:
            self.server.signal(signal.SIGTERM)
            self.code = self.server.finish(30)

    def frame(self, seed: int | None = None, *, now: int | None = None) -> bytes:
        hidden = np.random.default_rng(seed).normal(size=self.manifest.release.shape)
        made = release(hidden, self.manifest.mechanism(), bits=self.manifest.release.bits)
        request, now = secrets.token_bytes(16), int(time.time()) if now is None else now
        return frame_of(made, cut="encoder.1", front=self.digest, request=request, time=now)

    def client(self) -> httpx.Client:
        headers = {"authorization": f"Bearer {self.token}", "content-type": "application/octet-stream"}
        return httpx.Client(base_url=self.address, headers=headers, trust_env=False, timeout=20)

    def workers(self) -> list[int]:
        pid = self.server.process.pid
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    def events(self) -> list[str]:
        return [json.loads(line)["event"] for line in self.audit.read_text().splitlines()]

    def used(self) -> int:
        with contextlib.closing(UserStore(self.store)) as users:
            return int(users.list_users()[0]["used"])

    def answer(self) -> dict[str, float]:
        """The answer to a frame of the same integers every time, under a new id."""
        with self.client() as client:
            changed = self.fixed[:96] + secrets.token_bytes(16) + self.fixed[112:]
            return dict(client.post("/v1/answer", content=changed).json()["probabilities"])


@pytest.fixture
def provider(tmp_path: Path) -> Provider:
    return Provider(tmp_path)


def wait_until(true: Callable[[], bool], seconds: float = 60.0) -> None:
    until = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < until
        time.sleep(0.02)


@contextlib.contextmanager
def many(count: int, work: Callable[[], None]) -> Iterator[None]:
    """Do this again and again in threads for as long as the block takes."""
    stopping = threading.Event()

    def loop() -> None:
        while not stopping.is_set():
            work()

    threads = [threading.Thread(target=loop) for _ in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stopping.set()
        for thread in threads:
            thread.join()


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_reload_changes_the_back_and_no_request_fails(provider: Provider, workers: str) -> None:
    problems, local, asked = [], threading.local(), []

    def ask() -> None:
        if not hasattr(local, "client"):
            local.client = provider.client()
        try:
            status = local.client.post("/v1/answer", content=provider.frame()).status_code
            asked.append(status)
            if status != 200:
                problems.append(status)
        except httpx.HTTPError as error:
            problems.append(repr(error))

    with provider.serve("--workers", workers) as server:
        before, old = provider.answer(), provider.workers()
        assert provider.answer() == pytest.approx(before, abs=1e-6)
        assert len(old) == int(workers)
        with many(3, ask):
            provider.serve_from("second")
            server.signal(signal.SIGHUP)
            wait_until(lambda: "reload" in provider.events())
            wait_until(lambda: not set(old) & set(provider.workers()))
            assert provider.answer() != pytest.approx(before, abs=1e-3)
            (provider.folder / "back").unlink()  # the control: a state that cannot be served
            server.signal(signal.SIGHUP)
            wait_until(lambda: "reload_failed" in provider.events())
            assert len(provider.workers()) == int(workers), "the old ones stay"
    assert problems == []
    assert len(asked) > 20
    assert provider.code == 0
    assert provider.events()[0] == "start"
    assert provider.events()[-1] == "stop"
    assert "did not come up: `" in provider.server.errors


@pytest.mark.slow
def test_a_reload_reads_the_shared_token_anew(provider: Provider, tmp_path: Path) -> None:
    word = tmp_path / "word"
    word.write_text("the-first-shared-word")
    with provider.serve("--token-file", str(word)) as server:

        def status(token: str) -> int:
            headers = {"authorization": f"Bearer {token}"}
            return httpx.get(f"{provider.address}/v1/manifest", headers=headers, trust_env=False).status_code

        assert [status("the-first-shared-word"), status(provider.token)] == [200, 200]
        word.write_text("the-second-shared-word")
        server.signal(signal.SIGHUP)
        wait_until(lambda: "reload" in provider.events())
        wait_until(lambda: status("the-first-shared-word") == 401)
        assert [status("the-second-shared-word"), status(provider.token)] == [200, 200]


@pytest.mark.slow
def test_a_reload_serves_a_new_certificate_and_a_bad_one_changes_nothing(
    provider: Provider, tmp_path: Path
) -> None:
    first, second = ([path.read_bytes() for path in new_certificate(tmp_path / name)] for name in "ab")
    files = [tmp_path / "cert.pem", tmp_path / "key.pem"]

    def put(*contents: bytes) -> None:
        for file, data in zip(files, contents, strict=True):
            file.write_bytes(data)

    def shown() -> bytes:
        port = int(provider.address.rpartition(":")[2])
        return ssl.get_server_certificate(("127.0.0.1", port), timeout=20).encode()

    put(*first)
    with provider.serve("--tls-cert", str(files[0]), "--tls-key", str(files[1])) as server:
        old = provider.workers()
        put(*second)
        assert shown() == first[0], "the control: files alone change nothing"
        server.signal(signal.SIGHUP)
        wait_until(lambda: "reload" in provider.events() and not set(old) & set(provider.workers()))
        assert shown() == second[0]
        trusting = ssl.create_default_context(cafile=str(files[0]))
        health = httpx.get(f"{provider.address}/healthz", verify=trusting, trust_env=False)
        assert health.status_code == 200
        put(b"nothing", second[1])
        server.signal(signal.SIGHUP)
        wait_until(lambda: "reload_failed" in provider.events())
        assert shown() == second[0]
    assert "be a certificate and its key" in provider.server.errors


def new_certificate(folder: Path) -> tuple[Path, Path]:
    folder.mkdir()
    return tiny_user.self_signed(folder)


@pytest.mark.slow
def test_two_workers_share_quotas(place: str, tmp_path: Path) -> None:
    provider = Provider(tmp_path, place, per_day=3)
    frames = [provider.frame() for _ in range(4)]

    def statuses(worker: int, *numbers: int) -> list[int]:
        """What one worker answers to these frames, while the other is stopped."""
        (other,) = {*provider.workers()} - {worker}
        os.kill(other, signal.SIGSTOP)
        try:
            with provider.client() as client:
                return [client.post("/v1/answer", content=frames[n]).status_code for n in numbers]
        finally:
            os.kill(other, signal.SIGCONT)

    with provider.serve("--workers", "2"):
        one, other = provider.workers()
        assert statuses(one, 0, 1) == [200, 200]
        assert statuses(other, 0, 1) == [200, 200], "a retry is free at the other worker too"
        assert statuses(other, 2, 3) == [200, 429], "what the first one counted is counted"
        assert statuses(one, 3, 2) == [429, 200]
    assert provider.used() == 3


@pytest.mark.slow
def test_20_kills_of_workers_change_no_answer_no_count_and_no_record(
    provider: Provider, tmp_path: Path
) -> None:
    draw, answered, stored, problems = random.Random(0), {}, set[bytes](), []
    lock = threading.Lock()

    def send(path: str, body: bytes) -> httpx.Response:
        """Again until it is answered, as a client does."""
        until = time.monotonic() + 30
        while time.monotonic() < until:
            with contextlib.suppress(httpx.HTTPError), provider.client() as client:
                found = client.post(path, content=body)
                if found.status_code not in (429, 503):
                    return found
            time.sleep(0.05)
        raise AssertionError("no answer")

    def ask() -> None:
        frame = provider.frame()
        found = send("/v1/answer", frame)
        again = send("/v1/answer", frame)  # by any worker
        record = pack_record(provider.frame(now=0), 1)
        kept = send("/v1/records", record)
        with lock:
            if (found.status_code, kept.status_code) != (200, 200):
                problems.append((found.text, kept.text))
                return
            answered[frame] = found.json()["probabilities"]
            if again.json()["probabilities"] != pytest.approx(answered[frame], abs=1e-6):
                problems.append("another answer")
            stored.add(record[96:112])

    more = ["--collect", str(tmp_path / "records")]
    with provider.serve("--workers", "2", *more):
        with many(4, ask):
            for _ in range(20):
                seen = len(answered)
                wait_until(lambda seen=seen: len(answered) > seen or bool(problems))  # type: ignore[misc]
                time.sleep(draw.uniform(0.0, 0.3))
                if pids := provider.workers():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(draw.choice(pids), signal.SIGKILL)
        wait_until(lambda: len(provider.workers()) == 2)
    assert problems == []
    assert len(answered) >= 20
    assert provider.used() == len(answered) + len(stored), "each counted once"
    with contextlib.closing(sqlite3.connect(tmp_path / "records" / "records.sqlite")) as connection:
        rows = [row[0] for row in connection.execute("SELECT request FROM records")]
    assert len(rows) == len(set(rows)) == len(stored)
    assert set(rows) == stored, "what was acknowledged"


@pytest.mark.slow
def test_every_page_of_metrics_is_the_sum_of_all_workers_also_of_one_that_was_killed(
    provider: Provider, tmp_path: Path
) -> None:
    with provider.serve("--workers", "2"):

        def page() -> set[str]:
            found = httpx.get(f"{provider.address}/metrics", trust_env=False).text  # of any worker
            return {line for line in found.splitlines() if not line.startswith("#")}

        def ask(times: int) -> None:
            for _ in range(times):
                with provider.client() as client:  # a new connection each: both workers get some
                    assert client.post("/v1/answer", content=provider.frame()).status_code == 200

        def wanted(times: int) -> set[str]:
            counted = {
                f'dpf_requests_total{{outcome="ok"}} {times}.0',
                f"dpf_request_seconds_count {times}.0",
            }
            return {*counted, f'dpf_classes_total{{class="user"}} {times}.0', "dpf_queue 0.0"}

        ask(20)
        pages = [page() for _ in range(20)]
        assert all(one >= wanted(20) for one in pages)
        killed = provider.workers()[0]
        os.kill(killed, signal.SIGKILL)
        wait_until(lambda: killed not in provider.workers() and len(provider.workers()) == 2)
        ask(10)
        assert all(page() >= wanted(30) for _ in range(20))


SCRIPT = """
import logging, sys, time
from starlette.applications import Starlette
from dp_forward.errors import InvalidInput
from dp_forward.service.server import supervisor
from dp_forward.service.server.audit_log import AuditLog
from dp_forward.service.server.settings import ServerSettings
from dp_forward.service.server.uvicorn_runner import bind_socket, print_line, run_server
from pathlib import Path

supervisor._PAUSE_S = 0.01
settings = ServerSettings(port=0)

def work(listening, say, ready):
    if Path(sys.argv[1]).exists():
        raise InvalidInput("back", "be there", "nothing", "Make one.")
    run_server(Starlette(), settings, say=say, ready=ready, listening=listening)

listening = bind_socket("127.0.0.1", 0)
made = supervisor.Supervisor(work, listening, workers=2, stop_seconds=1, audit=AuditLog(None))
try:
    made.run(print_line)
except InvalidInput.__mro__[1] as error:
    print(error, file=sys.stderr)
    sys.exit(error.exit_code)
"""


@pytest.fixture
def supervised(tmp_path: Path) -> Iterator[Callable[[], Script]]:
    """A supervisor of two small servers that do not come up where a file called bad lies."""
    (tmp_path / "script.py").write_text(SCRIPT)
    made: list[Any] = []

    def start() -> Script:
        made.append(Script(tmp_path / "script.py", [str(tmp_path / "bad")], log=tmp_path / "log"))
        return made[-1]

    yield start
    for one in made:
        one.signal(signal.SIGTERM) if one.running else None
        one.finish(20)


def children(pid: int | None) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.slow
def test_workers_end_with_a_supervisor_that_is_killed(supervised: Callable[[], Script]) -> None:
    made = supervised()
    wait_until(lambda: "\n" in made.output)
    pids = children(made.process.pid)
    assert len(pids) == 2
    made.kill()
    wait_until(lambda: not any(Path(f"/proc/{pid}/status").exists() for pid in pids), 10)


@pytest.mark.slow
def test_a_server_that_stops_refuses_new_connections_at_once(provider: Provider) -> None:
    with provider.serve("--workers", "2") as server:
        port = int(provider.address.rpartition(":")[2])
        socket.create_connection(("127.0.0.1", port), 5).close()
        server.signal(signal.SIGTERM)

        def refused() -> bool:
            try:
                socket.create_connection(("127.0.0.1", port), 5).close()
            except ConnectionRefusedError:
                return True
            return False

        wait_until(refused, 5)
    assert provider.code == 0


@pytest.mark.slow
def test_a_worker_that_never_comes_up_ends_the_server_with_its_reason(
    supervised: Callable[[], Script], tmp_path: Path
) -> None:
    (tmp_path / "bad").touch()
    first = supervised()
    assert first.finish(20) == 2, "at the start: at once"
    assert first.errors.count("`back` must be there") == 1
    (tmp_path / "bad").unlink()
    later = supervised()
    wait_until(lambda: "\n" in later.output)
    (tmp_path / "bad").touch()
    for pid in children(later.process.pid):
        os.kill(pid, signal.SIGKILL)
    assert later.finish(20) == 2
    assert later.errors.count("a worker ended") >= 5
    assert later.errors.strip().splitlines()[-1].startswith("`back` must be there")
