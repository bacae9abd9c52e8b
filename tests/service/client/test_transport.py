"""Many requests in flight over HTTP: charges and answers as one by one, whatever the network does."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import random
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from email.utils import parsedate_to_datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

import tiny_user
from dp_forward.errors import BudgetExhausted, DpForwardError, InvalidInput
from dp_forward.ledger import Ledger
from dp_forward.privacy import NoiseSpec
from dp_forward.service.client import network as network_module
from dp_forward.service.client import transport as transport_module
from dp_forward.service.client.client import Client
from dp_forward.service.client.transport import (
    Call,
    RetryPolicy,
    ServerRefused,
    ServerUnavailable,
    Transport,
)
from dp_forward.service.protocol.frame import parse_frame
from dp_forward.service.server.app import make_app
from dp_forward.service.server.request_limits import Refused
from dp_forward.service.server.settings import ServerSettings
from dp_forward.service.server.uvicorn_runner import run_server
from dp_forward.split.artifacts import UserSide, load_provider_side, load_user_side
from tiny_user import texts

QUICK = RetryPolicy(attempts=30, first=0.002, longest=0.02, timeout=20.0)
TOKEN = "a-token-of-sixteen-letters"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_user.write_user(tmp_path_factory.mktemp("run"), noise=NoiseSpec(epsilon=2.0))


@pytest.fixture(scope="module")
def user(run: Path) -> UserSide:
    return load_user_side(run / "front")


class Provider:
    """The real server on loopback; what its back was asked is kept."""

    def __init__(self, run: Path, user: UserSide, **settings: Any) -> None:
        chosen = ServerSettings(**{"port": 0, "shutdown_seconds": 1, **settings})
        self.app = make_app(load_provider_side(run / "back"), front_digest=user.digest, settings=chosen)
        self.handler = self.app.state.handler
        self.got: list[bytes] = []
        self._plain, self.before = self.handler.answer, lambda data: None
        self.handler.answer = self._answer
        self._said: list[str] = []
        self._servers: list[Any] = []
        listening = threading.Event()

        def ready(server: Any) -> None:
            self._servers.append(server)
            listening.set()

        keywords = {"say": self._said.append, "ready": ready}
        self._thread = threading.Thread(target=run_server, args=(self.app, chosen), kwargs=keywords)
        self._thread.start()
        assert listening.wait(10)
        self.address = json.loads(self._said[0])["address"]

    async def _answer(self, data: bytes, *who: Any) -> bytes:
        self.got.append(data)
        self.before(data)
        return await self._plain(data, *who)

    def stop(self) -> None:
        self._servers[0].should_exit = True
        self._thread.join(20)
        assert not self._thread.is_alive()


@pytest.fixture
def provide(run: Path, user: UserSide) -> Iterator[Callable[..., Provider]]:
    made: list[Provider] = []

    def start(**settings: Any) -> Provider:
        made.append(Provider(run, user, **settings))
        return made[-1]

    yield start
    for provider in made:
        provider.stop()


@pytest.fixture
def make(user: UserSide, tmp_path: Path) -> Callable[..., Any]:
    def client(server: str, **settings: Any) -> Client:
        usual: dict[str, Any] = {"ledger": tmp_path / "ledger", "budget": 900.0, "retry": QUICK}
        return Client(user, server=server, **{**usual, **settings})

    return client


def releases_in(got: list[bytes]) -> int:
    """How many ids there are; each stands for the same bytes, however often they came."""
    by_id: dict[bytes, set[bytes]] = {}
    for data in got:
        by_id.setdefault(parse_frame(data).header.request, set()).add(data)
    assert all(len(same) == 1 for same in by_id.values())
    return len(by_id)


def check_books(tmp_path: Path, count: int) -> None:
    with Ledger.open(tmp_path / "ledger") as ledger:
        ledger.verify()
        found = ledger.summary()
    assert (found.releases, found.delivered, found.spent) == (count, count, 2.0 * count)


class Proxy:
    """A TCP proxy that counts connections, and may cut them after a random number of bytes."""

    def __init__(self, target: str, *, cut: bool = False) -> None:
        host, _, port = target.removeprefix("http://").rpartition(":")
        self._target, self._cut = (host, int(port)), cut
        self._luck = random.Random(3)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self.cuts = self.connections = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near = self._listening.accept()[0]
                self.connections += 1
                left = self._luck.randrange(300, 4000) if self._cut else 1 << 40
                threading.Thread(target=self._carry, args=(near, left), daemon=True).start()

    def _carry(self, near: socket.socket, left: int) -> None:
        with near, socket.create_connection(self._target) as far, contextlib.suppress(OSError):
            other = {near: far, far: near}
            while True:
                for ready in select.select([near, far], [], [])[0]:
                    data = ready.recv(4096)
                    if not data:
                        return
                    other[ready].sendall(data[:left])
                    left -= len(data)
                    if left <= 0:
                        self.cuts += 1
                        return

    def close(self) -> None:
        self._listening.close()


@pytest.mark.slow
def test_many_texts_are_answered_in_order_as_if_asked_one_by_one(
    provide: Any, make: Any, tmp_path: Path
) -> None:
    provider, wanted, told = provide(token=TOKEN), texts(60), []
    with (
        contextlib.closing(Proxy(provider.address)) as proxy,
        make(proxy.address, token=TOKEN) as client,
    ):
        # The same text twice at a time is one release and one charge.
        answers = client.ask_many([wanted[0], *wanted], progress=told.append, at_once=6)
        first, *found = list(answers)
        assert proxy.connections <= 6 + 1  # kept alive, and no more than allowed; one asked for the manifest
    check_books(tmp_path, 60)
    assert told == list(range(1, 62))
    assert releases_in(provider.got) == 60
    assert first.probabilities == found[0].probabilities
    assert first.charge + sum(answer.charge for answer in found) == 120.0
    assert max(answer.spent for answer in found) == 120.0
    another = provide()  # that remembers no answer
    with make(another.address) as client:
        for text, answer in list(zip(wanted, found, strict=True))[::10]:
            single = client.ask(text)
            assert (single.label, single.charge) == (answer.label, 0.0)
            assert single.probabilities == pytest.approx(answer.probabilities, abs=1e-6)


def test_a_server_tells_its_time_with_the_manifest(provide: Any) -> None:
    with contextlib.closing(Transport(provide().address, token=None, retry=QUICK)) as transport:
        date = transport.send(Call("GET", "/v1/manifest")).date
    assert date is not None
    assert abs(parsedate_to_datetime(date).timestamp() - time.time()) < 20


@pytest.mark.slow
def test_a_blocking_batch_works_where_a_loop_is_running(provide: Any, make: Any) -> None:
    async def inside() -> int:
        with make(provide().address) as client:
            return len(list(client.ask_many(texts(5))))

    assert asyncio.run(inside()) == 5


@pytest.mark.slow
def test_connections_that_are_cut_again_and_again_cost_nothing_and_lose_nothing(
    provide: Any, make: Any, tmp_path: Path
) -> None:
    provider, wanted = provide(), texts(40)
    with contextlib.closing(Proxy(provider.address, cut=True)) as proxy, make(proxy.address) as client:
        found = list(client.ask_many(wanted))
        assert proxy.cuts > 5
    check_books(tmp_path, 40)
    assert releases_in(provider.got) == 40
    assert sum(answer.charge for answer in found) == 80.0


@pytest.mark.slow
def test_a_server_that_stops_in_the_middle_costs_nothing_more(
    provide: Any, make: Any, tmp_path: Path
) -> None:
    wanted, provider = texts(30), provide()
    few = RetryPolicy(attempts=3, first=0.01, longest=0.05, timeout=5.0)
    with make(provider.address, retry=few) as client, pytest.raises(ServerUnavailable):
        list(client.ask_many(wanted, progress=lambda done: provider.stop() if done == 10 else None))
    with Ledger.open(tmp_path / "ledger") as ledger:
        charged = ledger.releases
    assert 10 <= charged < 30
    again = provide(port=int(provider.address.rpartition(":")[2]))
    with make(again.address) as client:
        found = list(client.ask_many(wanted))
    check_books(tmp_path, 30)
    assert sum(answer.charge for answer in found) == 2.0 * (30 - charged)


@pytest.mark.slow
def test_a_busy_server_is_waited_for(provide: Any, make: Any, tmp_path: Path) -> None:
    provider = provide(queue=1, max_batch=1)
    outcomes, until = provider.handler.metrics.outcomes, time.monotonic() + 20

    plain = provider.handler.batcher._compute

    def wait(batch: Any) -> Any:
        """The back is slow until somebody was refused."""
        while not outcomes["busy"] and time.monotonic() < until:
            time.sleep(0.01)
        return plain(batch)

    provider.handler.batcher._compute = wait
    with make(provider.address, retry=RetryPolicy(attempts=1000, first=0.001, longest=0.01)) as client:
        # The server asks for a second; nobody waits that long here.
        assert len(list(client.ask_many(texts(12), at_once=12))) == 12
    assert outcomes["busy"] > 0
    check_books(tmp_path, 12)


@pytest.mark.slow
@pytest.mark.parametrize(("code", "error"), [("no_noise", ServerRefused), ("back", ServerUnavailable)])
def test_a_refusal_of_one_text_is_raised_at_its_place_and_keeps_what_the_others_got(
    provide: Any, make: Any, code: str, error: type[DpForwardError]
) -> None:
    provider, wanted, found = provide(), texts(12), []
    with make(provider.address, retry=RetryPolicy(attempts=2, first=0.0)) as client:
        list(client.ask_many(wanted[5:6]))  # so that its bytes are known
        refused_id = parse_frame(provider.got[0]).header.request

        def before(data: bytes) -> None:
            if parse_frame(data).header.request == refused_id:
                raise Refused(code, "No.")

        provider.before = before
        client._answers.find = lambda *_: None
        with pytest.raises(error, match="422: no_noise" if code == "no_noise" else "status 500"):
            found.extend(client.ask_many(wanted))
        assert len(found) == 5
        assert len(client._answers) >= 6  # those before it, and the one of before


@pytest.mark.slow
def test_the_texts_are_charged_in_their_order_up_to_the_budget(
    provide: Any, make: Any, tmp_path: Path
) -> None:
    wanted, found = texts(20), []
    with make(provide().address, budget=14.0) as client:
        plain = client._read

        def slow_at_first(text: str, *rest: Any) -> Any:
            time.sleep(0.3 if text == wanted[0] else 0.0)  # nobody overtakes it
            return plain(text, *rest)

        client._read = slow_at_first
        with pytest.raises(BudgetExhausted):
            found.extend(client.ask_many(wanted))
        assert len(found) == 7
        check_books(tmp_path, 7)
        with pytest.raises(InvalidInput, match="at_once"):
            list(client.ask_many(wanted, at_once=0))
        assert list(client.ask_many([])) == []


@pytest.mark.slow
def test_a_fork_that_takes_the_answers_of_its_parent_is_told(provide: Any, make: Any) -> None:
    with make(provide().address) as client:
        answers = client.ask_many(texts(12))
        next(answers)
        child = os.fork()
        if child == 0:
            status = 1
            try:
                with contextlib.suppress(InvalidInput):
                    next(answers)
                    status = 2
                answers.close()
                status = 0 if status == 1 else status
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert len(list(answers)) == 11


@pytest.mark.slow
@pytest.mark.parametrize("ended_by", ["generator", "client"])
def test_giving_up_does_not_wait_for_a_server_that_never_answers(
    provide: Any, make: Any, tmp_path: Path, ended_by: str
) -> None:
    """The requests would wait for an hour."""

    def stall(data: bytes) -> None:
        raise Refused("busy", "Never.", retry_after=3600)

    provider = provide()
    hour = RetryPolicy(attempts=9, first=3600.0, longest=3600.0, timeout=3600.0)

    with make(provider.address, retry=hour) as client:
        client.ask(texts(9)[0])
        provider.before = stall
        answers = client.ask_many(texts(9))
        next(answers)  # from the store, with the others on their way
        if ended_by == "generator":
            answers.close()
    sent = len(provider.got)
    with Ledger.open(tmp_path / "ledger") as ledger:  # nothing touches it any more
        charged = ledger.releases
        assert 1 <= charged <= 9
        time.sleep(0.2)
        assert ledger.releases == charged
    assert len(provider.got) <= sent + 9  # each that was on its way once, and nothing is repeated
    assert not [thread for thread in threading.enumerate() if thread.name == "dp-forward-ask"]


@pytest.mark.slow
def test_nothing_of_a_frame_or_token_is_logged(
    provide: Any, make: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    provider = provide(token=TOKEN)
    with make(provider.address, token=TOKEN) as client:
        assert len(list(client.ask_many(texts(3)))) == 3
    assert TOKEN not in caplog.text
    assert not any(repr(frame[128:])[2:-1][:12] in caplog.text for frame in provider.got)


# --- the way to a server ------------------------------------------------------------------------------------


class Listener:
    """A plain socket on loopback: takes what is sent, gives one answer to each connection, counts them."""

    def __init__(self, answer: bytes, *, port: int = 0) -> None:
        self._answer, self.got = answer, list[bytes]()
        self._listening = socket.create_server(("127.0.0.1", port))
        self.port = self._listening.getsockname()[1]
        self.address = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                with self._listening.accept()[0] as connection:
                    self.got.append(connection.recv(1 << 16))
                    connection.sendall(self._answer)

    def close(self) -> None:
        self._listening.close()


@pytest.fixture
def listen() -> Iterator[Callable[..., Listener]]:
    with contextlib.ExitStack() as stack:
        yield lambda *args, **more: stack.enter_context(contextlib.closing(Listener(*args, **more)))


def respond(status: str = "200 OK", body: bytes = b"{}", **headers: str) -> bytes:
    lines = [f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items()]
    head = f"HTTP/1.1 {status}\r\ncontent-length: {len(body)}\r\nconnection: close\r\n{''.join(lines)}\r\n"
    return head.encode() + body


def unused_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def send(address: str, call: Call | None = None, **more: Any) -> Any:
    with contextlib.closing(Transport(address, **{"retry": QUICK, **more})) as transport:
        return transport.send(call or Call("GET", "/v1/manifest", kept="Nothing was charged."))


def test_the_proxy_of_the_environment_is_never_used(
    listen: Callable[..., Listener], monkeypatch: pytest.MonkeyPatch
) -> None:
    spy, server = listen(respond()), listen(respond())
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, spy.address)
    assert send(server.address, token=TOKEN).status == 200
    assert (len(server.got), spy.got) == (1, [])
    assert httpx.get(server.address).status_code == 200  # the control: whoever obeys it goes there
    assert (len(server.got), len(spy.got)) == (1, 1)
    monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:9")
    assert send(server.address).status == 200


def test_a_proxy_that_is_named_carries_tls_and_reads_nothing_of_it(provide: Any, tmp_path: Path) -> None:
    cert, key = tiny_user.self_signed(tmp_path)
    provider = provide(tls_cert=cert, tls_key=key, token=TOKEN)
    port, heads, read = int(provider.address.rpartition(":")[2]), [], bytearray()
    listening = socket.create_server(("127.0.0.1", 0))

    def carry() -> None:
        with contextlib.suppress(OSError), listening.accept()[0] as near:
            heads.append(near.recv(1 << 16))
            near.sendall(b"HTTP/1.1 200 Connected\r\n\r\n")
            with socket.create_connection(("127.0.0.1", port)) as far:
                other = {near: far, far: near}
                while True:
                    for ready in select.select([near, far], [], [], 5)[0]:
                        data = ready.recv(1 << 16)
                        read.extend(data)
                        if not data:
                            return
                        other[ready].sendall(data)

    threading.Thread(target=carry, daemon=True).start()
    named = {"proxy": f"http://127.0.0.1:{listening.getsockname()[1]}", "ca": cert, "token": TOKEN}
    with listening:
        reply = send("https://provider.example", **named)
    assert reply.status == 200
    assert len(read) > 1000
    assert heads[0].startswith(b"CONNECT provider.example:443 HTTP/1.1\r\n")
    assert TOKEN.encode() not in heads[0] + bytes(read)
    assert b"manifest" not in read


def test_a_proxy_that_says_no_is_named_as_the_reason(listen: Callable[..., Listener]) -> None:
    proxy = listen(respond("403 Forbidden"))
    with pytest.raises(ServerUnavailable, match="in 2 attempts: the proxy does not connect"):
        send("https://provider.example", proxy=proxy.address)
    assert all(got.startswith(b"CONNECT ") for got in proxy.got)


@pytest.mark.parametrize("server", ["http://127.0.0.1:1", "https://localhost", "http://[::1]:1"])
def test_there_is_no_proxy_to_this_machine(server: str) -> None:
    with pytest.raises(InvalidInput, match="on this machine"):
        Transport(server, proxy="http://10.0.0.1:3128")


@pytest.mark.parametrize(
    "proxy", ["socks5://me:word@h", "https://me:word@h", "word", "http://h/word", "http://xn--a"]
)
def test_a_proxy_that_cannot_be_used_is_refused_and_its_password_not_shown(proxy: str) -> None:
    with pytest.raises(InvalidInput, match="proxy") as refused:
        Transport("https://provider.example", proxy=proxy)
    assert "word" not in str(refused.value)


def test_an_address_with_a_host_that_is_no_name_is_refused() -> None:
    with pytest.raises(InvalidInput, match="server"):
        Transport("https://xn--a/")


def test_plain_http_reads_no_certificates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssl.SSLContext, "load_verify_locations", None)
    Transport("http://127.0.0.1:1").close()
    with pytest.raises(TypeError):  # the control
        Transport("https://127.0.0.1:1")


def test_a_certificate_nobody_vouches_for_gets_no_request_and_one_attempt(
    provide: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cert, key = tiny_user.self_signed(tmp_path)
    provider = provide(tls_cert=cert, tls_key=key)
    monkeypatch.setenv("SSL_CERT_FILE", str(cert))  # of the environment, and so not obeyed
    with contextlib.closing(Proxy(provider.address.replace("https", "http"))) as proxy:
        address = proxy.address.replace("http", "https")
        with pytest.raises(ServerRefused, match=r"certificate is not trusted.*--ca.*Nothing was charged\.$"):
            send(address)
        assert proxy.connections == 1
        assert send(address, ca=cert).status == 200  # the control: now somebody does
    with pytest.raises(ServerRefused, match="not trusted"):
        send(provider.address.replace("127.0.0.1", "localhost"), ca=cert)  # another name than it has


def test_authorities_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    empty = tmp_path / "empty.pem"
    empty.write_text("no certificate")
    for file in (empty, tmp_path / "missing.pem", tmp_path):
        with pytest.raises(InvalidInput, match="`ca` must be a PEM file"):
            Transport("https://provider.example", ca=file)


# --- what is told of a failure ------------------------------------------------------------------------------


def test_a_wrong_address_fails_fast_says_why_and_that_nothing_was_charged(make: Any) -> None:
    began = time.monotonic()
    with make(f"http://127.0.0.1:{unused_port()}", retry=RetryPolicy()) as client:
        with pytest.raises(ServerUnavailable, match=r"in 2 attempts: the connection was refused.*charged\.$"):
            client.ask("a quiet film")
        assert client.summary().releases == 0
    assert time.monotonic() - began < 2.0


def test_a_server_that_lets_all_the_time_pass_is_tried_once_more_and_no_more() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        pytest.raises(ServerUnavailable, match=r"in 2 attempts: it took longer than 0\.2 s"),
    ):
        send(f"http://127.0.0.1:{silent.getsockname()[1]}", retry=RetryPolicy(timeout=0.2, first=0.0))


@pytest.mark.parametrize("late", [True, False])
def test_attempts_and_pauses_together_end_after_twice_the_time_of_a_request(
    monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    """By a clock that moves with the requests alone: 503 just before the deadline, or no answer."""
    now, given = 0.0, list[float]()
    clock = SimpleNamespace(monotonic=lambda: now)
    monkeypatch.setattr(transport_module, "time", clock)
    monkeypatch.setattr(network_module, "time", clock)

    class Slow(httpx.BaseTransport):
        def handle_request(self, request: httpx.Request) -> httpx.Response:
            nonlocal now
            limit = network_module._limit.get()
            given.append(limit.left())
            now += given[-1] if late else min(59.0, given[-1])
            limit.left()
            return httpx.Response(503)

    with pytest.raises(ServerUnavailable, match=f"in {2 if late else 3} attempts: it took longer"):
        send("http://127.0.0.1:1", retry=RetryPolicy(first=0.0), transport=Slow())
    assert given == ([60.0, 60.0] if late else [60.0, 60.0, 2.0])
    assert now == 120.0


def test_a_name_that_is_not_found_is_said_to_be_that(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*args: Any, **more: Any) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "no such name")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(ServerUnavailable, match="in 2 attempts: its name is not found"):
        send("https://provider.example")


def test_a_server_without_tls_is_said_to_be_that(listen: Callable[..., Listener]) -> None:
    with pytest.raises(ServerUnavailable, match="in 2 attempts: TLS failed"):
        send(listen(respond()).address.replace("http", "https"))


def test_a_server_that_answered_before_and_restarts_is_waited_for(listen: Callable[..., Listener]) -> None:
    first = listen(respond())
    with contextlib.closing(Transport(first.address, retry=QUICK)) as transport:
        call = Call("GET", "/v1/manifest")
        assert transport.send(call).status == 200
        first.close()
        with contextlib.suppress(OSError):  # wakes the thread that still accepts
            socket.create_connection(("127.0.0.1", first.port)).close()
        again = threading.Timer(0.1, lambda: listen(respond(), port=first.port))
        again.start()
        assert transport.send(call).status == 200
        again.join()


def test_a_release_without_an_answer_is_said_to_be_kept(make: Any, provide: Any) -> None:
    provider = provide()

    def refuse(data: bytes) -> None:
        raise Refused("back", "No.")

    provider.before = refuse
    with make(provider.address, retry=RetryPolicy(attempts=1)) as client:
        with pytest.raises(ServerUnavailable, match=r"in 1 attempt: status 500.*kept, and is resent free\.$"):
            client.ask("a quiet film")
        assert client.summary().releases == 1


def test_a_redirect_to_a_host_that_is_no_name_is_a_refusal(listen: Callable[..., Listener]) -> None:
    with pytest.raises(ServerRefused, match="status 302"):
        send(listen(respond("302 Found", location="http://xn--a/")).address)


@pytest.mark.parametrize(
    ("status", "code", "told"),
    [
        ("401 No", "token", "does not take the token"),
        ("403 No", "shuffler", "from its shuffler only"),
        ("403 No", None, "does not take the token"),
        ("403 No", "origin", "403: origin"),
        ("429 No", "quota", "quota for today is used up.*Kept so"),
        ("422 No", "Something<b>", r"status 422\."),
    ],
)
def test_a_refusal_is_told_by_its_code_and_not_repeated(
    listen: Callable[..., Listener], status: str, code: str | None, told: str
) -> None:
    server = listen(respond(status, json.dumps({"error": code}).encode(), retry_after="3600"))
    with pytest.raises(ServerRefused, match=told):
        send(server.address, Call("POST", "/v1/answer", body=b"frame", kept="Kept so."))
    assert len(server.got) == 1


def test_too_many_wrong_tokens_are_waited_out(listen: Callable[..., Listener]) -> None:
    server = listen(respond("429 Slow", b'{"error": "token_slow"}', retry_after="0"))
    with pytest.raises(ServerUnavailable, match="in 3 attempts: status 429"):
        send(server.address, retry=RetryPolicy(attempts=3, first=0.0))
    assert len(server.got) == 3


def test_a_long_pause_is_told_and_a_short_one_is_not(listen: Callable[..., Listener]) -> None:
    server, told = listen(respond("503 Busy", retry_after="4")), []

    def say(line: str) -> None:
        told.append(line)
        transport.stopping.set()  # nobody waits for it here

    transport = Transport(server.address, retry=RetryPolicy(), say=say)
    with contextlib.closing(transport), pytest.raises(ServerUnavailable, match="in 1 attempt: status 503"):
        transport.send(Call("GET", "/"))
    transport._tell("status 503", 4.0)  # of another thread, at the same time
    assert told == ["No answer yet (status 503): trying again in 4 s."]
    with pytest.raises(ServerUnavailable):
        send(server.address, retry=RetryPolicy(attempts=2, longest=0.01), say=told.append)
    assert len(told) == 1
