"""Hostile frames and requests, without end: mutated, truncated, random, and wrong in HTTP itself."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable

from benchmarks.load import FRAME_TYPE, Line, NoAnswer, fresh, request

_HEADER = 128
_TIME = slice(112, 120)


def mangled(frame: bytes, rng: random.Random) -> bytes:
    """A frame that is wrong somewhere; one in fifty differs in its integers only, and may be answered."""
    kind = rng.randrange(50)
    if kind == 0:
        data = bytearray(fresh(frame))
        for _ in range(rng.randrange(1, 64)):
            data[rng.randrange(_HEADER, len(data))] = rng.randrange(256)
        return bytes(data)
    if kind < 10:
        return rng.randbytes(
            rng.choice([0, 1, 4, 127, 128, 129, 600, len(frame) - 1, len(frame), len(frame) + 1])
        )
    if kind < 20:
        return frame[: rng.randrange(len(frame))]
    data = bytearray(frame)
    if kind < 35:
        for _ in range(rng.randrange(1, 4)):
            # Not in the id: such a frame is an honest one.
            at = rng.choice([*range(96), *range(112, _HEADER)])
            data[at] ^= 1 << rng.randrange(8)
    elif kind < 45:
        at = rng.randrange(96)
        data[at : at + 8] = rng.randbytes(8)
    elif kind < 48:
        data[_TIME] = rng.randbytes(8)
    else:
        data[_HEADER:] = bytes([rng.randrange(256)]) * (len(data) - _HEADER)
    return bytes(data[: len(frame)])


def bad_request(frame: bytes, rng: random.Random) -> bytes:
    """A request that is wrong before its body matters; the connection ends with it."""
    short = mangled(frame, rng)[:2000]
    size = str(len(frame))
    return rng.choice(
        [
            lambda: rng.randbytes(rng.randrange(1, 200)) + b"\r\n\r\n",
            lambda: b"POST /v1/answer HTTP/9.9\r\n\r\n",
            lambda: request(
                rng.choice(["GET", "PUT", "DELETE", "PATCH", "X" * 40]), "/v1/answer", short, [FRAME_TYPE]
            ),
            lambda: request("POST", "/" + "a" * rng.randrange(4000), short, [FRAME_TYPE]),
            lambda: request("POST", "/v1/answer", frame, [("content-type", "text/html")]),
            lambda: request("POST", "/v1/answer", frame, [FRAME_TYPE, ("content-encoding", "gzip")]),
            lambda: request("POST", "/v1/answer", short, [FRAME_TYPE, ("content-length", "-1")]),
            lambda: request("POST", "/v1/answer", short, [FRAME_TYPE, ("content-length", "9" * 30)]),
            lambda: request("POST", "/v1/answer", short, [FRAME_TYPE, ("content-length", size)]),
            lambda: request("POST", "/v1/answer", short, [("content-length", size), ("content-length", "3")]),
            lambda: request("POST", "/v1/answer", short, [FRAME_TYPE, ("x-" + "y" * 70_000, "z")]),
            lambda: request(
                "POST", "/v1/answer", b"", [FRAME_TYPE, ("transfer-encoding", "chunked"), ("a", "\x00")]
            ),
            lambda: (
                b"POST /v1/answer HTTP/1.1\r\nhost: a\r\ncontent-type: application/octet-stream\r\n"
                b"transfer-encoding: chunked\r\n\r\n" + b"ffffff\r\n" + short + b"\r\n0\r\n\r\n"
            ),
        ]
    )()


class Fuzzed:
    """What a server made of it: outcomes by status or code."""

    def __init__(self) -> None:
        self.outcomes: Counter[str] = Counter()
        self.sent = 0

    def note(self, what: object) -> None:
        """One more."""
        self.outcomes[str(what)] += 1
        self.sent += 1

    @property
    def failures(self) -> int:
        """Answers of status 5xx."""
        return sum(many for what, many in self.outcomes.items() if what[:1] == "5")


async def fuzz_http(
    host: str, port: int, frame: bytes, *, many: int, seed: int, progress: Callable[[int], None]
) -> Fuzzed:
    """So many hostile requests over a few kept connections."""
    found = Fuzzed()
    left = iter(range(many))

    async def one(number: int) -> None:
        rng, line = random.Random(seed * 1000 + number), Line(host, port)
        for _ in left:
            try:
                async with asyncio.timeout(30):
                    if rng.random() < 0.1:
                        status, _ = await line.send(bad_request(frame, rng), hang_up=True)
                    else:
                        status, _ = await line.send(
                            request("POST", "/v1/answer", mangled(frame, rng), [FRAME_TYPE])
                        )
                found.note(status)
            except NoAnswer:
                found.note("closed")
            except TimeoutError:
                found.note("silent")
                await line.close()
            if found.sent % 2000 == 0:
                progress(found.sent)
        await line.close()

    await asyncio.gather(*(one(number) for number in range(8)))
    return found
