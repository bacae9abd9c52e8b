"""Bodies of records over HTTP, for collectors and shufflers alike.

Guarantees:
    A body is stored whole or not at all, and 200 means that it is on disk. Nothing is read without the token,
    no more than 8 MiB, and few bodies at a time. Nothing of a payload is logged, shown in a refusal or kept
    of a body that is refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from dp_forward.service.collector.record_reader import RecordReader
from dp_forward.service.protocol.collection_spec import CollectionSpec
from dp_forward.service.protocol.record import Record
from dp_forward.service.server.metrics import Metrics
from dp_forward.service.server.refusals import Refused
from dp_forward.service.server.request_limits import Guard, check_head, json_response, read_body, refusal
from dp_forward.service.server.settings import ServerSettings

__all__ = ["RecordIntake", "collection_route"]

_AT_ONCE: Final = 16
"""So many bodies are read and stored at a time; each may take 8 MiB."""
_RETRY_SECONDS: Final = 1

Store = Callable[[list[Record]], tuple[int, int]]
"""Stores checked records: how many are new, and how many known."""


def collection_route(form: CollectionSpec, guard: Guard) -> Route:
    """`GET /v1/collection`: what is collected."""
    page = form.as_dict()

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
            most = self._reader.form.body_records * self._reader.form.record_bytes
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
