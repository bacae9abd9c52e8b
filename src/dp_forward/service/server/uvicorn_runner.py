"""Listening until a signal: what every server of this package does alike."""

from __future__ import annotations

import contextlib
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator

import uvicorn

from dp_forward.errors import InvalidInput

__all__ = ["bind_socket", "print_line", "run_until_signal"]


def bind_socket(host: str, port: int) -> socket.socket:
    """Bound before anything is printed, so that port 0 is known by then."""
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
    settings: uvicorn.Config, listening: socket.socket, started: Callable[[uvicorn.Server], None]
) -> None:
    """Serve until SIGINT or SIGTERM, finish what waits, close the socket and return.

    ``started`` is called once it listens; setting the server's ``should_exit`` stops it, from another thread
    too.
    """
    with contextlib.closing(listening), _signals_seen_once():
        _Server(settings, started).run(sockets=[listening])


def print_line(line: str) -> None:
    """On stdout, at once: whoever started this process waits for it."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


class _Server(uvicorn.Server):
    def __init__(self, settings: uvicorn.Config, started: Callable[[uvicorn.Server], None]) -> None:
        super().__init__(settings)
        self._told = started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        if not self.should_exit:
            self._told(self)


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
