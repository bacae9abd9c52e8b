"""The shuffler: takes records of users as a collector does, and forwards them in batches to the collector.

    GET  /v1/collection, POST /v1/records   as in `collector_routes`, with "shuffler": {"least": N}
    GET  /healthz, /readyz, /metrics        as in `base_app`; how many batches have been sealed

A batch goes in pieces of records in the order of their new ids; each is acknowledged in the store when the
collector has it; then the batch is sealed and deleted here.

Guarantees:
    Those of `collector_routes` and of `ServerSettings`. No address, time or id of a sender is written or
    logged. Nothing leaves before enough records of enough users wait (`ShufflerStore`), and then only as part
    of a batch. No page tells how many wait: `/metrics` counts records once their batch is sealed.
    What is sent again, after a failure of the network or of this process, is the same records under the same
    ids, which the collector knows: each is there once, and the batch counts only when all are.
Edges:
    When a batch is made, and how large it is, can be seen by the collector and on the network. A collector
    that refuses or is away stops nothing but the sending: the batch stays, is tried again, and the records
    that come meanwhile make the next one larger. If it refuses to seal, all records are sent again, in case
    it was restored from an older copy.
    Where users are not known (one shared token, or none), whoever has the token can send all records of a
    batch but one, and so isolate that one. The promise then rests on trust in all who have it.
    When it stops, requests are finished and records that wait stay in the store.
"""

import asyncio
import contextlib
import json
import logging
import threading
from collections.abc import AsyncIterator
from typing import Final

from starlette.applications import Starlette
from starlette.requests import Request

from dp_forward.errors import DpForwardError, InvalidInput
from dp_forward.privacy.checks import count
from dp_forward.service.client import transport
from dp_forward.service.client.transport import ServerRefused, Transport
from dp_forward.service.collector.collector_routes import RecordIntake
from dp_forward.service.protocol.collection import ID_AT, CollectionSpec, Record
from dp_forward.service.server.base_app import make_base_app
from dp_forward.service.server.metrics import Metrics
from dp_forward.service.server.request_limits import Refused, json_route
from dp_forward.service.server.settings import ServerSettings
from dp_forward.service.server.users import Guard, Users
from dp_forward.service.shuffler.shuffler_store import ShufflerStore

__all__ = ["RETRY", "Forwarder", "fetch_spec", "make_shuffler_app"]

_log = logging.getLogger("dp_forward.service")

RETRY: Final = transport.RetryPolicy(longest=10.0, timeout=30.0)
"""For the transport to a collector."""
_RETRY_SECONDS: Final = 15.0  # between two rounds of attempts, when a round has failed
_LOOK_SECONDS: Final = 5.0  # between two looks at a store that other processes may have left a batch in


def send_batch(store: ShufflerStore, collector: Transport, *, at_once: int) -> int:
    """Send the batch that was made, if there is one; how many records it had."""
    batch = store.batch
    if batch is None:
        return 0
    place = f"/v1/batches/{batch.name.hex()}"
    while piece := store.piece(batch, most=at_once):
        transport.send_records(collector, f"{place}/records", b"".join(piece), len(piece))
        store.acknowledge(batch, piece[-1][ID_AT])
    seal = json.dumps({"records": batch.records}).encode()
    try:
        call = transport.Call("POST", f"{place}/seal", 1 << 12, seal, "application/json")
        if collector.send(call).json() != {"sealed": True}:
            raise ServerRefused("The collector's answer to a seal makes no sense.")
    except ServerRefused:
        store.acknowledge(batch, b"")
        raise
    store.finish(batch)
    return batch.records


def fetch_spec(collector: Transport) -> CollectionSpec:
    """What the collector wants; a spec that makes no sense, or is that of another shuffler, is refused."""
    spec = CollectionSpec.from_dict(collector.send(transport.Call("GET", "/v1/collection")).json())
    if spec.shuffler_least is not None:
        raise InvalidInput("collector", "collect by itself", "a shuffler", "Name the collector behind it.")
    return spec


class Forwarder:
    """Thread that makes batches and sends them."""

    def __init__(self, store: ShufflerStore, collector: Transport, *, at_once: int) -> None:
        self._store, self._collector, self._at_once = store, collector, at_once
        self._due = threading.Event()
        self.wake = self._due.set  # records have come: see whether a batch is due
        self._thread = threading.Thread(target=self._run, name="dpf-forward", daemon=True)
        self.batches = self.records = self.failures = 0  # sealed, in them, and failed rounds of attempts

    def start(self) -> None:
        """Begin; a batch that an earlier process left is sent first."""
        self._thread.start()

    def unready(self) -> str | None:
        """Why records cannot be taken and sent on."""
        return None if self._thread.is_alive() and not self._collector.stopping.is_set() else "stopping"

    def stop(self, seconds: float) -> None:
        """End after the request that is under way; what is not sent stays in the store."""
        self._collector.stopping.set()
        self._due.set()
        if self._thread.is_alive():
            self._thread.join(seconds)

    def once(self) -> None:
        """Send the batch that was begun, then what is due; nothing while another process does."""
        while self._store.due and not self._collector.stopping.is_set():
            with self._store.try_lock() as mine:
                if not mine:
                    return
                self._store.make_batch()
                records = send_batch(self._store, self._collector, at_once=self._at_once)
            self.records += records
            self.batches += records > 0

    def _run(self) -> None:
        while not self._collector.stopping.is_set():
            try:
                self.once()
                self._due.wait(_LOOK_SECONDS)
                self._due.clear()
                continue
            except DpForwardError as error:
                why = str(error)
            except Exception as error:  # its message could hold anything
                why = type(error).__name__
            if not self._collector.stopping.is_set():  # the batch is on disk, and tried again after a while
                self.failures += 1
                _log.warning("a batch waits to be sent: %s", why)
                self._collector.stopping.wait(_RETRY_SECONDS)


def make_shuffler_app(
    store: ShufflerStore,
    forwarder: Forwarder,
    *,
    settings: ServerSettings,
    most: int,
    users: Users | None = None,
) -> Starlette:
    """Make the server of a shuffler over its store; it starts the forwarder, and stops it.

    ``users`` are told apart by their tokens; without them, nobody is.

    Edges:
        At most ``most`` records lie in its store. To promise of users needs ``users``; quotas count records.
    """
    least = store.offered.shuffler_least or 0
    if count("most", most, remedy="Leave it out for the default.") < least:
        raise InvalidInput("most", f"be at least the {least} of a batch", most, "Raise it.")
    users = users or Users()
    if store.offered.least_users is not None and not users.known:
        found, remedy = "one token for all, or none", "Give each user a token of his own."
        raise InvalidInput("least_users", "be told of users that are known", found, remedy)
    if not users.known:
        _log.warning(
            "users are not told apart: whoever may send can fill a batch but for one record, and isolate it; "
            "the promise of the shuffler rests on trust in all of them"
        )
    elif (store.offered.records_per_user or least) >= least - 1:
        _log.warning(
            "one user may fill a batch but for one record, and isolate it: take fewer records of each user, "
            "or more for a batch"
        )
    guard = Guard(settings.token, users=users)
    counters = Metrics(hidden={"records", "stored", "known"})  # these would tell how many wait
    counters.add_counter("dpf_shuffle_batches", "Batches sealed since the start.", lambda: forwarder.batches)
    counters.add_counter("dpf_shuffle_records", "Records in these batches.", lambda: forwarder.records)
    counters.add_counter("dpf_shuffle_failures", "Rounds of sending that failed.", lambda: forwarder.failures)
    intake = RecordIntake(store.offered, settings, counters, users)

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        forwarder.start()
        yield
        await asyncio.to_thread(forwarder.stop, settings.shutdown_seconds)

    def unready() -> str | None:
        try:
            store.batch  # noqa: B018 (it can be read)
            users.check()
        except DpForwardError:
            return "store"
        return forwarder.unready()

    def take(request: Request, records: list[Record]) -> tuple[int, int]:
        try:
            found = store.add(records, most=most, user=request.state.user)
        except Refused:
            raise
        except DpForwardError:
            raise Refused("disk", "The shuffler cannot write: try the same again.", retry_after=30) from None
        forwarder.wake()
        return found

    routes = [json_route("/v1/collection", store.offered.as_dict(), guard), intake.records_route(guard, take)]
    return make_base_app(routes, counters, settings, who="shuffler", lifespan=lifespan, unready=unready)
