"""The client: two thin shells around `exchange`, one that blocks and one that does not.

    with Client("run/front", server="https://provider.example", ledger="me.ledger", budget=50.0) as client:
        client.ask("a quiet, generous film").label

Guarantees:
    Those of `exchange`. Redirects are not followed, no cookie is kept, no compressed answer is opened, and an
    answer is read up to a fixed size and time. Without TLS only this machine is spoken to.
Edges:
    A client may be used on both sides of a fork: no connection to a server is shared between processes.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from dp_forward.errors import InvalidInput
from dp_forward.handed import UserSide, load_user_side
from dp_forward.privacy.ledger import Summary
from dp_forward.serve.exchange import Answer, Exchange, Look
from dp_forward.serve.policy import Policy
from dp_forward.serve.steps import Call, NoReply, Patience, Pause, Reply, Steps

if TYPE_CHECKING:
    import httpx

__all__ = ["Answer", "AsyncClient", "Client", "Look", "Patience"]

T = TypeVar("T")
Progress = Callable[[int], None]


class _Common:
    """What both clients are made of."""

    def __init__(
        self,
        front: str | os.PathLike[str] | UserSide,
        *,
        server: str,
        ledger: str | os.PathLike[str],
        budget: float | None = None,
        token: str | None = None,
        transport: Any = None,
        bits: int | None = None,
        epsilon: float | None = None,
        allow_more_noise: bool = False,
        patience: Patience | None = None,
    ) -> None:
        self._base = _address(server)
        self._headers = _headers(token)
        self._transport = transport
        self._patience = patience or Patience()
        user = front if isinstance(front, UserSide) else load_user_side(Path(front))
        policy = Policy.of(user, bits=bits, allow_more_noise=allow_more_noise)
        self.policy = policy if epsilon is None else policy.with_epsilon(epsilon)
        """What this user allows; see `Policy`."""
        self._exchange = Exchange(
            user, self.policy, server=self._base, ledger=ledger, budget=budget, patience=self._patience
        )
        self._process = os.getpid()

    def summary(self) -> Summary:
        """What has been spent, and what is left."""
        return self._exchange.summary()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._base}) -> {self.policy.terms().mechanism.promise()}"

    def _options(self) -> dict[str, Any]:
        return {
            "headers": self._headers,
            "transport": self._transport,
            "timeout": self._patience.timeout,
            "follow_redirects": False,
        }

    def _request(self, call: Call) -> dict[str, Any]:
        kind = {} if call.body is None else {"content-type": "application/octet-stream"}
        return {
            "method": call.method,
            "url": self._base + call.path,
            "content": call.body,
            "headers": kind,
        }


class Client(_Common):
    """Asks a server about texts, blocking; see the module and `exchange`.

    ``front`` is the user's folder of a run, ``budget`` the cap of a new ledger (epsilon in all), ``token``
    what the server knows the user by. ``epsilon`` asks with more noise than the front says, if the server
    offers it. ``transport`` is one of httpx.
    """

    _http: httpx.Client | None = None

    def ask(self, text: str, *, epsilon: float | None = None) -> Answer:
        """One question; the same text again sends the stored release, and costs nothing.

        ``epsilon`` is for this question only; the same text at another epsilon is another release.
        """
        return self._drive(self._exchange.ask(text, epsilon=epsilon))

    def offered_epsilons(self) -> tuple[float, ...]:
        """At which epsilons the server answers, of those that the front allows; greatest first."""
        return self._drive(self._exchange.offered())

    def look(self, text: str, *, epsilon: float | None = None) -> Look:
        """What the provider could see of a text; nothing of it is drawn, charged or sent."""
        return self._drive(self._exchange.look(text, epsilon=epsilon))

    def ask_many(self, texts: Iterable[str], *, progress: Progress | None = None) -> Iterator[Answer]:
        """An answer for each text, in order; ``progress`` is called with how many there are so far.

        Edges:
            A text whose answer is stored is not asked again, so whoever was interrupted starts anew. The
            first error ends it; what was answered before is stored.
        """
        for number, text in enumerate(texts, start=1):
            answer = self._drive(self._exchange.ask(text, recall=True, name=f"text {number}"))
            if progress is not None:
                progress(number)
            yield answer

    def close(self) -> None:
        """Give back the ledger and the connections."""
        if self._http is not None:
            self._http.close()
            self._http = None
        self._exchange.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _drive(self, steps: Steps[T]) -> T:
        given: Reply | NoReply | None = None
        while True:
            todo = _advance(steps, given)
            match todo:
                case Pause(seconds):
                    time.sleep(seconds)
                    given = None
                case Call():
                    given = self._call(todo)
                case _Done(value):
                    return value  # type: ignore[no-any-return]

    def _call(self, call: Call) -> Reply | NoReply:
        import httpx

        if self._http is None or self._process != os.getpid():
            self._http, self._process = httpx.Client(**self._options()), os.getpid()
        body = _Body(call.most, self._patience.timeout)
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


class AsyncClient(_Common):
    """As `Client`, for asyncio. The front and the ledger run in threads, so the loop is never held up."""

    _http: httpx.AsyncClient | None = None

    async def ask(self, text: str, *, epsilon: float | None = None) -> Answer:
        """One question; see `Client.ask`."""
        return await self._drive(self._exchange.ask(text, epsilon=epsilon))

    async def offered_epsilons(self) -> tuple[float, ...]:
        """See `Client.offered_epsilons`."""
        return await self._drive(self._exchange.offered())

    async def ask_many(
        self, texts: Iterable[str], *, progress: Progress | None = None, at_once: int = 8
    ) -> AsyncIterator[Answer]:
        """As `Client.ask_many`, with up to ``at_once`` questions on their way at a time; in order."""
        if at_once < 1:
            raise InvalidInput("at_once", "be at least 1", at_once, "Leave it out.")
        waiting: deque[asyncio.Task[Answer]] = deque()
        numbered = enumerate(texts, start=1)
        done = 0
        try:
            while True:
                while len(waiting) < at_once and (item := next(numbered, None)) is not None:
                    steps = self._exchange.ask(item[1], recall=True, name=f"text {item[0]}")
                    waiting.append(asyncio.create_task(self._drive(steps)))
                if not waiting:
                    return
                answer = await waiting[0]
                waiting.popleft()
                done += 1
                if progress is not None:
                    progress(done)
                yield answer
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    async def close(self) -> None:
        """Give back the ledger and the connections."""
        if self._http is not None:
            await self._http.aclose()
            self._http = None
        self._exchange.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _drive(self, steps: Steps[T]) -> T:
        given: Reply | NoReply | None = None
        while True:
            todo = await asyncio.to_thread(_advance, steps, given)
            match todo:
                case Pause(seconds):
                    await asyncio.sleep(seconds)
                    given = None
                case Call():
                    given = await self._call(todo)
                case _Done(value):
                    return value  # type: ignore[no-any-return]

    async def _call(self, call: Call) -> Reply | NoReply:
        import httpx

        if self._http is None or self._process != os.getpid():
            self._http, self._process = httpx.AsyncClient(**self._options()), os.getpid()
        body = _Body(call.most, self._patience.timeout)
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


class _Done:
    """The end of some steps, with what they returned."""

    __match_args__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


def _advance(steps: Steps[Any], given: Reply | NoReply | None) -> Call | Pause | _Done:
    """On to the next thing to do. A value and not StopIteration, which no future can hold."""
    try:
        return steps.throw(given) if isinstance(given, NoReply) else steps.send(given)
    except StopIteration as end:
        return _Done(end.value)


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
    if url.scheme == "http" and not _is_here(url.host):
        raise InvalidInput(
            "server", "be https, unless it is on this machine", "http", "Without TLS others read the answers."
        )
    return str(url).rstrip("/")


def _is_here(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _headers(token: str | None) -> dict[str, str]:
    headers = {"user-agent": "dp-forward", "accept-encoding": "identity", "accept": "application/json"}
    if token is not None:
        if not token or not token.isascii() or not token.isprintable() or " " in token:
            raise InvalidInput("token", "be printable ASCII without blanks", "another", "Check the file.")
        headers["authorization"] = f"Bearer {token}"
    return headers
