"""SQLite store of a shuffler: records wait here until a batch is made of them; each goes into one batch.

    DIR/shuffle.sqlite   settings   what is collected, and a secret
                         waiting    integers and labels by their old ids
                         batch      the one batch that is being sent, if any
                         outgoing   its records by their new ids
                         shuffled   keyed digests of old ids, so that a late retry is known

*The permutation.* A batch gives every record a fresh id of 128 bits from the operating system, and lists the
records by it. Ids drawn independently from one distribution are exchangeable: given that they are all
different, each of the n! orders has the same probability, whatever the set of ids is. So the order is a
uniform permutation, and the ids tell nothing. Two of n ids are equal with a probability below n^2 / 2^129;
the transaction is then rolled back and nothing has happened.

*What is forgotten.* No address and no time is ever written. A batch is made in one transaction, which deletes
every old id. What remains of one is its digest under a secret, in a table of nothing else. The tables are
filled each in the order of its own keys: where SQLite puts a row in its pages shows in which order rows came,
and two tables filled side by side would show which belong together. Deleted rows are overwritten
(`secure_delete`), and the write-ahead log is emptied into the file and cut to nothing after each batch.
No digest of the *contents* of a shuffled record is kept, for it would lead from the old id to the new one.
The header that a record came with is not kept either: two machines may write epsilon and step with other last
digits, and these would tell them apart. All headers of a batch are alike but for the new id.

Guarantees:
    What `add` has counted as stored is on disk. A record is in `waiting` or in one batch, never in both or in
    none, wherever a crash comes. A batch is whole on disk before the first byte of it can leave, and gives
    the same pieces in the same order until it is `finish`ed.
    One process at a time: the file stays locked while it is open, and the lock ends with the process.
Edges:
    Until its batch is made, a record lies here under the id that its sender knows, and the write-ahead log
    and the layout of the pages show roughly when it came. Whoever reads this disk at that time, or digs up
    blocks that the file system or a flash drive has kept, learns that: it is the trusted party's own disk.
    The same id with other bytes is refused while the record waits. Once it was shuffled, it is taken for a
    retry, and dropped.
    The digests stay, 32 bytes for each record that ever came.
"""

from __future__ import annotations

import hmac
import json
import os
import secrets
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from dp_forward.errors import InvalidInput, LedgerUnavailable
from dp_forward.service.protocol.collection import ID_BYTES, CollectionSpec, Record, with_new_id
from dp_forward.service.protocol.frame import HEADER_BYTES
from dp_forward.service.server.request_limits import Refused
from dp_forward.storage.database import Database, refuse_one_user

__all__ = ["ShufflerStore"]

_FORMAT: Final = 1
_FILE: Final = "shuffle.sqlite"
_DOMAIN: Final = b"dp-forward/shuffled/1\0"
_SCHEMA: Final = """
CREATE TABLE settings (one INTEGER PRIMARY KEY CHECK (one = 1), format INTEGER NOT NULL,
                       secret BLOB NOT NULL, form TEXT NOT NULL, least INTEGER NOT NULL) STRICT;
CREATE TABLE waiting (request BLOB PRIMARY KEY, content BLOB NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE batch (one INTEGER PRIMARY KEY CHECK (one = 1), name BLOB NOT NULL, records INTEGER NOT NULL,
                    acknowledged BLOB NOT NULL) STRICT;
CREATE TABLE outgoing (request BLOB PRIMARY KEY, data BLOB NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE shuffled (tag BLOB PRIMARY KEY) STRICT, WITHOUT ROWID
"""


@dataclass(frozen=True, slots=True)
class Batch:
    """The batch that is being sent; ``acknowledged`` is the last new id that the collector has, or empty."""

    name: bytes
    records: int
    acknowledged: bytes


def fresh_ids(
    old: Sequence[bytes], draw: Callable[[int], bytes] = secrets.token_bytes
) -> list[tuple[bytes, bytes]]:
    """Pairs of a new id and its old one, in the order of the new ones: a uniform order, see the module.

    Edges:
        Two equal ids are refused: they would be one record.
    """
    drawn = sorted((draw(ID_BYTES), request) for request in old)
    if len({new for new, _ in drawn} | set(old)) != 2 * len(drawn):
        raise LedgerUnavailable("Two ids came out equal, which never happens by chance: check the machine.")
    return drawn


class ShufflerStore:
    """The store in a folder for what a collector wants, made if there is none; threads may share it.

    ``least`` is the fewest records of a batch: what senders are told.

    Edges:
        `InvalidInput` for the store of another collection, or one that a process has open; and for a smaller
        ``least`` than before while records wait, since their senders were told the larger one.
    """

    def __init__(self, folder: str | os.PathLike[str], spec: CollectionSpec, *, least: int) -> None:
        replace(spec, shuffler_least=least)  # refuses what hides nobody
        path = Path(folder) / _FILE
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._header = spec.manifest.header(request=bytes(ID_BYTES)).pack()
        """The header of every record of a batch, but for its id."""
        self._least = least
        secret, form = secrets.token_bytes(32), json.dumps(spec.as_dict(), sort_keys=True)
        row = ("INSERT INTO settings VALUES (1, ?, ?, ?, ?)", (_FORMAT, secret, form, least))
        alone = {"form": ("settings", _FORMAT), "exclusive": True, "forget": True}
        taken = ("store", "a folder that another process shuffles in")
        kept = "What was stored is: start the shuffler again."
        refuse = refuse_one_user(path, taken=taken, kept=kept, made="store of a shuffler")
        self._database = Database.open_or_create(path, [*_SCHEMA.split(";"), row], refuse=refuse, **alone)
        self.close = self._database.close
        """Close the file and unlock it; what waits stays in it."""
        try:
            with self._database.transaction(write=True) as connection:
                self._load(connection, spec)
            self._database.empty_log()
        except BaseException:
            self._database.close()
            raise

    def _load(self, connection: sqlite3.Connection, spec: CollectionSpec) -> None:
        row = connection.execute("SELECT secret, form, least FROM settings").fetchone()
        self._secret: bytes = row[0]
        if row[1] != json.dumps(spec.as_dict(), sort_keys=True):
            found = "one for another collection"
            raise InvalidInput("store", "be for this collection", found, "Use another folder.")
        self._waiting = int(connection.execute("SELECT count(*) FROM waiting").fetchone()[0])
        batch = connection.execute("SELECT name, records, acknowledged FROM batch").fetchone()
        self._batch = None if batch is None else Batch(*batch)
        if self._waiting and self.least < row[2]:
            raise InvalidInput(
                "least",
                f"be at least the {row[2]} that the senders of waiting records were told",
                self.least,
                "Lower it when none wait.",
            )
        connection.execute("UPDATE settings SET least = ?", (self.least,))

    @property
    def least(self) -> int:
        """The fewest records of a batch: what senders are told."""
        return self._least

    @property
    def waiting(self) -> int:
        """How many records wait for a batch."""
        return self._waiting

    @property
    def batch(self) -> Batch | None:
        """The batch that is being sent, if any."""
        return self._batch

    @property
    def outgoing(self) -> int:
        """How many records are being sent."""
        return 0 if self.batch is None else self.batch.records

    def add(self, records: Sequence[Record], *, most: int) -> tuple[int, int]:
        """Store checked records: how many are new, and how many were known. All of them, or none.

        Edges:
            `Refused` "replayed" for an id that waits here with another content; "busy" where more than
            ``most`` records would lie here, those being sent included. Retries of known ones are taken.
        """
        stored = 0
        with self._database.lock:
            with self._database.transaction(write=True) as connection:
                for record in records:
                    stored += self._add(connection, record)
                if stored and self._waiting + self.outgoing + stored > most:
                    raise Refused("busy", "Too many records wait here.", retry_after=30)
            self._waiting += stored
        return stored, len(records) - stored

    def _add(self, connection: sqlite3.Connection, record: Record) -> int:
        """1 where the record is new, 0 where it is known."""
        request, content = record.header.request, record.data[HEADER_BYTES:]
        query = "SELECT 1 FROM shuffled WHERE tag = ?"
        if connection.execute(query, (self._tag(request),)).fetchone() is not None:
            return 0
        query = "SELECT content = ? FROM waiting WHERE request = ?"
        known = connection.execute(query, (content, request)).fetchone()
        if known is None:
            connection.execute("INSERT INTO waiting VALUES (?, ?)", (request, content))
            return 1
        if not known[0]:
            raise Refused("replayed", "A record with an id of this body is here, with other content.")
        return 0

    def make_batch(self) -> bool:
        """Turn all that waits into a batch, if at least `least` wait and no other is being sent."""
        with self._database.lock:
            if self.batch is not None or self._waiting < self.least:
                return False
            with self._database.transaction(write=True) as connection:
                batch = self._shuffle(connection)
            self._batch, self._waiting = batch, 0
            self._database.empty_log()
        return True

    def _shuffle(self, connection: sqlite3.Connection) -> Batch:
        old = [row[0] for row in connection.execute("SELECT request FROM waiting")]
        for new, request in fresh_ids(old):
            query = "SELECT content FROM waiting WHERE request = ?"
            content = connection.execute(query, (request,)).fetchone()[0]
            row = (new, with_new_id(self._header + content, new))
            connection.execute("INSERT INTO outgoing VALUES (?, ?)", row)
        for tag in sorted(map(self._tag, old)):
            connection.execute("INSERT INTO shuffled VALUES (?)", (tag,))
        connection.execute("DELETE FROM waiting")
        batch = Batch(secrets.token_bytes(ID_BYTES), len(old), b"")
        connection.execute("INSERT INTO batch VALUES (1, ?, ?, ?)", (batch.name, batch.records, b""))
        return batch

    def piece(self, *, most: int) -> list[bytes]:
        """The next records of the batch that are not acknowledged, ``most`` at once; empty at its end."""
        query = "SELECT data FROM outgoing WHERE request > ? ORDER BY request LIMIT ?"
        with self._database.transaction(write=False) as connection:
            after = b"" if self.batch is None else self.batch.acknowledged
            return [row[0] for row in connection.execute(query, (after, most))]

    def acknowledge(self, request: bytes) -> None:
        """Store that the collector has all records up to this new id."""
        with self._database.lock:
            if self.batch is None:
                raise AssertionError("a batch is acknowledged while it is being sent")
            with self._database.transaction(write=True) as connection:
                connection.execute("UPDATE batch SET acknowledged = ?", (request,))
            self._batch = replace(self.batch, acknowledged=request)

    def finish(self) -> None:
        """Delete the batch that the collector has sealed."""
        with self._database.lock:
            with self._database.transaction(write=True) as connection:
                connection.execute("DELETE FROM outgoing")
                connection.execute("DELETE FROM batch")
            self._batch = None
            self._database.empty_log()

    def _tag(self, request: bytes) -> bytes:
        return hmac.digest(self._secret, _DOMAIN + request, "sha256")
