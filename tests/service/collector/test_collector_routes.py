"""The collector over HTTP: whole bodies or nothing, tokens of two kinds, and never a 500 on bytes."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import random
import secrets
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import numpy as np
import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from dp_forward.errors import InvalidInput
from dp_forward.noise import release_batch
from dp_forward.noise.folded_record import FoldedCode
from dp_forward.privacy import NoiseSpec
from dp_forward.release_spec import ReleaseSpec
from dp_forward.service.collector.collection_store import Collection
from dp_forward.service.protocol.collection import CollectionSpec, pack_record
from dp_forward.service.protocol.frame import HEADER_BYTES, frame_of
from dp_forward.service.protocol.manifest import Manifest
from dp_forward.service.server.app import make_app, make_collector_app
from dp_forward.service.server.settings import ServerSettings
from service.collector.collect_cases import FRONT, provider, record, spec, stored, summary

BYTES = {"content-type": "application/octet-stream"}
TOKEN, SHUFFLER = "a-token-of-enough-letters", "the-shuffler-has-its-own"


def made_app(collection: Collection, **settings) -> Starlette:
    shuffler = settings.pop("shuffler_token", None)
    return make_app(
        provider(),
        front_digest=FRONT,
        settings=ServerSettings(**settings),
        collection=collection,
        shuffler_token=shuffler,
    )


@pytest.fixture
def collection(tmp_path: Path) -> Collection:
    return Collection.open_or_create(tmp_path / "collected", spec())


@pytest.fixture
def client(collection: Collection) -> Iterator[TestClient]:
    local = ("127.0.0.1", 1)
    with TestClient(made_app(collection), raise_server_exceptions=False, client=local) as made:
        yield made


@pytest.fixture
def behind_a_shuffler(collection: Collection) -> Iterator[TestClient]:
    with TestClient(made_app(collection, shuffler_token=SHUFFLER), raise_server_exceptions=False) as made:
        yield made


def post(client: TestClient, body: bytes, path: str = "/v1/records", token: str | None = None):
    words = {} if token is None else {"authorization": f"Bearer {token}"}
    return client.post(path, content=body, headers=BYTES | words)


def test_it_says_what_it_collects(client: TestClient, collection: Collection) -> None:
    found = client.get("/v1/collection")
    assert found.status_code == 200
    assert CollectionSpec.from_dict(found.json()).as_dict() == collection.spec.as_dict()
    assert found.json()["shuffler"] is None
    assert client.get("/v1/manifest").json()["epsilons"], "the control: it answers more noise, but keeps one"


def test_records_are_stored_once_and_a_retry_is_free(client: TestClient, collection: Collection) -> None:
    body = record(1) + record(2)
    assert post(client, body).json() == {"stored": 2, "known": 0}
    assert post(client, body).json() == {"stored": 0, "known": 2}
    assert post(client, body + record(3)).json() == {"stored": 1, "known": 2}
    assert len(collection) == 3
    page = client.get("/metrics").text
    assert 'dpf_records_total{outcome="stored"} 3' in page
    assert 'dpf_records_total{outcome="known"} 4' in page


@pytest.mark.parametrize(
    ("bad", "code", "status"),
    [
        (lambda: record(label=3), "label", 400),
        (lambda: record(label=None), "label", 400),
        (lambda: record(time=1_700_000_000), "time", 400),
        (lambda: b"X" + record()[1:], "magic", 400),
        (lambda: record()[:64] + bytes(32) + record()[96:], "front", 400),
        (lambda: record()[:128] + bytes(len(record()) - 132) + record()[-4:], "no_noise", 422),
    ],
)
def test_one_bad_record_refuses_the_body(
    client: TestClient, collection: Collection, bad, code: str, status: int
) -> None:
    found = post(client, record() + record() + bad() + record())
    assert (found.status_code, found.json()["error"]) == (status, code)
    assert "Record 2" in found.json()["message"]
    assert len(collection) == 0


def test_the_same_id_with_other_bytes_refuses_the_body(client: TestClient, collection: Collection) -> None:
    request = secrets.token_bytes(16)
    assert post(client, record(1, request=request)).status_code == 200
    before = stored(collection)
    found = post(client, record(2) + record(3, request=request))
    assert (found.status_code, found.json()["error"]) == (409, "replayed")
    assert stored(collection) == before


@pytest.mark.parametrize(
    ("body", "more", "told"),
    [
        (lambda: b"", {}, (400, "length")),
        (lambda: b"x" * 10, {}, (400, "length")),
        (lambda: record() * 257, {}, (413, "too_long")),
        (lambda: gzip.compress(record()), {"content-encoding": "gzip"}, (415, "compressed")),
        (record, {"content-type": "application/json"}, (415, "content_type")),
        (record, {"content-length": "+5"}, (400, "length")),
    ],
)
def test_what_no_body_can_be_is_refused(
    client: TestClient, collection: Collection, body, more: dict[str, str], told: tuple[int, str]
) -> None:
    found = client.post("/v1/records", content=body(), headers=BYTES | more)
    assert (found.status_code, found.json()["error"]) == told
    assert len(collection) == 0


def test_a_body_in_parts_is_held_to_the_same_length(client: TestClient, collection: Collection) -> None:
    parts = iter([record()] * 300)
    found = client.post("/v1/records", content=parts, headers=BYTES)
    assert (found.status_code, found.json()["error"]) == (413, "too_long")
    assert client.post("/v1/records", content=iter([record()[:50]]), headers=BYTES).status_code == 400
    assert len(collection) == 0


def test_a_full_disk_is_told_and_may_be_tried_again(client: TestClient, collection: Collection) -> None:
    post(client, record())
    with collection._store.transaction(write=False) as connection:
        connection.execute("PRAGMA max_page_count = 1")
    found = post(client, b"".join(record(i) for i in range(60)))
    assert (found.status_code, found.json()["error"]) == (507, "full")
    assert int(found.headers["retry-after"]) > 0
    assert len(collection) == 1


def test_more_bodies_than_fit_into_memory_wait(
    collection: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dp_forward.service.collector.collector_routes._AT_ONCE", 0)
    with TestClient(made_app(collection)) as client:
        found = post(client, record())
    assert (found.status_code, found.json()["error"], found.headers["retry-after"]) == (429, "busy", "1")


def test_slow_bodies_take_no_place_and_give_way_by_age(
    collection: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = collection.spec.record_bytes
    monkeypatch.setattr("dp_forward.service.collector.collector_routes._MOST_READ", 30 * size)
    app, begun = made_app(collection), asyncio.Semaphore(0)

    async def drip():
        yield record()
        begun.release()
        await asyncio.sleep(60)

    async def ask() -> tuple[list[httpx.Response], list[str]]:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://server") as client:
            posts = [
                asyncio.create_task(client.post("/v1/records", content=drip(), headers=BYTES))
                for _ in range(20)
            ]
            for _ in posts:
                await begun.acquire()
            small = await client.post("/v1/records", content=record(), headers=BYTES)
            assert not any(one.done() for one in posts)  # the control: there was room beside them
            large = b"".join(record(number) for number in range(1, 15))
            found = await client.post("/v1/records", content=large, headers=BYTES)
            await asyncio.wait(posts[:4], timeout=10)
            slow = [one.result().json()["error"] for one in posts if one.done()]
            assert all(one.done() for one in posts[: len(slow)])  # those that began first
            for one in posts:
                one.cancel()
            return [small, found], slow

    answered, slow = asyncio.run(ask())
    assert [one.status_code for one in answered] == [200, 200]
    assert slow == ["slow"] * 4


# --- tokens and batches -------------------------------------------------------------------------------------


def test_users_and_the_shuffler_have_tokens_of_their_own(collection: Collection) -> None:
    batch = f"/v1/batches/{secrets.token_hex(16)}/records"
    with TestClient(made_app(collection, token=TOKEN, shuffler_token=SHUFFLER)) as client:
        for token in (None, "wrong-but-long-enough", SHUFFLER):
            assert post(client, record(), token=token).status_code == 401
        for token in (None, TOKEN):
            assert post(client, record(), batch, token=token).status_code == 401
        past = post(client, record(), token=TOKEN)
        assert (past.status_code, past.json()["error"]) == (403, "shuffler")
        assert len(collection) == 0
        assert post(client, record(), batch, token=SHUFFLER).status_code == 200
        for token, status in ((None, 401), (TOKEN, 200), (SHUFFLER, 200)):
            words = {} if token is None else {"authorization": f"Bearer {token}"}
            assert client.get("/v1/collection", headers=words).status_code == status


def test_without_a_shuffler_there_are_no_batches(tmp_path: Path) -> None:
    collection = Collection.open_or_create(tmp_path / "c", spec())
    with TestClient(made_app(collection)) as client:
        assert post(client, record(), f"/v1/batches/{secrets.token_hex(16)}/records").status_code == 404


def test_a_batch_is_sealed_with_exactly_its_records(
    behind_a_shuffler: TestClient, collection: Collection
) -> None:
    client = behind_a_shuffler
    name = secrets.token_hex(16)

    def seal(records: object, at: str = name):
        words = {"authorization": f"Bearer {SHUFFLER}", "content-type": "application/json"}
        return client.post(f"/v1/batches/{at}/seal", content=json.dumps(records), headers=words)

    body = record(1) + record(2)
    records = f"/v1/batches/{name}/records"
    assert post(client, body, records, SHUFFLER).json() == {"stored": 2, "known": 0}
    assert post(client, body, records, SHUFFLER).json() == {"stored": 0, "known": 2}
    assert seal({"records": 3}).json()["error"] == "batch"
    assert summary(collection)["waiting"] == 2
    for _ in range(2):
        assert seal({"records": 2}).json() == {"sealed": True}
    assert seal({"records": 3}).status_code == 409
    assert post(client, record(), records, SHUFFLER).status_code == 409
    assert post(client, body, records, SHUFFLER).status_code == 200
    for wrong in ({}, [], {"records": 0}, {"records": True}, {"records": 2.0}, {"records": 2, "x": 1}):
        assert seal(wrong).status_code == 400
    assert seal({"records": "2" * 300}).status_code == 413
    assert seal({"records": 2}, "not-hex").status_code == 400
    assert summary(collection) == {"records": 2, "waiting": 0, "batches": 1}


@pytest.mark.parametrize("token", [TOKEN, "short", ""])
def test_a_shuffler_needs_a_word_that_nobody_else_has(collection: Collection, token: str) -> None:
    with pytest.raises(InvalidInput, match="token"):
        made_app(collection, token=TOKEN, shuffler_token=token)


def test_a_collection_of_another_front_is_refused(collection: Collection) -> None:
    with pytest.raises(InvalidInput, match="front"):
        make_app(provider(), front_digest="bb" * 32, settings=ServerSettings(), collection=collection)
    with pytest.raises(InvalidInput, match="collection"):
        make_app(provider(), front_digest=FRONT, settings=ServerSettings(), shuffler_token=SHUFFLER)


# --- hostile bytes ------------------------------------------------------------------------------------------


def mutated(honest: list[bytes], chosen: random.Random) -> bytes:
    body = bytearray(b"".join(chosen.choices(honest, k=chosen.randint(1, 3))))
    for _ in range(chosen.randint(0, 3)):
        match chosen.randrange(4):
            case 0:
                body[chosen.randrange(len(body))] ^= 1 << chosen.randrange(8)
            case 1:
                body[chosen.randrange(min(128, len(body)))] = chosen.randrange(256)
            case 2:
                del body[chosen.randrange(len(body)) + 1 :]
            case _:
                body += chosen.randbytes(chosen.randint(1, 40))
    return bytes(body)


@pytest.mark.slow
def test_two_thousand_mutated_bodies_never_fail_the_server(
    collection: Collection, caplog: pytest.LogCaptureFixture
) -> None:
    chosen = random.Random(7)
    honest = [record(i, label=i % 3) for i in range(6)]
    words = BYTES | {"authorization": f"Bearer {SHUFFLER}"}
    ways = (
        (made_app(collection), "/v1/records"),
        (made_app(collection, shuffler_token=SHUFFLER), f"/v1/batches/{'ab' * 16}/records"),
    )

    async def send_all() -> list[httpx.Response]:
        found = []
        for app, path in ways:
            wire = httpx.ASGITransport(app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=wire, base_url="http://here", headers=words) as client:
                for _ in range(1000):
                    found.append(await client.post(path, content=mutated(honest, chosen)))
        return found

    with caplog.at_level(logging.DEBUG):
        answers = asyncio.run(send_all())
    statuses = Counter(answer.status_code for answer in answers)
    assert set(statuses) <= {200, 400, 409, 422}, statuses
    assert statuses[200] > 100
    assert statuses[400] > 500
    stored_now = sum(answer.json()["stored"] for answer in answers if answer.status_code == 200)
    assert len(collection) == stored_now, "what was refused left nothing behind"
    logged = " ".join(entry.getMessage() for entry in caplog.records)
    assert not any(data[96:112].hex() in logged for data in honest)


# --- folded records, where there is no back ------------------------------------------------------------


@pytest.fixture
def folding(tmp_path: Path) -> Iterator[TestClient]:
    collection = Collection.open_or_create(
        tmp_path / "folded", CollectionSpec.of(folded_manifest(), "folded")
    )
    app = make_collector_app(collection, settings=ServerSettings())
    with TestClient(app, raise_server_exceptions=False, client=("127.0.0.1", 1)) as made:
        yield made


def folded_manifest() -> Manifest:
    noise = NoiseSpec(epsilon=4.0, unit="record")
    return Manifest(
        release=ReleaseSpec(
            noise=noise, rows=16, width=3 * 33, bits=8, cut="output", front=FRONT, labels=("a", "b", "c")
        )
    )


def folded_records(count: int) -> list[bytes]:
    manifest, code, rng = folded_manifest(), FoldedCode(3, 32), np.random.default_rng(1)
    folded = code.fold(rng.standard_normal((count, 32)), rng.integers(0, 3, count))
    made = release_batch(folded[:, None], manifest.mechanism(), bits=8)
    plain = {"cut": "output", "front": FRONT, "time": 0}
    frames = [frame_of(one, request=secrets.token_bytes(16), **plain) for one in made]
    return [pack_record(frame, None) for frame in frames]


def test_folded_records_are_collected_without_a_label_and_nothing_is_answered(folding: TestClient) -> None:
    records = folded_records(100)
    assert post(folding, b"".join(records)).json() == {"stored": 100, "known": 0}
    assert post(folding, b"".join(records)).json() == {"stored": 0, "known": 100}
    labelled = records[0][:-4] + (1).to_bytes(4, "little")
    assert post(folding, labelled).json()["error"] == "label"
    for path in ("/v1/manifest", "/v1/answer"):
        assert post(folding, records[0], path).status_code == 404
    assert folding.get("/healthz").json() == {"status": "ok"}
    assert 'dpf_records_total{outcome="stored"} 100' in folding.get("/metrics").text


def test_a_folded_record_without_noise_is_refused(folding: TestClient) -> None:
    """The vector itself, on the grid of the releases; a scaled one has too much."""
    record = folded_records(1)[0]
    manifest, code = folded_manifest(), FoldedCode(3, 32)
    plain = code.fold(np.ones((1, 32)), np.array([1]))[0]
    bare = np.round(plain / manifest.step).astype(np.int8).tobytes()
    refused = post(folding, record[:HEADER_BYTES] + bare + record[-4:])
    assert refused.json()["error"] == "no_noise"
    loud = np.full(99, 127, dtype=np.int8).tobytes()
    assert post(folding, record[:HEADER_BYTES] + loud + record[-4:]).json()["error"] == "too_much_noise"


@pytest.mark.parametrize(("columns", "warned"), [(33, False), (5, True)])
def test_a_collector_says_when_a_record_without_noise_may_pass(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, columns: int, warned: bool
) -> None:
    release = replace(folded_manifest().release, width=3 * columns)
    collection = Collection.open_or_create(
        tmp_path / "folded", CollectionSpec.of(Manifest(release=release), "folded")
    )
    make_collector_app(collection, settings=ServerSettings())
    collection.close()
    assert ("is noticed after" in caplog.text) == warned
