"""Child processes that work on a store, and are killed at random moments; what they said before."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from typing import Any

DAY, MARK = 86_400, 33
"""Seconds of memory, and bytes of what a child says."""
Say = Callable[[bytes, bytes, bytes], None]
"""Kind (b: begun, s: sent, a: acknowledged), id and answer."""


@contextlib.contextmanager
def children(work: Callable[[str, Say], None], place: str, number: int) -> Iterator[Callable[[], None]]:
    """Children at work; calling it kills one of them, at random, and starts another."""
    running: list[int] = []

    def start() -> None:
        if child := os.fork():
            running.append(child)
            return
        random.seed()
        try:
            work(place, lambda kind, request, found: os.write(writing, kind + request + found) and None)
        except BaseException as error:
            os.write(2, f"a child: {type(error).__name__}: {error}\n".encode())
        finally:
            os._exit(1)

    def kill() -> None:
        child = running.pop(random.randrange(len(running)))
        os.kill(child, signal.SIGKILL)
        ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert ended == -signal.SIGKILL, f"a child ended by itself, with {ended}"

    def replace_one() -> None:
        kill()
        start()

    reading, writing = os.pipe()
    said.clear()
    reader = threading.Thread(target=_listen, args=(reading,))
    try:
        for _ in range(number):
            start()
        reader.start()
        yield replace_one
    finally:
        while running:
            kill()
        os.close(writing)
        reader.join()
        os.close(reading)


said: list[bytes] = []
"""What the children have said."""


def _listen(reading: int) -> None:
    rest = b""
    while data := os.read(reading, 1 << 16):
        rest += data
        while len(rest) >= MARK:
            said.append(rest[:MARK])
            rest = rest[MARK:]


def kill_children(
    work: Callable[[str, Say], None], place: str, *, kills: int, number: int, longest: float = 0.06
) -> dict[str, Any]:
    """Kill so many; ids by what was said of them, the answers of each, and how often each kind was said."""
    with children(work, place, number) as replace_one:
        for _ in range(kills):
            time.sleep(random.uniform(0.004, longest))
            replace_one()
    begun = {one[1:17] for one in said if one[:1] == b"b"}
    acknowledged = {one[1:17] for one in said if one[:1] == b"a"}
    answers = defaultdict(set)
    for one in said:
        answers[one[1:17]].add(one[17:])
    kinds = Counter(one[:1] for one in said)
    return {"begun": begun, "acknowledged": acknowledged, "answers": answers, "said": kinds}
