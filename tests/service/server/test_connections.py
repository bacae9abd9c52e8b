"""Who is silent gives way, whoever is at work does not, and health is always answered; over loopback."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

import tiny_user
from dp_forward.privacy import NoiseSpec
from dp_forward.release_spec import ReleaseSpec
from dp_forward.service.server import connections
from dp_forward.service.server.app import make_app
from dp_forward.service.server.batching import Batcher
from dp_forward.service.server.settings import ServerSettings
from dp_forward.service.server.uvicorn_runner import run_server
from dp_forward.split import split_model
from dp_forward.split.artifacts import ProviderSide
from tiny_models import tiny

HEALTH, MANIFEST = (
    b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n",
    b"GET /v1/manifest HTTP/1.1\r\nhost: x\r\n\r\n",
)


@pytest.fixture(scope="module")
def provider() -> ProviderSide:
    back = split_model(tiny("bert"), "encoder.2")[1]
    spec = ReleaseSpec.of(back, noise=NoiseSpec(epsilon=8.0), rows=9, labels=("bad", "so so", "good"))
    return ProviderSide(back, spec, "cd" * 32)


class Server:
    """A server in a thread, and raw connections to it."""

    def __init__(self, provider: ProviderSide, **settings: Any) -> None:
        chosen = ServerSettings(port=0, **settings)
        self.app = make_app(provider, front_digest="ab" * 32, settings=chosen)
        self.frame_bytes = self.app.state.handler.manifest.frame_bytes
        said, listening = list[str](), threading.Event()

        def ready(server: Any) -> None:
            self._server = server
            listening.set()

        told = {"say": said.append, "ready": ready}
        self._thread = threading.Thread(target=run_server, args=(self.app, chosen), kwargs=told, daemon=True)
        self._thread.start()
        assert listening.wait(10)
        self.told, self._opened = json.loads(said[0]), list[socket.socket]()

    def open(self, data: bytes = b"", *, receive_buffer: int | None = None) -> socket.socket:
        """A connection that has sent these bytes."""
        made = socket.socket()
        made.settimeout(5)
        if receive_buffer is not None:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        made.connect((self.told["host"], self.told["port"]))
        self._opened.append(made)
        made.sendall(data)
        return made

    def ask(self, data: bytes) -> bytes:
        """The response over a connection of its own; b"" where it was closed without one."""
        return read(self.open(data))

    def at_work(self) -> socket.socket:
        """A connection whose body the server waits for."""
        head = f"POST /v1/answer HTTP/1.1\r\nhost: x\r\ncontent-length: {self.frame_bytes}\r\n"
        return self.open(head.encode() + b"content-type: application/octet-stream\r\n\r\nDPF")

    def busy(self, count: int) -> bool:
        """Whether so many connections are open, and none of them is silent."""
        known = self._server.config.http_protocol_class.keywords["connections"]
        return len(known._open) == count and not known._silent

    def stop(self) -> None:
        for one in self._opened:
            one.close()
        self._server.should_exit = True
        self._thread.join(10)
        assert not self._thread.is_alive()


def read(connection: socket.socket) -> bytes:
    """What comes within a quarter of a second of the first bytes."""
    found = b""
    with contextlib.suppress(TimeoutError, ConnectionResetError):
        while part := connection.recv(1 << 16):
            found += part
            connection.settimeout(0.25)
    connection.settimeout(5)
    return found


def seconds_until_closed(connection: socket.socket, *, drip: bytes = b"", most: float = 5.0) -> float:
    began = time.monotonic()
    connection.settimeout(0.05)
    while time.monotonic() - began < most:
        try:
            connection.sendall(drip)
            if not connection.recv(1 << 16):
                break
        except TimeoutError:
            continue
        except OSError:
            break
    return time.monotonic() - began


def wait_until(true: Callable[[], bool], seconds: float = 10.0) -> None:
    until = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < until
        time.sleep(0.02)


@contextlib.contextmanager
def serving(provider: ProviderSide, **settings: Any) -> Iterator[Server]:
    server = Server(provider, **settings)
    try:
        yield server
    finally:
        server.stop()


def test_silent_connections_give_way_to_new_ones_the_oldest_first(provider: ProviderSide) -> None:
    with serving(provider, connections=8) as server:
        silent = [server.open() for _ in range(40)]
        assert server.ask(HEALTH).startswith(b"HTTP/1.1 200")
        assert server.ask(MANIFEST).startswith(b"HTTP/1.1 200")
        assert seconds_until_closed(silent[0]) < 4  # its own time would be 10
        assert read_later(silent[-1], HEALTH).startswith(b"HTTP/1.1 200")  # the control: room for the newest


def test_refusals_that_wait_give_way_to_others(provider: ProviderSide) -> None:
    """Wrong tokens are answered late; whoever sends them takes no place from those who have the right one."""
    token = "a-token-of-enough-letters"
    with serving(provider, connections=8, token=token) as server:
        head = "GET /v1/manifest HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\n\r\n"
        wrong = [server.open(head.format("wrong").encode()) for _ in range(48)]
        time.sleep(0.1)
        began = time.monotonic()
        assert server.ask(HEALTH).startswith(b"HTTP/1.1 200")
        assert server.ask(head.format(token).encode()).startswith(b"HTTP/1.1 200")
        assert time.monotonic() - began < 1.5
        said = [read(one) for one in wrong]
    assert b"" in said, "some were closed to make room"
    slowed = [answer for answer in said if answer]
    assert all(answer.startswith(b"HTTP/1.1 401") and b"connection: close" in answer for answer in slowed)


def test_an_address_in_a_header_is_not_believed(provider: ProviderSide) -> None:
    with serving(provider, token="a-token-of-enough-letters") as server:
        head = "GET /v1/manifest HTTP/1.1\r\nhost: x\r\nx-forwarded-for: 10.0.0.{}\r\n\r\n"
        began = time.monotonic()
        for number in range(8):
            assert server.ask(head.format(number).encode()).startswith(b"HTTP/1.1 401")
        assert time.monotonic() - began > 0.7, "the later ones are slowed"


def read_later(connection: socket.socket, data: bytes) -> bytes:
    connection.sendall(data)
    return read(connection)


def test_what_drips_or_says_nothing_ends_at_the_deadline(provider: ProviderSide) -> None:
    with serving(provider, idle_seconds=1.0) as server:
        head = server.open(b"GET /healthz HTTP/1.1\r\nx: ")
        assert 0.8 < seconds_until_closed(head, drip=b"a") < 4
        body = server.open(b"POST /nowhere HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n\r\n")
        assert read(body).startswith(b"HTTP/1.1 404")
        assert seconds_until_closed(body, drip=b"a") < 4
        kept = server.open(HEALTH)
        for _ in range(5):  # the control: a connection that is used stays
            assert read(kept).startswith(b"HTTP/1.1 200")
            kept.sendall(HEALTH)
        read(kept)
        assert seconds_until_closed(kept) < 4


@pytest.mark.slow
def test_who_does_not_read_its_answers_is_closed(provider: ProviderSide) -> None:
    with serving(provider, idle_seconds=0.5) as server:
        deaf = server.open(receive_buffer=4096)
        deaf.sendall(MANIFEST * 10_000)  # more answers than any buffer takes
        deaf.settimeout(0.2)
        began, ended = time.monotonic(), False
        while not ended and time.monotonic() - began < 20:
            try:
                deaf.send(MANIFEST)
                time.sleep(0.05)
            except TimeoutError:
                continue
            except OSError:
                ended = True
        assert ended


def test_health_is_answered_while_every_connection_is_at_work(provider: ProviderSide) -> None:
    with serving(provider, connections=2) as server:
        at_work = [server.at_work(), server.at_work()]
        wait_until(lambda: server.busy(2))
        for path in (b"/healthz", b"/readyz", b"/metrics"):
            assert server.ask(HEALTH.replace(b"/healthz", path)).startswith(b"HTTP/1.1 200")
        refused = server.ask(MANIFEST)
        assert refused.startswith(b"HTTP/1.1 429")
        assert b"retry-after: 1" in refused
        assert all(seconds_until_closed(one, most=0.1) > 0.09 for one in at_work)  # nobody at work gave way
        at_work[0].close()
        wait_until(lambda: server.ask(MANIFEST).startswith(b"HTTP/1.1 200"))


def test_one_address_cannot_take_the_place_of_others(
    provider: ProviderSide, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = "10.0.0.1"
    monkeypatch.setattr(connections, "_address", lambda transport: address)
    with serving(provider, connections_per_address=3) as server:
        for _ in range(3):
            server.at_work()
        wait_until(lambda: server.busy(3))
        assert server.ask(MANIFEST) == b""
        address = "10.0.0.2"
        assert server.ask(MANIFEST).startswith(b"HTTP/1.1 200")


def test_who_was_refused_for_load_is_not_read_for_a_second(
    provider: ProviderSide, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(provider) as server:
        assert connections._PAUSE_SECONDS == 1.0
        monkeypatch.setattr(connections, "_PAUSE_SECONDS", 3.0)
        monkeypatch.setattr(Batcher, "full", True)
        hasty = server.at_work()
        assert read(hasty).startswith(b"HTTP/1.1 429")  # before its body has come
        hasty.sendall(bytes(server.frame_bytes - 3))
        began = time.monotonic()
        time.sleep(0.1)
        hasty.sendall(HEALTH)
        assert server.ask(HEALTH).startswith(b"HTTP/1.1 200")  # the control: another connection
        assert time.monotonic() - began < 2.8
        assert hasty.recv(1 << 16).startswith(b"HTTP/1.1 200")
        assert 2.8 < time.monotonic() - began < 9


def test_a_handshake_that_never_comes_is_closed_and_tls_is_answered(
    provider: ProviderSide, tmp_path: Path
) -> None:
    cert, key = tiny_user.self_signed(tmp_path)
    trusted = ssl.create_default_context(cafile=str(cert))
    with serving(provider, connections=4, idle_seconds=0.6, tls_cert=cert, tls_key=key) as server:
        silent = [server.open() for _ in range(10)]
        with httpx.Client(base_url=server.told["address"], verify=trusted) as client:
            assert [client.get("/healthz").status_code for _ in range(3)] == [200, 200, 200]
        assert seconds_until_closed(silent[-1]) < 4
        assert seconds_until_closed(server.open(b"\x16\x03\x01\x02\x00\x01"), drip=b"\x00") < 4
        assert b"200" not in server.ask(HEALTH)


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("127.0.0.1", None),
        ("::1", None),
        ("::ffff:127.0.0.1", None),
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
    ],
)
def test_an_address_is_one_of_ipv4_or_a_network_of_ipv6(peer: str, address: str | None) -> None:
    transport: Any = SimpleNamespace(get_extra_info=lambda name: (peer, 1))
    assert connections._address(transport) == address
    assert connections._address(SimpleNamespace(get_extra_info=lambda name: "")) is None  # type: ignore[arg-type]
