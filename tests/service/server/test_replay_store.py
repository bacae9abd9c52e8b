"""Several processes answer as one: an id has one digest and one answer, wherever it is asked again."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from dp_forward.service.protocol.frame import HEADER_BYTES
from dp_forward.service.server import replay_store
from dp_forward.service.server.app import make_app
from dp_forward.service.server.replay_store import ReplayStore
from dp_forward.service.server.request_limits import Refused
from dp_forward.service.server.settings import ServerSettings
from service.shuffler.shuffle_cases import FRONT, OCTETS, changed, made, provider

DAY = 86_400


@pytest.fixture
def shared(place: str) -> Iterator[tuple[ReplayStore, ReplayStore]]:
    """One memory, as two processes have it."""
    with closing(ReplayStore(place, seconds=DAY)) as one, closing(ReplayStore(place, seconds=DAY)) as other:
        yield one, other


def test_the_first_answer_stands_for_all(shared: tuple[ReplayStore, ReplayStore]) -> None:
    one, other = shared
    assert one.read(b"i", b"d") is None
    assert one.write(b"i", b"d", b"first") == b"first"
    assert other.read(b"i", b"d") == b"first"
    assert other.write(b"i", b"d", b"second") == b"first"
    for call in (partial(other.read, b"i", b"e"), partial(other.write, b"i", b"e", b"x")):
        with pytest.raises(Refused) as refused:
            call()
        assert (refused.value.code, refused.value.status) == ("replayed", 409)


def test_another_back_gives_its_own_answer_to_the_same_bytes(place: str) -> None:
    with (
        closing(ReplayStore(place, seconds=DAY, of="one back")) as one,
        closing(ReplayStore(place, seconds=DAY, of="another")) as other,
    ):
        assert one.write(b"i", b"d", b"old") == b"old"
        assert other.read(b"i", b"d") is None
        assert other.write(b"i", b"d", b"new") == b"new"
        assert one.read(b"i", b"d") == b"old"


def test_processes_that_answer_at_once_give_one_answer(shared: tuple[ReplayStore, ReplayStore]) -> None:
    memory, (reading, writing) = shared[0], os.pipe()
    children = []
    for number in range(4):
        if (child := os.fork()) == 0:
            try:
                for request in range(20):
                    found = memory.write(bytes([request]), b"d", bytes([number]))
                    os.write(writing, bytes([request]) + found)
            finally:
                os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)
    said = os.read(reading, 1000)
    given = {said[at : at + 2] for at in range(0, len(said), 2)}
    assert (len(said), len(given)) == (160, 20)


def test_what_is_too_old_is_deleted(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(ReplayStore(place, seconds=10)) as memory:
        memory.write(b"old", b"d", b"a")
        later = time.time() + 100
        monkeypatch.setattr(replay_store.time, "time", lambda: later)
        memory.write(b"new", b"d", b"b")
        assert memory.read(b"old", b"other") is None
        assert memory.read(b"new", b"d") == b"b"


def test_a_frame_is_answered_once_by_two_servers_over_one_memory(place: str) -> None:
    def server(replays: ReplayStore | None) -> TestClient:
        app = make_app(provider(), front_digest=FRONT, settings=ServerSettings(), replays=replays)
        return TestClient(app)

    first, second = (changed(one[:-4], time=int(time.time())) for one in made(2))
    forged = first[:HEADER_BYTES] + second[HEADER_BYTES:]  # the same id with other bytes
    memories = [ReplayStore(place, seconds=DAY) for _ in range(2)]
    with server(memories[0]) as one, server(memories[1]) as other, server(None) as alone:
        answer = one.post("/v1/answer", content=first, headers=OCTETS)
        assert answer.status_code == 200
        again = other.post("/v1/answer", content=first, headers=OCTETS)
        assert again.content == answer.content
        counted = other.app.state.handler.metrics.outcomes  # type: ignore[attr-defined]
        assert counted == {"resent": 1}  # it was not computed again
        assert other.post("/v1/answer", content=forged, headers=OCTETS).json()["error"] == "replayed"
        # The control: a server that shares nothing takes it.
        assert alone.post("/v1/answer", content=forged, headers=OCTETS).status_code == 200
        # A memory that cannot be used answers nobody, in the server's own words.
        memories[0].close()
        lost = one.post("/v1/answer", content=second, headers=OCTETS)
        assert (lost.status_code, lost.json()["error"]) == (503, "disk")


def test_a_memory_in_a_folder_is_for_its_owner(tmp_path: Path) -> None:
    ReplayStore(tmp_path / "store", seconds=DAY).close()
    assert (tmp_path / "store" / "replays.sqlite").stat().st_mode & 0o777 == 0o600
