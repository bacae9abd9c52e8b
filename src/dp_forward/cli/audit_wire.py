"""A man in the middle for `dpf audit RUN`: the real client, the real server, and every byte between them."""

from __future__ import annotations

import contextlib
import itertools
import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from dp_forward.cli.local_server import serve_locally
from dp_forward.errors import DpForwardError

if TYPE_CHECKING:
    from dp_forward.audit.service_audit import Layout, Sent
    from dp_forward.split.artifacts import UserSide

__all__ = ["Listening", "Tap", "layout", "tapped"]

_CHUNK: Final = 1 << 16
_END_OF_HEAD: Final = b"\r\n\r\n"
_LOST: Final = 2


def layout() -> Layout:
    """Where the id and the time lie in a frame (docs/wire-format.md)."""
    from dp_forward.audit.service_audit import Layout
    from dp_forward.service.protocol.frame import HEADER_BYTES

    return Layout(header_bytes=HEADER_BYTES, request=slice(96, 112), time=slice(112, 120))


class Tap:
    """Passes on what comes to ``address``, both ways, and keeps what the client sends.

    Edges:
        ``lose(n)`` drops the next n answers to a POST: the server has read the request, the client hears
        nothing and its connection ends.
    """

    def __init__(self, server: str) -> None:
        there = urlsplit(server)
        assert there.hostname is not None
        assert there.port is not None
        self._server = (there.hostname, there.port)
        self._door = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self._door.getsockname()[1]}"
        self._heard: list[bytearray] = []
        self._to_lose = 0
        self._turn = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """No more connections."""
        self._door.close()

    def lose(self, answers: int) -> None:
        """Drop so many answers."""
        with self._turn:
            self._to_lose = answers

    def take(self) -> list[Sent]:
        """All POSTs since the last call, whole ones only."""
        from dp_forward.audit.service_audit import Sent

        with self._turn:
            heard, self._heard = self._heard, []
        found = []
        for stream in heard:
            data = bytes(stream)
            while _END_OF_HEAD in data:
                head, rest = data.split(_END_OF_HEAD, 1)
                size = _length(head)
                if head.startswith(b"POST "):
                    found.append(Sent(head, rest[:size]))
                data = rest[size:]
        return found

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._door.accept()
                server = socket.create_connection(self._server)
                stream = bytearray()
                with self._turn:
                    self._heard.append(stream)
                for way in ((client, server, stream), (server, client, None)):
                    threading.Thread(target=self._pump, args=(*way, stream), daemon=True).start()

    def _pump(
        self, source: socket.socket, target: socket.socket, kept: bytearray | None, said: bytearray
    ) -> None:
        """One way of one connection, until either side ends it."""
        with contextlib.suppress(OSError), source, target:
            while chunk := source.recv(_CHUNK):
                if kept is not None:
                    kept += chunk
                elif self._loses(said):
                    break
                target.sendall(chunk)
            for end in (source, target):
                end.shutdown(socket.SHUT_RDWR)

    def _loses(self, said: bytearray) -> bool:
        with self._turn:
            if self._to_lose and b"POST " in said:
                self._to_lose -= 1
                return True
        return False


def _length(head: bytes) -> int:
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-length":
            return int(value)
    return 0


class Listening:
    """The `Wire` of an audit: a client of the user's side, whose every question goes through a tap."""

    def __init__(self, user: UserSide, tap: Tap, folder: Path) -> None:
        self._user, self._tap, self._folder = user, tap, folder
        self._numbers = itertools.count()

    def fresh(self, text: str) -> Sent:
        """Under a ledger that is thrown away: a new one draws anew, for the same text."""
        from dp_forward.service.client.client import Client

        path = self._ledger()
        with Client(self._user, server=self._tap.address, ledger=path, budget=self._budget()) as client:
            client.ask(text)
        for name in self._folder.glob(f"{path.name}*"):
            name.unlink()
        sent = self._tap.take()
        if len(sent) != 1:
            raise DpForwardError(f"The client sent {len(sent)} frames for one question. That is no audit.")
        return sent[0]

    def again(self, text: str) -> tuple[list[Sent], int]:
        """Two answers are lost; then it is asked again, and again by a new client with the same ledger."""
        from dp_forward.service.client.client import Client, RetryPolicy

        path, asked = self._ledger(), 0
        self._tap.lose(_LOST)
        for _ in range(2):
            with Client(
                self._user,
                server=self._tap.address,
                ledger=path,
                budget=self._budget(),
                retry=RetryPolicy(first=0.01),
            ) as client:
                for _ in range(2):
                    client.ask(text)
                asked = client.summary().releases
        return self._tap.take(), asked

    def _ledger(self) -> Path:
        return self._folder / f"audit-{next(self._numbers)}.ledger"

    def _budget(self) -> float:
        """Room for a few releases: a client that draws too often must be seen, not stopped."""
        from dp_forward.ledger import LARGEST_CAP

        mechanism = self._user.spec.mechanism()
        return min(LARGEST_CAP, 100 * max(1.0, mechanism.epsilon(mechanism.shown_delta)))


@contextmanager
def tapped(run: Path, user: UserSide) -> Iterator[Listening]:
    """The back of a run behind a real server on loopback, its front in a real client, a tap in between."""
    with serve_locally(run) as address, tempfile.TemporaryDirectory() as folder:
        tap = Tap(address)
        try:
            yield Listening(user, tap, Path(folder))
        finally:
            tap.close()
