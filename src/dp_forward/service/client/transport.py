"""HTTP transports: drive the steps of `protocol.sansio` over kept-alive connections, blocking or not.

Guarantees:
    Redirects are not followed, no cookie is kept, no compressed answer is opened, and an answer is read up to
    a fixed size and time. Without TLS only this machine is spoken to.
Edges:
    A transport may be used on both sides of a fork: no connection is shared between processes.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from dp_forward.errors import InvalidInput
from dp_forward.service.protocol.access import is_loopback
from dp_forward.service.protocol.sansio import Call, NoReply, Reply, RetryPolicy, Steps, advance

if TYPE_CHECKING:
    import httpx

__all__ = ["AsyncTransport"]

T = TypeVar("T")


class _Connection:
    """One address, what is sent with every request, and how long an answer may take."""

    def __init__(self, server: str, *, token: str | None, retry: RetryPolicy, transport: Any = None) -> None:
        import httpx

        self.address, self._timeout, self._process = _address(server), retry.timeout, os.getpid()
        headers = {"user-agent": "dp-forward", "accept-encoding": "identity", "accept": "application/json"}
        if token is not None:
            if not token or not token.isascii() or not token.isprintable() or " " in token:
                raise InvalidInput("token", "be printable ASCII without blanks", "another", "Check the file.")
            headers["authorization"] = f"Bearer {token}"
        self._options: dict[str, Any] = {
            "limits": httpx.Limits(),  # all are kept alive; the caller bounds how many there are
            "headers": headers,  # they hold the token: never shown
            "transport": transport,
            "timeout": retry.timeout,
            "follow_redirects": False,
        }

    def _request(self, call: Call) -> dict[str, Any]:
        kind = {} if call.body is None else {"content-type": call.kind}
        return {"method": call.method, "url": self.address + call.path, "content": call.body, "headers": kind}


class Transport(_Connection):
    """Blocking transport; ``pause`` waits for so many seconds, and may raise to end the steps."""

    pause: Callable[[float], object] = staticmethod(time.sleep)
    _http: httpx.Client | None = None

    def drive(self, steps: Steps[T]) -> T:
        """What the steps return in the end."""
        request, result = advance(steps, None)
        while request is not None:
            given = None
            if isinstance(request, Call):
                given = self.call(request)
            else:
                self.pause(request)
            request, result = advance(steps, given)
        return result  # type: ignore[return-value]

    def call(self, call: Call) -> Reply | NoReply:
        """Make one request."""
        import httpx

        if self._http is None or self._process != os.getpid():
            self._http, self._process = httpx.Client(**self._options), os.getpid()
        until = time.monotonic() + self._timeout
        try:
            with self._http.stream(**self._request(call)) as response:
                body = _Body(response.headers, call.most, until)
                if body.readable:
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


class AsyncTransport(_Connection):
    """Transport for asyncio; what lies between two requests runs in a thread, so the loop is free."""

    _http: httpx.AsyncClient | None = None

    async def drive(self, steps: Steps[T], executor: Executor | None = None) -> T:
        """What the steps return in the end; they run in ``executor``, or in any thread."""
        run = asyncio.get_running_loop().run_in_executor
        request, result = await run(executor, advance, steps, None)
        while request is not None:
            given = None
            if isinstance(request, Call):
                given = await self.call(request)
            else:
                await asyncio.sleep(request)
            request, result = await run(executor, advance, steps, given)
        return result  # type: ignore[return-value]

    async def call(self, call: Call) -> Reply | NoReply:
        """Make one request."""
        import httpx

        if self._http is None or self._process != os.getpid():
            self._http, self._process = httpx.AsyncClient(**self._options), os.getpid()
        until = time.monotonic() + self._timeout
        try:
            async with self._http.stream(**self._request(call)) as response:
                body = _Body(response.headers, call.most, until)
                if body.readable:
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


class OrderedPool(Generic[T]):
    """Drives up to ``at_once`` steps at a time; their results come in the order in which they were added.

    All methods belong to one event loop.

    Guarantees:
        Whatever steps do between two requests is done in one thread: texts are charged in their order.
    Edges:
        Up to ``at_once`` texts are charged ahead of the answer that is waited for (with 1, none is).
    """

    def __init__(self, transport: AsyncTransport, *, at_once: int) -> None:
        if at_once < 1:
            raise InvalidInput("at_once", "be at least 1", at_once, "Leave it out.")
        self._transport, self._at_once = transport, at_once
        self._waiting: deque[asyncio.Task[T]] = deque()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="dp-forward-ask")

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def full(self) -> bool:
        """Whether a result must be taken before more steps are added."""
        return len(self) >= self._at_once

    async def add(self, steps: Steps[T]) -> None:
        """Begin some more steps."""
        self._waiting.append(asyncio.create_task(self._transport.drive(steps, self._thread)))

    async def next(self) -> T:
        """The result of the steps that were added first, or their error."""
        result = await self._waiting[0]
        self._waiting.popleft()
        return result

    async def close(self) -> None:
        """Give up what is on its way; when this returns, no steps run any more."""
        for task in self._waiting:
            task.cancel()
        await asyncio.gather(*self._waiting, return_exceptions=True)
        self._waiting.clear()
        await asyncio.to_thread(self._thread.shutdown, cancel_futures=True)


class BlockingPool(Generic[T]):
    """An `OrderedPool` for callers that block; its event loop runs in a thread of its own.

    Edges:
        It works where another event loop is running. In a fork it is refused, and closing it there, or while
        the interpreter ends, does nothing: its thread is gone.
    """

    def __init__(self, transport: AsyncTransport, *, at_once: int) -> None:
        import anyio
        from anyio.from_thread import BlockingPortal

        self._pool, self._transport = OrderedPool[T](transport, at_once=at_once), transport
        self._process = os.getpid()
        started: Future[BlockingPortal] = Future()

        async def run() -> None:
            async with BlockingPortal() as portal:
                started.set_result(portal)
                await portal.sleep_until_stopped()

        # Not start_blocking_portal(): in a fork its end would wait for a thread of the other process.
        self._thread = threading.Thread(target=anyio.run, args=(run,), name="dp-forward-loop", daemon=True)
        self._thread.start()
        self._portal = started.result()

    def results(self, source: Iterator[Steps[T]]) -> Iterator[T]:
        """The results of these steps, in their order; ``source`` is read in the caller's thread."""
        while True:
            if self._process != os.getpid():
                remedy = "Ask again in it."
                raise InvalidInput("answers", "be taken by the process that asked", "a fork", remedy)
            while not self._pool.full and (steps := next(source, None)) is not None:
                self._portal.call(self._pool.add, steps)
            if not self._pool:
                return
            yield self._portal.call(self._pool.next)

    def close(self) -> None:
        """Give up what is on its way, and the connections. Closing twice is harmless."""
        if self._process != os.getpid() or sys.is_finalizing() or not self._thread.is_alive():
            return
        self._portal.call(self._pool.close)
        self._portal.call(self._transport.close)
        self._portal.call(self._portal.stop)
        self._thread.join()


class _Body:
    """The body of a reply, as far as it may be read: plain bytes, not too many, in time."""

    def __init__(self, headers: Any, most: int, until: float) -> None:
        self.readable = headers.get("content-encoding", "identity") == "identity"
        self._parts: list[bytes] | None = [] if self.readable else None
        self._left, self._until, self._late = most, until, False

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
        rule = "be an address such as https://host:8000"
        raise InvalidInput("server", rule, "another", "Give a token as token.")
    if url.scheme == "http" and not is_loopback(url.host):
        rule = "be https, unless it is on this machine"
        raise InvalidInput("server", rule, "http", "Without TLS others read the answers.")
    return str(url).rstrip("/")
