"""Recording proxy for the audit of a service: a real client, a real server, and every byte between them."""

import contextlib
import re
import socket
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from dp_forward.errors import DpForwardError
from dp_forward.privacy.cap import LARGEST_GAUSSIAN_EPSILON
from dp_forward.service.client.client import Client
from dp_forward.service.client.transport import RetryPolicy
from dp_forward.split.artifacts import UserSide

__all__ = ["record_client"]

_END_OF_HEAD: Final = b"\r\n\r\n"


@dataclass(frozen=True, slots=True, repr=False)
class Sent:
    """One request as it crossed: the head of the HTTP request, and its body."""

    head: bytes
    body: bytes


class RecordingProxy:
    """Passes on what comes to ``address``, both ways, and keeps what the client sends.

    Edges:
        ``lose(n)`` drops the next n answers to a POST: the server has read the request, the client hears
        nothing and its connection ends.
    """

    def __init__(self, server: str) -> None:
        there = urlsplit(server)
        self._server = (str(there.hostname), int(there.port or 80))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._recorded: list[bytearray] = []
        self._to_lose = 0
        self._turn = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def lose(self, answers: int) -> None:
        with self._turn:
            self._to_lose = answers

    def take(self) -> list[Sent]:
        """All POSTs since the last call.

        Edges:
            A connection may end while a request is on its way, such as an idle one that the server closes at
            that moment; the client then sends the same bytes again. Whatever is only the beginning of another
            request is left out: it tells nothing more, and is no other release.
        """
        with self._turn:
            recorded, self._recorded = self._recorded, []
        found = []
        for stream in recorded:
            data = bytes(stream)
            while _END_OF_HEAD in data:
                head, rest = data.split(_END_OF_HEAD, 1)
                length = re.search(rb"\r\n\s*content-length\s*:([^\r\n]*)", head, re.IGNORECASE)
                size = 0 if length is None else int(length[1])
                if head.startswith(b"POST "):
                    found.append(Sent(head, rest[:size]))
                data = rest[size:]
        whole = {one.body for one in found}
        return [one for one in found if not any(b != one.body and b.startswith(one.body) for b in whole)]

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._server)
                stream = bytearray()
                with self._turn:
                    self._recorded.append(stream)
                for way in ((client, server, True), (server, client, False)):
                    threading.Thread(target=self._pump, args=(*way, stream), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket, asks: bool, stream: bytearray) -> None:
        """One way of one connection, until either side ends it; ``stream`` is what the client has sent."""
        with contextlib.suppress(OSError), source, target:
            while chunk := source.recv(1 << 16):
                if asks:
                    stream += chunk
                elif b"POST " in stream:
                    with self._turn:
                        self._to_lose -= 1
                        if self._to_lose >= 0:
                            break
                target.sendall(chunk)
            for end in (source, target):
                end.shutdown(socket.SHUT_RDWR)


class RecordedClient:
    """A client of the user's side, whose every question goes through the proxy."""

    def __init__(self, user: UserSide, proxy: RecordingProxy) -> None:
        self._user, self._proxy = user, proxy
        mechanism = user.spec.mechanism()
        # Room for a few releases: a client that draws too often must be seen, not stopped.
        self._budget = min(LARGEST_GAUSSIAN_EPSILON, 100 * max(1.0, mechanism.epsilon(mechanism.shown_delta)))

    def fresh(self, text: str) -> Sent:
        """Under a ledger that is thrown away: a new one draws anew, for the same text."""
        with tempfile.TemporaryDirectory() as folder, self._client(folder, RetryPolicy()) as client:
            client.ask(text)
        sent = set(self._proxy.take())  # a retry is the same bytes
        if len(sent) != 1:
            raise DpForwardError(f"The client sent {len(sent)} frames for one question. That is no audit.")
        return sent.pop()

    def again(self, text: str) -> tuple[list[Sent], int]:
        """Two answers are lost; then it is sent again, and again by a new client with the same ledger."""
        charged = 0
        self._proxy.lose(2)
        with tempfile.TemporaryDirectory() as folder:
            for _ in range(2):
                with self._client(folder, RetryPolicy(first=0.01)) as client:
                    for _ in range(2):
                        client.ask(text, resend=True)
                    charged = client.summary().releases
        return self._proxy.take(), charged

    def _client(self, folder: str, retry: RetryPolicy) -> Client:
        server, budget, ledger = self._proxy.address, self._budget, Path(folder) / "ledger"
        return Client(self._user, server=server, ledger=ledger, budget=budget, retry=retry)


@contextlib.contextmanager
def record_client(user: UserSide, server: str) -> Iterator[RecordedClient]:
    """A real client of the server at this address, with a recording proxy in between."""
    with contextlib.closing(RecordingProxy(server)) as proxy:
        yield RecordedClient(user, proxy)
