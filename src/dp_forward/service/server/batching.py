"""Dynamic batching: requests that arrive close together share one forward pass.

All requests have the same shape, so a batch is a stack. One thread collects and computes; the rest queue.

Guarantees:
    A request that fails, fails alone: a batch that raises is computed again one by one.
    At most ``queue`` requests wait; one more is refused with `Refused("busy")`, at once.
    Nobody waits longer for company than ``max_wait_ms`` after the first of its batch.
Edges:
    Only a future that is cancelled before its batch begins stops its computation.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

from dp_forward.service.server.request_limits import Refused, busy

_log = logging.getLogger("dp_forward.service")

T = TypeVar("T")
R = TypeVar("R")


@dataclass(slots=True)
class _Waiting(Generic[T, R]):
    item: T
    future: Future[R] = field(default_factory=Future)
    since: float = field(default_factory=time.monotonic)


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
        self._queue: SimpleQueue[_Waiting[T, R] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="dpf-back", daemon=True)
        self._thread.start()
        self.waiting = self._queue.qsize  # how many requests wait, those that are being computed not counted
        self.stopping = False  # whether new requests are refused

    @property
    def full(self) -> bool:
        """Whether one more would be refused."""
        return self.waiting() >= self._most

    @property
    def running(self) -> bool:
        """Whether requests are taken and computed."""
        return not self.stopping and self._thread.is_alive()

    def submit(self, item: T) -> asyncio.Future[R]:
        """The result to be; refused at once where the queue is full or the server stops."""
        if self.stopping:
            raise Refused("stopping", "The server is shutting down.", retry_after=5)
        if self.full:
            raise busy()
        one = _Waiting[T, R](item)
        future = asyncio.wrap_future(one.future)
        # A result that nobody fetches (the client has gone) is not worth a warning.
        future.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._queue.put(one)
        return future

    async def close(self) -> None:
        """Refuse what comes, finish what waits, end the thread."""
        self.stopping = True
        self._queue.put(None)
        await asyncio.to_thread(self._thread.join)

    def _run(self) -> None:
        while self._compute_batch():  # a call each: nothing of a batch is held while the next one is awaited
            pass

    def _compute_batch(self) -> bool:
        """Answer the next batch; False after the last one."""
        first = self._queue.get()
        if first is None:
            return False
        batch, until = [first], first.since + self._max_wait
        with suppress(Empty):
            while len(batch) < self._max_batch:
                one = self._queue.get(timeout=max(0.0, until - time.monotonic()))
                if one is None:  # the last batch
                    self._queue.put(None)
                    break
                batch.append(one)
        if batch := [one for one in batch if one.future.set_running_or_notify_cancel()]:
            self._answer(batch)
        return True

    def _answer(self, batch: list[_Waiting[T, R]]) -> None:
        self._on_batch(len(batch))
        try:
            found = self._compute([one.item for one in batch])
            if len(found) != len(batch):
                raise RuntimeError("the back gave another number of answers")
        except Exception as error:
            # The type alone: a message could hold values.
            _log.error("a batch of %d failed with %s", len(batch), type(error).__name__)
            if len(batch) == 1:
                refused = Refused("back", "The back failed on this request.")
                batch[0].future.set_exception(error if isinstance(error, Refused) else refused)
            for one in batch if len(batch) > 1 else ():
                self._answer([one])
            return
        for one, result in zip(batch, found, strict=True):
            one.future.set_result(result)
