"""Sans-I/O protocol: generators that yield requests and pauses, and receive replies.

A generator of `Steps` yields a `Call`, or the seconds of a pause, and is sent the `Reply` (or thrown
`NoReply`). A transport (`client.transport`) drives it and owns the sockets and the clock, blocking or not.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any, TypeVar

from dp_forward.errors import DpForwardError

__all__ = ["Call", "NoReply", "RetryPolicy"]


class ServerRefused(DpForwardError):
    """A server that does not take what was sent, or answers what makes no sense; asking again is no use."""

    exit_code = 4


class ServerUnavailable(DpForwardError):
    """No answer, although it was asked for as often as allowed; asking again later costs nothing."""

    exit_code = 1


class NoReply(Exception):
    """The network failed, or took too long. The bytes may have arrived or not."""


@dataclass(frozen=True, slots=True)
class Call:
    """One request to make; a reply of more than ``most`` bytes is not read to its end."""

    method: str
    path: str
    most: int
    body: bytes | None = field(default=None, repr=False)
    kind: str = "application/octet-stream"


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back; ``body`` is None where it was too long or encoded."""

    status: int
    body: bytes | None = field(repr=False)
    retry_after: str | None = None


T = TypeVar("T")
Steps = Generator[Call | float, Reply | None, T]


def advance(steps: Steps[T], given: Reply | NoReply | None) -> tuple[Call | float, None] | tuple[None, T]:
    """The next request of some steps, or what they return. No future can hold a StopIteration."""
    try:
        return steps.throw(given) if isinstance(given, NoReply) else steps.send(given), None
    except StopIteration as end:
        return None, end.value


@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """How often, and after how long, the same bytes are sent again.

    The wait doubles from ``first`` to ``longest`` seconds, less a random part of up to a half. A server that
    says ``Retry-After`` is obeyed, up to ``longest``. ``timeout`` is for one request from begin to end.
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


def send(call: Call, retry: RetryPolicy) -> Steps[Reply]:
    """The reply of status 200 to a call that is repeated, byte for byte, while that makes sense.

    Edges:
        Repeated: network failures, 408, 429, and 5xx. Every other status is `ServerRefused` at once.
    """
    problem, wait = "no answer", 0.0
    for attempt in range(max(1, retry.attempts)):
        if attempt:
            yield wait
        try:
            reply = yield call
        except NoReply:
            problem, wait = "the network failed", retry.wait(attempt)
            continue
        if reply is None:
            raise AssertionError("a call is answered by a reply")
        if reply.status == 200:
            return reply
        # 408 and 429 are too slow and too many: the same bytes may be taken later.
        if reply.status not in (408, 429) and reply.status < 500:
            raise _refusal(reply)
        problem, wait = f"status {reply.status}", retry.wait(attempt, reply.retry_after)
    raise ServerUnavailable(
        f"The server gave no answer in {retry.attempts} attempts ({problem}). Check its address, and that "
        "it runs. What was charged is kept: the same text asked again costs nothing."
    )


def _refusal(reply: Reply) -> ServerRefused:
    """Of the server's words only a code is repeated."""
    if reply.status in (401, 403):
        return ServerRefused("The server does not take the token, or wants one. Check it, or get a new one.")
    found = parse_json(reply)
    word = found.get("code", found.get("error")) if isinstance(found, dict) else None
    known = isinstance(word, str) and re.fullmatch(r"[a-z][a-z0-9_-]{0,39}", word)
    reason = f": {word}" if known else ""
    return ServerRefused(f"The server refused with status {reply.status}{reason}. It is not asked again.")


def parse_json(reply: Reply) -> Any:
    """What a JSON body holds; None for anything else, NaN and infinities included."""
    try:
        # int() takes none of the constants: a ValueError.
        return None if reply.body is None else json.loads(reply.body, parse_constant=int)
    except (ValueError, RecursionError):
        return None
