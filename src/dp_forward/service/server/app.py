"""HTTP server of the provider: answers one noisy matrix per request.

    GET  /v1/manifest   what this server wants
    POST /v1/answer     one frame (octet-stream) -> {"label", "probabilities", "request"[, "reply"]}
    GET  /v1/collection, POST /v1/records, ...   where training records are collected (`collector_routes`)
    GET  /healthz, /readyz, /metrics   as in `base_app`

Where there is no back yet (`make_collector_app`), the first two are missing.
A refusal is ``{"error": code, "message": one line}`` (`request_limits`).

Guarantees:
    Those of `request_limits`, `base_app` and `ServerSettings`; no more of a body is read than a frame has
    bytes, and none of it while the queue is full. When the server stops, requests are finished.
"""

import contextlib
from collections.abc import AsyncIterator

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from dp_forward.errors import DpForwardError, InvalidInput, refuse_if
from dp_forward.service.collector.collection_store import Collection
from dp_forward.service.collector.collector_routes import collector_routes
from dp_forward.service.protocol.frame import MOST_AHEAD_S
from dp_forward.service.server import request_limits as limits
from dp_forward.service.server.audit_log import AuditLog
from dp_forward.service.server.base_app import make_base_app
from dp_forward.service.server.handler import Handler
from dp_forward.service.server.metrics import Metrics
from dp_forward.service.server.replay_store import ReplayStore
from dp_forward.service.server.request_limits import Refused
from dp_forward.service.server.settings import ServerSettings
from dp_forward.service.server.users import Guard, Users
from dp_forward.split.artifacts import ProviderSide

__all__ = ["make_app", "make_collector_app"]


def make_app(
    provider: ProviderSide,
    *,
    front_digest: str,
    settings: ServerSettings,
    collection: Collection | None = None,
    shuffler_token: str | None = None,
    replays: ReplayStore | None = None,
) -> Starlette:
    """Make the server for one back (``provider``) by ``settings``; ``front_digest`` names its one front.

    With a ``collection`` it takes training records too (`collector_routes`), and with a ``shuffler_token``
    whole batches of a shuffler. ``replays`` is shared by processes, by default in the settings' store.

    Edges:
        Refused here: an undefended model, noise that cannot be released, a back that is no classifier.
        Its `Handler` is in ``app.state.handler``.
    """
    users = Users(settings.store, AuditLog(settings.audit_log))
    if replays is None and settings.store is not None:
        lifetime = settings.oldest_s + MOST_AHEAD_S
        replays = ReplayStore(settings.store, seconds=lifetime, of=provider.digest)
    handler = Handler(provider, front_digest=front_digest, settings=settings, users=users, replays=replays)
    if collection is not None:
        # A collection is of the back that is served: it is what will be trained on it.
        served, collected = handler.manifest.as_dict(), collection.spec.manifest.as_dict()
        other = [name for name in served if name != "epsilons" and served[name] != collected[name]]
        rule = "collect what the back is served for"
        refuse_if(other, "collection", rule, f"other {', '.join(other)}", "Choose another folder.")
    elif shuffler_token is not None:
        raise InvalidInput("shuffler_token", "go with a collection", "alone", "Say where to collect.")
    app = _make(handler, collection, settings, shuffler_token, users)
    app.state.handler = handler
    return app


def make_collector_app(
    collection: Collection, *, settings: ServerSettings, shuffler_token: str | None = None
) -> Starlette:
    """Make a server that only collects (``collection``); ``settings``, ``shuffler_token``: see `make_app`."""
    users = Users(settings.store, AuditLog(settings.audit_log))
    return _make(None, collection, settings, shuffler_token, users)


def _make(
    handler: Handler | None,
    collection: Collection | None,
    settings: ServerSettings,
    token: str | None,
    users: Users,
) -> Starlette:
    metrics, guard = Metrics() if handler is None else handler.metrics, Guard(settings.token, users=users)
    users.classes = metrics.classes
    routes = [] if handler is None else _answer_routes(handler, settings, guard)
    if collection is not None:
        routes += collector_routes(collection, settings, metrics=metrics, shuffler_token=token, users=users)

    def unready() -> str | None:
        if handler is not None and not handler.batcher.running:
            return "stopping"
        try:
            users.check()
            if handler is not None and handler.shared_replays is not None:
                handler.shared_replays.read(b"", b"")
            if collection is not None:
                with collection.snapshot() as connection:
                    connection.execute("SELECT 1 FROM records LIMIT 1")
        except DpForwardError:
            return "store"
        return None

    def busy(path: str) -> bool:
        return handler is not None and path == "/v1/answer" and handler.batcher.full

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        if handler is not None:
            await handler.batcher.close()
            if handler.shared_replays is not None:
                handler.shared_replays.close()
        if collection is not None:
            collection.close()
        await users.close()

    return make_base_app(
        routes, metrics, settings, who="server", lifespan=lifespan, unready=unready, busy=busy
    )


def _answer_routes(handler: Handler, settings: ServerSettings, guard: Guard) -> list[Route]:
    exact = handler.manifest.frame_bytes

    def check_length(length: int) -> None:
        if length != exact:
            code = "too_long" if length > exact else "length"
            raise Refused(code, f"A frame for this server has {exact} bytes, not {length}.")

    async def answer(request: Request) -> Response:
        try:
            user = guard(request)
            limits.check_head(request, check_length)
            data = await limits.read_body(request, exact, seconds=settings.body_seconds)
        except Refused as refused:  # nothing more is read from this client
            handler.metrics.outcomes[refused.code] += 1
            return limits.refusal(refused, close=True)
        if handler.batcher.full:  # before it costs a digest and a test
            raise limits.busy()
        answered = await handler.answer(data, user, limits.sender_of(request, user))
        return Response(answered, media_type="application/json")

    manifest = limits.json_route("/v1/manifest", handler.manifest.as_dict(), guard)
    return [manifest, Route("/v1/answer", answer, methods=["POST"])]
