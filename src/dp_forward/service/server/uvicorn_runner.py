"""Run an ASGI app with uvicorn until a signal: for every server of this package."""

import asyncio
import contextlib
import gc
import json
import logging
import resource
import signal
import socket
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import uvicorn
from starlette.applications import Starlette
from starlette.types import ASGIApp

from dp_forward.errors import DpForwardError, InvalidInput
from dp_forward.service.server.audit_log import AuditLog
from dp_forward.service.server.connections import Connections, LimitedConnection
from dp_forward.service.server.settings import ServerSettings

__all__ = ["bind_socket", "log_to_stderr", "run_reloading", "run_server"]

_log = logging.getLogger("dp_forward.service")
DRAIN_S: Final = 1.0  # for connections on which nothing was asked yet
_OTHER_FILES: Final = 128  # the listening socket, stores, libraries, and connections kept for health

T = TypeVar("T")
print_line = partial(print, flush=True)  # whoever started this process waits for it


def run_server(
    app: Starlette,
    settings: ServerSettings,
    *,
    say: Callable[[str], object] = print_line,
    ready: Callable[[uvicorn.Server], None] = lambda server: None,
    due: Callable[[], bool] = lambda: False,
    listening: socket.socket | None = None,
) -> bool:
    """Listen until SIGINT, SIGTERM or ``due``; then refuse what is new, finish what waits, and return.

    When it listens, it prints one line of JSON on stdout: ``{"address", "host", "port", "tls", "token"}``.
    ``ready`` is called next; see `run_until_signal`. Logs go to stderr, as ``settings.log`` says. A worker of
    several has its ``listening`` socket already. Returns whether a signal ended it.
    """
    if settings.log is not None:
        log_to_stderr(json_lines=settings.log == "json")
    # asyncio accepts as many as its backlog at once: one of several workers would take a whole burst.
    backlog = 2048 if listening is None else 1
    listening = listening or bind_socket(settings.host, settings.port)
    host, port = listening.getsockname()[:2]
    tls, shown = settings.tls_cert is not None, f"[{host}]" if ":" in host else host
    address, token = f"{'https' if tls else 'http'}://{shown}:{port}", settings.token or settings.store
    line = {"address": address, "host": host, "port": port, "tls": tls, "token": token is not None}

    def announce() -> None:
        listening.listen(2048)  # the kernel's; see above
        _log.info("the server listens")
        say(json.dumps(line))

    return run_until_signal(
        app,
        listening,
        announce,
        ready,
        due=due,
        limits=settings,
        log_level="error",  # a warning could be had by every client, as often as it likes
        lifespan="on",
        backlog=backlog,
        **({} if settings.log is None else {"log_config": None}),
        timeout_graceful_shutdown=settings.shutdown_seconds,
        ssl_certfile=settings.tls_cert,
        ssl_keyfile=settings.tls_key,
    )


def run_reloading(
    listening: socket.socket,
    read: Callable[[], T],
    serve: Callable[[T, dict[str, Any]], bool],
    audit: AuditLog,
) -> None:
    """Serve what ``read`` gives until SIGINT or SIGTERM; SIGHUP reads anew, ends in order and begins again.

    ``serve`` hands its second argument on to `run_server`, and returns what that does. Meanwhile the socket
    stays open, and whoever comes waits. Where ``read`` refuses, it is logged why, and the old state stays.
    """
    asked: list[int] = []
    kept = handled_signals([signal.SIGHUP], lambda number, _: asked.append(number))
    with contextlib.closing(listening), kept:
        state = read()  # after the handler: a reload that comes now is not lost
        say, ended = iter([print_line]), False

        def due() -> bool:
            nonlocal state
            if not asked:
                return False
            asked.clear()
            try:
                state = read()
            except DpForwardError as error:
                audit.write("reload_failed")
                _log.error("the old state stays: %s", error)
                return False
            audit.write("reload")
            return True

        audit.write("start")
        try:
            while not ended:  # the line is printed once
                tell: Any = next(say, lambda line: None)
                ended = serve(state, {"say": tell, "due": due, "listening": listening.dup()})
        finally:
            audit.write("stop")


def bind_socket(host: str, port: int) -> socket.socket:
    """A socket that is bound before anything is printed, so that port 0 is known by then."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, proto, _, address = found[0]
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
    announce: Callable[[], object],
    ready: Callable[[uvicorn.Server], None],
    *,
    due: Callable[[], bool] = lambda: False,
    limits: ServerSettings,
    **options: Any,
) -> bool:
    """Serve until SIGINT or SIGTERM, finish what waits, close the socket; whether a signal came.

    ``announce`` is called once it listens, and then ``ready``, with the server: setting its ``should_exit``
    stops it, from another thread too, and so does ``due``, which is asked ten times a second. ``limits`` are
    those of connections; ``options`` are uvicorn's.
    """
    signals = list[int]()

    class AnnouncedServer(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets=sockets)
            if not self.should_exit:
                if threading.current_thread() is threading.main_thread():
                    # Else a collection walks over all that torch has loaded, or over all remembered answers,
                    # for half a second, and the more often the more is asked.
                    gc.freeze()
                    gc.set_threshold(10_000, 10, 100)
                announce()
                ready(self)

        async def on_tick(self, counter: int) -> bool:
            if due():
                await drain(self)
            return await super().on_tick(counter)

    # An address in a header is what anybody writes there.
    plain = {"access_log": False, "ws": "none", "server_header": False, "proxy_headers": False}
    config = uvicorn.Config(app, **{**plain, **options})
    config.load()
    most, each, idle = _allow_files(limits.connections), limits.connections_per_address, limits.idle_seconds
    connections = Connections(most, per_address=each, idle_seconds=idle, tls=config.ssl)
    config.ssl = None  # a connection begins TLS once it was counted
    config.http_protocol_class = partial(LimitedConnection, connections=connections)  # type: ignore[assignment]
    # uvicorn raises a signal again once it has stopped; having stopped in order is a success.
    kept = handled_signals((signal.SIGINT, signal.SIGTERM), lambda number, _: signals.append(number))
    with contextlib.closing(listening), kept:
        AnnouncedServer(config).run(sockets=[listening])
    return bool(signals)


async def drain(server: uvicorn.Server) -> None:
    """Accept nothing more, close every connection after its next answer, and then the silent ones."""
    for one in server.servers:
        one.close()
    server.config.encoded_headers.append((b"connection", b"close"))
    await server.on_tick(0)  # from now on it is a header of every response
    until = time.monotonic() + DRAIN_S
    while server.server_state.connections and time.monotonic() < until:
        await asyncio.sleep(0.02)
    server.should_exit = True


def _allow_files(connections: int) -> int:
    """Let this process have so many connections open; how many it may have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + _OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        return max(1, min(connections, soft - _OTHER_FILES))
    return connections


class _LineFormatter(logging.Formatter):
    """A line for each event: time, level, event, counts; of an error its type and place, not its message.

    As text, the event alone: whoever keeps stderr knows the time.
    """

    def __init__(self, *, json_lines: bool) -> None:
        super().__init__()
        self._json = json_lines

    def format(self, record: logging.LogRecord) -> str:
        when = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        event = record.getMessage().partition("\n")[0]
        line: dict[str, Any] = {"time": when, "level": record.levelname.lower(), "event": event}
        if record.exc_info and record.exc_info[0] is not None:
            frame = traceback.extract_tb(record.exc_info[2])[-1:]
            place = "".join(f" in {Path(at.filename).name}:{at.lineno}" for at in frame)
            line["error"] = record.exc_info[0].__name__ + place
        line |= {"counts": counts} if (counts := getattr(record, "counts", None)) else {}
        return json.dumps(line) if self._json else " ".join(map(str, list(line.values())[2:]))


def log_to_stderr(*, json_lines: bool) -> None:
    lines = logging.StreamHandler()
    lines.setFormatter(_LineFormatter(json_lines=json_lines))
    logging.basicConfig(handlers=[lines], force=True)
    logging.getLogger("dp_forward").setLevel(logging.INFO if json_lines else logging.WARNING)


@contextlib.contextmanager
def handled_signals(numbers: Iterable[int], handler: Callable[[int, object], object]) -> Iterator[None]:
    """Handle these signals so for the block; in a thread other than the main one nothing is changed."""
    if threading.current_thread() is not threading.main_thread():
        numbers = ()
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
