"""One request has one time and one size, whatever a hostile server does; honest ones do not notice."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpcore
import httpx
import pytest

from dp_forward.service.client.network import NoReply, _Backend, limited, open_network
from dp_forward.service.client.transport import Call, Reply, RetryPolicy, Transport

DEADLINE, SLACK = 0.4, 4.0  # a busy machine is no bug; what has no deadline takes longer than both
HEAD = b"HTTP/1.1 200 OK\r\n"
CHUNKED = HEAD + b"transfer-encoding: chunked\r\n\r\n"
HONEST = HEAD + b"content-length: 2\r\n\r\n{}"
GET = Call("GET", "/v1/manifest")

Behaviour = Callable[[socket.socket], object]


class Server:
    """A plain socket on loopback; each connection goes to a function, in a thread."""

    def __init__(self, behaviour: Behaviour, *, read: bool = True) -> None:
        self._behaviour, self._read, self.connections = behaviour, read, 0
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self.address = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection = self._listening.accept()[0]
                self.connections += 1
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            if self._read:
                connection.recv(1 << 16)
            self._behaviour(connection)

    def close(self) -> None:
        self._listening.close()


@pytest.fixture
def serve() -> Iterator[Callable[..., Server]]:
    with contextlib.ExitStack() as stack:
        yield lambda *args, **more: stack.enter_context(contextlib.closing(Server(*args, **more)))


def dripping(first: bytes, part: bytes, *, pause: float = 0.05, seconds: float = 6.0) -> Behaviour:
    """A beginning, then a part again and again: far beyond the deadline, and not for ever."""

    def behave(connection: socket.socket) -> None:
        connection.sendall(first)
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            connection.sendall(part)
            time.sleep(pause)

    return behave


def call(address: str, call: Call = GET, *, seconds: float = DEADLINE, **more: Any) -> Reply:
    with contextlib.closing(Transport(address, retry=RetryPolicy(timeout=seconds), **more)) as transport:
        return transport.call(call)


def assert_ends_in_time(address: str, match: str = "longer than", asked: Call = GET, **more: Any) -> None:
    began = time.monotonic()
    with pytest.raises(NoReply, match=match):
        call(address, asked, **more)
    assert DEADLINE - 0.1 < time.monotonic() - began < DEADLINE + SLACK


DRIPS = {
    "header lines": (HEAD, b"x: y\r\n"),
    "header bytes": (HEAD + b"x: ", b"y"),
    "status bytes": (b"HTTP/1.1 2", b"0"),
    "100 continue": (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "103 early hints": (b"", b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n"),
    "chunk extension": (CHUNKED + b"1;", b"a"),
    "chunks": (CHUNKED, b"1\r\na\r\n"),
    "trailer": (CHUNKED + b"1\r\na\r\n0\r\n", b"x: y\r\n"),
    "body": (HEAD + b"content-length: 99999\r\n\r\n", b"a"),
    "body without a length": (HEAD + b"connection: close\r\n\r\n", b"a"),
    "nothing": (b"", b""),
}


@pytest.mark.parametrize("drip", DRIPS)
def test_an_answer_that_drips_ends_at_the_deadline(serve: Callable[..., Server], drip: str) -> None:
    assert_ends_in_time(serve(dripping(*DRIPS[drip])).address)


def test_without_the_limit_a_header_that_drips_outlives_the_deadline(serve: Callable[..., Server]) -> None:
    """The control: httpx's own timeout is for each read."""
    server, began = serve(dripping(HEAD, b"x: y\r\n", seconds=1.5)), time.monotonic()
    with pytest.raises(httpx.HTTPError):
        httpx.get(server.address, timeout=DEADLINE, trust_env=False)
    assert time.monotonic() - began > 1.2


def test_an_honest_answer_that_takes_its_time_within_the_deadline_is_read(
    serve: Callable[..., Server],
) -> None:
    parts = [b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early Hints\r\n\r\n", HEAD]
    parts += [b"transfer-encoding: chunked\r\n\r\n", b"1;ext=1\r\n{\r\n", b"1\r\n}\r\n", b"0\r\nx: y\r\n\r\n"]

    def behave(connection: socket.socket) -> None:
        for part in parts:
            connection.sendall(part)
            time.sleep(0.05)

    reply = call(serve(behave).address, seconds=3.0)
    assert (reply.status, reply.body) == (200, b"{}")


@pytest.mark.parametrize("part", [b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n", b"HTTP/1.1 100 C\r\n\r\n"])
def test_a_flood_ends_by_its_size_long_before_the_deadline(serve: Callable[..., Server], part: bytes) -> None:
    server, began = serve(dripping(b"", part * 1000, pause=0.0, seconds=5.0)), time.monotonic()
    with pytest.raises(NoReply, match="far too long"):
        call(server.address, Call("GET", "/", 1 << 12), seconds=20.0)
    assert time.monotonic() - began < 3.0


def test_a_server_that_reads_slowly_does_not_hold_the_client(serve: Callable[..., Server]) -> None:
    def sip(connection: socket.socket) -> None:
        for _ in range(300):
            connection.recv(1 << 12)
            time.sleep(0.02)

    assert_ends_in_time(serve(sip).address, asked=Call("POST", "/", body=bytes(1 << 25)))


@pytest.mark.parametrize("part", [b"", b"\0"])
def test_a_handshake_that_stalls_or_drips_ends_at_the_deadline(
    serve: Callable[..., Server], part: bytes
) -> None:
    address = serve(dripping(b"\x16\x03\x03\x3f\x00\x02\x00\x3e\xfc", part)).address
    assert_ends_in_time(address.replace("http", "https"), "connecting took too long")


def test_a_proxy_that_drips_ends_at_the_deadline(serve: Callable[..., Server]) -> None:
    proxy = serve(dripping(HEAD, b"x: y\r\n")).address
    assert_ends_in_time("https://provider.example", proxy=proxy)


def test_a_name_lookup_that_hangs_ends_at_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    done = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **more: done.wait(6) and [])
    assert_ends_in_time("http://127.0.0.1:1", "connecting took too long")
    done.set()


def test_the_addresses_of_a_name_share_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thirty addresses that take no connection: not thirty times as long."""
    with contextlib.ExitStack() as stack:
        full = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        place = full.getsockname()
        for _ in range(4):  # its queue is full: whoever comes now gets no answer
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(place)
        found, plain = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", place)] * 30, socket.getaddrinfo
        monkeypatch.setattr(
            socket,
            "getaddrinfo",
            lambda host, *args, **more: found if host == "localhost" else plain(host, *args, **more),
        )
        assert_ends_in_time(f"http://localhost:{place[1]}")


def test_localhost_is_this_machine_whatever_a_resolver_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain HTTP is spoken to localhost, so another address under that name gets no connection."""
    asked = list[str]()

    class Refusing(httpcore.NetworkBackend):
        def connect_tcp(self, host: str, *args: Any, **more: Any) -> httpcore.NetworkStream:
            asked.append(host)
            raise httpcore.ConnectError from ConnectionRefusedError()

    places = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, 80)) for host in ("192.0.2.1", "127.0.0.1")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **more: places)
    for name, wanted in (("localhost", ["127.0.0.1"]), ("other.example", ["192.0.2.1", "127.0.0.1"])):
        asked.clear()
        with limited(60.0, 1000), pytest.raises(NoReply, match="refused"):
            _Backend(Refusing()).connect_tcp(name, 80)
        assert asked == wanted
    del places[1]
    asked.clear()
    with limited(60.0, 1000), pytest.raises(NoReply):
        _Backend(Refusing()).connect_tcp("localhost", 80)
    assert asked == []


def keeps_alive(connection: socket.socket) -> None:
    connection.sendall(HONEST)
    while connection.recv(1 << 16):
        connection.sendall(HONEST)


def test_a_connection_that_is_kept_alive_has_a_new_deadline_for_each_request(
    serve: Callable[..., Server],
) -> None:
    server = serve(keeps_alive)
    with contextlib.closing(Transport(server.address, retry=RetryPolicy(timeout=1.5))) as transport:
        for _ in range(3):
            assert transport.call(GET).body == b"{}"
            time.sleep(0.8)
    assert server.connections == 1


def test_threads_that_share_a_transport_have_deadlines_of_their_own(serve: Callable[..., Server]) -> None:
    def behave(connection: socket.socket) -> None:
        while head := connection.recv(1 << 16):
            if b"/drip" in head:
                dripping(HEAD, b"x: y\r\n")(connection)
                return
            time.sleep(0.02)
            connection.sendall(HONEST)

    server, found = serve(behave, read=False), []

    def ask(path: str, times: int) -> None:
        for _ in range(times):
            try:
                found.append(transport.call(Call("GET", path)).status)
            except NoReply as failure:
                found.append(str(failure))

    with contextlib.closing(Transport(server.address, retry=RetryPolicy(timeout=2.0))) as transport:
        asking = [("/drip", 2)] * 3 + [("/honest", 20)] * 5
        threads = [threading.Thread(target=ask, args=args) for args in asking]
        began = time.monotonic()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert time.monotonic() - began < 2 * 2.0 + SLACK
    assert found.count(200) == 100
    assert found.count("it took longer than 2 s") == 6


def test_what_is_not_http_is_told_and_no_traceback(serve: Callable[..., Server]) -> None:
    for said in (b"SSH-2.0-OpenSSH\r\n", b"", HEAD + b"content-length: x\r\n\r\n", HEAD + b"\0: \0\r\n\r\n"):
        with pytest.raises(NoReply, match="HTTP was not spoken"):
            call(serve(lambda connection, said=said: connection.sendall(said)).address)


def test_the_keys_of_tls_are_written_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSLKEYLOGFILE", str(tmp_path / "keys"))
    with contextlib.closing(open_network(tls=True, ca=None, proxy=None)) as http:
        context: ssl.SSLContext = http._pool._ssl_context  # type: ignore[assignment]
        assert context.keylog_filename is None
        assert (context.check_hostname, context.verify_mode) == (True, ssl.CERT_REQUIRED)
        assert context.cert_store_stats()["x509_ca"] > 50
    assert ssl.create_default_context().keylog_filename, "the control: the default context obeys"
