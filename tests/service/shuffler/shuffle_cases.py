"""Records of tiny releases, a collector for them, and servers on loopback: shared by the shuffler's tests."""

from __future__ import annotations

import contextlib
import json
import secrets
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import uvicorn
from starlette.applications import Starlette

from dp_forward.corpus.corpus_spec import Labels
from dp_forward.noise import release_batch
from dp_forward.privacy import NoiseSpec
from dp_forward.release_spec import ReleaseSpec
from dp_forward.service.collector.collection_store import Collection
from dp_forward.service.collector.collector_routes import RecordReader
from dp_forward.service.protocol.collection import CollectionSpec, Record, pack_record
from dp_forward.service.protocol.frame import HEADER_BYTES, Header, frame_of
from dp_forward.service.protocol.manifest import Manifest
from dp_forward.service.server.app import make_app
from dp_forward.service.server.settings import ServerSettings
from dp_forward.service.server.uvicorn_runner import run_server
from dp_forward.split import split_model
from dp_forward.split.artifacts import ProviderSide
from tiny_models import tiny

ROWS, WIDTH, LABELS = 9, 32, ("bad", "so so", "good")
FRONT, CUT = "ab" * 32, "encoder.2"
NOISE = NoiseSpec(epsilon=8.0)
TOKEN = "a-word-for-the-shuffler-alone"
OCTETS = {"content-type": "application/octet-stream"}


@cache
def manifest() -> Manifest:
    spec = ReleaseSpec(noise=NOISE, cut=CUT, front=FRONT, labels=LABELS, rows=ROWS, width=WIDTH, bits=8)
    return Manifest(release=spec)


@cache
def spec(labels: Labels = "public") -> CollectionSpec:
    return CollectionSpec.of(manifest(), labels)


def made(count: int, *, seed: int = 0, ids: list[bytes] | None = None) -> list[bytes]:
    """Honest records, with random ids and labels."""
    rng = np.random.default_rng(seed)
    hidden = rng.normal(size=(count, ROWS, WIDTH))
    chosen = ids or [secrets.token_bytes(16) for _ in range(count)]
    frames = [
        frame_of(one, cut=CUT, front=FRONT, request=request, time=0)
        for one, request in zip(release_batch(hidden, manifest().mechanism(), bits=8), chosen, strict=True)
    ]
    return [pack_record(frame, int(rng.integers(len(LABELS)))) for frame in frames]


@cache
def reader() -> RecordReader:
    return RecordReader(spec())


def read(records: list[bytes]) -> list[Record]:
    return reader().body(b"".join(records))


def content(record: bytes) -> bytes:
    """Integers and label, without the header."""
    return record[HEADER_BYTES:]


def changed(record: bytes, **fields: Any) -> bytes:
    return replace(Header.unpack(record[:HEADER_BYTES]), **fields).pack() + record[HEADER_BYTES:]


@cache
def provider() -> ProviderSide:
    back = split_model(tiny("bert"), CUT)[1]
    return ProviderSide(back, ReleaseSpec.of(back, noise=NOISE, rows=ROWS, labels=LABELS), "cd" * 32)


def collector_app(folder: Path, settings: ServerSettings) -> Starlette:
    """The provider's real server, collecting."""
    collection = Collection.open_or_create(folder, spec())
    return make_app(
        provider(), front_digest=FRONT, settings=settings, collection=collection, shuffler_token=TOKEN
    )


@contextlib.contextmanager
def running(app: Starlette, settings: ServerSettings) -> Iterator[str]:
    """The app on loopback, in a thread; its address."""
    said: list[str] = []
    up = threading.Event()
    servers: list[uvicorn.Server] = []

    def ready(server: uvicorn.Server) -> None:
        servers.append(server)
        up.set()

    thread = threading.Thread(
        target=run_server, args=(app, settings), kwargs={"say": said.append, "ready": ready}, daemon=True
    )
    thread.start()
    assert up.wait(20)
    try:
        yield json.loads(said[0])["address"]
    finally:
        servers[0].should_exit = True
        thread.join(20)
        assert not thread.is_alive()


def stored(folder: Path) -> list[tuple[bytes, bytes, bytes | None]]:
    """Id, integers and label, and batch of every record at a collector."""
    with Collection.open(folder) as collection, collection.snapshot() as connection:
        rows = connection.execute("SELECT request, noisy, label, batch FROM records").fetchall()
    return [(request, noisy + label.to_bytes(4, "little"), batch) for request, noisy, label, batch in rows]
