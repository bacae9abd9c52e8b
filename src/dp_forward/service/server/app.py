"""HTTP server of the provider: answers one noisy matrix per request.

    GET  /v1/manifest   what this server wants
    POST /v1/answer     one frame (application/octet-stream) -> {"label", "probabilities", "request"}
    GET  /v1/collection, POST /v1/records, ...   where training records are collected (`collector_routes`)
    GET  /healthz       200 while it answers, 503 while it stops; needs no token
    GET  /metrics       Prometheus text

Where there is no back yet (`make_collector_app`), the first two are missing.
A refusal is ``{"error": code, "message": one line}`` (`request_limits`).

Guarantees:
    Those of `request_limits` and of `ServerSettings`; no more of a body is read than a frame has bytes.
Edges:
    The library that speaks HTTP sets no limit on how slowly a *header* may come; ``connections`` bounds what
    that can hold. When the server stops, requests are finished.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from dp_forward.errors import InvalidInput
from dp_forward.service.collector.collection_store import Collection
from dp_forward.service.collector.collector_routes import collector_routes
from dp_forward.service.server import request_limits as limits
from dp_forward.service.server.handler import Handler
from dp_forward.service.server.metrics import Metrics
from dp_forward.service.server.request_limits import Guard, Refused
from dp_forward.service.server.settings import ServerSettings
from dp_forward.split.artifacts import ProviderSide

__all__ = ["make_app", "make_collector_app"]


def make_app(
    provider: ProviderSide,
    *,
    front_digest: str,
    settings: ServerSettings,
    collection: Collection | None = None,
    shuffler_token: str | None = None,
) -> Starlette:
    """Make the server for one back; ``front_digest`` names the one front it belongs to.

    With a ``collection`` it takes training records too (`collector_routes`), and with a ``shuffler_token``
    whole batches of a shuffler.

    Edges:
        Refused here: an undefended model, noise that cannot be released, a back that is no classifier.
        Its `Handler` is in ``app.state.handler``.
    """
    handler = Handler(provider, front_digest=front_digest, settings=settings)
    if collection is not None:
        # A collection is of the back that is served: it is what will be trained on it.
        served, collected = handler.manifest.as_dict(), collection.spec.manifest.as_dict()
        other = [name for name in served if name != "epsilons" and served[name] != collected[name]]
        if other:
            rule = "collect what the back is served for"
            raise InvalidInput("collection", rule, f"other {', '.join(other)}", "Choose another folder.")
    elif shuffler_token is not None:
        raise InvalidInput("shuffler_token", "go with a collection", "alone", "Say where to collect.")
    app = _make(handler, collection, settings, shuffler_token)
    app.state.handler = handler
    return app


def make_collector_app(
    collection: Collection, *, settings: ServerSettings, shuffler_token: str | None = None
) -> Starlette:
    """Make the server that only collects, where there is no back yet: nothing is answered."""
    return _make(None, collection, settings, shuffler_token)


def _make(
    handler: Handler | None, collection: Collection | None, settings: ServerSettings, token: str | None
) -> Starlette:
    metrics = Metrics() if handler is None else handler.metrics
    routes = [metrics.route(Guard(settings.token))]
    if collection is not None:
        routes += collector_routes(collection, settings, metrics=metrics, shuffler_token=token)
    if handler is not None:
        routes += _answer_routes(handler, settings)

    async def show_health(request: Request) -> Response:
        stopping = handler is not None and handler.batcher.stopping
        return limits.json_response({"status": "stopping" if stopping else "ok"}, 503 if stopping else 200)

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        if handler is not None:
            await handler.batcher.close()
        if collection is not None:
            collection.close()

    return Starlette(
        routes=[*routes, Route("/healthz", show_health)],
        exception_handlers=limits.error_handlers(metrics.outcomes, who="server"),
        lifespan=lifespan,
    )


def _answer_routes(handler: Handler, settings: ServerSettings) -> list[Route]:
    guard, exact = Guard(settings.token), handler.manifest.frame_bytes

    def check_length(length: int) -> None:
        if length != exact:
            code = "too_long" if length > exact else "length"
            raise Refused(code, f"A frame for this server has {exact} bytes, not {length}.")

    async def answer(request: Request) -> Response:
        try:
            guard(request)
            limits.check_head(request, check_length)
            data = await limits.read_body(request, exact, seconds=settings.body_seconds)
        except Refused as refused:
            # Nothing more is read from a client that was refused before its body ended.
            handler.metrics.outcomes[refused.code] += 1
            return limits.refusal(refused, close=True)
        return Response(await handler.answer(data), media_type="application/json")

    manifest = limits.json_route("/v1/manifest", handler.manifest.as_dict(), guard)
    return [manifest, Route("/v1/answer", answer, methods=["POST"])]
