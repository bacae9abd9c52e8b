"""Batches fill up, failures stay alone, and a full queue says so."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import pytest

from dp_forward.service.server.batching import Batcher
from dp_forward.service.server.handler import ReplayCache
from dp_forward.service.server.request_limits import Refused


def squares(items: Sequence[int]) -> list[int]:
    return [item * item for item in items]


class Gate:
    """A computation that waits until it is let go, and writes down its batches."""

    def __init__(self) -> None:
        self.open, self.sizes = threading.Event(), list[int]()

    async def begun(self) -> None:
        while not self.sizes:
            await asyncio.sleep(0.01)

    def __call__(self, items: Sequence[int]) -> list[int]:
        self.sizes.append(len(items))
        self.open.wait(30)
        return squares(items)


def test_every_request_gets_its_own_result() -> None:
    async def work() -> list[int]:
        batcher = Batcher(squares, max_batch=8, max_wait_ms=1, queue=200)
        found = await asyncio.gather(*(batcher.submit(i) for i in range(100)))
        await batcher.close()
        return found

    assert asyncio.run(work()) == [i * i for i in range(100)]


def test_requests_that_come_together_are_computed_together_up_to_the_limit() -> None:
    sizes: list[int] = []

    async def work() -> None:
        batcher = Batcher(squares, max_batch=8, max_wait_ms=500, queue=200, on_batch=sizes.append)
        await asyncio.gather(*(batcher.submit(i) for i in range(20)))

    asyncio.run(work())
    assert sizes == [8, 8, 4]


def test_a_full_batch_does_not_wait_and_a_lonely_request_waits_no_longer_than_allowed() -> None:
    sizes: list[int] = []

    async def work() -> None:
        hour = 3_600_000
        patient = Batcher(squares, max_batch=4, max_wait_ms=hour, queue=200, on_batch=sizes.append)
        await asyncio.gather(*(patient.submit(i) for i in range(4)))
        brief = Batcher(squares, max_batch=4, max_wait_ms=50, queue=200, on_batch=sizes.append)
        await brief.submit(1)

    asyncio.run(work())
    assert sizes == [4, 1]


def test_those_who_come_while_a_batch_is_computed_form_the_next_one() -> None:
    gate = Gate()

    async def work() -> list[int]:
        batcher = Batcher(gate, max_batch=16, max_wait_ms=0, queue=200)
        first = batcher.submit(0)
        await gate.begun()
        later = [batcher.submit(i) for i in range(1, 11)]
        gate.open.set()
        return await asyncio.gather(first, *later)

    assert asyncio.run(work()) == [i * i for i in range(11)]
    assert gate.sizes == [1, 10]


def test_a_request_that_fails_fails_alone() -> None:
    def picky(items: Sequence[int]) -> list[int]:
        if 13 in items:
            raise ValueError("secret 13")
        return squares(items)

    async def work() -> list[int | BaseException]:
        batcher = Batcher(picky, max_batch=16, max_wait_ms=5, queue=200)
        return await asyncio.gather(*(batcher.submit(i) for i in range(16)), return_exceptions=True)

    found = asyncio.run(work())
    assert [one for i, one in enumerate(found) if i != 13] == [i * i for i in range(16) if i != 13]
    assert isinstance(found[13], Refused)
    assert found[13].code == "back"
    assert "13" not in str(found[13])


def test_a_full_queue_refuses_at_once_and_recovers() -> None:
    gate = Gate()

    async def work() -> list[int]:
        batcher = Batcher(gate, max_batch=1, max_wait_ms=0, queue=3)
        waiting = [batcher.submit(0)]
        await gate.begun()
        waiting += [batcher.submit(i) for i in (1, 2, 3)]
        assert batcher.waiting() == 3
        with pytest.raises(Refused) as caught:
            batcher.submit(4)
        assert (caught.value.code, caught.value.status, caught.value.retry_after) == ("busy", 429, 1)
        gate.open.set()
        await asyncio.gather(*waiting)
        return [await batcher.submit(5)]

    assert asyncio.run(work()) == [25]


def test_one_who_leaves_does_not_take_the_others_along() -> None:
    gate = Gate()

    async def work() -> list[int]:
        batcher = Batcher(gate, max_batch=4, max_wait_ms=0, queue=9)
        first = batcher.submit(1)
        await gate.begun()
        second, third = batcher.submit(2), batcher.submit(3)
        first.cancel()
        second.cancel()
        await asyncio.sleep(0)
        gate.open.set()
        return [await third]

    assert asyncio.run(work()) == [9]
    assert gate.sizes == [1, 1]


def test_closing_finishes_what_waits_and_refuses_what_comes() -> None:
    async def work() -> list[int]:
        batcher = Batcher(squares, max_batch=2, max_wait_ms=10_000, queue=9)
        waiting = [batcher.submit(i) for i in range(3)]
        await asyncio.sleep(0)
        await batcher.close()
        with pytest.raises(Refused, match="shutting down"):
            batcher.submit(4)
        return await asyncio.gather(*waiting)

    assert asyncio.run(work()) == [0, 1, 4]


def test_a_batcher_outlives_its_event_loop() -> None:
    batcher = Batcher(squares, max_batch=2, max_wait_ms=1, queue=9)

    async def one() -> int:
        return await batcher.submit(7)

    assert [asyncio.run(one()) for _ in range(3)] == [49, 49, 49]


def test_the_memory_of_ids_is_bounded() -> None:
    async def work() -> int:
        memory = ReplayCache(10)
        for i in range(50):
            future = asyncio.get_running_loop().create_future()
            memory.begin(bytes([i]) * 16, digest=b"d", pending=future)
            future.set_result(bytes(100))
            await asyncio.sleep(0)
        assert memory.find(bytes([49]) * 16, digest=b"d") is not None
        assert memory.find(bytes([0]) * 16, digest=b"other") is None  # forgotten: as good as new
        return len(memory._known)

    assert asyncio.run(work()) == 10


def test_a_failed_request_is_forgotten_and_other_bytes_are_refused() -> None:
    async def work() -> None:
        memory = ReplayCache(10)
        future = asyncio.get_running_loop().create_future()
        memory.begin(b"i", digest=b"d", pending=future)
        with pytest.raises(Refused) as caught:
            memory.find(b"i", digest=b"e")
        assert caught.value.status == 409
        future.set_exception(Refused("back", "It failed."))
        await asyncio.sleep(0)
        assert memory.find(b"i", digest=b"e") is None

    asyncio.run(work())
