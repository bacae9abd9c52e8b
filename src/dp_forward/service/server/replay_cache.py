"""Recent request ids and their answers: a retry gets the same answer, and an id stands for one release.

* The same id with the same bytes gives the same answer again, or waits for the one that is being computed.
* The same id with other bytes is refused.

Guarantees:
    At most ``most`` ids and ``most_bytes`` of answers are kept; the oldest go first.
Edges:
    An id that has been forgotten is as good as new. The same bytes then give the same answer, computed anew;
    other bytes are taken. A request that failed is forgotten at once, so that it can be tried again.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass

from dp_forward.service.server.request_limits import Refused


@dataclass(slots=True)
class Known:
    """What is known of an id: the digest of its bytes, and the answer or who computes it."""

    digest: bytes
    answer: bytes | asyncio.Future[bytes]


class ReplayCache:
    """Recent ids, oldest first; see the module."""

    def __init__(self, most: int, *, most_bytes: int) -> None:
        self._most, self._most_bytes, self._bytes = most, most_bytes, 0
        self._known: OrderedDict[bytes, Known] = OrderedDict()

    def find(self, request: bytes, *, digest: bytes) -> bytes | asyncio.Future[bytes] | None:
        """The answer to these bytes, or who computes it; None for a new id; `Refused` for other bytes."""
        known = self._known.get(request)
        if known is None:
            return None
        if known.digest != digest:
            raise Refused("replayed", "This request id came with other bytes. Draw a new id.")
        # A loop that was closed left its future behind; then the answer is computed anew.
        if not isinstance(known.answer, bytes) and known.answer.get_loop().is_closed():
            self._forget(request, known)
            return None
        return known.answer

    def begin(self, request: bytes, *, digest: bytes, pending: asyncio.Future[bytes]) -> None:
        """Remember that these bytes are being answered; the answer is kept when it comes."""
        known = Known(digest, pending)
        self._known[request] = known
        pending.add_done_callback(lambda done: self._settle(request, known, done))
        self._trim()

    def _settle(self, request: bytes, known: Known, done: asyncio.Future[bytes]) -> None:
        if self._known.get(request) is not known:
            return
        if done.cancelled() or done.exception() is not None:
            self._forget(request, known)
            return
        known.answer = done.result()
        self._bytes += len(known.answer)
        self._trim()

    def _forget(self, request: bytes, known: Known) -> None:
        del self._known[request]
        self._bytes -= len(known.answer) if isinstance(known.answer, bytes) else 0

    def _trim(self) -> None:
        while len(self._known) > self._most or (self._bytes > self._most_bytes and len(self._known) > 1):
            self._forget(*next(iter(self._known.items())))
