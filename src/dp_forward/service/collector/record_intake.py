"""Intake of records, for collectors and shufflers alike: bodies over HTTP, each record checked.

Every record is checked for its format, its spec, its label and the spread of its noise. One bad record
refuses the whole body.

Guarantees:
    A body is stored whole or not at all, and 200 means that it is on disk. Nothing is read without the token,
    no more than 8 MiB, and few bodies at a time. Nothing of a payload is logged, shown in a refusal or kept
    of a body that is refused.
Edges:
    A client that forgot its noise is refused, as far as the spread of so few numbers can tell
    (`check_noise`). A client that lies harms nobody but himself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from dp_forward.service.protocol.collection import CollectionSpec, Record, parse_record
from dp_forward.service.protocol.frame import WireError
from dp_forward.service.server.metrics import Metrics
from dp_forward.service.server.noise_check import NoiseCheck
from dp_forward.service.server.request_limits import (
    Guard,
    Refused,
    check_head,
    json_response,
    read_body,
    refusal,
)
from dp_forward.service.server.settings import ServerSettings

__all__ = ["RecordIntake", "RecordReader", "collection_route"]

_AT_ONCE: Final = 16
"""So many bodies are read and stored at a time; each may take 8 MiB."""
_RETRY_SECONDS: Final = 1

Store = Callable[[list[Record]], tuple[int, int]]
"""Stores checked records: how many are new, and how many known."""


class RecordReader:
    """Reads the records of one spec; threads may share one."""

    def __init__(self, spec: CollectionSpec) -> None:
        self._spec = spec
        manifest = spec.manifest
        self._check_noise = NoiseCheck.of(
            manifest.mechanism(), shape=manifest.release.shape, step=manifest.step, bits=manifest.release.bits
        )

    @property
    def spec(self) -> CollectionSpec:
        """What is read."""
        return self._spec

    @property
    def tells(self) -> bool:
        """Whether a record without noise is always noticed."""
        return self._check_noise.tells

    def one(self, data: bytes) -> Record:
        """One record, or `WireError` (its bytes) or `Refused` (its noise)."""
        if len(data) != self.spec.record_bytes:
            raise WireError("length", f"A record has {self.spec.record_bytes} bytes here, not {len(data)}")
        record = parse_record(data, labels=self.spec.label_count)
        self.spec.manifest.offer_for(record.header, refusal="This is not what is collected")
        self._check_noise(record.values)
        return record

    def body(self, data: bytes) -> list[Record]:
        """All records of a body, or `Refused` with the index of the first that is none."""
        size = self.spec.record_bytes
        self.check_length(len(data))
        records = []
        for index in range(len(data) // size):
            try:
                records.append(self.one(data[index * size : (index + 1) * size]))
            except (WireError, Refused) as error:
                raise Refused(error.code, f"Record {index}: {error.message}") from None
        return records

    def check_length(self, length: int) -> None:
        """`Refused` for a length that no body can have; the same before and after it was read."""
        size, most = self.spec.record_bytes, self.spec.body_records
        if length > most * size:
            raise Refused("too_long", f"A body has at most {most} records of {size} bytes here.")
        if length < size or length % size:
            raise Refused("length", f"A body is one or more whole records of {size} bytes.")


def collection_route(spec: CollectionSpec, guard: Guard) -> Route:
    """`GET /v1/collection`: what is collected."""
    page = spec.as_dict()

    async def get(request: Request) -> Response:
        guard(request)
        return json_response(page)

    return Route("/v1/collection", get)


class RecordIntake:
    """Takes bodies of records: a few at a time, each checked whole and then stored whole, in a thread."""

    def __init__(self, reader: RecordReader, settings: ServerSettings, metrics: Metrics) -> None:
        self._reader, self._seconds, self._metrics = reader, settings.body_seconds, metrics
        self._room = _AT_ONCE

    async def take(self, request: Request, guard: Guard, store: Store) -> Response:
        """Read the body, check every record, store them by ``store``, which runs in a thread."""

        async def work() -> dict[str, Any]:
            check_head(request, self._reader.check_length, what="A body of records")
            most = self._reader.spec.body_records * self._reader.spec.record_bytes
            data = await read_body(request, most, seconds=self._seconds, what="A body of records")
            stored, known = await asyncio.to_thread(lambda: store(self._reader.body(data)))
            self._metrics.records["stored"] += stored
            self._metrics.records["known"] += known
            return {"stored": stored, "known": known}

        return await self.answer(request, guard, work, outcome="records")

    async def answer(
        self, request: Request, guard: Guard, work: Callable[[], Awaitable[dict[str, Any]]], *, outcome: str
    ) -> Response:
        """What ``work`` gives, as JSON; every outcome is counted, once."""
        try:
            guard(request)
            if self._room == 0:
                raise Refused("busy", "Too many bodies at a time.", retry_after=_RETRY_SECONDS)
            self._room -= 1
            try:
                found = await work()
            finally:
                self._room += 1
        except Refused as refused:
            # Nothing more is read from a client that was refused, so its connection is of no use.
            self._metrics.outcomes[refused.code] += 1
            return refusal(refused, close=True)
        self._metrics.outcomes[outcome] += 1
        return json_response(found)
