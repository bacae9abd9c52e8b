"""Many questions at once: frames over one WebSocket, each matched with its answer by its id.

`Batch` drives many questions of `exchange` side by side and gives their answers in order. `Stream` is the
socket: it takes one frame and gives the `Reply` that HTTP would have given. `LoopThread` lets a blocking
client use both.

Guarantees:
    Those of `exchange`: a frame gets here only when it is charged and stored, and leaves as it is; after a
    lost connection the same bytes go again. The token goes to the server's own address and nowhere else: no
    redirect is followed and no proxy asked. TLS is checked as for HTTP. Nothing compressed is opened, no
    message is longer than an answer may be, and nothing of a frame is logged.
Edges:
    Texts are read, charged and drawn one after the other, in their order. No library promises that a batch of
    texts rounds as each of them does alone, and what is released must not depend on what else was asked.
    Up to ``at_once`` texts are charged ahead of the answer that is waited for (with 1, none is); what was
    charged and not answered costs nothing when it is asked again.
    Where no stream can be opened (the server has none, or something between lets none through), the frames go
    by HTTP, as many at a time.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException
from websockets.http11 import Response

from dp_forward.errors import InvalidInput
from dp_forward.service.client.session import Answer
from dp_forward.service.protocol.frame import parse_frame
from dp_forward.service.protocol.sansio import Call, Done, NoReply, Pause, Reply, Steps, advance, json_of
from dp_forward.service.server.refusals import STATUS

__all__ = ["Batch", "LoopThread", "Stream"]

T = TypeVar("T")
Caller = Callable[[Call], Awaitable[Reply | NoReply]]

_LONGEST_OPENING: Final = 10.0
_CLOSING_SECONDS: Final = 2.0
_TOO_LONG: Final = 1009
_LATER: Final = (408, 429)
"""What a server says that has a stream, for later. Any other refusal to open the first one, that of a token
among them, is left to HTTP to explain."""
_NONSENSE: Final = Reply(200, None)

_silent = logging.Logger("dp_forward.service.client.bulk", level=logging.CRITICAL + 1)
"""Of no family: at level DEBUG the library would log headers and frames."""


class Stream:
    """One WebSocket to ``/v1/stream``, opened at the first call and again after it was lost."""

    def __init__(self, base: str, *, headers: Mapping[str, str], timeout: float, most: int = 1 << 20) -> None:
        self._address = "ws" + base.removeprefix("http") + "/v1/stream"
        self._headers = {name: text for name, text in headers.items() if name == "authorization"}
        self._timeout, self._most = timeout, most
        self._turn = asyncio.Lock()
        self._socket: ClientConnection | None = None
        self._reader: asyncio.Task[None] | None = None
        self._waiting: dict[str, list[asyncio.Future[Reply | NoReply]]] = {}
        self._heard = 0.0
        self._was_open = False
        self._absent = False

    async def call(self, frame: bytes) -> Reply | NoReply | None:
        """What came of one frame; None where there is no stream, and then the frame was not sent."""
        began = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(self._timeout):
                socket = await self._opened()
                return await self._sent(socket, frame) if isinstance(socket, ClientConnection) else socket
        except TimeoutError:
            # A late answer is one thing, a socket from which nothing comes any more another.
            if self._socket is not None and self._heard < began:
                self._lose(self._socket, NoReply())
            return NoReply()

    async def close(self) -> None:
        """Hang up."""
        socket, reader = self._socket, self._reader
        if socket is not None:
            await socket.close()
            self._lose(socket, NoReply())
        if reader is not None:
            await asyncio.gather(reader, return_exceptions=True)

    async def _opened(self) -> ClientConnection | Reply | NoReply | None:
        async with self._turn:
            if self._socket is None and not self._absent:
                try:
                    self._socket = await self._connect()
                except InvalidStatus as refusal:
                    return self._refused(refusal.response)
                except (OSError, TimeoutError, WebSocketException):
                    self._absent = not self._was_open
                    return None if self._absent else NoReply()
                self._was_open = True
                self._reader = asyncio.create_task(self._read(self._socket))
            return self._socket

    async def _connect(self) -> ClientConnection:
        import httpx

        tls: dict[str, Any] = {}
        if self._address.startswith("wss:"):
            tls["ssl"] = httpx.create_ssl_context()
        return await _Direct(
            self._address,
            additional_headers=self._headers,
            user_agent_header="dp-forward",
            compression=None,
            proxy=None,
            open_timeout=min(_LONGEST_OPENING, self._timeout / 2),
            close_timeout=_CLOSING_SECONDS,
            max_size=self._most,
            logger=_silent,
            **tls,
        )

    def _refused(self, response: Response) -> Reply | None:
        status = response.status_code
        if status in _LATER or status >= 500 or self._was_open:
            return Reply(status, bytes(response.body or b""), response.headers.get("retry-after"))
        self._absent = True
        return None

    async def _sent(self, socket: ClientConnection, frame: bytes) -> Reply | NoReply:
        request = parse_frame(frame).header.request.hex()
        answer: asyncio.Future[Reply | NoReply] = asyncio.get_running_loop().create_future()
        # A list, for the same text may be asked twice at a time; one answer is for both.
        self._waiting.setdefault(request, []).append(answer)
        try:
            await socket.send(frame)
            return await answer
        except ConnectionClosed:
            return NoReply()
        finally:
            if answer in (others := self._waiting.get(request, [])):
                others.remove(answer)
            if not others:
                self._waiting.pop(request, None)

    async def _read(self, socket: ClientConnection) -> None:
        lost: Reply | NoReply = NoReply()
        try:
            while self._takes(await socket.recv(decode=False)):
                pass
            lost = _NONSENSE
        except ConnectionClosed as closed:
            if closed.sent is not None and closed.sent.code == _TOO_LONG:
                lost = _NONSENSE
        finally:
            self._lose(socket, lost)

    def _takes(self, message: bytes) -> bool:
        """One message; whether it is an answer or a refusal at all. One that nobody waits for is left."""
        self._heard = asyncio.get_running_loop().time()
        reply = Reply(200, message)
        match json_of(reply):
            case {"request": str(request), "error": str(code), **more}:
                after = more.get("retry_after")
                reply = Reply(STATUS.get(code, 400), message, str(after) if type(after) is int else None)
            case {"request": str(request)}:
                pass
            case _:
                return False
        _resolve(self._waiting.pop(request, []), reply)
        return True

    def _lose(self, socket: ClientConnection, reply: Reply | NoReply) -> None:
        """Give the socket up, if that is not done yet; all who wait are told."""
        if self._socket is not socket:
            return
        self._socket = None
        socket.transport.abort()
        waiting, self._waiting = self._waiting, {}
        for answers in waiting.values():
            _resolve(answers, reply)


class _Direct(connect):
    """To the address itself, never to another one that it names."""

    def process_redirect(self, exc: Exception) -> Exception:
        return exc


def _resolve(answers: list[asyncio.Future[Reply | NoReply]], reply: Reply | NoReply) -> None:
    for answer in answers:
        if not answer.done():
            answer.set_result(reply)


class Batch:
    """Up to ``at_once`` questions on their way, and their answers in the order in which they were added.

    ``first`` is done once, before the first question; ``otherwise`` makes the calls that do not go over the
    stream. All methods belong to one event loop.
    """

    def __init__(self, first: Steps[Any], *, at_once: int, stream: Stream | None, otherwise: Caller) -> None:
        if at_once < 1:
            raise InvalidInput("at_once", "be at least 1", at_once, "Leave it out.")
        self._first: Steps[Any] | None = first
        self._at_once, self._stream, self._otherwise = at_once, stream, otherwise
        self._waiting: deque[asyncio.Task[Answer]] = deque()
        # One thread, so that the texts are charged in their order.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="dp-forward-ask")

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def full(self) -> bool:
        """Whether an answer must be taken before another question is added."""
        return len(self) >= self._at_once

    async def add(self, steps: Steps[Answer]) -> None:
        """One more question."""
        if self._first is not None:
            first, self._first = self._first, None
            await self.drive(first)
        self._waiting.append(asyncio.create_task(self.drive(steps)))

    async def next(self) -> Answer:
        """The answer to the question that was added first, or its error."""
        answer = await self._waiting[0]
        self._waiting.popleft()
        return answer

    async def drive(self, steps: Steps[T]) -> T:
        """Some steps to their end."""
        loop, given = asyncio.get_running_loop(), None
        while True:
            todo = await loop.run_in_executor(self._thread, advance, steps, given)
            given = None
            match todo:
                case Pause(seconds):
                    await asyncio.sleep(seconds)
                case Call():
                    given = await self._call(todo)
                case Done(value):
                    return value  # type: ignore[no-any-return]

    async def close(self) -> None:
        """Give up what is on its way; when this returns, nothing touches the ledger any more."""
        for task in self._waiting:
            task.cancel()
        await asyncio.gather(*self._waiting, return_exceptions=True)
        self._waiting.clear()
        await asyncio.to_thread(self._thread.shutdown, cancel_futures=True)
        if self._stream is not None:
            await self._stream.close()

    async def _call(self, call: Call) -> Reply | NoReply:
        if self._stream is not None and call.body is not None:
            reply = await self._stream.call(call.body)
            if reply is not None:
                return reply
        return await self._otherwise(call)


class LoopThread:
    """An event loop in a thread of its own, for those who block; also where another loop is running."""

    def __init__(self) -> None:
        self._process = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="dp-forward-loop", daemon=True)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for a coroutine."""
        if self._process != os.getpid():
            work.close()
            raise InvalidInput("answers", "be taken by the process that asked", "a fork", "Ask again in it.")
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def end(self, work: Coroutine[Any, Any, object]) -> None:
        """Wait for a last coroutine; in a fork there is nothing to end."""
        if self._process == os.getpid():
            self.run(work)
        else:
            work.close()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process != os.getpid():
            return  # the thread is in the other process
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self) -> None:
        self._loop.run_forever()
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()
