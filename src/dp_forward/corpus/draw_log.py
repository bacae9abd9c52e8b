"""Log of the draws of a corpus that is being released; on the user's disk, each record drawn once.

One SQLite file in the private folder. It holds the settings of the release, a secret, the draws of the shard
that is being filled (in small pieces), and the digests of the finished shards.

Guarantees:
    For every record at most one draw is ever committed: a piece is inserted in one synchronous transaction,
    only as the next records of the corpus, and is never replaced. It is dropped in the transaction that
    stores the finished shard which holds its bytes. A restart continues after the last committed piece.
    One process at a time: the file stays locked while it is open, and the lock ends with the process.
Edges:
    What a crash can lose is the piece in memory, or one half written, which SQLite rolls back when the file
    is opened next. Such a draw is no release: nobody was given it, and it lay where the texts themselves lie.
    Which draw survives does not depend on what was drawn, so it has the mechanism's distribution.
"""

import hashlib
import hmac
import json
import secrets
import sqlite3
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from dp_forward.storage.database import Database, Problem, create_database, refuse_one_user

_FORMAT: Final = 1
_CHECKPOINT_EVERY: Final = 16  # commits: a piece has a few MiB
_SCHEMA: Final = (
    """CREATE TABLE plan (one INTEGER PRIMARY KEY CHECK (one = 1), format INTEGER NOT NULL,
    name TEXT NOT NULL, secret BLOB NOT NULL, settings TEXT NOT NULL, tag BLOB NOT NULL,
    charged INTEGER NOT NULL DEFAULT 0) STRICT""",
    """CREATE TABLE pieces (first INTEGER PRIMARY KEY, records INTEGER NOT NULL, noisy BLOB NOT NULL,
    labels BLOB NOT NULL, sha256 BLOB NOT NULL) STRICT""",
    """CREATE TABLE shards (number INTEGER PRIMARY KEY, records INTEGER NOT NULL, bytes INTEGER NOT NULL,
    sha256 TEXT NOT NULL) STRICT""",
)


_refusals: Final = partial(
    refuse_one_user,
    taken=("out", "a folder that another process releases into"),
    kept="Nothing is lost: resume.",
    made="record of draws",
)


class Shard(NamedTuple):
    number: int
    records: int
    bytes: int
    sha256: str


class DrawLog(AbstractContextManager["DrawLog"]):
    """The open file; make one with `create`."""

    def __init__(self, path: Path) -> None:
        self._refuse = _refusals(path)
        settled: Any = {"form": ("plan", _FORMAT), "exclusive": True, "checkpoint_every": _CHECKPOINT_EVERY}
        self._database = Database(path, refuse=self._refuse, **settled)
        try:
            with self._database.transaction(write=False) as connection:
                self._load(connection)
        except BaseException:
            self._database.close()
            raise

    @classmethod
    def create(cls, path: Path, settings: dict[str, Any], identity: bytes) -> Self:
        """Make the file of a release with these public settings, of the corpus that ``identity`` names."""
        secret, name = secrets.token_bytes(32), secrets.token_hex(16)
        row = (_FORMAT, name, secret, json.dumps(settings, sort_keys=True), _tag(secret, identity))
        plan = ("INSERT INTO plan VALUES (1, ?, ?, ?, ?, ?, 0)", row)
        create_database(path, [*_SCHEMA, plan], refuse=_refusals(path))
        return cls(path)

    def _load(self, connection: sqlite3.Connection) -> None:
        plan = connection.execute("SELECT name, secret, settings, tag, charged FROM plan").fetchone()
        self.name, self._secret, settings, self.key, charged = plan
        self.settings: dict[str, Any] = json.loads(settings)  # the public settings of the release
        self.charged = bool(charged)  # whether the ledger was charged: from then on draws may exist
        found = connection.execute("SELECT number, records, bytes, sha256 FROM shards ORDER BY number")
        self.shards = [Shard(*row) for row in found]  # the finished shards
        if [shard.number for shard in self.shards] != list(range(len(self.shards))):
            raise self._refuse(Problem("damaged"))
        self.next_record = sum(shard.records for shard in self.shards)  # the first record that has no draw
        for first, records in connection.execute("SELECT first, records FROM pieces ORDER BY first"):
            if first != self.next_record:
                raise self._refuse(Problem("damaged"))
            self.next_record += records

    def is_of(self, identity: bytes) -> bool:
        """Whether this release is of the corpus that ``identity`` stands for."""
        return hmac.compare_digest(self.key, _tag(self._secret, identity))

    def mark_charged(self) -> None:
        with self._database.transaction(write=True) as connection:
            connection.execute("UPDATE plan SET charged = 1")
        self.charged = True

    def add(self, records: range, noisy: bytes, labels: bytes) -> None:
        """Commit the draws of the next records; on disk when this returns."""
        if not self.charged or records.start != self.next_record:
            raise AssertionError("draws are charged first and committed in their order")
        piece = (records.start, len(records), noisy, labels)
        with self._database.transaction(write=True) as connection:
            connection.execute("INSERT INTO pieces VALUES (?, ?, ?, ?, ?)", (*piece, _digest(*piece)))
        self.next_record = records.stop

    def draws(self) -> tuple[bytes, bytes]:
        """The noisy matrices and the labels of the shard that is being filled, checked."""
        query = "SELECT first, records, noisy, labels, sha256 FROM pieces ORDER BY first"
        noisy, labels = [], []
        with self._database.transaction(write=False) as connection:
            for *piece, sha256 in connection.execute(query):
                if _digest(*piece) != sha256:
                    raise self._refuse(Problem("damaged"))
                noisy.append(piece[2])
                labels.append(piece[3])
        return b"".join(noisy), b"".join(labels)

    def finish(self, shard: Shard) -> None:
        """Store a finished shard and drop its pieces, both or neither."""
        with self._database.transaction(write=True) as connection:
            connection.execute("INSERT INTO shards VALUES (?, ?, ?, ?)", shard)
            connection.execute("DELETE FROM pieces")
        self.shards.append(shard)

    def discard(self) -> None:
        """Delete the file of a release that was never charged, hence never drawn."""
        if self.charged:
            raise AssertionError("what was charged is never discarded")
        self._database.delete()

    def close(self) -> None:
        self._database.close()

    def __exit__(self, *error: object) -> None:
        self.close()


def _digest(first: int, records: int, noisy: bytes, labels: bytes) -> bytes:
    numbers = f"{first} {records} {len(noisy)} {len(labels)}\n".encode()
    return hashlib.sha256(numbers + noisy + labels).digest()


def _tag(secret: bytes, identity: bytes) -> bytes:
    return hmac.digest(secret, b"dp-forward/corpus/1\0" + identity, "sha256")
