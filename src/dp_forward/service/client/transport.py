"""HTTP transport: requests and retries over kept-alive connections.

Guarantees:
    Redirects are not followed, no cookie is kept, no compressed answer is opened, and one request has one
    time from begin to end, and one size (`network`). All attempts, with their pauses, have twice that time.
    Without TLS only this machine is spoken to. To it there is no proxy, and to others only one that was
    named. A retry sends identical bytes.
Edges:
    Threads may share a transport, and it may be used on both sides of a fork: processes share no connection.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import secrets
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypedDict

from dp_forward.errors import DpForwardError, InvalidInput, refuse_if
from dp_forward.service.protocol.access import is_loopback

if TYPE_CHECKING:
    import httpx

    from dp_forward.service.client.network import Limit

__all__ = ["Call", "Connection", "RetryPolicy", "Transport"]

_HEAD_BYTES: Final = 1 << 17  # read of an answer besides its body: what httpcore takes for one head, and some
_TOLD_SECONDS: Final = 2.0  # a pause that is longer is told


class ServerRefused(DpForwardError):
    """A server that does not take what was sent, or answers what makes no sense; asking again is no use."""

    exit_code = 4


class ServerUnavailable(DpForwardError):
    """No answer, although it was asked for as often as allowed; asking again later costs nothing."""

    exit_code = 1


@dataclass(frozen=True, slots=True)
class Call:
    """One request (``method``, ``path``); a reply of more than ``most`` bytes is not read to its end.

    ``body`` is of this ``kind``. ``kept`` is what the user is told to be safe where there is no answer.
    """

    method: str
    path: str
    most: int = 1 << 20
    body: bytes | None = field(default=None, repr=False)
    kind: str = "application/octet-stream"
    kept: str = ""


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

    @property
    def code(self) -> str | None:
        """That of a refusal; None where it has none, or one of other letters."""
        found = self.json()
        word = found.get("code", found.get("error")) if isinstance(found, dict) else None
        return word if isinstance(word, str) and re.fullmatch(r"[a-z][a-z0-9_-]{0,39}", word) else None


@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """How often, and after how long, the same bytes are sent again: ``attempts`` times at most.

    The wait doubles from ``first`` to ``longest`` seconds, less a random part of up to a half. A server's
    ``Retry-After`` is obeyed, up to ``longest``. ``timeout`` is for one whole request, twice that for all.
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


class Connection(TypedDict, total=False):
    """How a server is spoken to: the arguments of `Transport`."""

    token: str | None
    """What the server knows the user by."""
    ca: str | os.PathLike[str] | None
    """A PEM file of the authorities to trust in place of the public ones."""
    proxy: str | None
    """An address such as http://host:3128; for this machine there is none."""
    retry: RetryPolicy | None
    """How often the same bytes are sent again."""
    say: Callable[[str], None] | None
    """Told of long pauses."""
    transport: Any
    """One of httpx, for tests."""


class Transport:
    """Connections to one server, which errors call ``setting``. Setting ``stopping`` ends every pause.

    ``token``, ``ca``, ``proxy``, ``retry``, ``say`` and ``transport`` are those of `Connection`.
    """

    def __init__(
        self,
        server: str,
        *,
        token: str | None = None,
        ca: str | os.PathLike[str] | None = None,
        proxy: str | None = None,
        retry: RetryPolicy | None = None,
        say: Callable[[str], None] | None = None,
        transport: Any = None,
        setting: str = "server",
    ) -> None:
        url, self._retry, self._say, self._told = _address(server, setting), retry or RetryPolicy(), say, 0.0
        self.address = str(url).rstrip("/")
        headers = {"user-agent": "dp-forward", "accept-encoding": "identity", "accept": "application/json"}
        if token is not None:
            wrong = not token or not token.isascii() or not token.isprintable() or " " in token
            refuse_if(wrong, "token", "be printable ASCII without blanks", "another", "Check the file.")
            headers["authorization"] = f"Bearer {token}"
        if proxy is not None:
            _check_proxy(proxy, url.host)
        # The headers hold the token, the address of a proxy may hold a password: never shown.
        self._headers, self._inner = headers, transport
        self._network: dict[str, Any] = {"tls": url.scheme == "https", "ca": ca, "proxy": proxy}
        self._connect()

    def _connect(self) -> None:
        from dp_forward.service.client.network import open_network

        self._process, self.stopping, self._reached = os.getpid(), threading.Event(), False
        # Of httpx only what sends: its client follows, keeps and obeys more than is wanted here.
        self._http = self._inner or open_network(**self._network)

    def send(self, call: Call) -> Reply:
        """The reply of status 200 to a call that is repeated, byte for byte, while that makes sense.

        Edges:
            Repeated: network failures, 408, 429 (but for a quota), and 5xx. Every other status is
            `ServerRefused` at once, and so is a certificate that is not trusted. A server that was never
            reached is tried once more, and no more: its address may be wrong.
        """
        from dp_forward.service.client.network import NoReply

        problem, wait, made = "the transport was closed", 0.0, 0
        until = time.monotonic() + 2 * self._retry.timeout
        while made < max(1, self._retry.attempts) and time.monotonic() + wait < until:
            if wait > _TOLD_SECONDS:
                self._tell(problem, wait)
            if self.stopping.wait(wait):
                break
            made += 1
            try:
                reply = self.call(call, until)
            except NoReply as failure:
                if failure.final:
                    remedy = "For a private authority name its certificate (--ca)."
                    told = f"The server is not spoken to: {failure}. {remedy} {call.kept}".rstrip()
                    raise ServerRefused(told) from None
                problem, wait = str(failure), self._retry.wait(made - 1)
                if made > 1 and not (failure.connected or self._reached):
                    break
                continue
            if reply.status == 200:
                return reply
            # 408 and 429 are too slow and too many: the same bytes may be taken later.
            if reply.code == "quota" or (reply.status not in (408, 429) and reply.status < 500):
                raise _refusal(reply, call)
            problem, wait = f"status {reply.status}", self._retry.wait(made - 1, reply.retry_after)
        remedy = f"Check the address, and that the server runs. {call.kept}".rstrip()
        tries = "1 attempt" if made == 1 else f"{made} attempts"
        raise ServerUnavailable(f"No answer from {self.address} in {tries}: {problem}. {remedy}")

    def _tell(self, problem: str, wait: float) -> None:
        """Tell of a pause; of those of several threads at a time, one."""
        now = time.monotonic()
        if self._say is not None and now >= self._told:
            self._told = now + wait
            self._say(f"No answer yet ({problem}): trying again in {wait:.0f} s.")

    def start(self, call: Call) -> Future[Reply]:
        """`send` in a thread of its own, which nobody has to wait for."""
        from dp_forward.service.client.network import run_in_thread

        return run_in_thread(lambda: self.send(call))

    def call(self, call: Call, until: float = math.inf) -> Reply:
        """Make one request, once, ``until`` this moment; `NoReply` if the network failed or took too long."""
        import httpx

        from dp_forward.service.client.network import NoReply, limited

        if self._process != os.getpid():
            self._connect()
        headers = self._headers if call.body is None else {**self._headers, "content-type": call.kind}
        seconds = max(0.0, min(self._retry.timeout, until - time.monotonic()))
        try:
            request = httpx.Request(call.method, self.address + call.path, headers=headers, content=call.body)
            with (
                limited(seconds, call.most + _HEAD_BYTES) as limit,
                contextlib.closing(self._http.handle_request(request)) as response,
            ):
                self._reached = True
                body = _read_body(response, call.most, limit)
        except httpx.TimeoutException:
            raise limit.late() from None
        except httpx.ProxyError:
            raise NoReply("the proxy does not connect to it", connected=False) from None
        except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError):
            raise NoReply("the connection broke, or HTTP was not spoken on it") from None
        more = (response.headers.get(name) for name in ("retry-after", "date"))
        return Reply(response.status_code, body, *more)

    def close(self) -> None:
        """Give the connections back, and end every pause. Closing twice is harmless."""
        if self._process == os.getpid():
            self.stopping.set()
            self._http.close()


def send_records(transport: Transport, path: str, body: bytes, records: int) -> int:
    """Send a body of so many records, until it is stored; how many of them are new to the server."""
    kept = "What it has is kept: push again to go on."
    match transport.send(Call("POST", path, 1 << 12, body, kept=kept)).json():
        case {"stored": int(stored), "known": int(known), **rest} if (
            not rest and stored >= 0 and known >= 0 and stored + known == records
        ):
            return stored
    raise ServerRefused("The server's answer to records makes no sense. It is not asked again.")


def _read_body(response: httpx.Response, most: int, limit: Limit) -> bytes | None:
    """The body, if it is plain bytes and not too many."""
    if response.headers.get("content-encoding", "identity") != "identity":
        return None
    body = bytearray()
    for part in response.iter_bytes():
        limit.left()
        body += part
        if len(body) > most:
            return None
    return bytes(body)


_REFUSALS: Final = {
    "token": "The server does not take the token, or wants one. Check it, or get a new one.",
    "shuffler": "This collector takes records from its shuffler only. Push to the shuffler's address.",
    "quota": "The provider's quota for today is used up. Ask again tomorrow, or ask for a larger one.",
}


def _refusal(reply: Reply, call: Call) -> ServerRefused:
    """Of the server's words only a code is repeated."""
    code = reply.code
    if reply.status == 401 or (reply.status == 403 and code is None):
        code = "token"
    reason = "" if code is None else f": {code}"
    words = f"The server refused with status {reply.status}{reason}. It is not asked again."
    return ServerRefused(f"{_REFUSALS.get(code or '', words)} {call.kept}".rstrip())


def _address(server: str, setting: str) -> httpx.URL:
    """The address, if it is one to speak to; plain HTTP is for this machine only."""
    url = _parse(server)
    if url is None or url.scheme not in ("http", "https") or url.userinfo:
        rule = "be an address such as https://host:8000"
        raise InvalidInput(setting, rule, "another", "Give a token apart from it.")
    if url.scheme == "http" and not is_loopback(url.host):
        rule = "be https, unless it is on this machine"
        raise InvalidInput(setting, rule, "http", "Without TLS others read the answers.")
    return url


def _check_proxy(proxy: str, host: str) -> None:
    """Refuse what is no address of an HTTP proxy, and any for this machine; it is never repeated."""
    url = _parse(proxy)
    if url is None or url.scheme != "http" or url.path not in ("", "/"):
        remedy = "TLS goes through it to the server, so that it reads nothing."
        raise InvalidInput("proxy", "be an address such as http://host:3128", "another", remedy)
    refuse_if(is_loopback(host), "proxy", "be left out for a server on this machine", "one", "Leave it out.")


def _parse(address: str) -> httpx.URL | None:
    """An address with a host and without a query or fragment; its host can be read."""
    import httpx

    with contextlib.suppress(httpx.InvalidURL, TypeError, UnicodeError):
        url = httpx.URL(address)
        return url if url.host and not url.query and not url.fragment else None
    return None
