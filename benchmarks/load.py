"""A light load generator: HTTP/1.1 over kept connections, and frames with fresh ids."""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np

from dp_forward.noise import release_batch
from dp_forward.service.client.network import NoReply
from dp_forward.service.client.transport import Call, Transport
from dp_forward.service.protocol.frame import frame_of
from dp_forward.service.protocol.manifest import Manifest

FRAME_TYPE = ("content-type", "application/octet-stream")
_REQUEST, _TIME = slice(96, 112), slice(112, 120)


def frames_for(manifest: Manifest, many: int, *, seed: int = 0) -> list[bytes]:
    """Honest frames of random matrices."""
    hidden = np.random.default_rng(seed).standard_normal(
        (many, manifest.release.matrix_rows, manifest.release.width)
    )
    return [
        frame_of(
            released,
            cut=manifest.release.cut,
            front=manifest.release.front,
            request=os.urandom(16),
            time=int(time.time()),
        )
        for released in release_batch(hidden, manifest.mechanism(), bits=manifest.release.bits)
    ]


def fresh(frame: bytes) -> bytes:
    """The same integers under a new id and the present time: no answer of the server's memory fits it."""
    new = bytearray(frame)
    new[_REQUEST] = os.urandom(16)
    new[_TIME] = int(time.time()).to_bytes(8, "little")
    return bytes(new)


class NoAnswer(Exception):
    """The connection ended without a response."""


class Line:
    """One kept HTTP connection, opened anew when the server closes it."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self.retry_after = 0.0
        """What the last response said, in seconds."""
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def post(self, frame: bytes) -> tuple[int, bytes]:
        """One frame to be answered."""
        return await self._again(request("POST", "/v1/answer", frame, [FRAME_TYPE]))

    async def get(self, path: str) -> tuple[int, bytes]:
        """One page."""
        return await self._again(request("GET", path, None, []))

    async def _again(self, data: bytes) -> tuple[int, bytes]:
        """A kept connection that the server has closed meanwhile is no fault of the request."""
        kept = self._streams is not None
        try:
            return await self.send(data)
        except NoAnswer:
            if not kept:
                raise
            return await self.send(data)

    async def send(self, data: bytes, *, hang_up: bool = False) -> tuple[int, bytes]:
        """Any bytes, and the response to them; ``hang_up`` closes this side's half of the connection."""
        if self._streams is None:
            self._streams = await asyncio.open_connection(self._host, self._port)
        reader, writer = self._streams
        try:
            writer.write(data)
            if hang_up:
                writer.write_eof()
            head = await reader.readuntil(b"\r\n\r\n")
            lines = head.decode("latin-1").split("\r\n")
            names = dict(line.lower().split(": ", 1) for line in lines[1:] if ": " in line)
            body = await reader.readexactly(int(names.get("content-length", "0")))
        except (asyncio.IncompleteReadError, ConnectionError, OSError) as error:
            await self.close()
            raise NoAnswer from error
        if hang_up or names.get("connection") == "close":
            await self.close()
        self.retry_after = float(names.get("retry-after", 0))
        return int(lines[0].split(" ")[1]), body

    async def close(self) -> None:
        """Give the connection back."""
        if self._streams is not None:
            writer, self._streams = self._streams[1], None
            writer.close()


def request(method: str, path: str, body: bytes | None, headers: Sequence[tuple[str, str]]) -> bytes:
    """The bytes of a request."""
    lines = [f"{method} {path} HTTP/1.1", "host: 127.0.0.1", *(f"{name}: {value}" for name, value in headers)]
    if body is not None and not any(name.lower() == "content-length" for name, _ in headers):
        lines.append(f"content-length: {len(body)}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1", "replace") + (body or b"")


@dataclass
class Tally:
    """What came back."""

    latencies: list[float] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)
    began: float = 0.0
    ended: float = 0.0

    @property
    def per_second(self) -> float:
        """Answers per second."""
        return len(self.latencies) / (self.ended - self.began)

    def quantile(self, share: float) -> float:
        """A latency, in milliseconds."""
        return 1e3 * float(np.quantile(self.latencies, share)) if self.latencies else float("nan")


Ask = Callable[[bytes], Awaitable[str | None]]
"""Sends a frame; None for an answer, else what went wrong."""


async def http_clients(
    host: str, port: int, many: int, *, patient: bool = False
) -> tuple[list[Ask], Callable[[], Awaitable[None]]]:
    """Clients with a kept connection each, and how to close them; patient ones wait as they are told."""
    lines = [Line(host, port) for _ in range(many)]

    def client(line: Line) -> Ask:
        async def ask(frame: bytes) -> str | None:
            try:
                status, _ = await line.post(frame)
            except (NoAnswer, OSError):
                return "no answer"
            if patient and status != 200:
                await asyncio.sleep(line.retry_after)
            return None if status == 200 else str(status)

        return ask

    async def close() -> None:
        for line in lines:
            await line.close()

    return [client(line) for line in lines], close


async def transport_clients(
    host: str, port: int, many: int
) -> tuple[list[Ask], Callable[[], Awaitable[None]]]:
    """Threads that share the kept-alive connections of one transport, as in `ask_many`; how to close them."""
    transport, threads = Transport(f"http://{host}:{port}", token=None), ThreadPoolExecutor(many)

    async def ask(frame: bytes) -> str | None:
        call = Call("POST", "/v1/answer", body=frame)
        try:
            reply = await asyncio.get_running_loop().run_in_executor(threads, transport.call, call)
        except NoReply:
            return "no answer"
        return None if reply.status == 200 else str(reply.status)

    async def close() -> None:
        transport.close()
        threads.shutdown()

    return [ask] * many, close


async def closed_loop(clients: Sequence[Ask], frames: Sequence[bytes], *, seconds: float) -> Tally:
    """Every client asks again as soon as it was answered."""
    tally = Tally(began=time.perf_counter())
    until = tally.began + seconds
    turn = itertools.cycle(frames)

    async def one(ask: Ask) -> None:
        while time.perf_counter() < until:
            start = time.perf_counter()
            problem = await ask(fresh(next(turn)))
            _note(tally, problem, time.perf_counter() - start)

    await asyncio.gather(*(one(ask) for ask in clients))
    tally.ended = time.perf_counter()
    return tally


async def steady(
    clients: Sequence[Ask],
    frames: Sequence[bytes],
    *,
    per_second: float,
    seconds: float,
    progress: Callable[[float, Tally], None],
) -> Tally:
    """Requests at a fixed rate in all, spread evenly; a latency counts from when a request was due.

    So a server that stalls is not spared the requests that would have come meanwhile.
    """
    tally = Tally(began=time.perf_counter())
    apart = len(clients) / per_second

    async def one(number: int, ask: Ask) -> None:
        for turn in itertools.count():
            due = tally.began + (number / len(clients) + turn) * apart
            if due > tally.began + seconds:
                return
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            problem = await ask(fresh(frames[(number + turn) % len(frames)]))
            _note(tally, problem, time.perf_counter() - due)

    async def watch() -> None:
        while True:
            await asyncio.sleep(2)
            progress(time.perf_counter() - tally.began, tally)

    watching = asyncio.create_task(watch())
    await asyncio.gather(*(one(number, ask) for number, ask in enumerate(clients)))
    watching.cancel()
    tally.ended = time.perf_counter()
    return tally


def _note(tally: Tally, problem: str | None, seconds: float) -> None:
    if problem is None:
        tally.latencies.append(seconds)
    else:
        tally.errors[problem] += 1
