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
import threading
import time
from collections.abc import Callable, Iterator
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

import pytest

import tiny_user
from dp_forward.errors import BudgetExhausted, DpForwardError, InvalidInput
from dp_forward.ledger import Ledger
from dp_forward.privacy import NoiseSpec
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
        if len(provider.got) > 1:
            raise Refused("busy", "Never.", retry_after=3600)

    provider = provide()
    provider.before = stall
    hour = RetryPolicy(attempts=9, first=3600.0, longest=3600.0, timeout=3600.0)

    with make(provider.address, retry=hour) as client:
        answers = client.ask_many(texts(9))
        next(answers)
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


@pytest.mark.slow
def test_a_certificate_nobody_vouches_for_gets_no_request(
    provide: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cert, key = tiny_user.self_signed(tmp_path)
    address = provide(tls_cert=cert, tls_key=key).address
    call = Call("GET", "/healthz", 1000)

    def status() -> int | None:
        with contextlib.closing(Transport(address, token=None, retry=QUICK)) as transport:
            reply = transport.call(call)
            return None if reply is None else reply.status

    assert status() is None
    monkeypatch.setenv("SSL_CERT_FILE", str(cert))  # the control: now somebody does
    assert status() == 200
