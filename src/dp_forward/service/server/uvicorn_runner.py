"""Run an ASGI app with uvicorn until a signal: for every server of this package."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.types import ASGIApp

from dp_forward.errors import InvalidInput
from dp_forward.service.server.settings import ServerSettings

__all__ = ["run_server"]


print_line = partial(print, flush=True)
"""Writes a line to stdout at once: whoever started this process waits for it."""


def run_server(
    app: Starlette,
    settings: ServerSettings,
    *,
    say: Callable[[str], None] = print_line,
    ready: Callable[[uvicorn.Server], None] = lambda server: None,
) -> None:
    """Listen until SIGINT or SIGTERM; then refuse what is new, finish what waits, and return.

    When it listens, it prints one line of JSON on stdout: ``{"address", "host", "port", "tls", "token"}``.
    Nothing is logged but warnings, to stderr. ``ready`` is called next; see `run_until_signal`.
    """
    listening = bind_socket(settings.host, settings.port)
    host, port = listening.getsockname()[:2]
    tls, shown = settings.tls_cert is not None, f"[{host}]" if ":" in host else host
    line = {
        "address": f"{'https' if tls else 'http'}://{shown}:{port}",
        "host": host,
        "port": port,
        "tls": tls,
        "token": settings.token is not None,
    }
    run_until_signal(
        app,
        listening,
        lambda: say(json.dumps(line)),
        ready,
        log_level="warning",
        lifespan="on",
        limit_concurrency=settings.connections,
        timeout_graceful_shutdown=settings.shutdown_seconds,
        ssl_certfile=settings.tls_cert,
        ssl_keyfile=settings.tls_key,
    )


def bind_socket(host: str, port: int) -> socket.socket:
    """A socket that is bound before anything is printed, so that port 0 is known by then."""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listening = socket.socket(family, kind, proto)
    except OSError:
        raise InvalidInput("host", "be an address of this machine", host, "Use 127.0.0.1.") from None
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
    except OSError as error:
        listening.close()
        where = f"{host}:{port} ({error.strerror})"
        raise InvalidInput("port", "be free to listen on", where, "Use another, or 0.") from None
    return listening


def run_until_signal(
    app: ASGIApp,
    listening: socket.socket,
    announce: Callable[[], None],
    ready: Callable[[uvicorn.Server], None],
    **options: Any,
) -> None:
    """Serve until SIGINT or SIGTERM, finish what waits, close the socket and return.

    ``announce`` is called once it listens, and then ``ready``, with the server: setting its ``should_exit``
    stops it, from another thread too. ``options`` are those of uvicorn.
    """

    class AnnouncedServer(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets=sockets)
            if not self.should_exit:
                announce()
                ready(self)

    config = uvicorn.Config(app, access_log=False, ws="none", server_header=False, **options)
    with contextlib.closing(listening), _keep_signals():
        AnnouncedServer(config).run(sockets=[listening])


@contextlib.contextmanager
def _keep_signals() -> Iterator[None]:
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
