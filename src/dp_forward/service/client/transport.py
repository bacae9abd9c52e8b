"""HTTP transport: requests and retries over kept-alive connections.

Guarantees:
    Redirects are not followed, no cookie is kept, no compressed answer is opened, and an answer is read up to
    a fixed size and time. Without TLS only this machine is spoken to. A retry sends identical bytes.
Edges:
    Threads may share a transport, and it may be used on both sides of a fork: no connection is shared between
    processes.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass, field
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import TYPE_CHECKING, Any

from dp_forward.errors import DpForwardError, InvalidInput
from dp_forward.service.protocol.access import is_loopback

if TYPE_CHECKING:
    import httpx

__all__ = ["Call", "RetryPolicy", "Transport"]


class ServerRefused(DpForwardError):
    """A server that does not take what was sent, or answers what makes no sense; asking again is no use."""

    exit_code = 4


class ServerUnavailable(DpForwardError):
    """No answer, although it was asked for as often as allowed; asking again later costs nothing."""

    exit_code = 1


@dataclass(frozen=True, slots=True)
class Call:
    """One request to make; a reply of more than ``most`` bytes is not read to its end."""

    method: str
    path: str
    most: int = 1 << 20
    body: bytes | None = field(default=None, repr=False)
    kind: str = "application/octet-stream"


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back; ``body`` is None where it was too long or encoded."""

    status: int
    body: bytes | None = field(repr=False)
    retry_after: str | None = None
    date: str | None = None

    def json(self) -> Any:
        """What a JSON body holds; None for anything else, NaN and infinities included."""
        try:
            # int() takes none of the constants: a ValueError.
            return None if self.body is None else json.loads(self.body, parse_constant=int)
        except (ValueError, RecursionError):
            return None


@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """How often, and after how long, the same bytes are sent again.

    The wait doubles from ``first`` to ``longest`` seconds, less a random part of up to a half. A server that
    says ``Retry-After`` is obeyed, up to ``longest``. ``timeout`` is for one request from begin to end.
    """

    attempts: int = 8
    first: float = 0.25
    longest: float = 30.0
    timeout: float = 60.0

    def wait(self, attempt: int, retry_after: str | None = None) -> float:
        """Seconds before the next attempt, the first one being 0."""
        if retry_after is not None and retry_after.isascii() and retry_after.isdigit():
            return min(float(retry_after[:9]), self.longest)
        full = min(self.first * 2.0 ** min(attempt, 60), self.longest)
        return full * (1 - secrets.randbelow(1 << 20) / (1 << 21))


class Transport:
    """Connections to one server; ``transport`` is one of httpx. Setting ``stopping`` ends every pause."""

    def __init__(
        self, server: str, *, token: str | None, retry: RetryPolicy | None = None, transport: Any = None
    ) -> None:
        self.address, self._retry = _address(server), retry or RetryPolicy()
        headers = {"user-agent": "dp-forward", "accept-encoding": "identity", "accept": "application/json"}
        if token is not None:
            if not token or not token.isascii() or not token.isprintable() or " " in token:
                raise InvalidInput("token", "be printable ASCII without blanks", "another", "Check the file.")
            headers["authorization"] = f"Bearer {token}"
        self._headers, self._inner = headers, transport  # the headers hold the token: never shown
        self._connect()

    def _connect(self) -> None:
        import httpx

        self._process, self.stopping = os.getpid(), threading.Event()
        self._http = httpx.Client(
            limits=httpx.Limits(),  # all are kept alive; the caller bounds how many there are
            headers=self._headers,
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
            transport=self._inner,
            timeout=self._retry.timeout,
            follow_redirects=False,
        )

    def send(self, call: Call) -> Reply:
        """The reply of status 200 to a call that is repeated, byte for byte, while that makes sense.

        Edges:
            Repeated: network failures, 408, 429, and 5xx. Every other status is `ServerRefused` at once.
        """
        problem, wait, attempts = "the transport was closed", 0.0, max(1, self._retry.attempts)
        for attempt in range(attempts):
            if self.stopping.wait(wait):
                break
            reply = self.call(call)
            if reply is None:
                problem, wait = "the network failed", self._retry.wait(attempt)
                continue
            if reply.status == 200:
                return reply
            # 408 and 429 are too slow and too many: the same bytes may be taken later.
            if reply.status not in (408, 429) and reply.status < 500:
                raise _refusal(reply)
            problem, wait = f"status {reply.status}", self._retry.wait(attempt, reply.retry_after)
        raise ServerUnavailable(
            f"The server gave no answer in {attempts} attempts ({problem}). Check its address, and that it "
            "runs. What was charged is kept: the same text asked again costs nothing."
        )

    def start(self, call: Call) -> Future[Reply]:
        """`send` in a thread of its own, which nobody has to wait for."""
        reply: Future[Reply] = Future()

        def run() -> None:
            try:
                reply.set_result(self.send(call))
            except BaseException as error:
                reply.set_exception(error)

        threading.Thread(target=run, name="dp-forward-ask", daemon=True).start()
        return reply

    def call(self, call: Call) -> Reply | None:
        """Make one request; None where the network failed or took too long: it may have arrived or not."""
        import httpx

        if self._process != os.getpid():
            self._connect()
        url, until = self.address + call.path, time.monotonic() + self._retry.timeout
        kind = {} if call.body is None else {"content-type": call.kind}
        try:
            with self._http.stream(call.method, url, content=call.body, headers=kind) as response:
                body = _read_body(response, call.most, until)
        except httpx.TransportError:
            return None
        more = (response.headers.get(name) for name in ("retry-after", "date"))
        return Reply(response.status_code, body, *more)

    def close(self) -> None:
        """Give the connections back, and end every pause. Closing twice is harmless."""
        if self._process == os.getpid():
            self.stopping.set()
            self._http.close()


def send_records(transport: Transport, path: str, body: bytes, records: int) -> int:
    """Send a body of so many records, until it is stored; how many of them are new to the server."""
    match transport.send(Call("POST", path, 1 << 12, body)).json():
        case {"stored": int(stored), "known": int(known), **rest} if (
            not rest and stored >= 0 and known >= 0 and stored + known == records
        ):
            return stored
    raise ServerRefused("The server's answer to records makes no sense. It is not asked again.")


def _read_body(response: httpx.Response, most: int, until: float) -> bytes | None:
    """The body, if it is plain bytes and not too many; one that takes too long is a `ReadTimeout`."""
    import httpx

    if response.headers.get("content-encoding", "identity") != "identity":
        return None
    body = bytearray()
    for part in response.iter_bytes():
        if time.monotonic() > until:
            raise httpx.ReadTimeout("too late")
        body += part
        if len(body) > most:
            return None
    return bytes(body)


def _refusal(reply: Reply) -> ServerRefused:
    """Of the server's words only a code is repeated."""
    if reply.status in (401, 403):
        return ServerRefused("The server does not take the token, or wants one. Check it, or get a new one.")
    found = reply.json()
    word = found.get("code", found.get("error")) if isinstance(found, dict) else None
    known = isinstance(word, str) and re.fullmatch(r"[a-z][a-z0-9_-]{0,39}", word)
    reason = f": {word}" if known else ""
    return ServerRefused(f"The server refused with status {reply.status}{reason}. It is not asked again.")


def _address(server: str) -> str:
    """The address without a slash at its end; plain HTTP is for this machine only."""
    import httpx

    try:
        url = httpx.URL(server)
    except (httpx.InvalidURL, TypeError):
        url = httpx.URL("")
    if url.scheme not in ("http", "https") or not url.host or url.userinfo or url.query or url.fragment:
        rule = "be an address such as https://host:8000"
        raise InvalidInput("server", rule, "another", "Give a token as token.")
    if url.scheme == "http" and not is_loopback(url.host):
        rule = "be https, unless it is on this machine"
        raise InvalidInput("server", rule, "http", "Without TLS others read the answers.")
    return str(url).rstrip("/")
