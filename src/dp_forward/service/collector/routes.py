"""The collector's pages: what is wanted, and where records and whole batches are posted.

    GET  /v1/collection                what is collected (`form`)
    POST /v1/records                   1 to 256 records -> {"stored", "known"}
    POST /v1/batches/{32 hex}/records  the same into a batch, by a shuffler with a token of its own
    POST /v1/batches/{32 hex}/seal     {"records": N} -> {"sealed": true} where exactly N are stored

Guarantees:
    A body is stored whole or not at all, and 200 means that it is on disk. The same bytes again are known, so
    a retry is free. Nothing is read without the token, no more than 8 MiB, and few bodies at a time. Nothing
    of a payload is logged, shown in a refusal or kept of a body that is refused.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from typing import Any, Final

from fastapi import FastAPI, Request, Response

from dp_forward.errors import InvalidInput
from dp_forward.service.collector.collection_store import Collection
from dp_forward.service.collector.record_reader import RecordReader
from dp_forward.service.protocol.collection_spec import CollectionSpec
from dp_forward.service.protocol.record import Record
from dp_forward.service.server.metrics import Metrics
from dp_forward.service.server.refusals import Refused
from dp_forward.service.server.request_limits import Guard, check_head, read_body, refusal
from dp_forward.service.server.settings import ServerSettings

__all__ = ["Desk", "add_collecting", "add_collection_page"]

_BATCH: Final = re.compile(r"[0-9a-f]{32}")
_AT_ONCE: Final = 16
"""So many bodies are read and stored at a time; each may take 8 MiB."""
_BUSY_SECONDS: Final = 1
_SEAL_BYTES: Final = 200
_JSON: Final = "application/json"


def add_collecting(
    app: FastAPI,
    collection: Collection,
    guard: Guard,
    settings: ServerSettings,
    *,
    metrics: Metrics,
    shuffler_token: str | None = None,
) -> None:
    """Collect on this server: from users, or with a ``shuffler_token`` from their shuffler alone.

    Edges:
        A shuffler's token must not be the users': whoever has it says which records hide each other.
        Where a shuffler is expected, records that come past it are refused: one of them in a corpus would
        take the central promise from all others.
    """
    if shuffler_token is not None:
        ServerSettings(token=shuffler_token)  # refuses a word that is easy to guess
        if shuffler_token == settings.token:
            raise InvalidInput("shuffler_token", "differ from the users' token", "the same", "Draw another.")
    desk = Desk(RecordReader(collection.form), settings, metrics)
    others = () if shuffler_token is None else (shuffler_token,)
    add_collection_page(app, collection.form, Guard(settings.token, *others))

    if shuffler_token is None:

        @app.post("/v1/records")
        async def _records(request: Request) -> Response:
            return await desk.take(request, guard, collection.add)

        return

    @app.post("/v1/records")
    async def _past_the_shuffler(request: Request) -> Response:
        async def refused() -> dict[str, Any]:
            raise Refused("shuffler", "Records come through the shuffler here. Send them to its address.")

        return await desk.answer(request, guard, refused, outcome="shuffler")

    shuffler = Guard(shuffler_token)

    @app.post("/v1/batches/{batch}/records")
    async def _batch_records(request: Request, batch: str) -> Response:
        def store(records: list[Record]) -> tuple[int, int]:
            return collection.add(records, _batch(batch))

        return await desk.take(request, shuffler, store)

    @app.post("/v1/batches/{batch}/seal")
    async def _seal(request: Request, batch: str) -> Response:
        async def seal() -> dict[str, Any]:
            check_head(request, _check_seal_length, what="A seal", kind=_JSON)
            data = await read_body(request, _SEAL_BYTES, seconds=settings.body_seconds, what="A seal")
            await asyncio.to_thread(collection.seal, _batch(batch), _sealed_with(data))
            return {"sealed": True}

        return await desk.answer(request, shuffler, seal, outcome="sealed")


def add_collection_page(app: FastAPI, form: CollectionSpec, guard: Guard) -> None:
    """`GET /v1/collection`."""
    page = json.dumps(form.as_dict()).encode()

    @app.get("/v1/collection")
    async def _collection(request: Request) -> Response:
        guard(request)
        return Response(page, media_type=_JSON)


class Desk:
    """Takes bodies of records: a few at a time, each checked whole and then stored whole, in a thread."""

    def __init__(self, reader: RecordReader, settings: ServerSettings, metrics: Metrics) -> None:
        self._reader, self._seconds, self._metrics = reader, settings.body_seconds, metrics
        self._room = _AT_ONCE

    async def take(
        self, request: Request, guard: Guard, store: Callable[[list[Record]], tuple[int, int]]
    ) -> Response:
        """Read the body, check every record, store them by ``store``, which runs in a thread."""

        async def taken() -> dict[str, Any]:
            check_head(request, self._reader.check_length, what="A body of records")
            most = self._reader.form.body_records * self._reader.form.record_bytes
            data = await read_body(request, most, seconds=self._seconds, what="A body of records")
            stored, known = await asyncio.to_thread(lambda: store(self._reader.body(data)))
            self._metrics.records["stored"] += stored
            self._metrics.records["known"] += known
            return {"stored": stored, "known": known}

        return await self.answer(request, guard, taken, outcome="records")

    async def answer(
        self, request: Request, guard: Guard, work: Callable[[], Awaitable[dict[str, Any]]], *, outcome: str
    ) -> Response:
        """What ``work`` gives, as JSON; every outcome is counted, once."""
        try:
            guard(request)
            if self._room == 0:
                raise Refused("busy", "Too many bodies at a time.", retry_after=_BUSY_SECONDS)
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
        return Response(json.dumps(found), media_type=_JSON)


def _batch(name: str) -> bytes:
    if _BATCH.fullmatch(name) is None:
        raise Refused("batch_id", "The id of a batch is 32 hex digits in lower case.")
    return bytes.fromhex(name)


def _check_seal_length(length: int) -> None:
    if length > _SEAL_BYTES:
        raise Refused("too_long", f"A seal has at most {_SEAL_BYTES} bytes.")


def _sealed_with(data: bytes) -> int:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        found = None
    known = isinstance(found, dict) and found.keys() == {"records"}
    records = found["records"] if known else None
    if type(records) is not int or not 1 <= records < 1 << 40:
        raise Refused("seal", 'A seal is {"records": N}, with N of 1 or more.')
    return records
