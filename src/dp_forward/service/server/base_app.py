"""The app that every server of this package is: routes, health, readiness, metrics, load shedding and CORS.

    GET /healthz   200 while the process answers; needs no token
    GET /readyz    200 once it can do its work, else 503 with a word why; needs no token
    GET /metrics   Prometheus text, for the operator (`Metrics.route`)

Guarantees:
    Where too much waits, a request is refused ("busy", 429) before its body is read; these three never are.
    A page of another origin may read answers where the origin was allowed by name, and then /v1 alone.
"""

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Final

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from dp_forward.service.server import request_limits as limits
from dp_forward.service.server.metrics import Metrics
from dp_forward.service.server.settings import ServerSettings

_log = logging.getLogger("dp_forward.service")

_OWN_BUDGET: Final = frozenset({"/healthz", "/readyz", "/metrics"})
_COUNT_SECONDS: Final = 60.0


class LoadShedding:
    """Refuses before a body is read while ``busy`` says so of its path, or too many are connected."""

    def __init__(self, app: ASGIApp, *, busy: Callable[[str], bool], outcomes: Counter[str]) -> None:
        self._app, self._busy, self._outcomes = app, busy, outcomes
        self._refusal = limits.refusal(limits.busy())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in _OWN_BUDGET:
            state = scope.get("state", {})
            connections = state.get("connections")
            if self._busy(scope["path"]) or (connections is not None and connections.crowded):
                self._outcomes["busy"] += 1
                if connections is not None:
                    state["connection"].pause()
                await self._refusal(scope, receive, send)
                return
        await self._app(scope, receive, send)


class _Cors(CORSMiddleware):
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        ours = scope["type"] == "http" and scope["path"].startswith("/v1/")
        await (super().__call__ if ours else self.app)(scope, receive, send)


def make_base_app(
    routes: Sequence[Route],
    metrics: Metrics,
    settings: ServerSettings,
    *,
    who: str,
    lifespan: Callable[[Starlette], AbstractAsyncContextManager[None]],
    unready: Callable[[], str | None],
    busy: Callable[[str], bool] = lambda path: False,
) -> Starlette:
    """Make an app of these routes; ``unready`` runs in a thread and says why it cannot work, or None."""

    found: tuple[float, str | None] = (0.0, "starting")

    async def show_readiness(request: Request) -> Response:
        nonlocal found
        if found[0] < (now := time.monotonic()) - 1:  # at most once in a second, whoever asks
            found = (now, found[1])
            found = (now, await asyncio.to_thread(unready))
        return JSONResponse({"status": found[1] or "ok"}, 200 if found[1] is None else 503)

    @contextlib.asynccontextmanager
    async def log_outcomes(app: Starlette) -> AsyncIterator[None]:
        counting = asyncio.create_task(_log_counts(metrics))
        async with lifespan(app):
            yield
        counting.cancel()
        _log.info("the %s stopped", who, extra={"counts": metrics.shown(metrics.outcomes)})

    middleware = [Middleware(LoadShedding, busy=busy, outcomes=metrics.outcomes)]
    if settings.allow_origins:
        sent, shown = ["authorization", "content-type"], ["retry-after"]
        how: Any = {"allow_methods": ["GET", "POST"], "allow_headers": sent, "expose_headers": shown}
        middleware.insert(0, Middleware(_Cors, allow_origins=settings.allow_origins, **how))
    healthy = limits.json_route("/healthz", {"status": "ok"}, lambda request: None)
    own = [healthy, Route("/readyz", show_readiness)]
    app = Starlette(
        routes=[*routes, *own, metrics.route(settings.metrics_token)],
        middleware=middleware,
        exception_handlers=limits.error_handlers(metrics.outcomes, who=who),
        lifespan=log_outcomes,
    )
    app.router.redirect_slashes = False  # it would answer before a token was asked for
    return app


async def _log_counts(metrics: Metrics) -> None:
    """Log how often each outcome that may be shown came in the last minute."""
    before: Counter[str] = Counter()
    while True:
        await asyncio.sleep(_COUNT_SECONDS)
        if since := metrics.shown(metrics.outcomes - before):
            _log.info("requests of the last minute", extra={"counts": since})
        before = Counter(metrics.outcomes)
