"""The line to a server: does what steps say (`serve.steps`) over HTTP, blocking or not.

Guarantees:
    Redirects are not followed, no cookie is kept, no compressed answer is opened, and an answer is read up to
    a fixed size and time. Without TLS only this machine is spoken to.
Edges:
    A line may be used on both sides of a fork: no connection is shared between processes.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from dp_forward.errors import InvalidInput
from dp_forward.service.protocol.sansio import Call, Done, NoReply, Patience, Pause, Reply, Steps, advance
from dp_forward.service.server.settings import is_loopback

if TYPE_CHECKING:
    import httpx

__all__ = ["AsyncLine", "Line"]

T = TypeVar("T")


class _Common:
    """One address, what is sent with every request, and how long an answer may take."""

    def __init__(self, server: str, *, token: str | None, patience: Patience, transport: Any = None) -> None:
        self.address = _address(server)
        self.headers = _headers(token)
        """They hold the token: never shown."""
        self.patience = patience
        self._transport = transport
        self._process = os.getpid()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.address})"

    def _options(self) -> dict[str, Any]:
        return {
            "headers": self.headers,
            "transport": self._transport,
            "timeout": self.patience.timeout,
            "follow_redirects": False,
        }

    def _request(self, call: Call) -> dict[str, Any]:
        kind = {} if call.body is None else {"content-type": call.kind}
        return {
            "method": call.method,
            "url": self.address + call.path,
            "content": call.body,
            "headers": kind,
        }


class Line(_Common):
    """Blocking; ``pause`` waits for so many seconds, and may raise to end it. Use it as a context manager."""

    _http: httpx.Client | None = None

    def __init__(
        self,
        server: str,
        *,
        token: str | None,
        patience: Patience,
        transport: Any = None,
        pause: Callable[[float], object] = time.sleep,
    ) -> None:
        super().__init__(server, token=token, patience=patience, transport=transport)
        self._pause = pause

    def drive(self, steps: Steps[T]) -> T:
        """What the steps return in the end."""
        given: Reply | NoReply | None = None
        while True:
            todo = advance(steps, given)
            match todo:
                case Pause(seconds):
                    self._pause(seconds)
                    given = None
                case Call():
                    given = self.call(todo)
                case Done(value):
                    return value  # type: ignore[no-any-return]

    def call(self, call: Call) -> Reply | NoReply:
        """One request."""
        import httpx

        if self._http is None or self._process != os.getpid():
            self._http, self._process = httpx.Client(**self._options()), os.getpid()
        body = _Body(call.most, self.patience.timeout)
        try:
            with self._http.stream(**self._request(call)) as response:
                if not body.refuses(response.headers):
                    for part in response.iter_bytes():
                        if not body.takes(part):
                            break
        except httpx.TransportError:
            return NoReply()
        finally:
            self._http.cookies.clear()
        return body.reply(response.status_code, response.headers)

    def close(self) -> None:
        """Give the connections back."""
        if self._http is not None:
            self._http.close()
            self._http = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncLine(_Common):
    """For asyncio. What lies between two requests runs in a thread, so the loop is never held up."""

    _http: httpx.AsyncClient | None = None

    async def drive(self, steps: Steps[T]) -> T:
        """What the steps return in the end."""
        given: Reply | NoReply | None = None
        while True:
            todo = await asyncio.to_thread(advance, steps, given)
            match todo:
                case Pause(seconds):
                    await asyncio.sleep(seconds)
                    given = None
                case Call():
                    given = await self.call(todo)
                case Done(value):
                    return value  # type: ignore[no-any-return]

    async def call(self, call: Call) -> Reply | NoReply:
        """One request."""
        import httpx

        if self._http is None or self._process != os.getpid():
            self._http, self._process = httpx.AsyncClient(**self._options()), os.getpid()
        body = _Body(call.most, self.patience.timeout)
        try:
            async with self._http.stream(**self._request(call)) as response:
                if not body.refuses(response.headers):
                    async for part in response.aiter_bytes():
                        if not body.takes(part):
                            break
        except httpx.TransportError:
            return NoReply()
        finally:
            self._http.cookies.clear()
        return body.reply(response.status_code, response.headers)

    async def close(self) -> None:
        """Give the connections back."""
        if self._http is not None:
            await self._http.aclose()
            self._http = None


class _Body:
    """The body of a reply, as far as it may be read."""

    def __init__(self, most: int, timeout: float) -> None:
        self._parts: list[bytes] | None = []
        self._left = most
        self._until = time.monotonic() + timeout
        self._late = False

    def refuses(self, headers: Any) -> bool:
        if headers.get("content-encoding", "identity") != "identity":
            self._parts = None
        return self._parts is None

    def takes(self, part: bytes) -> bool:
        self._left -= len(part)
        self._late = time.monotonic() > self._until
        if self._parts is None or self._left < 0 or self._late:
            self._parts = None
            return False
        self._parts.append(part)
        return True

    def reply(self, status: int, headers: Any) -> Reply | NoReply:
        if self._late:
            return NoReply()
        body = None if self._parts is None else b"".join(self._parts)
        return Reply(status, body, headers.get("retry-after"))


def _address(server: str) -> str:
    """The address without a slash at its end; plain HTTP is for this machine only."""
    import httpx

    try:
        url = httpx.URL(server)
    except (httpx.InvalidURL, TypeError):
        url = httpx.URL("")
    if url.scheme not in ("http", "https") or not url.host or url.userinfo or url.query or url.fragment:
        raise InvalidInput(
            "server", "be an address such as https://host:8000", "another", "Give a token as token."
        )
    if url.scheme == "http" and not is_loopback(url.host):
        raise InvalidInput(
            "server", "be https, unless it is on this machine", "http", "Without TLS others read the answers."
        )
    return str(url).rstrip("/")


def _headers(token: str | None) -> dict[str, str]:
    headers = {"user-agent": "dp-forward", "accept-encoding": "identity", "accept": "application/json"}
    if token is not None:
        if not token or not token.isascii() or not token.isprintable() or " " in token:
            raise InvalidInput("token", "be printable ASCII without blanks", "another", "Check the file.")
        headers["authorization"] = f"Bearer {token}"
    return headers
