"""HTTP routes of the collector, and the intake of records that a shuffler shares with it.

    GET  /v1/collection                what is collected (`protocol.collection`)
    POST /v1/records                   1 to 256 records -> {"stored", "known"}
    POST /v1/batches/{32 hex}/records  the same into a batch, by a shuffler with a token of its own
    POST /v1/batches/{32 hex}/seal     {"records": N} -> {"sealed": true} where exactly N are stored

Every record is checked for format, spec, label and spread of its noise (`noise_check`). One bad record
refuses the whole body.

Guarantees:
    A body is stored whole or not at all, and 200 means that it is on disk. Nothing is read without the token,
    and no more than 8 MiB. All bodies on their way hold 128 MiB at most: the one that has taken longest gives
    way ("slow"). Nothing of a payload is logged, shown in a refusal or kept of a body that is refused,
    but for what `noise_check` has in memory.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from dp_forward.errors import InvalidInput
from dp_forward.service.collector.collection_store import Collection
from dp_forward.service.protocol.collection import CollectionSpec, Record, parse_record
from dp_forward.service.protocol.frame import WireError
from dp_forward.service.server import request_limits as limits
from dp_forward.service.server.metrics import Metrics
from dp_forward.service.server.noise_check import noise_check, warn_if_blind
from dp_forward.service.server.request_limits import Refused
from dp_forward.service.server.settings import ServerSettings
from dp_forward.service.server.users import Guard, Users

_AT_ONCE: Final = 16  # so many bodies are checked and stored at a time; each may take 8 MiB
_MOST_READ: Final = 128 << 20  # so many bytes of bodies that are not whole yet are held
_BATCH: Final = re.compile(r"[0-9a-f]{32}")
_SEAL_BYTES: Final = 200

T = TypeVar("T")
Store = Callable[[Request, list[Record]], tuple[int, int]]
"""Stores the checked records of a request: how many are new, and how many known."""


class RecordReader:
    """Reads the records of one spec; threads may share one."""

    def __init__(self, spec: CollectionSpec) -> None:
        self._spec, asked, release = spec, spec.manifest.offers[0], spec.manifest.release
        shape, bits = release.shape, release.bits
        self._check_noise = noise_check(asked.mechanism, shape=shape, step=asked.step, bits=bits)
        warn_if_blind([self._check_noise])

    @property
    def spec(self) -> CollectionSpec:
        """What is read."""
        return self._spec

    def body(self, data: bytes, sender: str = "") -> list[Record]:
        """All records of a body, or `Refused` with the index of the first that is none."""
        size = self.spec.record_bytes
        self.check_length(len(data))
        records = []
        for index in range(len(data) // size):
            try:
                record = parse_record(data[index * size : (index + 1) * size], labels=self.spec.label_count)
                self.spec.manifest.offer_for(record.header, refusal="This is not what is collected")
                self._check_noise(record.values, record.header.request, sender)
            except (WireError, Refused) as error:
                raise Refused(error.code, f"Record {index}: {error.message}") from None
            records.append(record)
        return records

    def check_length(self, length: int) -> None:
        """`Refused` for a length that no body can have; the same before and after it was read."""
        size, most = self.spec.record_bytes, self.spec.body_records
        if length > most * size:
            raise Refused("too_long", f"A body has at most {most} records of {size} bytes here.")
        if length < size or length % size:
            raise Refused("length", f"A body is one or more whole records of {size} bytes.")


class RecordIntake:
    """Takes bodies of records: a few at a time, each checked whole and then stored whole, in a thread."""

    def __init__(
        self, spec: CollectionSpec, settings: ServerSettings, metrics: Metrics, users: Users | None = None
    ) -> None:
        self.reader, self._users, self._metrics = RecordReader(spec), users or Users(), metrics
        self._seconds, self._reading = settings.body_seconds, limits.BodyBudget(_MOST_READ)
        self._room = asyncio.Semaphore(_AT_ONCE)

    def records_route(self, guard: Guard, store: Store, path: str = "/v1/records") -> Route:
        """`POST` of a body: every record is checked, and then ``store`` is called in a thread."""

        async def take(request: Request) -> dict[str, Any]:
            limits.check_head(request, self.reader.check_length, what="A body of records")
            most = self.reader.spec.body_records * self.reader.spec.record_bytes
            data = await limits.read_body(
                request, most, seconds=self._seconds, what="A body of records", budget=self._reading
            )
            sender = limits.sender_of(request, request.state.user)
            records = await self.in_thread(lambda: self.reader.body(data, sender))
            digests = [record.digest for record in records]
            async with self._users.counted(request.state.user, digests):  # a record counts as a request does
                stored, known = await self.in_thread(lambda: store(request, records))
            self._metrics.records["stored"] += stored
            self._metrics.records["known"] += known
            return {"stored": stored, "known": known}

        return self.post_route(path, guard, take, outcome="records")

    def post_route(
        self, path: str, guard: Guard, work: Callable[[Request], Awaitable[dict[str, Any]]], *, outcome: str
    ) -> Route:
        """`POST` that answers with what ``work`` gives, as JSON; every outcome is counted, once."""

        async def post(request: Request) -> Response:
            try:
                request.state.user = guard(request)
                self._check_room()
                found = await work(request)
            except Refused as refused:  # nothing more is read from this client
                self._metrics.outcomes[refused.code] += 1
                return limits.refusal(refused, close=True)
            self._metrics.outcomes[outcome] += 1
            return JSONResponse(found)

        return Route(path, post, methods=["POST"])

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Do what a whole body asks for: a place is taken by work alone, never by a client that is slow."""
        self._check_room()
        async with self._room:
            return await asyncio.to_thread(work)

    def _check_room(self) -> None:
        if self._room.locked():
            raise limits.busy("Too many bodies at a time.")


def collector_routes(
    collection: Collection,
    settings: ServerSettings,
    *,
    metrics: Metrics,
    shuffler_token: str | None = None,
    users: Users | None = None,
) -> list[Route]:
    """Routes that collect from users, or with a ``shuffler_token`` from their shuffler alone.

    Edges:
        A shuffler's token must not be the users': whoever has it says which records hide each other.
        Where a shuffler is expected, records that come past it are refused: one of them in a corpus would
        take the central promise from all others.
    """
    intake = RecordIntake(collection.spec, settings, metrics, users)
    guard = Guard(settings.token, users=users)
    if shuffler_token is None:
        store = intake.records_route(guard, lambda request, records: collection.add(records))
        return [limits.json_route("/v1/collection", collection.spec.as_dict(), guard), store]
    ServerSettings(token=shuffler_token)  # refuses a word that is easy to guess
    if shuffler_token in (settings.token, settings.metrics_token):
        rule = "differ from the users' token and the operator's"
        raise InvalidInput("shuffler_token", rule, "the same", "Draw another.")
    shuffler, either = Guard(shuffler_token), Guard(settings.token, shuffler_token, users=users)

    async def refuse(request: Request) -> dict[str, Any]:
        raise Refused("shuffler", "Records come through the shuffler here. Send them to its address.")

    def add(request: Request, records: list[Record]) -> tuple[int, int]:
        return collection.add(records, _batch(request))

    async def seal(request: Request) -> dict[str, Any]:
        limits.check_head(request, _check_seal_length, what="A seal", kind="application/json")
        data = await limits.read_body(request, _SEAL_BYTES, seconds=settings.body_seconds, what="A seal")
        records = (limits.parse_object(data, {"records"}) or {}).get("records")
        if type(records) is not int or not 1 <= records < 1 << 40:
            raise Refused("seal", 'A seal is {"records": N}, with N of 1 or more.')
        await intake.in_thread(lambda: collection.seal(_batch(request), records))
        return {"sealed": True}

    return [
        limits.json_route("/v1/collection", collection.spec.as_dict(), either),
        intake.post_route("/v1/records", guard, refuse, outcome="shuffler"),
        intake.records_route(shuffler, add, "/v1/batches/{batch}/records"),
        intake.post_route("/v1/batches/{batch}/seal", shuffler, seal, outcome="sealed"),
    ]


def _batch(request: Request) -> bytes:
    name = request.path_params["batch"]
    if _BATCH.fullmatch(name) is None:
        raise Refused("batch_id", "The id of a batch is 32 hex digits in lower case.")
    return bytes.fromhex(name)


def _check_seal_length(length: int) -> None:
    if length > _SEAL_BYTES:
        raise Refused("too_long", f"A seal has at most {_SEAL_BYTES} bytes.")
