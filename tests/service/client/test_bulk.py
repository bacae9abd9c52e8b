"""Many questions over one WebSocket: the same charges and answers as one by one, whatever the line does."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import ipaddress
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
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.server import ServerConnection, serve

import tiny_task
import tiny_user
from dp_forward.errors import BudgetExhausted, DpForwardError, InvalidInput
from dp_forward.ledger import Ledger
from dp_forward.noise.released.released_matrix import release
from dp_forward.privacy import NoiseSpec
from dp_forward.service.client.bulk import Stream
from dp_forward.service.client.client import AsyncClient, Client, Patience
from dp_forward.service.protocol.frame import frame_of, parse_frame
from dp_forward.service.protocol.sansio import NoReply, Reply, ServerRefused, ServerUnavailable
from dp_forward.service.server.app import make_app, run_server
from dp_forward.service.server.refusals import Refused
from dp_forward.service.server.settings import ServerSettings
from dp_forward.split.artifacts import UserSide, load_provider_side, load_user_side

QUICK = Patience(attempts=30, first=0.002, longest=0.02, timeout=20.0)
TOKEN = "a-token-of-sixteen-letters"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_user.write_user(tmp_path_factory.mktemp("run"), noise=NoiseSpec(epsilon=2.0))


@pytest.fixture(scope="module")
def user(run: Path) -> UserSide:
    return load_user_side(run / "front")


def texts(count: int) -> list[str]:
    words = (*tiny_task.GOOD, *tiny_task.BAD)
    return [f"{words[i % 8]} {words[i // 8 % 8]} {words[i // 64 % 8]} film" for i in range(count)]


class Provider:
    """The real server on loopback; what its back was asked is kept."""

    def __init__(self, run: Path, user: UserSide, *, stream: bool = True, **settings: Any) -> None:
        chosen = ServerSettings(**{"port": 0, "shutdown_seconds": 1, **settings})
        self.app = make_app(load_provider_side(run / "back"), front_digest=user.digest, settings=chosen)
        if not stream:
            routes = self.app.router.routes
            routes[:] = [route for route in routes if getattr(route, "path", "") != "/v1/stream"]
        self.answering = self.app.state.answering
        self.got: list[bytes] = []
        self._plain, self.before = self.answering.answer, lambda data: None
        self.answering.answer = self._answer
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

    async def _answer(self, data: bytes) -> bytes:
        self.got.append(data)
        self.before(data)
        return await self._plain(data)

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
    def client(server: str, kind: Any = Client, **settings: Any) -> Any:
        usual = {"ledger": tmp_path / "ledger", "budget": 900.0, "patience": QUICK}
        return kind(user, server=server, **{**usual, **settings})

    return client


def watched(client: Client) -> list[str]:
    """The HTTP methods of all calls from here on."""
    seen: list[str] = []
    plain = client._line.call

    def call(todo: Any) -> Any:
        seen.append(todo.method)
        return plain(todo)

    client._line.call = call  # type: ignore[method-assign]
    return seen


def one_release_each(got: list[bytes]) -> int:
    """How many ids there are; each stands for the same bytes, however often they came."""
    by_id: dict[bytes, set[bytes]] = {}
    for data in got:
        by_id.setdefault(parse_frame(data).header.request, set()).add(data)
    assert all(len(same) == 1 for same in by_id.values())
    return len(by_id)


def check_books(tmp_path: Path, client: Client | None, count: int) -> None:
    with Ledger.open(tmp_path / "ledger") as ledger:
        ledger.verify()
        found = ledger.summary()
    assert (found.releases, found.delivered, found.spent) == (count, count, 2.0 * count)
    if client is not None:
        assert len(client._exchange._asked) == count


# With the real server


def test_two_hundred_texts_are_answered_in_order_as_if_asked_one_by_one(
    provide: Any, make: Any, tmp_path: Path
) -> None:
    provider, wanted, told = provide(), texts(200), []
    with make(provider.address) as client:
        calls = watched(client)
        found = list(client.ask_many(wanted, progress=told.append))
        check_books(tmp_path, client, 200)
    assert told == list(range(1, 201))
    assert calls == ["GET"]  # all frames went over the stream
    assert provider.answering.metrics.streams == 0  # and it was hung up
    assert one_release_each(provider.got) == len(provider.got) == 200
    assert sum(answer.charge for answer in found) == 400.0
    assert sorted(answer.spent for answer in found) == [answer.spent for answer in found]
    another = provide()  # that remembers no answer
    with make(another.address) as client:
        for text, answer in list(zip(wanted, found, strict=True))[::10]:
            single = client.ask(text)
            assert (single.label, single.charge) == (answer.label, 0.0)
            assert single.probabilities == pytest.approx(answer.probabilities, abs=1e-6)


def test_the_async_client_does_the_same_and_recalls(provide: Any, make: Any, tmp_path: Path) -> None:
    provider, wanted = provide(token=TOKEN), texts(40)

    async def whole() -> tuple[list[Any], list[Any]]:
        async with make(provider.address, AsyncClient, token=TOKEN) as client:
            # The same text twice at a time is one release and one charge.
            first = [a async for a in client.ask_many([wanted[0], *wanted], at_once=16)]
            assert len(asyncio.all_tasks()) == 1
            return first, [a async for a in client.ask_many(wanted)]

    first, again = asyncio.run(whole())
    check_books(tmp_path, None, 40)
    assert sum(answer.charge for answer in first) == 80.0
    assert [a.probabilities for a in again] == [a.probabilities for a in first[1:]]
    assert one_release_each(provider.got) == 40
    assert len(provider.got) <= 41


def test_a_blocking_batch_works_where_a_loop_is_running(provide: Any, make: Any) -> None:
    async def inside() -> int:
        with make(provide().address) as client:
            return len(list(client.ask_many(texts(5))))

    assert asyncio.run(inside()) == 5


class Cutting:
    """A TCP proxy that cuts connections after a random number of bytes, either way."""

    def __init__(self, target: str, *, seed: int, unhurt: int) -> None:
        host, _, port = target.removeprefix("http://").rpartition(":")
        self._target = (host, int(port))
        self._luck, self._unhurt = random.Random(seed), unhurt
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self.cuts = 0
        self._open = True
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        number = 0
        with contextlib.suppress(OSError):
            while self._open:
                near = self._listening.accept()[0]
                number += 1
                left = 1 << 40 if number <= self._unhurt else self._luck.randrange(300, 6000)
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
        self._open = False
        self._listening.close()


@pytest.fixture
def cutting() -> Iterator[Callable[..., Cutting]]:
    made: list[Cutting] = []

    def start(target: str, **settings: Any) -> Cutting:
        made.append(Cutting(target, **settings))
        return made[-1]

    yield start
    for proxy in made:
        proxy.close()


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_a_line_that_is_cut_again_and_again_costs_nothing_and_loses_nothing(
    provide: Any, make: Any, cutting: Any, tmp_path: Path, kind: Any
) -> None:
    provider, wanted = provide(), texts(60)
    line = cutting(provider.address, seed=3, unhurt=1)  # the manifest comes through
    if kind is Client:
        with make(line.address) as client:
            found = list(client.ask_many(wanted))
            check_books(tmp_path, client, 60)
    else:

        async def whole() -> list[Any]:
            async with make(line.address, AsyncClient) as client:
                return [a async for a in client.ask_many(wanted)]

        found = asyncio.run(whole())
        check_books(tmp_path, None, 60)
    assert line.cuts > 5
    assert one_release_each(provider.got) == 60
    assert sum(answer.charge for answer in found) == 120.0


def test_a_server_that_stops_in_the_middle_costs_nothing_more(
    provide: Any, make: Any, tmp_path: Path
) -> None:
    wanted, provider = texts(60), provide()
    few = Patience(attempts=3, first=0.01, longest=0.05, timeout=5.0)
    with make(provider.address, patience=few) as client, pytest.raises(ServerUnavailable):
        list(client.ask_many(wanted, progress=lambda done: provider.stop() if done == 20 else None))
    with Ledger.open(tmp_path / "ledger") as ledger:
        charged = ledger.releases
    assert 20 <= charged < 60
    again = provide(port=int(provider.address.rpartition(":")[2]))
    with make(again.address) as client:
        found = list(client.ask_many(wanted))
        check_books(tmp_path, client, 60)
    assert sum(answer.charge for answer in found) == 2.0 * (60 - charged)


def test_a_busy_server_is_waited_for(provide: Any, make: Any, tmp_path: Path) -> None:
    provider = provide(queue=1, max_batch=1)
    patience = Patience(attempts=1000, first=0.001, longest=0.01)
    provider.answering.batcher._thread.submit(time.sleep, 0.7)  # the back has other work
    with make(provider.address, patience=patience) as client:
        assert len(list(client.ask_many(texts(30), at_once=16))) == 30
    assert provider.answering.metrics.outcomes["busy"] > 0
    check_books(tmp_path, None, 30)


@pytest.mark.parametrize(("code", "error"), [("no_noise", ServerRefused), ("back", ServerUnavailable)])
def test_a_refusal_of_one_text_is_told_at_its_place(
    provide: Any, make: Any, code: str, error: type[DpForwardError]
) -> None:
    provider, wanted, found = provide(), texts(12), []
    with make(provider.address, patience=Patience(attempts=2, first=0.0)) as client:
        list(client.ask_many(wanted[5:6]))  # so that its bytes are known
        refused_id = parse_frame(provider.got[0]).header.request

        def before(data: bytes) -> None:
            if parse_frame(data).header.request == refused_id:
                raise Refused(code, "No.")

        provider.before = before
        client._exchange._asked.recall = lambda *_: None
        with pytest.raises(error, match="422: no_noise" if code == "no_noise" else "status 500"):
            found.extend(client.ask_many(wanted))
        assert len(found) == 5
        assert len(client._exchange._asked) >= 6  # those before it, and the one of before


def test_the_texts_are_charged_in_their_order_up_to_the_budget(
    provide: Any, make: Any, tmp_path: Path
) -> None:
    wanted, found = texts(20), []
    with make(provide().address, budget=14.0) as client:
        plain = client._exchange._read

        def slow_at_first(text: str, *rest: Any) -> Any:
            time.sleep(0.3 if text == wanted[0] else 0.0)  # nobody overtakes it
            return plain(text, *rest)

        client._exchange._read = slow_at_first
        with pytest.raises(BudgetExhausted):
            found.extend(client.ask_many(wanted))
        assert len(found) == 7
        check_books(tmp_path, client, 7)
        with pytest.raises(InvalidInput, match="text 3"):
            list(client.ask_many([*wanted[:2], " "]))
        with pytest.raises(InvalidInput, match="at_once"):
            list(client.ask_many(wanted, at_once=0))
        assert list(client.ask_many([])) == []


def test_without_a_stream_the_frames_go_by_http(provide: Any, make: Any, tmp_path: Path) -> None:
    provider = provide(stream=False)
    with make(provider.address) as client:
        calls = watched(client)
        assert len(list(client.ask_many(texts(20)))) == 20
        check_books(tmp_path, client, 20)
    assert sorted(calls) == ["GET"] + ["POST"] * 20


def test_a_token_that_expires_in_between_is_told(provide: Any, make: Any, tmp_path: Path) -> None:
    provider = provide(token=TOKEN)
    with make(provider.address, token="another-token-of-some-length") as stranger:
        with pytest.raises(ServerRefused, match="token"):
            list(stranger.ask_many(texts(3)))
        assert stranger.summary().releases == 0
    with make(provider.address, token=TOKEN) as client:
        client._line.drive(client._exchange.greet())
        client._line.headers["authorization"] = "Bearer another-token-of-some-length"
        client._line.close()
        with pytest.raises(ServerRefused, match="token"):
            list(client.ask_many(texts(3)))
        charged = client.summary().releases
        assert charged >= 1
        assert provider.got == []
    with make(provider.address, token=TOKEN) as client:
        assert sum(answer.charge for answer in client.ask_many(texts(3))) == 2.0 * (3 - charged)


def test_a_fork_that_takes_the_answers_of_its_parent_is_told(provide: Any, make: Any) -> None:
    with make(provide().address) as client:
        answers = client.ask_many(texts(20))
        next(answers)
        child = os.fork()
        if child == 0:
            status = 1
            try:
                with contextlib.suppress(InvalidInput):
                    next(answers)
                    status = 2
                status = 0 if status == 1 else status
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert len(list(answers)) == 19


def test_nothing_of_a_frame_or_token_is_logged(
    provide: Any, make: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    provider = provide(token=TOKEN)
    with make(provider.address, token=TOKEN) as client:
        list(client.ask_many(texts(3)))
    ours = [record for record in caplog.records if record.threadName == "dp-forward-loop"]
    assert TOKEN not in "".join(record.getMessage() for record in ours)
    assert not [record for record in ours if record.name.startswith("websockets")]


# With servers that are none of ours


@pytest.fixture(scope="module")
def frame(user: UserSide) -> bytes:
    import numpy as np

    made = release(np.zeros((12, 4)), user.spec.mechanism(), bits=16)
    return frame_of(made, cut="encoder.1", front=user.digest, request=b"r" * 16, time=1)


def stream_to(server: Any, **settings: Any) -> Stream:
    port = next(iter(server.sockets)).getsockname()[1]
    usual = {"headers": {"authorization": f"Bearer {TOKEN}", "accept": "x"}, "timeout": 5.0}
    return Stream(f"http://127.0.0.1:{port}", **{**usual, **settings})


@pytest.mark.parametrize(
    ("status", "more", "expected"),
    [
        ("404 Not Found", "", None),
        ("426 Upgrade Required", "", None),
        ("403 Forbidden", "", None),
        ("200 OK", "", None),
        ("307 Temporary Redirect", "location: ws://127.0.0.1:{port}/elsewhere\r\n", None),
        ("429 Too Many Requests", "retry-after: 3\r\n", (429, "3")),
        ("503 Service Unavailable", "", (503, None)),
        ("nonsense", "", None),
    ],
)
def test_a_stream_that_cannot_be_opened_is_said_to_be_absent_or_busy(
    frame: bytes, status: str, more: str, expected: Any
) -> None:
    asked: list[bytes] = []

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        port = writer.get_extra_info("sockname")[1]
        head = f"HTTP/1.1 {status}\r\n{more.format(port=port)}content-length: 0\r\nconnection: close\r\n\r\n"
        writer.write(head.encode())
        await writer.drain()
        writer.close()

    async def whole() -> None:
        async with await asyncio.start_server(refuse, "127.0.0.1", 0) as server:
            stream = stream_to(server)
            for _ in range(2):
                reply = await stream.call(frame)
                if expected is None:
                    assert reply is None
                else:
                    assert isinstance(reply, Reply)
                    assert (reply.status, reply.retry_after) == expected
            await stream.close()

    asyncio.run(whole())
    assert len(asked) == (1 if expected is None else 2)  # what is absent is not looked for again
    assert all(b"GET /v1/stream " in head and TOKEN.encode() in head for head in asked)
    assert not any(b"deflate" in head for head in asked)


def test_what_is_no_answer_is_no_sense_and_what_is_late_is_left(frame: bytes) -> None:
    request, good = (b"r" * 16).hex(), json.dumps({"request": (b"r" * 16).hex(), "label": "x"})
    turns: list[list[str | bytes | None]] = [
        [json.dumps({"request": "00", "label": "y"}), good],  # of an unknown id: left
        [good.encode()],
        [json.dumps({"request": request, "error": "busy", "retry_after": 2})],
        [json.dumps({"request": request, "error": "odd", "retry_after": "x"})],
        ["{"],
        ["[" * 50_000],
        [json.dumps({"error": "length", "request": None})],
        [b"\xff\xfe"],
        [json.dumps({"request": request, "label": "x" * (1 << 20)})],
        [None],  # hangs up
        [],  # says nothing
        [good],
    ]
    understood = [(200, None), (200, None), (429, "2"), (400, None)]
    expected = [*understood, *[(200, "nonsense")] * 5, NoReply, NoReply, (200, None)]
    script = iter(turns)

    async def talk(connection: ServerConnection) -> None:
        async for _ in connection:
            for line in next(script):
                if line is None:
                    connection.transport.abort()
                    return
                await connection.send(line)

    async def whole() -> list[Any]:
        async with serve(talk, "127.0.0.1", 0, compression=None) as server:
            stream = stream_to(server, timeout=0.3)
            replies = [await stream.call(frame) for _ in turns]
            await stream.close()
        return replies

    for reply, wanted in zip(asyncio.run(whole()), expected, strict=True):
        if wanted is NoReply:
            assert isinstance(reply, NoReply)
        elif wanted[1] == "nonsense":
            assert reply == Reply(200, None)
        else:
            assert (reply.status, reply.retry_after) == wanted


def test_a_late_answer_does_not_cost_the_others_their_socket(frame: bytes) -> None:
    """One request is never answered; the others go on over the same connection."""
    other = frame[:96] + b"s" * 16 + frame[112:]
    connections = 0

    async def talk(connection: ServerConnection) -> None:
        nonlocal connections
        connections += 1
        async for data in connection:
            if data != frame:
                await connection.send(json.dumps({"request": (b"s" * 16).hex()}))

    async def whole() -> None:
        async with serve(talk, "127.0.0.1", 0, compression=None) as server:
            stream = stream_to(server, timeout=0.4)
            never = asyncio.create_task(stream.call(frame))
            while not never.done():
                assert isinstance(await stream.call(other), Reply)
                await asyncio.sleep(0.02)
            assert isinstance(never.result(), NoReply)
            assert isinstance(await stream.call(other), Reply)
            await stream.close()

    asyncio.run(whole())
    assert connections == 1


def _certificate(folder: Path) -> tuple[Path, Path]:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "dp-forward test")])
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now - datetime.timedelta(days=1))
    builder = builder.not_valid_after(now + datetime.timedelta(days=1))
    here = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    builder = builder.add_extension(here, critical=False)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    files = folder / "cert.pem", folder / "key.pem"
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    files[0].write_bytes(builder.sign(key, hashes.SHA256()).public_bytes(pem))
    files[1].write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain))
    return files


def test_a_certificate_nobody_vouches_for_gets_no_frame(
    frame: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cert, key = _certificate(tmp_path)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(cert, key)
    got: list[Any] = []

    async def talk(connection: ServerConnection) -> None:
        async for data in connection:
            got.append(data)
            await connection.send(json.dumps({"request": (b"r" * 16).hex()}))

    async def whole() -> Any:
        async with serve(talk, "127.0.0.1", 0, compression=None, ssl=tls) as server:
            port = next(iter(server.sockets)).getsockname()[1]
            stream = Stream(f"https://127.0.0.1:{port}", headers={}, timeout=5.0)
            reply = await stream.call(frame)
            await stream.close()
            return reply

    assert asyncio.run(whole()) is None
    assert got == []
    monkeypatch.setenv("SSL_CERT_FILE", str(cert))  # the control: now somebody does
    assert asyncio.run(whole()).status == 200
    assert got == [frame]
