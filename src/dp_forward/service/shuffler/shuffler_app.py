"""HTTP server of the shuffler towards users: takes records as a collector does, under the same rules.

    GET  /v1/collection, POST /v1/records   as in `collector_routes`, with "shuffler": {"least": N}
    GET  /healthz, /metrics                 as in `app`; how many wait, are being sent, have been sealed

Guarantees:
    Those of `collector_routes` and of `ServerSettings`. Nothing about a sender is written or logged: no
    address, no time, no id.
Edges:
    Whoever has the token can ask how many records wait, and so watch them come one by one. That tells when
    somebody sent something, as watching the network does, and nothing about which record it was.
    When it stops, requests are finished and records that wait stay in the store.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace

from starlette.applications import Starlette
from starlette.requests import Request

from dp_forward.errors import DpForwardError, InvalidInput
from dp_forward.privacy.checks import count
from dp_forward.service.collector.collector_routes import RecordIntake
from dp_forward.service.protocol.collection import CollectionSpec, Record
from dp_forward.service.server.metrics import Metrics
from dp_forward.service.server.request_limits import Guard, Refused, error_handlers, json_route
from dp_forward.service.server.settings import ServerSettings
from dp_forward.service.shuffler.forwarding import Forwarder
from dp_forward.service.shuffler.shuffler_store import ShufflerStore

__all__ = ["make_shuffler_app"]


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
        Not more than ``most`` records lie in its store.
    """
    spec = replace(spec, shuffler_least=store.least)
    if count("most", most, remedy="Leave it out for the default.") < store.least:
        raise InvalidInput("most", f"be at least the {store.least} of a batch", most, "Raise it.")
    guard, counters = Guard(settings.token), Metrics()
    counters.add_gauge("dpf_shuffle_waiting", "Records that wait for a batch.", lambda: store.waiting)
    counters.add_gauge("dpf_shuffle_on_its_way", "Records of the batch being sent.", lambda: store.outgoing)
    counters.add_counter("dpf_shuffle_batches", "Batches sealed since the start.", lambda: forwarder.batches)
    counters.add_counter("dpf_shuffle_records", "Records in these batches.", lambda: forwarder.records)
    counters.add_counter("dpf_shuffle_failures", "Rounds of sending that failed.", lambda: forwarder.failures)
    intake = RecordIntake(spec, settings, counters)

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        forwarder.start()
        yield
        await asyncio.to_thread(forwarder.stop, settings.shutdown_seconds)

    def take(request: Request, records: list[Record]) -> tuple[int, int]:
        try:
            found = store.add(records, most=most)
        except Refused:
            raise
        except DpForwardError:
            message = "The shuffler cannot write; nothing of this body was stored."
            raise Refused("disk", message, retry_after=30) from None
        forwarder.wake()
        return found

    return Starlette(
        routes=[
            json_route("/v1/collection", spec.as_dict(), guard),
            intake.records_route(guard, take),
            json_route("/healthz", {"status": "ok"}, Guard(None)),
            counters.route(guard),
        ],
        exception_handlers=error_handlers(counters.outcomes, who="shuffler"),
        lifespan=lifespan,
    )
