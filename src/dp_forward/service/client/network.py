"""Network of the transport: connections on which everything that a request does ends with it.

Guarantees:
    Within `limited`, the time is one for all: name lookup, connecting, the TLS handshake, every write and
    every read, whatever arrives and however slowly. No more bytes are read than allowed, informational
    responses, headers and trailers included. A connection that is kept alive keeps no earlier limit.
    Nothing of the environment is obeyed: neither its proxies nor its certificates.
Edges:
    A name lookup that takes too long goes on in a thread that nobody waits for.
"""

import contextlib
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import certifi
import httpcore
import httpx

from dp_forward.errors import InvalidInput
from dp_forward.service.protocol.access import is_loopback

_T = TypeVar("_T")
_CONNECT_SECONDS: Final = 10.0  # for one address of a server, at most


class NoReply(Exception):
    """A request without a reply; unless ``connected`` nothing was sent; where ``final``, nor will it be."""

    def __init__(self, problem: str, *, connected: bool = True, final: bool = False) -> None:
        super().__init__(problem)
        self.connected, self.final = connected, final


@dataclass(slots=True)
class Limit:
    """What one request may still take."""

    seconds: float
    until: float
    bytes: int

    def left(self) -> float:
        """Seconds, more than 0; `NoReply` when there are none."""
        left = self.until - time.monotonic()
        if left <= 0:
            raise self.late()
        return left

    def late(self) -> NoReply:
        """What is said of a request that took all its time."""
        return NoReply(f"it took longer than {round(self.seconds, 1):g} s")


_limit: ContextVar[Limit] = ContextVar("limit")


@contextlib.contextmanager
def limited(seconds: float, most: int) -> Iterator[Limit]:
    """Let this thread's requests take so many seconds and bytes, all together."""
    limit = Limit(seconds, time.monotonic() + seconds, most)
    before = _limit.set(limit)
    try:
        yield limit
    finally:
        _limit.reset(before)


def open_network(*, tls: bool, ca: str | os.PathLike[str] | None, proxy: str | None) -> httpx.HTTPTransport:
    """Connections to one server; certificates are read only where there is ``tls``.

    ``ca`` is a PEM file of the authorities to trust, in place of the public ones; ``proxy`` an address.
    """
    # Trusts nobody yet, checks names, and writes its keys nowhere (the default context obeys SSLKEYLOGFILE).
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if tls:
        try:
            context.load_verify_locations(certifi.where() if ca is None else ca)
        except OSError:  # an SSLError is one
            raise InvalidInput("ca", "be a PEM file of certificates", ca, "Check the path.") from None
    http = httpx.HTTPTransport(verify=context, trust_env=False, limits=httpx.Limits(), proxy=proxy)
    pool: Any = http._pool  # it takes a backend, which httpx has no argument for
    pool._network_backend = _Backend(pool._network_backend)
    return http


def run_in_thread(function: Callable[[], _T]) -> Future[_T]:
    """Call a function in a thread of its own, which nobody has to wait for."""
    found: Future[_T] = Future()

    def run() -> None:
        try:
            found.set_result(function())
        except BaseException as error:
            found.set_exception(error)

    threading.Thread(target=run, name="dp-forward-ask", daemon=True).start()
    return found


class _Backend(httpcore.NetworkBackend):
    """Connects within the limit, to one address of a name after the other."""

    def __init__(self, plain: httpcore.NetworkBackend) -> None:
        self._plain = plain

    def connect_tcp(
        self, host: str, port: int, timeout: float | None = None, *args: Any, **more: Any
    ) -> httpcore.NetworkStream:
        limit = _limit.get()
        problem: BaseException | None = socket.gaierror()
        try:
            lookup = run_in_thread(lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
            places = [str(place[0]) for *_, place in lookup.result(limit.left())]
        except (OSError, UnicodeError) as error:
            raise _no_connection(error) from None
        if host == "localhost":  # plain HTTP is spoken to it, whatever a resolver says it is
            places = [place for place in places if is_loopback(place)]
        for place in places:
            seconds = min(limit.left(), _CONNECT_SECONDS)
            try:
                return _Stream(self._plain.connect_tcp(place, port, seconds, *args, **more))
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                problem = error.__cause__
        raise _no_connection(problem)


class _Stream(httpcore.NetworkStream):
    """A connection on which reading and writing end with the limit."""

    def __init__(self, plain: httpcore.NetworkStream) -> None:
        self._plain = plain

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        limit = _limit.get()
        data = self._plain.read(max_bytes, limit.left())
        limit.bytes -= len(data)
        if limit.bytes < 0:
            raise NoReply("the answer is far too long")
        return data

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        limit, rest, sock = _limit.get(), memoryview(buffer), self._plain.get_extra_info("socket")
        try:
            while rest:  # the plain stream would wait anew for every part that the other side takes
                sock.settimeout(limit.left())
                rest = rest[sock.send(rest) :]
        except TimeoutError as error:
            raise httpcore.WriteTimeout(error) from error
        except OSError as error:  # the server may have answered already: httpcore goes on to read
            raise httpcore.WriteError(error) from error

    def close(self) -> None:
        self._plain.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        try:
            return _Stream(self._plain.start_tls(ssl_context, server_hostname, _limit.get().left()))
        except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
            raise _no_connection(error.__cause__) from None

    def get_extra_info(self, info: str) -> Any:
        return self._plain.get_extra_info(info)


def _no_connection(error: BaseException | None) -> NoReply:
    """What went wrong before anything was sent, in the words of a user."""
    match error:
        case ssl.SSLCertVerificationError():
            why = f"its certificate is not trusted ({error.verify_message.rstrip('.')})"
            return NoReply(why, connected=False, final=True)
        case ssl.SSLError():
            problem = f"TLS failed ({error.reason or 'no reason given'})"
        case ConnectionRefusedError():
            problem = "the connection was refused"
        case TimeoutError():
            problem = "connecting took too long"
        case socket.gaierror() | UnicodeError():
            problem = "its name is not found"
        case _:
            problem = f"it cannot be reached ({getattr(error, 'strerror', None) or 'no reason given'})"
    return NoReply(problem, connected=False)
