"""The provider's server: HTTP for one request, WebSocket for many.

    GET  /v1/manifest   what this server wants
    POST /v1/answer     one frame (application/octet-stream) -> {"label", "probabilities", "request"}
    WS   /v1/stream     one frame per message -> one JSON per answer, matched by "request"
    GET  /v1/collection, POST /v1/records, ...   where training records are collected (`collector_routes`)
    GET  /healthz       200 while it answers, 503 while it stops; needs no token
    GET  /metrics       Prometheus text

A refusal is ``{"error": code, "message": one line}`` (`refusals`); on the stream it names its "request" too.

Guarantees:
    No more of a body is read than a frame has bytes, and not for longer than ``body_seconds``. Nothing of a
    payload is logged, shown or kept. Off loopback nobody is answered without the token, and all of it is TLS.
Edges:
    The library that speaks HTTP sets no limit on how slowly a *header* may come; ``connections`` bounds what
    that can hold. A stream is not read while ``in_flight`` of its frames wait for their answers. When the
    server stops, single requests are finished; a stream is closed, and its client sends the same bytes again.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import uvicorn
from fastapi import FastAPI, Request, Response, WebSocket, WebSocketDisconnect
from starlette.applications import Starlette

from dp_forward.errors import InvalidInput
from dp_forward.service.collector.collection_store import Collection
from dp_forward.service.collector.collector_routes import collector_routes
from dp_forward.service.protocol.frame import HEADER_BYTES
from dp_forward.service.server.handler import Handler
from dp_forward.service.server.metrics import CONTENT_TYPE
from dp_forward.service.server.refusals import Refused
from dp_forward.service.server.request_limits import Guard, check_head, error_handlers, read_body
from dp_forward.service.server.request_limits import refusal as refusal_response
from dp_forward.service.server.settings import ServerSettings
from dp_forward.service.server.uvicorn_runner import bind_socket, print_line, run_until_signal
from dp_forward.split.artifacts import ProviderSide

__all__ = ["make_app", "run_server"]

_REQUEST_AT: Final = slice(96, 112)
"""Where the id lies in a header, for refusals of frames that could not be read."""
_POLICY_VIOLATION: Final = 1008


def make_app(
    provider: ProviderSide,
    *,
    front_digest: str,
    settings: ServerSettings,
    collection: Collection | None = None,
    shuffler_token: str | None = None,
) -> FastAPI:
    """The server for one back; ``front_digest`` names the one front it belongs to.

    With a ``collection`` it takes training records too (`collector_routes`), and with a ``shuffler_token``
    whole batches of a shuffler.

    Edges:
        Refused here: an undefended model, noise that cannot be released, a back that is no classifier.
        Its `Handler` is in ``app.state.handler``.
    """
    answering = Handler(provider, front_digest=front_digest, settings=settings)
    guard = Guard(settings.token)

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        await answering.batcher.close()
        if collection is not None:
            collection.close()

    app = FastAPI(title="dp-forward", docs_url=None, redoc_url=None, openapi_url=None, lifespan=lifespan)
    app.state.handler, app.state.frame_bytes = answering, answering.manifest.frame_bytes
    _add_pages(app, answering, guard)
    _add_answer(app, answering, guard, settings)
    _add_stream(app, answering, guard, settings)
    if collection is not None:
        _check_same_front(collection, answering)
        app.router.routes += collector_routes(
            collection, settings, metrics=answering.metrics, shuffler_token=shuffler_token
        )
    elif shuffler_token is not None:
        raise InvalidInput("shuffler_token", "go with a collection", "alone", "Say where to collect.")
    for kind, handle in error_handlers(answering.metrics.outcomes, who="server").items():
        app.add_exception_handler(kind, handle)
    return app


def _check_same_front(collection: Collection, answering: Handler) -> None:
    """A collection is of the back that is served: it is what will be trained on it."""
    served, collected = answering.manifest.as_dict(), collection.form.manifest.as_dict()
    other = [name for name in served if name != "epsilons" and served[name] != collected[name]]
    if other:
        rule = "collect what the back is served for"
        raise InvalidInput("collection", rule, f"other {', '.join(other)}", "Choose another folder.")


def _add_pages(app: FastAPI, answering: Handler, guard: Guard) -> None:
    manifest = json.dumps(answering.manifest.as_dict()).encode()

    @app.get("/v1/manifest")
    async def _manifest(request: Request) -> Response:
        guard(request)
        return Response(manifest, media_type="application/json")

    @app.get("/healthz")
    async def _health() -> Response:
        stopping = answering.batcher.stopping
        body = {"status": "stopping" if stopping else "ok"}
        return Response(json.dumps(body), 503 if stopping else 200, media_type="application/json")

    @app.get("/metrics")
    async def _metrics(request: Request) -> Response:
        guard(request)
        return Response(answering.metrics.render(), headers={"content-type": CONTENT_TYPE})


def _add_answer(app: FastAPI, answering: Handler, guard: Guard, settings: ServerSettings) -> None:
    exact = answering.manifest.frame_bytes

    def check_length(length: int) -> None:
        if length != exact:
            code = "too_long" if length > exact else "length"
            raise Refused(code, f"A frame for this server has {exact} bytes, not {length}.")

    @app.post("/v1/answer")
    async def _answer(request: Request) -> Response:
        try:
            guard(request)
            check_head(request, check_length)
            data = await read_body(request, exact, seconds=settings.body_seconds)
        except Refused as refusal:
            # Nothing more is read from a client that was refused before its body ended.
            answering.metrics.outcomes[refusal.code] += 1
            return refusal_response(refusal, close=True)
        try:
            return Response(await answering.answer(data), media_type="application/json")
        except Refused as refusal:
            return refusal_response(refusal)


def _add_stream(app: FastAPI, answering: Handler, guard: Guard, settings: ServerSettings) -> None:
    @app.websocket("/v1/stream")
    async def _stream(socket: WebSocket) -> None:
        try:
            guard(socket)
        except Refused as refusal:
            answering.metrics.outcomes[refusal.code] += 1
            await socket.close(_POLICY_VIOLATION)  # before it was accepted: a plain 403
            return
        await socket.accept()
        answering.metrics.streams += 1
        try:
            await _Stream(socket, answering, settings.in_flight).run()
        finally:
            answering.metrics.streams -= 1


class _Stream:
    """One WebSocket: many frames in flight, answered in whatever order they are done."""

    def __init__(self, socket: WebSocket, answering: Handler, in_flight: int) -> None:
        self._socket, self._answering = socket, answering
        self._room = asyncio.Semaphore(in_flight)
        self._sending = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Until the client closes it; what is not yet answered then is dropped."""
        try:
            while True:
                await self._room.acquire()
                message = await self._socket.receive()
                if message["type"] == "websocket.disconnect":
                    return
                task = asyncio.create_task(self._one(message.get("bytes")))
                self._tasks.add(task)
                task.add_done_callback(self._ended)
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._room.release()
        if not task.cancelled():
            task.exception()

    async def _one(self, data: bytes | None) -> None:
        try:
            if data is None:
                self._answering.metrics.outcomes["content_type"] += 1
                raise Refused("content_type", "A frame comes as a binary message.")
            text = (await self._answering.answer(data)).decode()
        except Refused as refusal:
            text = json.dumps({**refusal.as_dict(), **_more(refusal), "request": _request_in(data)})
        except Exception:
            self._answering.metrics.outcomes["internal"] += 1
            lost = Refused("internal", "The server failed on this request.")
            text = json.dumps({**lost.as_dict(), "request": _request_in(data)})
        with contextlib.suppress(WebSocketDisconnect, RuntimeError):  # the client has gone
            async with self._sending:
                await self._socket.send_text(text)


def _more(refusal: Refused) -> dict[str, int]:
    return {} if refusal.retry_after is None else {"retry_after": refusal.retry_after}


def _request_in(data: bytes | None) -> str | None:
    return data[_REQUEST_AT].hex() if data is not None and len(data) >= HEADER_BYTES else None


def run_server(
    app: Starlette,
    settings: ServerSettings,
    *,
    say: Callable[[str], None] | None = None,
    ready: Callable[[uvicorn.Server], None] | None = None,
) -> None:
    """Listen until SIGINT or SIGTERM; then refuse what is new, finish what waits, and return.

    When it listens, it prints one line of JSON on stdout: ``{"address", "host", "port", "tls", "token"}``.
    Nothing is logged but warnings, to stderr. ``ready`` is called next, with the server: setting its
    ``should_exit`` stops it, from another thread too.
    """
    server_settings = _uvicorn_settings(app, settings)
    listening = bind_socket(settings.host, settings.port)

    def started(server: uvicorn.Server) -> None:
        (say or print_line)(json.dumps(_whereabouts(settings, listening)))
        if ready is not None:
            ready(server)

    run_until_signal(server_settings, listening, started)


def _whereabouts(settings: ServerSettings, listening: socket.socket) -> dict[str, Any]:
    host, port = listening.getsockname()[:2]
    scheme, shown = "https" if settings.tls else "http", f"[{host}]" if ":" in host else host
    address = f"{scheme}://{shown}:{port}"
    return {
        "address": address,
        "host": host,
        "port": port,
        "tls": settings.tls,
        "token": settings.token is not None,
    }


def _uvicorn_settings(app: Starlette, settings: ServerSettings) -> uvicorn.Config:
    tls: dict[str, Any] = {}
    if settings.tls_cert is not None and settings.tls_key is not None:
        tls = {"ssl_certfile": os.fspath(settings.tls_cert), "ssl_keyfile": os.fspath(settings.tls_key)}
    return uvicorn.Config(
        app,
        access_log=False,
        log_level="warning",
        lifespan="on",
        server_header=False,
        limit_concurrency=settings.connections,
        timeout_graceful_shutdown=settings.shutdown_seconds,
        # No longer message is ever held, and none is ever inflated.
        ws_max_size=app.state.frame_bytes,
        ws_per_message_deflate=False,
        **tls,
    )
