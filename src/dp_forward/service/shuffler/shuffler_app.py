"""The shuffler towards users: the same records as a collector takes, under the same rules.

    GET  /v1/collection   what is collected, with "shuffler": {"least": N}
    POST /v1/records      1 to 256 records, one after another -> {"stored": k, "known": j}
    GET  /healthz         200 while it runs; needs no token
    GET  /metrics         counters as Prometheus text: how many wait, are on their way, have been sealed

Guarantees:
    An answer of 200 means that the records are on disk. Nothing about a sender is written or logged: no
    address, no time, no id. No more of a body is read than a body may have, nor for longer than
    ``body_seconds``. Off loopback nobody is answered without the token, and all of it is TLS.
Edges:
    Whoever has the token can ask how many records wait, and so watch them come one by one. That tells when
    somebody sent something, as watching the network does, and nothing about which record it was.
    When it stops, requests are finished and records that wait stay in the store.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator
from typing import Any

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException

from dp_forward.errors import DpForwardError, InvalidInput
from dp_forward.privacy.checks import count
from dp_forward.service.collector.record_reader import RecordReader
from dp_forward.service.collector.routes import Desk, add_collection_page
from dp_forward.service.protocol.collection_spec import CollectionSpec
from dp_forward.service.protocol.manifest import Manifest
from dp_forward.service.protocol.record import Record
from dp_forward.service.server.metrics import CONTENT_TYPE, Metrics, _block
from dp_forward.service.server.refusals import Refused
from dp_forward.service.server.request_limits import Guard, refusal
from dp_forward.service.server.settings import ServerSettings
from dp_forward.service.shuffler.forwarding import Forwarder
from dp_forward.service.shuffler.shuffler_store import ShufflerStore

__all__ = ["Shuffling", "make_shuffler_app"]

_log = logging.getLogger("dp_forward.service")


class Shuffling:
    """What a shuffler does with checked records, and what it counts."""

    def __init__(
        self, store: ShufflerStore, forwarder: Forwarder, form: CollectionSpec, *, most: int
    ) -> None:
        self._form = form.with_shuffler(store.least)
        if count("most", most, remedy="Leave it out for the default.") < store.least:
            raise InvalidInput("most", f"be at least the {store.least} of a batch", most, "Raise it.")
        self.metrics = Metrics()
        self._store, self._forwarder, self._most = store, forwarder, most

    @property
    def form(self) -> CollectionSpec:
        """What users are told."""
        return self._form

    @property
    def manifest(self) -> Manifest:
        """What a release looks like."""
        return self.form.manifest

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

    def render(self) -> str:
        """The page of counters."""
        batch, sent = self._store.batch, self._forwarder
        named: tuple[tuple[str, str, Any], ...] = (
            ("dpf_requests_total", "Bodies by outcome.", self.metrics.outcomes),
            ("dpf_records_total", "Records by outcome.", self.metrics.records),
        )
        numbers = (
            ("waiting", "gauge", "Records that wait for a batch.", self._store.waiting),
            (
                "on_its_way",
                "gauge",
                "Records of the batch being sent.",
                0 if batch is None else batch.records,
            ),
            ("batches_total", "counter", "Batches sealed since the start.", sent.batches),
            ("records_total", "counter", "Records in these batches.", sent.records),
            ("failures_total", "counter", "Rounds of sending that failed.", sent.failures),
        )
        blocks = [
            _block(name, "counter", what, [f'{name}{{outcome="{c}"}} {n}' for c, n in sorted(counts.items())])
            for name, what, counts in named
        ]
        blocks += [
            _block(f"dpf_shuffle_{name}", kind, what, [f"dpf_shuffle_{name} {value}"])
            for name, kind, what, value in numbers
        ]
        return "".join(blocks)


def make_shuffler_app(
    store: ShufflerStore,
    forwarder: Forwarder,
    form: CollectionSpec,
    *,
    settings: ServerSettings,
    most: int,
) -> FastAPI:
    """The server of a shuffler for a collector's ``form``; it starts the forwarder, and stops it.

    Edges:
        Its `Shuffling` is in ``app.state.shuffling``.
    """
    shuffling = Shuffling(store, forwarder, form, most=most)

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        forwarder.start()
        yield
        await asyncio.to_thread(forwarder.stop, settings.shutdown_seconds)

    app = FastAPI(title="dp-forward", docs_url=None, redoc_url=None, openapi_url=None, lifespan=lifespan)
    app.state.shuffling, app.state.frame_bytes = shuffling, form.manifest.frame_bytes
    guard = Guard(settings.token)
    add_collection_page(app, shuffling.form, guard)
    _add_pages(app, shuffling, guard)
    _add_refusals(app, shuffling.metrics)
    reader = RecordReader(shuffling.form)
    if not reader.tells:
        _log.warning("so few numbers cross that a record without noise may not be noticed")
    desk = Desk(reader, settings, shuffling.metrics)

    @app.post("/v1/records")
    async def _records(request: Request) -> Response:
        return await desk.take(request, guard, shuffling.take)

    return app


def _add_pages(app: FastAPI, shuffling: Shuffling, guard: Guard) -> None:
    @app.get("/healthz")
    async def _health() -> Response:
        return Response(json.dumps({"status": "ok"}), media_type="application/json")

    @app.get("/metrics")
    async def _metrics(request: Request) -> Response:
        guard(request)
        return Response(shuffling.render(), headers={"content-type": CONTENT_TYPE})


def _add_refusals(app: FastAPI, metrics: Metrics) -> None:
    """Whatever is refused elsewhere looks the same."""
    words = {404: "not_found", 405: "method"}

    @app.exception_handler(Refused)
    async def _refused(request: Request, error: Refused) -> Response:
        metrics.outcomes[error.code] += 1
        return refusal(error)

    @app.exception_handler(HTTPException)
    async def _http(request: Request, error: HTTPException) -> Response:
        code = words.get(error.status_code, "request")
        metrics.outcomes[code] += 1
        body = json.dumps({"error": code, "message": "There is nothing here."})
        return Response(body, error.status_code, media_type="application/json")

    @app.exception_handler(Exception)
    async def _failed(request: Request, error: Exception) -> Response:
        metrics.outcomes["internal"] += 1
        return refusal(Refused("internal", "The shuffler failed on this request."))
