"""The server answers what fits its manifest, refuses the rest by name, and never fails on bytes."""

from __future__ import annotations

import asyncio
import gc
import gzip
import json
import logging
import math
import secrets
import ssl
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from starlette.applications import Starlette
from starlette.testclient import TestClient

import tiny_user
from dp_forward.errors import InvalidInput
from dp_forward.noise import Released, release, release_batch
from dp_forward.privacy import NoiseSpec
from dp_forward.release_spec import ReleaseSpec
from dp_forward.service.collector.collection_store import Collection
from dp_forward.service.protocol.access import read_token
from dp_forward.service.protocol.frame import HEADER_BYTES, Header, frame_of
from dp_forward.service.protocol.manifest import Manifest
from dp_forward.service.server.app import make_app, make_collector_app
from dp_forward.service.server.settings import ServerSettings
from dp_forward.service.server.uvicorn_runner import run_server
from dp_forward.split import split_model
from dp_forward.split.artifacts import ProviderSide
from dp_forward.split.halves import AnswerBack
from service.collector import collect_cases
from tiny_models import tiny

ROWS, WIDTH, LABELS = 9, 32, ("bad", "so so", "good")
FRONT, CUT = "ab" * 32, "encoder.2"
NOISE = NoiseSpec(epsilon=8.0)
TOKEN = "a-token-of-enough-letters"
FRAME = {"content-type": "application/octet-stream"}


@pytest.fixture(scope="module")
def provider() -> ProviderSide:
    back = split_model(tiny("bert"), CUT)[1]
    return ProviderSide(back, ReleaseSpec.of(back, noise=NOISE, rows=ROWS, labels=LABELS), "cd" * 32)


@pytest.fixture(scope="module")
def manifest(provider: ProviderSide) -> Manifest:
    return Manifest.of(provider, FRONT)


@pytest.fixture
def app(provider: ProviderSide) -> Starlette:
    return make_app(provider, front_digest=FRONT, settings=ServerSettings())


@pytest.fixture
def client(app: Starlette) -> Iterator[TestClient]:
    with TestClient(app, client=("127.0.0.1", 1)) as made:
        yield made


def released(manifest: Manifest, seed: int = 0) -> Released:
    hidden = np.random.default_rng(seed).normal(size=(ROWS, WIDTH))
    return release(hidden, manifest.mechanism(), bits=manifest.release.bits)


def framed(made: Released, *, request: bytes | None = None, **changes: Any) -> bytes:
    settings = {"cut": CUT, "front": FRONT, "time": int(time.time())} | changes
    return frame_of(made, request=request or secrets.token_bytes(16), **settings)


def good(manifest: Manifest, **changes: Any) -> bytes:
    return framed(released(manifest), **changes)


def direct(provider: ProviderSide, made: Released) -> np.ndarray[Any, Any]:
    with torch.inference_mode():
        logits = provider.back(torch.from_numpy(made.as_floats())[None]).logits
    return torch.softmax(logits.double(), dim=-1)[0].numpy()


def changed(frame: bytes, **fields: Any) -> bytes:
    return replace(Header.unpack(frame[:HEADER_BYTES]), **fields).pack() + frame[HEADER_BYTES:]


def refused(response: Any, status: int, code: str) -> None:
    assert (response.status_code, response.json()["error"]) == (status, code)
    assert response.json().keys() == {"error", "message"}
    assert "\n" not in response.json()["message"]


def test_the_manifest_is_what_a_client_can_read(client: TestClient, manifest: Manifest) -> None:
    assert Manifest.from_dict(client.get("/v1/manifest").json()) == manifest


def test_an_answer_is_what_the_back_says(
    client: TestClient, manifest: Manifest, provider: ProviderSide
) -> None:
    made = released(manifest)
    frame = framed(made, request=b"0123456789abcdef")
    response = client.post("/v1/answer", content=frame, headers=FRAME)
    assert response.status_code == 200
    found, wanted = response.json(), direct(provider, made)
    assert found.keys() == {"label", "probabilities", "request"}
    assert found["request"] == b"0123456789abcdef".hex()
    assert found["label"] == LABELS[int(wanted.argmax())]
    np.testing.assert_allclose([found["probabilities"][label] for label in LABELS], wanted, atol=1e-6)


def number(app: Starlette, name: str, **labels: str) -> float | None:
    """One number of the page of metrics."""
    return app.state.handler.metrics.registry.get_sample_value(name, labels)


def over(app: Starlette) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://server")


def test_more_noise_is_answered_by_its_own_step_and_checked_by_its_own_spread(
    client: TestClient, provider: ProviderSide, manifest: Manifest
) -> None:
    hidden = np.random.default_rng(3).normal(size=(ROWS, WIDTH))
    for offer in manifest.offers:
        made = release(hidden, offer.mechanism, bits=manifest.release.bits)
        found = client.post("/v1/answer", content=framed(made), headers=FRAME)
        assert found.status_code == 200, found.text
        noisy = torch.from_numpy(np.asarray(made.values, dtype=np.float32) * np.float32(made.step))
        with torch.inference_mode():
            wanted = torch.softmax(provider.back(noisy[None]).logits.double(), -1)[0]
        assert list(found.json()["probabilities"].values()) == pytest.approx(wanted.tolist(), abs=1e-6)
    least, most = manifest.offers[0], manifest.offers[-1]
    data = framed(release(hidden, least.mechanism, bits=manifest.release.bits))
    header = replace(
        Header.unpack(data[:HEADER_BYTES]), epsilon=most.epsilon, delta=most.delta, step=most.step * 1.0
    )
    scale = least.step / most.step  # the same spread in the other's integers: too little noise for its claim
    fewer = np.rint(np.frombuffer(data[HEADER_BYTES:], np.int8) * scale).astype(np.int8)
    found = client.post("/v1/answer", content=header.pack() + fewer.tobytes(), headers=FRAME)
    assert (found.status_code, found.json()["error"]) == (422, "no_noise")


@pytest.mark.slow
def test_batched_answers_equal_single_ones(provider: ProviderSide, manifest: Manifest) -> None:
    app = make_app(provider, front_digest=FRONT, settings=ServerSettings(max_wait_ms=20, max_batch=16))
    hidden = np.random.default_rng(7).normal(size=(48, ROWS, WIDTH))
    made = release_batch(hidden, manifest.mechanism(), bits=manifest.release.bits)

    async def ask() -> list[httpx.Response]:
        async with over(app) as client:
            posts = [client.post("/v1/answer", content=framed(one), headers=FRAME) for one in made]
            return await asyncio.gather(*posts)

    responses = asyncio.run(ask())
    assert number(app, "dpf_batch_size_count") < 12  # they were in fact batched
    for one, response in zip(made, responses, strict=True):
        found = list(response.json()["probabilities"].values())
        np.testing.assert_allclose(found, direct(provider, one), atol=1e-5)
    spread = np.std([list(response.json()["probabilities"].values()) for response in responses], axis=0)
    assert spread.max() > 1e-3  # the control: answers of different requests do differ


def test_a_bad_request_never_fails_its_neighbours(app: Starlette, manifest: Manifest) -> None:
    frames = [good(manifest) for _ in range(30)]
    for i in range(0, 30, 3):
        frames[i] = frames[i][:HEADER_BYTES] + bytes(len(frames[i]) - HEADER_BYTES)

    async def ask() -> list[int]:
        async with over(app) as client:
            posts = [client.post("/v1/answer", content=frame, headers=FRAME) for frame in frames]
            return [response.status_code for response in await asyncio.gather(*posts)]

    assert asyncio.run(ask()) == [422 if i % 3 == 0 else 200 for i in range(30)]


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"epsilon": 8.5}, "budget"),
        ({"epsilon": 3.0}, "budget"),
        ({"mechanism": "gaussian", "delta": 1e-5}, "mechanism"),
        ({"cut": "encoder.1"}, "cut"),
        ({"front": bytes(32)}, "front"),
        ({"step": 0.5}, "step"),
        ({"rows": WIDTH, "width": ROWS}, "shape"),
        ({"time": 5}, "time"),
        ({"time": 4_000_000_000}, "time"),
    ],
)
def test_a_header_that_does_not_fit_is_refused_by_name(
    client: TestClient, manifest: Manifest, fields: dict[str, Any], code: str
) -> None:
    frame = changed(good(manifest), **fields)
    refused(client.post("/v1/answer", content=frame, headers=FRAME), 400, code)


def test_wrong_lengths_types_and_encodings_are_refused(client: TestClient, manifest: Manifest) -> None:
    frame = good(manifest)
    post = client.post
    refused(post("/v1/answer", content=frame[:-1], headers=FRAME), 400, "length")
    refused(post("/v1/answer", content=b"", headers=FRAME), 400, "length")
    refused(post("/v1/answer", content=frame + b"0", headers=FRAME), 413, "too_long")
    refused(post("/v1/answer", content=frame), 415, "content_type")
    refused(post("/v1/answer", json={"a": 1}), 415, "content_type")
    zipped = FRAME | {"content-encoding": "gzip"}
    refused(post("/v1/answer", content=gzip.compress(frame), headers=zipped), 415, "compressed")
    twice = [*FRAME.items(), ("content-encoding", "identity"), ("content-encoding", "gzip")]
    refused(post("/v1/answer", content=frame, headers=twice), 415, "compressed")
    refused(client.get("/v1/answer"), 405, "method")
    refused(client.get("/docs"), 404, "not_found")
    assert post("/v1/answer", content=frame, headers=FRAME).status_code == 200


def call(app: Starlette, receive: Callable[[], Awaitable[dict[str, Any]]]) -> tuple[int, dict[str, Any]]:
    """A request without Content-Length, body part by body part."""
    sent: list[dict[str, Any]] = []

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "path": "/v1/answer",
        "raw_path": b"/v1/answer",
        "query_string": b"",
        "root_path": "",
        "scheme": "http",
        "server": ("server", 80),
        "client": ("client", 1),
        "headers": [(b"content-type", FRAME["content-type"].encode())],
    }
    asyncio.run(app(scope, receive, send))  # type: ignore[arg-type]
    assert (b"connection", b"close") in sent[0]["headers"]
    return sent[0]["status"], json.loads(sent[1]["body"])


def test_an_endless_body_is_read_no_further_than_a_frame(app: Starlette, manifest: Manifest) -> None:
    read = 0

    async def receive() -> dict[str, Any]:
        nonlocal read
        read += 64
        return {"type": "http.request", "body": bytes(64), "more_body": True}

    status, body = call(app, receive)
    assert (status, body["error"]) == (413, "too_long")
    assert read <= manifest.frame_bytes + 64


@pytest.mark.slow
def test_a_slow_body_is_given_up(provider: ProviderSide) -> None:
    app = make_app(provider, front_digest=FRONT, settings=ServerSettings(body_seconds=0.1))

    async def receive() -> dict[str, Any]:
        await asyncio.sleep(0.03)
        return {"type": "http.request", "body": b"D", "more_body": True}

    status, body = call(app, receive)  # which would never end
    assert (status, body["error"]) == (408, "slow")


def test_a_client_that_forgot_the_noise_is_refused(client: TestClient, manifest: Manifest) -> None:
    frame, mechanism = good(manifest), manifest.mechanism()
    hidden = np.random.default_rng(0).normal(size=(ROWS, WIDTH))
    bare = np.rint(NOISE.bound.apply(hidden) / manifest.step).astype(f"<i{manifest.release.bits // 8}")
    assert np.linalg.norm(bare * manifest.step) == pytest.approx(mechanism.bound.norm, rel=0.5)  # type: ignore[attr-defined]
    refused(
        client.post("/v1/answer", content=frame[:HEADER_BYTES] + bare.tobytes(), headers=FRAME),
        422,
        "no_noise",
    )


def test_a_client_without_noise_is_refused_among_honest_ones_of_other_addresses(tmp_path: Path) -> None:
    """Where 8 numbers cross, under one token: by address, and behind one address as well."""
    noise = NoiseSpec(mechanism="gaussian", epsilon=8.0, columns=8)
    back = split_model(tiny("bert"), "output", width=8)[1]
    side = ProviderSide(back, ReleaseSpec.of(back, noise=noise, rows=ROWS, labels=LABELS), "cd" * 32)
    asked = Manifest.of(side, FRONT)
    app = make_app(side, front_digest=FRONT, settings=ServerSettings(token=TOKEN))
    hidden = np.random.default_rng(0).normal(size=(1, 8))
    bare = np.rint(noise.bound.apply(hidden) / asked.step).astype(f"<i{asked.release.bits // 8}")
    headers = {**FRAME, "authorization": f"Bearer {TOKEN}"}

    def frame(honest: bool) -> bytes:
        data = framed(release(hidden, asked.mechanism(), bits=asked.release.bits), cut="output")
        return data if honest else data[:HEADER_BYTES] + bare.tobytes()

    async def ask(without: str, honest: str) -> list[int]:
        found = []
        for n in range(40):
            transport = httpx.ASGITransport(app, client=(honest if n % 2 else without, 1))
            async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
                data = frame(honest=n % 2 == 1)
                found.append((await client.post("/v1/answer", content=data, headers=headers)).status_code)
        return found

    apart = asyncio.run(ask("10.0.0.1", "10.0.0.2"))
    assert (apart[::2], apart[1::2]) == ([200] * 7 + [422] * 13, [200] * 20)
    assert asyncio.run(ask("10.0.0.3", "10.0.0.3"))[::2][9:] == [422] * 11


def test_scores_that_were_not_answered_for_are_refused() -> None:
    decision = NoiseSpec(mechanism="k-ary-response", epsilon=8.0, columns=3)
    back = split_model(tiny("bert"), "output", width=3)[1]
    spec = ReleaseSpec.of(back, noise=decision, rows=ROWS, labels=LABELS)
    made = release(np.array([[0.1, 2.0, -1.0]]), decision.build(), bits=8)
    frame = framed(made, cut="output")
    settings = ServerSettings()
    with TestClient(
        make_app(ProviderSide(back, spec, "cd" * 32), front_digest=FRONT, settings=settings)
    ) as client:
        for values in ((0, 2, -1), (0, 0, 0), (0, 1, 1), (0, 127, 0)):
            payload = np.array(values, dtype=np.int8).tobytes()
            response = client.post("/v1/answer", content=frame[:HEADER_BYTES] + payload, headers=FRAME)
            refused(response, 422, "no_noise")
        assert client.post("/v1/answer", content=frame, headers=FRAME).status_code == 200


def test_the_probability_of_an_answer_is_that_of_the_epsilon_that_was_asked_for() -> None:
    decision = NoiseSpec(mechanism="k-ary-response", epsilon=4.0, columns=3)
    back = AnswerBack.of(torch.from_numpy(decision.build().transition()))  # type: ignore[attr-defined]
    spec = ReleaseSpec.of(back, noise=decision, rows=ROWS, labels=LABELS)
    settings = ServerSettings(also_epsilons=(2.0, 1.0))
    app = make_app(ProviderSide(back, spec, "cd" * 32), front_digest=FRONT, settings=settings)
    with TestClient(app) as client:
        for epsilon in (4.0, 2.0, 1.0):
            made = release(np.array([[0.1, 2.0, -1.0]]), replace(decision, epsilon=epsilon).build(), bits=8)
            frame = framed(made, cut="output")
            answer = client.post("/v1/answer", content=frame, headers=FRAME).json()
            kept = math.exp(epsilon) / (math.exp(epsilon) + 2)
            others = sorted(answer["probabilities"].values())
            assert others == pytest.approx([(1 - kept) / 2, (1 - kept) / 2, kept], abs=1e-4)
            assert answer["label"] == LABELS[int(np.argmax(made.as_floats()))]


def test_a_retry_gets_the_same_answer_and_an_id_stands_for_one_release(
    app: Starlette, client: TestClient, manifest: Manifest
) -> None:
    frame = good(manifest, request=bytes(16))
    first = client.post("/v1/answer", content=frame, headers=FRAME)
    again = [client.post("/v1/answer", content=frame, headers=FRAME) for _ in range(5)]
    assert {one.content for one in again} == {first.content}
    assert number(app, "dpf_batch_size_count") == 1  # it was computed once
    refused(
        client.post("/v1/answer", content=good(manifest, request=bytes(16)), headers=FRAME), 409, "replayed"
    )
    assert client.post("/v1/answer", content=frame, headers=FRAME).content == first.content


def test_a_refused_frame_does_not_take_an_id(client: TestClient, manifest: Manifest) -> None:
    frame = good(manifest, request=b"x" * 16)
    silent = frame[:HEADER_BYTES] + bytes(len(frame) - HEADER_BYTES)
    refused(client.post("/v1/answer", content=silent, headers=FRAME), 422, "no_noise")
    assert client.post("/v1/answer", content=frame, headers=FRAME).status_code == 200


def test_twins_in_flight_are_computed_once(app: Starlette, manifest: Manifest) -> None:
    frame = good(manifest)

    async def ask() -> set[bytes]:
        async with over(app) as client:
            posts = [client.post("/v1/answer", content=frame, headers=FRAME) for _ in range(8)]
            return {response.content for response in await asyncio.gather(*posts)}

    assert len(asyncio.run(ask())) == 1
    assert app.state.handler.metrics.outcomes == {"ok": 1, "resent": 7}
    assert number(app, "dpf_batch_size_bucket", le="1.0") == 1


@pytest.mark.slow
def test_too_many_at_once_are_told_to_come_back(provider: ProviderSide, manifest: Manifest) -> None:
    settings = ServerSettings(queue=4, max_batch=2, max_wait_ms=20)
    app = make_app(provider, front_digest=FRONT, settings=settings)
    frames = [good(manifest) for _ in range(40)]

    async def ask(some: list[bytes]) -> list[httpx.Response]:
        async with over(app) as client:
            posts = [client.post("/v1/answer", content=frame, headers=FRAME) for frame in some]
            return await asyncio.gather(*posts)

    responses = asyncio.run(ask(frames))
    busy = [frame for frame, one in zip(frames, responses, strict=True) if one.status_code == 429]
    assert {one.status_code for one in responses} == {200, 429}
    assert all(one.headers["retry-after"] == "1" for one in responses if one.status_code == 429)
    for i in range(0, len(busy), 4):
        assert {one.status_code for one in asyncio.run(ask(busy[i : i + 4]))} == {200}


@pytest.fixture
def guarded(provider: ProviderSide) -> Iterator[TestClient]:
    app = make_app(provider, front_digest=FRONT, settings=ServerSettings(token=TOKEN))
    with TestClient(app) as made:
        yield made


def test_without_the_token_nothing_is_told(guarded: TestClient, manifest: Manifest) -> None:
    frame = good(manifest)
    for given in (None, TOKEN, f"Bearer {TOKEN}x", "é"):
        headers = {} if given is None else {"authorization": given.encode()}
        refused(guarded.get("/v1/manifest", headers=headers), 401, "token")
        refused(guarded.post("/v1/answer/", content=frame, headers={**FRAME, **headers}), 404, "not_found")
        refused(guarded.post("/v1/answer", content=frame, headers={**FRAME, **headers}), 401, "token")
    right = {"authorization": f"Bearer {TOKEN}"}
    assert guarded.get("/healthz").json() == {"status": "ok"}
    assert guarded.post("/v1/answer", content=frame, headers=FRAME | right).status_code == 200


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.4", "provider.example", "127.0.0.1.example"])
def test_off_loopback_a_token_and_tls_are_needed(host: str, tmp_path: Path) -> None:
    files = tiny_user.self_signed(tmp_path)
    tls = {"tls_cert": files[0], "tls_key": files[1]}
    for missing in ({}, {"token": TOKEN}, tls):
        with pytest.raises(InvalidInput, match="loopback"):
            ServerSettings(host=host, **missing)  # type: ignore[arg-type]
    assert ServerSettings(host=host, token=TOKEN, **tls).tls_cert is not None  # type: ignore[arg-type]


def test_settings_refuse_what_makes_no_sense_and_hide_the_token(tmp_path: Path) -> None:
    for wrong in ({"port": 70_000}, {"queue": 0}, {"token": "short"}, {"tls_cert": "a"}, {"body_seconds": 0}):
        with pytest.raises(InvalidInput):
            ServerSettings(**wrong)  # type: ignore[arg-type]
    assert TOKEN not in repr(ServerSettings(token=TOKEN))
    (tmp_path / "token").write_text(TOKEN + "\n")
    assert read_token(tmp_path / "token") == TOKEN
    with pytest.raises(InvalidInput, match="token file"):
        read_token(tmp_path / "none")
    assert ServerSettings(host="localhost").host == ServerSettings(host="::1", token=TOKEN).host.replace(
        "::1", "localhost"
    )


def test_the_metrics_count_outcomes_batches_and_times(client: TestClient, manifest: Manifest) -> None:
    frame = good(manifest)
    client.post("/v1/answer", content=frame, headers=FRAME)
    client.post("/v1/answer", content=frame, headers=FRAME)
    client.post("/v1/answer", content=b"X" + frame[1:], headers=FRAME)
    response = client.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = response.text.splitlines()
    for line in (
        'dpf_requests_total{outcome="ok"} 1.0',
        'dpf_requests_total{outcome="resent"} 1.0',
        'dpf_requests_total{outcome="magic"} 1.0',
        "dpf_batch_size_count 1.0",
        "dpf_request_seconds_count 2.0",
        'dpf_request_seconds_bucket{le="+Inf"} 2.0',
        "dpf_queue 0.0",
    ):
        assert line in lines
    names = [line.split()[2] for line in lines if line.startswith("# TYPE")]
    assert sorted(names) == [
        "dpf_batch_size",
        "dpf_classes_total",
        "dpf_queue",
        "dpf_records_total",
        "dpf_request_seconds",
        "dpf_requests_total",
    ]
    assert all(line.startswith("#") or len(line.rsplit(" ", 1)) == 2 for line in lines)


def test_metrics_are_for_the_operator(provider: ProviderSide, tmp_path: Path) -> None:
    users, operator = (
        {"authorization": f"Bearer {TOKEN}"},
        {"authorization": "Bearer the-word-of-the-operator"},
    )
    app = make_app(provider, front_digest=FRONT, settings=ServerSettings(token=TOKEN))
    local, remote = TestClient(app, client=("127.0.0.1", 1)), TestClient(app, client=("192.0.2.7", 1))
    assert local.get("/metrics").status_code == 200
    for header in ("x-forwarded-for", "forwarded", "via", "x-real-ip"):
        refused(local.get("/metrics", headers={header: "127.0.0.1"}), 403, "operator")
    refused(remote.get("/metrics", headers=users), 403, "operator")
    settings = ServerSettings(token=TOKEN, metrics_token="the-word-of-the-operator")
    app = make_app(provider, front_digest=FRONT, settings=settings)
    local, remote = TestClient(app, client=("127.0.0.1", 1)), TestClient(app, client=("192.0.2.7", 1))
    refused(local.get("/metrics", headers=users), 401, "token")
    assert remote.get("/metrics", headers=operator).status_code == 200
    with pytest.raises(InvalidInput, match="differ"):
        ServerSettings(token=TOKEN, metrics_token=TOKEN)
    collection = Collection.open_or_create(tmp_path, collect_cases.spec())
    with closing(collection), pytest.raises(InvalidInput, match="differ"):
        make_collector_app(collection, settings=settings, shuffler_token="the-word-of-the-operator")


def test_only_a_page_of_an_allowed_origin_may_read_and_under_v1_alone(provider: ProviderSide) -> None:
    settings = ServerSettings(token=TOKEN, allow_origins=("https://app.example", "http://127.0.0.1:3000"))
    asked = {"access-control-request-method": "POST", "access-control-request-headers": "authorization"}
    readable = "access-control-allow-origin"
    with TestClient(make_app(provider, front_digest=FRONT, settings=settings)) as client:
        for origin, allowed in (("https://app.example", True), ("https://app.example.evil", False)):
            told = client.options("/v1/answer", headers={"origin": origin, **asked}).headers
            assert (told.get(readable) == origin) == allowed
            found = client.get("/v1/manifest", headers={"origin": origin})
            refused(found, 401, "token")  # and its page may read why
            assert (found.headers.get(readable) == origin) == allowed
            assert "access-control-allow-credentials" not in found.headers
            assert readable not in client.get("/healthz", headers={"origin": origin}).headers
    with TestClient(make_app(provider, front_digest=FRONT, settings=ServerSettings())) as client:
        assert readable not in client.get("/v1/manifest", headers={"origin": "https://app.example"}).headers
    for wrong in ("*", "null", "https://app.example/", "app.example", "https://*.example", "https://a b"):
        with pytest.raises(InvalidInput, match="exact origin"):
            ServerSettings(allow_origins=(wrong,))


def test_a_server_is_ready_while_its_back_computes_and_alive_as_long_as_it_answers(
    app: Starlette, client: TestClient
) -> None:
    assert client.get("/readyz").json() == {"status": "ok"}
    app.state.handler.batcher.stopping = True
    time.sleep(1.1)  # it is looked at once in a second
    found = client.get("/readyz")
    assert (found.status_code, found.json()) == (503, {"status": "stopping"})
    assert client.get("/healthz").status_code == 200


@pytest.mark.slow
def test_a_fuzzed_body_is_refused_and_never_a_failure(app: Starlette, manifest: Manifest) -> None:
    """1,000 bodies: random bytes, flipped bits, cut and glued frames, in all orders."""
    random = np.random.default_rng(11)
    frame = good(manifest)

    def fuzzed(i: int) -> bytes:
        data = bytearray(frame)
        match i % 5:
            case 0:
                return random.bytes(int(random.integers(0, 2 * len(frame))))
            case 1:
                for at in random.integers(0, HEADER_BYTES, size=int(random.integers(1, 4))):
                    data[at] ^= 1 << int(random.integers(0, 8))
            case 2:
                start = int(random.integers(0, HEADER_BYTES))
                data[start : start + 8] = random.bytes(8)
                return bytes(data[: len(frame)])
            case 3:
                data[HEADER_BYTES:] = random.bytes(len(frame) - HEADER_BYTES)
            case _:
                return frame[: int(random.integers(0, len(frame)))] + random.bytes(
                    int(random.integers(0, 40))
                )
        return bytes(data)

    async def ask() -> list[int]:
        async with over(app) as client:
            return [
                (await client.post("/v1/answer", content=fuzzed(i), headers=FRAME)).status_code
                for i in range(1000)
            ]

    statuses = asyncio.run(ask())
    assert max(statuses) < 500
    assert sum(status == 200 for status in statuses) < 100  # only flips of the id or of the clock's low bits
    assert {400, 413, 422} <= set(statuses)
    assert asyncio.run(_status(app, good(manifest))) == 200


async def _status(app: Starlette, frame: bytes) -> int:
    async with over(app) as client:
        return (await client.post("/v1/answer", content=frame, headers=FRAME)).status_code


def test_a_payload_is_never_logged(
    client: TestClient, manifest: Manifest, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    frame = good(manifest, request=b"zzzzzzzzzzzzzzzz")
    client.post("/v1/answer", content=frame, headers=FRAME)
    client.post("/v1/answer", content=frame[:-1] + b"Q", headers=FRAME)
    logged = "".join(record.getMessage() for record in caplog.records if "dp_forward" in record.name)
    assert logged == ""
    assert frame[-16:].hex() not in caplog.text
    assert str(list(frame[-4:])) not in caplog.text


def test_a_back_that_cannot_answer_is_refused_at_the_start(provider: ProviderSide) -> None:
    few = replace(provider, spec=replace(provider.spec, labels=("yes", "no")))
    with pytest.raises(InvalidInput, match="2 labels"):
        make_app(few, front_digest=FRONT, settings=ServerSettings())
    bare = replace(provider, spec=replace(provider.spec, noise=None))
    with pytest.raises(InvalidInput, match="noise"):
        make_app(bare, front_digest=FRONT, settings=ServerSettings())


def test_the_manifest_that_a_server_answers_by_cannot_be_replaced(app: Starlette, manifest: Manifest) -> None:
    handler = app.state.handler
    with pytest.raises(AttributeError):
        handler.manifest = replace(manifest, epsilons=())
    assert handler.manifest.epsilons


@pytest.mark.slow
def test_answered_requests_leave_no_tasks_and_no_payloads_behind(
    app: Starlette, manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    batcher, seen, kept = app.state.handler.batcher, list[weakref.ref[Any]](), list[Any]()
    submit = batcher.submit

    def watched(values: Any) -> Any:
        seen.append(weakref.ref(values[0]))
        if len(seen) == 20:
            kept.append(values)  # the control: one that is held is seen to live
        return submit(values)

    monkeypatch.setattr(batcher, "submit", watched)
    frames = [good(manifest) for _ in range(50)]

    async def ask() -> int:
        async with over(app) as client:
            for frame in frames:
                await client.post("/v1/answer", content=frame, headers=FRAME)
        await asyncio.sleep(0.01)
        return len(asyncio.all_tasks())

    assert asyncio.run(ask()) == 1
    gc.collect()
    assert [i for i, one in enumerate(seen, 1) if one() is not None] == [20]


@pytest.mark.slow
def test_over_loopback_with_tls_and_a_token_it_answers_and_stops_in_order(
    provider: ProviderSide, manifest: Manifest, tmp_path: Path
) -> None:
    """The one test with sockets."""
    cert, key = tiny_user.self_signed(tmp_path)
    settings = ServerSettings(port=0, token=TOKEN, tls_cert=cert, tls_key=key)
    app = make_app(provider, front_digest=FRONT, settings=settings)
    said: list[str] = []
    servers: list[Any] = []
    listening = threading.Event()

    def ready(server: Any) -> None:
        servers.append(server)
        listening.set()

    thread = threading.Thread(
        target=run_server, args=(app, settings), kwargs={"say": said.append, "ready": ready}, daemon=True
    )
    thread.start()
    assert listening.wait(10)
    line = json.loads(said[0])
    assert line.keys() == {"address", "host", "port", "tls", "token"}
    assert line["address"] == f"https://127.0.0.1:{line['port']}"
    assert TOKEN not in said[0]
    trusted = ssl.create_default_context(cafile=str(cert))
    right = {"authorization": f"Bearer {TOKEN}"}
    try:
        with httpx.Client(base_url=line["address"], verify=trusted, headers=right) as client:
            assert client.post("/v1/answer", content=good(manifest), headers=FRAME).status_code == 200
            long = client.post("/v1/answer", content=bytes(1 << 20), headers=FRAME)
            refused(long, 413, "too_long")
    finally:
        servers[0].should_exit = True
        thread.join(10)
    assert not thread.is_alive()
    assert app.state.handler.batcher.stopping
