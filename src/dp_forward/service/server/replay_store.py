"""Replay memory that several processes share: ids, digests and answers in a store.

Guarantees:
    Of all processes on one store with the same back, an id has one digest and one answer. An answer is stored
    before it leaves, and where two processes computed one, both give the one that was stored first. The same
    id with other bytes is refused. A kill loses nothing. Another back knows nothing of this one's answers.
Edges:
    An entry is deleted once no frame of its time is taken any more. There is no other bound: a day of
    requests lies here. A power cut may lose the last entries: these ids are then as good as new.
    Where the store cannot be used, a request is refused ("disk"), and may be tried again.
"""

import hashlib
import time
from typing import Final

from dp_forward.errors import DpForwardError
from dp_forward.service.server.request_limits import Refused
from dp_forward.storage.database import Problem
from dp_forward.storage.stores import Connection, Place, open_store

_TABLES: Final = (
    "CREATE TABLE replays (request BLOB PRIMARY KEY NOT NULL, digest BLOB NOT NULL, answer BLOB NOT NULL, "
    "expires INTEGER NOT NULL) STRICT, WITHOUT ROWID",
    "CREATE INDEX replays_by_expiry ON replays (expires)",
)
_CLEAN_SECONDS: Final = 60.0


class ReplayStore:
    """The replay memory of the back ``of`` this digest, with entries that live for ``seconds``."""

    def __init__(self, place: Place, *, seconds: int, of: str = "") -> None:
        self._of = of.encode()
        self._store = open_store(place, _TABLES, refuse=_refuse, name="replays", durable=False)
        self._seconds, self._cleaned = seconds, 0.0
        self.close = self._store.close  # close the store; closing twice is harmless

    def read(self, request: bytes, digest: bytes) -> bytes | None:
        """The answer to these bytes; None for a new id; `Refused` for other bytes."""
        with self._store.transaction(write=False) as connection:
            return self._find(connection, request, digest)

    def write(self, request: bytes, digest: bytes, answer: bytes) -> bytes:
        """Store the answer to these bytes: the one that stands, which may be another process's."""
        now = time.time()
        with self._store.transaction(write=True) as connection:
            if now - self._cleaned > _CLEAN_SECONDS:
                connection.execute("DELETE FROM replays WHERE expires < ?", (int(now),))
                self._cleaned = now
            row = (self._key(request), digest, answer, int(now) + self._seconds)
            connection.execute("INSERT INTO replays VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING", row)
            return self._find(connection, request, digest) or answer

    def _key(self, request: bytes) -> bytes:
        return hashlib.sha256(self._of + request).digest()

    def _find(self, connection: Connection, request: bytes, digest: bytes) -> bytes | None:
        query = "SELECT digest, answer FROM replays WHERE request = ?"
        known, answer = connection.execute(query, (self._key(request),)).fetchone() or (digest, None)
        if known != digest:
            raise Refused("replayed", "This request id came with other bytes. Draw a new id.")
        return None if answer is None else bytes(answer)


def _refuse(problem: Problem) -> DpForwardError:
    return Refused("disk", "The server cannot use its replay memory: try the same again.", retry_after=5)
