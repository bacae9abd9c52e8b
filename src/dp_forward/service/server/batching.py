"""Dynamic batching: requests that arrive close together share one forward pass.

All requests have the same shape, so a batch is a stack. One task collects and one thread computes: while it
does, the next batch fills up.

Guarantees:
    A request that fails, fails alone: a batch that raises is computed again one by one.
    At most ``queue`` requests wait; one more is refused with `Refused("busy")`, at once.
    Nobody waits longer for company than ``max_wait_ms`` after the first of its batch.
Edges:
    The task lives as long as there is something to do, so no start is needed. Whoever stops waiting does not
    stop the computation, unless the future itself is cancelled before its batch begins.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, TypeVar

from dp_forward.service.server.request_limits import Refused

_log = logging.getLogger("dp_forward.service")

T = TypeVar("T")
R = TypeVar("R")


@dataclass(slots=True)
class _Waiting(Generic[T, R]):
    item: T
    future: asyncio.Future[R]
    since: float


class Batcher(Generic[T, R]):
    """Collects items for ``compute``, which maps a list of them to a list of results in a thread."""

    def __init__(
        self,
        compute: Callable[[Sequence[T]], Sequence[R]],
        *,
        max_batch: int,
        max_wait_ms: float,
        queue: int,
        on_batch: Callable[[int], None] = lambda size: None,
    ) -> None:
        self._compute, self._on_batch = compute, on_batch
        self._max_batch, self._max_wait, self._most = max_batch, max_wait_ms / 1000, queue
        self._waiting: deque[_Waiting[T, R]] = deque()
        self._worker: asyncio.Task[None] | None = None
        self._grown = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="dpf-back")
        self.stopping = False
        """Whether new requests are refused."""

    @property
    def waiting(self) -> int:
        """How many requests wait, those that are being computed not counted."""
        return len(self._waiting)

    def submit(self, item: T) -> asyncio.Future[R]:
        """The result to be; refused at once where the queue is full or the server stops."""
        if self.stopping:
            raise Refused("stopping", "The server is shutting down.", retry_after=5)
        if len(self._waiting) >= self._most:
            raise Refused("busy", "Too many requests wait. Send the same bytes again.", retry_after=1)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[R] = loop.create_future()
        # A result that nobody fetches (the client has gone) is not worth a warning.
        future.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._waiting.append(_Waiting(item, future, loop.time()))
        if self._worker is None or self._worker.done():
            self._grown = asyncio.Event()
            self._worker = loop.create_task(self._work())
        else:
            self._grown.set()
        return future

    async def close(self) -> None:
        """Refuse what comes, finish what waits, give the thread back."""
        self.stopping = True
        if self._worker is not None and not self._worker.done():
            self._grown.set()
            with contextlib.suppress(asyncio.CancelledError):
                await self._worker
        self._thread.shutdown(wait=False)

    async def _work(self) -> None:
        try:
            while self._waiting:
                await self._fill_batch()
                size = min(self._max_batch, len(self._waiting))
                taken = [self._waiting.popleft() for _ in range(size)]
                if batch := [one for one in taken if not one.future.done()]:
                    await self._answer(batch)
        except asyncio.CancelledError:
            # The loop ends: nobody is left to wait.
            while self._waiting:
                self._waiting.popleft().future.cancel()
            raise

    async def _fill_batch(self) -> None:
        """Wait until the batch is full, or the first of it has waited long enough."""
        loop = asyncio.get_running_loop()
        until = self._waiting[0].since + self._max_wait
        while len(self._waiting) < self._max_batch and not self.stopping:
            left = until - loop.time()
            if left <= 0:
                return
            self._grown.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._grown.wait()

    async def _answer(self, batch: list[_Waiting[T, R]]) -> None:
        self._on_batch(len(batch))
        try:
            loop = asyncio.get_running_loop()
            found = await loop.run_in_executor(self._thread, self._compute, [one.item for one in batch])
            if len(found) != len(batch):
                raise RuntimeError("the back gave another number of answers")
        except Exception as error:
            # The type alone: a message could hold values.
            _log.error("a batch of %d failed with %s", len(batch), type(error).__name__)
            if len(batch) > 1:
                for one in batch:
                    await self._answer([one])
            elif not batch[0].future.done():
                batch[0].future.set_exception(Refused("back", "The back failed on this request."))
            return
        except asyncio.CancelledError:
            for one in batch:
                one.future.cancel()
            raise
        for one, result in zip(batch, found, strict=True):
            if not one.future.done():
                one.future.set_result(result)
