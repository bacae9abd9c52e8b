"""HTTP routes of the collector.

    GET  /v1/collection                what is collected (`protocol.collection`)
    POST /v1/records                   1 to 256 records -> {"stored", "known"}
    POST /v1/batches/{32 hex}/records  the same into a batch, by a shuffler with a token of its own
    POST /v1/batches/{32 hex}/seal     {"records": N} -> {"sealed": true} where exactly N are stored

A body is taken as in `record_intake`. The same bytes again are known, so a retry is free.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from dp_forward.errors import InvalidInput
from dp_forward.service.collector.collection_store import Collection
from dp_forward.service.collector.record_intake import RecordIntake, RecordReader, collection_route
from dp_forward.service.server.metrics import Metrics
from dp_forward.service.server.request_limits import Guard, Refused, check_head, read_body
from dp_forward.service.server.settings import ServerSettings

__all__ = ["collector_routes"]

_BATCH: Final = re.compile(r"[0-9a-f]{32}")
_SEAL_BYTES: Final = 200

Endpoint = Callable[[Request], Awaitable[Response]]


def collector_routes(
    collection: Collection,
    settings: ServerSettings,
    *,
    metrics: Metrics,
    shuffler_token: str | None = None,
) -> list[Route]:
    """Routes that collect from users, or with a ``shuffler_token`` from their shuffler alone.

    Edges:
        A shuffler's token must not be the users': whoever has it says which records hide each other.
        Where a shuffler is expected, records that come past it are refused: one of them in a corpus would
        take the central promise from all others.
    """
    intake = RecordIntake(RecordReader(collection.spec), settings, metrics)
    users = Guard(settings.token)
    if shuffler_token is None:

        async def records(request: Request) -> Response:
            return await intake.take(request, users, collection.add)

        return [collection_route(collection.spec, users), _post("/v1/records", records)]

    ServerSettings(token=shuffler_token)  # refuses a word that is easy to guess
    if shuffler_token == settings.token:
        raise InvalidInput("shuffler_token", "differ from the users' token", "the same", "Draw another.")
    return [
        collection_route(collection.spec, Guard(settings.token, shuffler_token)),
        _post("/v1/records", _past_the_shuffler(intake, users)),
        *_batch_routes(collection, intake, Guard(shuffler_token), settings.body_seconds),
    ]


def _post(path: str, endpoint: Endpoint) -> Route:
    return Route(path, endpoint, methods=["POST"])


def _past_the_shuffler(intake: RecordIntake, guard: Guard) -> Endpoint:
    async def refuse() -> dict[str, Any]:
        raise Refused("shuffler", "Records come through the shuffler here. Send them to its address.")

    async def records(request: Request) -> Response:
        return await intake.answer(request, guard, refuse, outcome="shuffler")

    return records


def _batch_routes(
    collection: Collection, intake: RecordIntake, guard: Guard, body_seconds: float
) -> list[Route]:
    async def records(request: Request) -> Response:
        return await intake.take(request, guard, lambda found: collection.add(found, _batch(request)))

    async def seal(request: Request) -> Response:
        async def work() -> dict[str, Any]:
            check_head(request, _check_seal_length, what="A seal", kind="application/json")
            data = await read_body(request, _SEAL_BYTES, seconds=body_seconds, what="A seal")
            await asyncio.to_thread(collection.seal, _batch(request), _sealed_with(data))
            return {"sealed": True}

        return await intake.answer(request, guard, work, outcome="sealed")

    return [_post("/v1/batches/{batch}/records", records), _post("/v1/batches/{batch}/seal", seal)]


def _batch(request: Request) -> bytes:
    name = request.path_params["batch"]
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
