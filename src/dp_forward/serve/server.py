"""The provider's server: HTTP for one request, WebSocket for many.

    GET  /v1/manifest   what this server wants
    POST /v1/answer     one frame (application/octet-stream) -> {"label", "probabilities", "request"}
    WS   /v1/stream     one frame per message -> one JSON per answer, matched by "request"
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
import hmac
import json
import os
import signal
import socket
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Final

import uvicorn
from fastapi import FastAPI, Request, Response, WebSocket, WebSocketDisconnect
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, HTTPConnection

from dp_forward.errors import InvalidInput
from dp_forward.handed import ProviderSide
from dp_forward.serve.answering import Answering
from dp_forward.serve.metrics import CONTENT_TYPE
from dp_forward.serve.refusals import Refused
from dp_forward.serve.settings import ServerSettings
from dp_forward.serve.wire import HEADER_BYTES

__all__ = ["make_app", "run_server"]

_FRAME_TYPE: Final = "application/octet-stream"
_REQUEST_AT: Final = slice(96, 112)
"""Where the id lies in a header, for refusals of frames that could not be read."""
_POLICY_VIOLATION: Final = 1008


def make_app(provider: ProviderSide, *, front_digest: str, settings: ServerSettings) -> FastAPI:
    """The server for one back; ``front_digest`` names the one front it belongs to.

    Edges:
        Refused here: an undefended model, noise that cannot be released, a back that is no classifier.
        Its `Answering` is in ``app.state.answering``.
    """
    answering = Answering(provider, front_digest=front_digest, settings=settings)
    guard = _Guard(settings.token)

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        await answering.batcher.close()

    app = FastAPI(title="dp-forward", docs_url=None, redoc_url=None, openapi_url=None, lifespan=lifespan)
    app.state.answering = answering
    _add_pages(app, answering, guard)
    _add_answer(app, answering, guard, settings)
    _add_stream(app, answering, guard, settings)
    _add_refusals(app, answering)
    return app


class _Guard:
    """Who may ask."""

    def __init__(self, token: str | None) -> None:
        self._wanted = None if token is None else f"Bearer {token}".encode()

    def __call__(self, connection: HTTPConnection) -> None:
        """`Refused` without the token; the comparison takes as long whatever was sent."""
        if self._wanted is None:
            return
        given = connection.headers.get("authorization", "").encode("utf-8", "replace")
        if not hmac.compare_digest(given, self._wanted):
            raise Refused("token", "This server answers with its token only. Send it as a bearer token.")


def _add_pages(app: FastAPI, answering: Answering, guard: _Guard) -> None:
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


def _add_answer(app: FastAPI, answering: Answering, guard: _Guard, settings: ServerSettings) -> None:
    exact = answering.manifest.frame_bytes

    @app.post("/v1/answer")
    async def _answer(request: Request) -> Response:
        try:
            guard(request)
            _check_head(request, exact)
            data = await _body(request, exact, seconds=settings.body_seconds)
        except Refused as refusal:
            # Nothing more is read from a client that was refused before its body ended.
            answering.metrics.outcomes[refusal.code] += 1
            return _refusal(refusal, close=True)
        try:
            return Response(await answering.answer(data), media_type="application/json")
        except Refused as refusal:
            return _refusal(refusal)


def _check_head(request: Request, exact: int) -> None:
    """All that can be refused before a byte of the body is read."""
    head = request.headers
    if any(word.strip().lower() != "identity" for word in head.getlist("content-encoding")):
        raise Refused("compressed", "A frame is never compressed. Leave Content-Encoding out.")
    if head.get("content-type", "").partition(";")[0].strip().lower() != _FRAME_TYPE:
        raise Refused("content_type", f"A frame comes as {_FRAME_TYPE}.")
    length = head.get("content-length")
    if length is None:
        return
    # int() would take +1, 1_0 and digits of other scripts.
    if not (length.isascii() and length.isdigit() and len(length) <= 18):
        raise Refused("length", "Content-Length is not a number.")
    if int(length) != exact:
        code = "too_long" if int(length) > exact else "length"
        raise Refused(code, f"A frame for this server has {exact} bytes, not {int(length)}.")


async def _body(request: Request, exact: int, *, seconds: float) -> bytes:
    parts, size = [], 0
    try:
        async with asyncio.timeout(seconds):
            async for part in request.stream():
                size += len(part)
                if size > exact:
                    raise Refused("too_long", f"A frame for this server has {exact} bytes.")
                parts.append(part)
    except TimeoutError:
        raise Refused("slow", f"The body took longer than {seconds:g} seconds.") from None
    except ClientDisconnect:
        raise Refused("length", "The body ended early.") from None
    return b"".join(parts)


def _add_stream(app: FastAPI, answering: Answering, guard: _Guard, settings: ServerSettings) -> None:
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

    def __init__(self, socket: WebSocket, answering: Answering, in_flight: int) -> None:
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


def _refusal(refusal: Refused, *, close: bool = False) -> Response:
    headers = {}
    if refusal.retry_after is not None:
        headers["retry-after"] = str(refusal.retry_after)
    if refusal.code == "token":
        headers["www-authenticate"] = "Bearer"
    if close:
        headers["connection"] = "close"
    body = json.dumps(refusal.as_dict())
    return Response(body, refusal.status, headers=headers, media_type="application/json")


def _add_refusals(app: FastAPI, answering: Answering) -> None:
    """Whatever is refused elsewhere looks the same."""
    words = {404: "not_found", 405: "method"}

    @app.exception_handler(Refused)
    async def _refused(request: Request, error: Refused) -> Response:
        answering.metrics.outcomes[error.code] += 1
        return _refusal(error)

    @app.exception_handler(HTTPException)
    async def _http(request: Request, error: HTTPException) -> Response:
        code = words.get(error.status_code, "request")
        answering.metrics.outcomes[code] += 1
        body = json.dumps({"error": code, "message": "There is nothing here."})
        return Response(body, error.status_code, media_type="application/json")

    @app.exception_handler(Exception)
    async def _failed(request: Request, error: Exception) -> Response:
        answering.metrics.outcomes["internal"] += 1
        return _refusal(Refused("internal", "The server failed on this request."))


def run_server(
    app: FastAPI,
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
    listening = _bound_socket(settings)
    server = _Server(server_settings, settings, say or _print, ready)
    try:
        with _signals_seen_once():
            server.run(sockets=[listening])
    finally:
        listening.close()


@contextlib.contextmanager
def _signals_seen_once() -> Iterator[None]:
    """uvicorn raises a signal again once it has stopped; having stopped in order is a success."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Server(uvicorn.Server):
    def __init__(
        self,
        config: uvicorn.Config,
        settings: ServerSettings,
        say: Callable[[str], None],
        ready: Callable[[uvicorn.Server], None] | None,
    ) -> None:
        super().__init__(config)
        self._settings, self._say, self._ready = settings, say, ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        if self.should_exit or not sockets:
            return
        host, port = sockets[0].getsockname()[:2]
        scheme = "https" if self._settings.tls else "http"
        shown = f"[{host}]" if ":" in host else host
        address = f"{scheme}://{shown}:{port}"
        has_token = self._settings.token is not None
        line = {"address": address, "host": host, "port": port, "tls": self._settings.tls, "token": has_token}
        self._say(json.dumps(line))
        if self._ready is not None:
            self._ready(self)


def _uvicorn_settings(app: FastAPI, settings: ServerSettings) -> uvicorn.Config:
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
        ws_max_size=app.state.answering.manifest.frame_bytes,
        ws_per_message_deflate=False,
        **tls,
    )


def _bound_socket(settings: ServerSettings) -> socket.socket:
    """Bound here, so that port 0 is known before anything is printed."""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listening = socket.socket(family, kind, proto)
    except OSError:
        raise InvalidInput("host", "be an address of this machine", settings.host, "Use 127.0.0.1.") from None
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
    except OSError as error:
        listening.close()
        where = f"{settings.host}:{settings.port} ({error.strerror})"
        raise InvalidInput("port", "be free to listen on", where, "Use another, or 0.") from None
    return listening


def _print(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
