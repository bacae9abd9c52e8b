"""A tiny front with its back, a collection for it, and honest records: shared by the tests of `collect`."""

from __future__ import annotations

import secrets
from functools import cache
from typing import Any

import numpy as np

from corpus import release_cases
from dp_forward.noise import release
from dp_forward.privacy import RandomizedResponse
from dp_forward.service.collector.collection_store import Collection, counts
from dp_forward.service.collector.collector_routes import RecordReader
from dp_forward.service.protocol.collection import CollectionSpec, pack_record
from dp_forward.service.protocol.frame import frame_of
from dp_forward.service.protocol.manifest import Manifest
from dp_forward.split.artifacts import ProviderSide

FRONT = "aa" * 32
CUT = "encoder.1"
RANDOMIZED = RandomizedResponse(1.0, release_cases.LABELS)


@cache
def provider() -> ProviderSide:
    return ProviderSide(release_cases.pair(CUT).back, release_cases.user(CUT).spec, "cd" * 32)


@cache
def manifest() -> Manifest:
    return Manifest.of(provider(), FRONT, epsilons=())


def spec(labels: Any = "public", **changes: Any) -> CollectionSpec:
    return CollectionSpec.of(manifest(), labels, **changes)


@cache
def reader() -> RecordReader:
    return RecordReader(spec())


def record(number: int = 0, *, label: int | None = 1, request: bytes | None = None, time: int = 0) -> bytes:
    """An honest record; a new one every time, for its noise is."""
    wanted = manifest()
    hidden = np.random.default_rng(number).normal(size=wanted.release.shape)
    made = release(hidden, wanted.mechanism(), bits=wanted.release.bits)
    frame = frame_of(made, cut=CUT, front=FRONT, request=request or secrets.token_bytes(16), time=time)
    if time:
        return frame + (label or 0).to_bytes(4, "little")
    return pack_record(frame, label)


def parsed(data: bytes) -> Any:
    return reader().body(data)[0]


def stored(collection: Collection) -> list[tuple[Any, ...]]:
    """Every row, as it lies on disk."""
    with collection.snapshot() as moment:
        query = "SELECT request, digest, label, noisy, batch FROM records ORDER BY request"
        return moment.execute(query).fetchall()


def summary(collection: Collection) -> dict[str, int]:
    with collection.snapshot() as moment:
        return counts(moment)
