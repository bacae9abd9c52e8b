"""HTTP server of the shuffler towards users: takes records as a collector does, under the same rules.

    GET  /v1/collection   what is collected, with "shuffler": {"least": N}
    POST /v1/records      1 to 256 records, one after another -> {"stored": k, "known": j}
    GET  /healthz         200 while it runs; needs no token
    GET  /metrics         counters as Prometheus text: how many wait, are being sent, have been sealed

Guarantees:
    An answer of 200 means that the records are on disk. Nothing about a sender is written or logged: no
    address, no time, no id. Bodies are taken as in `record_intake`. Off loopback nobody is answered without
    the token, and all of it is TLS.
Edges:
    Whoever has the token can ask how many records wait, and so watch them come one by one. That tells when
    somebody sent something, as watching the network does, and nothing about which record it was.
    When it stops, requests are finished and records that wait stay in the store.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from dp_forward.errors import DpForwardError, InvalidInput
from dp_forward.privacy.checks import count
from dp_forward.service.collector.record_intake import RecordIntake, RecordReader, collection_route
from dp_forward.service.protocol.collection import CollectionSpec, Record
from dp_forward.service.server.metrics import CONTENT_TYPE, Metrics
from dp_forward.service.server.request_limits import Guard, Refused, error_handlers, json_response
from dp_forward.service.server.settings import ServerSettings
from dp_forward.service.shuffler.forwarding import Forwarder
from dp_forward.service.shuffler.shuffler_store import ShufflerStore

__all__ = ["Shuffler", "make_shuffler_app"]

_log = logging.getLogger("dp_forward.service")


class Shuffler:
    """What a shuffler does with checked records, and what it counts."""

    def __init__(
        self, store: ShufflerStore, forwarder: Forwarder, spec: CollectionSpec, *, most: int
    ) -> None:
        self._spec = spec.with_shuffler(store.least)
        if count("most", most, remedy="Leave it out for the default.") < store.least:
            raise InvalidInput("most", f"be at least the {store.least} of a batch", most, "Raise it.")
        self.metrics = Metrics()
        self._store, self._forwarder, self._most = store, forwarder, most
        self._count()

    @property
    def spec(self) -> CollectionSpec:
        """What users are told."""
        return self._spec

    def take(self, records: list[Record]) -> tuple[int, int]:
        """Store records: how many are new, and how many known; or `Refused`."""
        try:
            found = self._store.add(records, most=self._most)
        except Refused:
            raise
        except DpForwardError:
            message = "The shuffler cannot write; nothing of this body was stored."
            raise Refused("disk", message, retry_after=30) from None
        self._forwarder.wake()
        return found

    def _count(self) -> None:
        """Add the shuffler's own numbers to the page of counters."""
        store, sent, add = self._store, self._forwarder, self.metrics
        add.add_gauge("dpf_shuffle_waiting", "Records that wait for a batch.", lambda: store.waiting)
        add.add_gauge("dpf_shuffle_on_its_way", "Records of the batch being sent.", lambda: store.outgoing)
        add.add_counter("dpf_shuffle_batches", "Batches sealed since the start.", lambda: sent.batches)
        add.add_counter("dpf_shuffle_records", "Records in these batches.", lambda: sent.records)
        add.add_counter("dpf_shuffle_failures", "Rounds of sending that failed.", lambda: sent.failures)


def make_shuffler_app(
    store: ShufflerStore,
    forwarder: Forwarder,
    spec: CollectionSpec,
    *,
    settings: ServerSettings,
    most: int,
) -> Starlette:
    """Make the server of a shuffler for a collector's ``spec``; it starts the forwarder, and stops it.

    Edges:
        Its `Shuffler` is in ``app.state.shuffler``.
    """
    shuffler = Shuffler(store, forwarder, spec, most=most)
    guard, reader = Guard(settings.token), RecordReader(shuffler.spec)
    if not reader.tells:
        _log.warning("so few numbers cross that a record without noise may not be noticed")
    intake = RecordIntake(reader, settings, shuffler.metrics)

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        forwarder.start()
        yield
        await asyncio.to_thread(forwarder.stop, settings.shutdown_seconds)

    async def records(request: Request) -> Response:
        return await intake.take(request, guard, shuffler.take)

    async def health(request: Request) -> Response:
        return json_response({"status": "ok"})

    async def metrics(request: Request) -> Response:
        guard(request)
        return Response(shuffler.metrics.render(), headers={"content-type": CONTENT_TYPE})

    app = Starlette(
        routes=[
            collection_route(shuffler.spec, guard),
            Route("/v1/records", records, methods=["POST"]),
            Route("/healthz", health),
            Route("/metrics", metrics),
        ],
        exception_handlers=error_handlers(shuffler.metrics.outcomes, who="shuffler"),
        lifespan=lifespan,
    )
    app.state.shuffler = shuffler
    return app
