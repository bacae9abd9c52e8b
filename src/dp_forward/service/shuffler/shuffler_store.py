"""Store of a shuffler: records wait here until a batch is made of them; each goes into one batch.

    DIR/shuffle.sqlite   settings   what is collected, what senders are told, and a secret
                         waiting    integers and labels by their old ids, and keyed digests of their users
                         batch      the one batch that is being sent, if any
                         outgoing   its records by their new ids
                         shuffled   keyed digests of old ids, so that a late retry is known

*The permutation.* A batch gives every record a fresh id of 128 bits from the operating system, and lists the
records by it. Ids drawn independently from one distribution are exchangeable: given that they are all
different, each of the n! orders has the same probability, whatever the set of ids is. So the order is a
uniform permutation, and the ids tell nothing. Two of n ids are equal with a probability below n^2 / 2^129;
the transaction is then rolled back and nothing has happened.

In Postgres (schema dpf_shuffle) several processes may take records; one at a time sends the batch.

*Who hides whom.* Somebody who sends n - 1 of the n records of a batch knows the last one, whatever the order.
So where users are known, a batch takes at most ``records_per_user`` records of each, and waits for
``least_users`` different ones: an attacker needs as many accounts as others would hide a record. All whom the
guard cannot tell apart count as one user.

*What is forgotten.* No address and no time is ever written. A batch is made in one transaction, which deletes
every old id and every user. What remains of an old id is its digest under a secret, in a table of nothing
else. The tables are filled each in the order of its own keys: where SQLite puts a row in its pages shows in
which order rows came, and two tables filled side by side would show which belong together. Deleted rows are
overwritten (`secure_delete`), and the write-ahead log is emptied into the file and cut to nothing after each
batch. No digest of the *contents* of a shuffled record is kept, for it would lead from the old id to the new
one. The header that a record came with is not kept either: two machines may write epsilon and step with other
last digits, and these would tell them apart. All headers of a batch are alike but for the new id.

Guarantees:
    What `add` has counted as stored is on disk. A record is in `waiting` or in one batch, never in both or in
    none, wherever a crash comes. A batch is whole on disk before the first byte of it can leave, and gives
    the same pieces in the same order until it is `finish`ed.
    In a folder, one process at a time: the file stays locked while it is open, and the lock ends with the
    process. In Postgres a batch is made once, and every step of sending names its batch: two processes that
    both believe they send can neither mix two batches nor delete one that is not sealed.
Edges:
    *In Postgres less is forgotten.* The file of the waiting records is deleted with each batch, but it is not
    overwritten. The write-ahead log, replicas and backups keep all rows, in the order of their arrival:
    whoever reads these links users and old ids to new ones. Use a server of the shuffler's own, without
    replica, archive or backup, on an encrypted disk; or a folder.
    Until its batch is made, a record lies here under the id that its sender knows, and the write-ahead log
    and the layout of the pages show roughly when it came. Whoever reads this disk at that time, or digs up
    blocks that the file system or a flash drive has kept, learns that: it is the trusted party's own disk.
    The same id with other bytes is refused while the record waits; once it was shuffled, it is taken for a
    retry, and dropped. The digests stay, 32 bytes for each record that ever came.
"""

import hmac
import json
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from dp_forward.errors import InvalidInput, LedgerUnavailable, refuse_if
from dp_forward.service.protocol.collection import ID_BYTES, CollectionSpec, Record, with_new_id
from dp_forward.service.protocol.frame import HEADER_BYTES
from dp_forward.service.server.request_limits import Refused
from dp_forward.storage.database import refuse_one_user
from dp_forward.storage.stores import Connection, Place, open_store

__all__ = ["ShufflerStore"]

_FORMAT: Final = 2
_DOMAIN: Final = b"dp-forward/shuffled/1\0"
_USERS: Final = b"dp-forward/sender/1\0"
_UNLIMITED: Final = 1 << 40
_SCHEMA: Final = """
CREATE TABLE settings (one INTEGER PRIMARY KEY CHECK (one = 1), format INTEGER NOT NULL,
                       secret BLOB NOT NULL, form TEXT NOT NULL, least INTEGER NOT NULL,
                       least_users INTEGER NOT NULL, records_per_user INTEGER NOT NULL) STRICT;
CREATE TABLE waiting (request BLOB PRIMARY KEY, content BLOB NOT NULL, sender BLOB) STRICT, WITHOUT ROWID;
CREATE INDEX waiting_by_sender ON waiting (sender);
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
    """Pairs of a new id and its old one, in the order of the new ones; two equal ids are refused."""
    drawn = sorted((draw(ID_BYTES), request) for request in old)
    if len({new for new, _ in drawn} | set(old)) != 2 * len(drawn):
        raise LedgerUnavailable("Two ids came out equal, which never happens by chance: check the machine.")
    return drawn


class ShufflerStore:
    """The store for what a collector wants, made if there is none; threads may share it.

    ``least`` is the fewest records of a batch; with ``least_users`` and ``records_per_user``, each user must
    be known. That is what senders are told (`offered`).

    Edges:
        `InvalidInput` for the store of another collection, or a folder that a process has open; and for
        weaker promises than before while records wait, since their senders were told the stronger ones.
    """

    def __init__(
        self,
        place: Place,
        spec: CollectionSpec,
        *,
        least: int,
        least_users: int | None = None,
        records_per_user: int | None = None,
    ) -> None:
        of_users: dict[str, Any] = {"least_users": least_users, "records_per_user": records_per_user}
        self._offered = replace(spec, shuffler_least=least, **of_users)
        self._header = spec.manifest.header(request=bytes(ID_BYTES)).pack()  # of every record but for its id
        self._promises = (least, least_users or 0, records_per_user or _UNLIMITED)
        form = json.dumps(spec.as_dict(), sort_keys=True)
        row = (_FORMAT, secrets.token_bytes(32), form, *self._promises)
        filled = ("INSERT INTO settings VALUES (1, ?, ?, ?, ?, ?, ?)", row)
        alone: dict[str, Any] = {"form": ("settings", _FORMAT), "exclusive": True, "forget": True}
        taken = ("store", "one that another process shuffles in")
        kept = "What was stored is: start the shuffler again."
        refuse = refuse_one_user(Path("shuffler's store"), taken=taken, kept=kept, made="store of a shuffler")
        self._store = open_store(place, [*_SCHEMA.split(";"), filled], refuse=refuse, name="shuffle", **alone)
        self.close, self.try_lock = self._store.close, self._store.try_lock
        """Close the store and unlock it; what waits stays in it. Whether this process may send."""
        try:
            with self._store.transaction(write=True) as connection:
                self._load(connection, form)
            self._store.empty_log()
        except BaseException:
            self._store.close()
            raise

    def _load(self, connection: Connection, form: str) -> None:
        query = "SELECT secret, form, least, least_users, records_per_user FROM settings"
        secret, found, *before = connection.execute(query).fetchone()
        self._secret: bytes = secret
        other = "one for another collection"
        refuse_if(found != form, "store", "be for this collection", other, "Use another place.")
        least, users, each = self._promises
        if _count(connection)[0] and (least < before[0] or users < before[1] or each > before[2]):
            told = f"at least {before[0]} records" + (f" of {before[1]} users" if before[1] else "")
            told += f", at most {before[2]} of each" if before[1] else ""
            rule = f"be as strict as the senders of waiting records were told ({told})"
            raise InvalidInput("least", rule, least, "Change it when none wait.")
        query = "UPDATE settings SET least = ?, least_users = ?, records_per_user = ?"
        connection.execute(query, self._promises)

    @property
    def offered(self) -> CollectionSpec:
        """What senders are told."""
        return self._offered

    @property
    def waiting(self) -> int:
        """How many records wait for a batch."""
        with self._store.transaction(write=False) as connection:
            return _count(connection)[0]

    @property
    def batch(self) -> Batch | None:
        """The batch that is being sent, if any."""
        with self._store.transaction(write=False) as connection:
            return _batch(connection)

    @property
    def due(self) -> bool:
        """Whether there is something to send: a batch that was made, or enough for one."""
        with self._store.transaction(write=False) as connection:
            return _batch(connection) is not None or self._enough(connection)

    def add(self, records: Sequence[Record], *, most: int, user: str | None = None) -> tuple[int, int]:
        """Store checked records of a user: how many are new, and how many were known. All of them, or none.

        Edges:
            `Refused` "replayed" for an id that waits here with another content; "busy" where more than
            ``most`` records would lie here, those being sent included, or more of this user than a batch
            takes. Retries of known ones are taken.
        """
        sender = self._tag(_USERS + (user or "").encode()) if self._promises[1] else None
        with self._store.transaction(write=True) as connection:
            if not self._promised(connection):
                raise Refused("stopping", "The shuffler was set up anew by another process.", retry_after=30)
            stored = sum([self._add(connection, record, sender) for record in records])
            query, batch = "SELECT count(*) FROM waiting WHERE sender = ?", _batch(connection)
            if stored and connection.execute(query, (sender,)).fetchone()[0] > self._promises[2]:
                told = f"A batch takes at most {self._promises[2]} records of one user. Send more after it."
                raise Refused("busy", told, retry_after=60)
            if stored and _count(connection)[0] + (0 if batch is None else batch.records) > most:
                raise Refused("busy", "Too many records wait here.", retry_after=30)
        return stored, len(records) - stored

    def _add(self, connection: Connection, record: Record, sender: bytes | None) -> int:
        """1 where the record is new, 0 where it is known."""
        request, content = record.header.request, record.data[HEADER_BYTES:]
        query = "SELECT 1 FROM shuffled WHERE tag = ?"
        if connection.execute(query, (self._tag(_DOMAIN + request),)).fetchone() is not None:
            return 0
        query = "INSERT INTO waiting VALUES (?, ?, ?) ON CONFLICT DO NOTHING"
        if connection.execute(query, (request, content, sender)).rowcount:
            return 1
        query = "SELECT content FROM waiting WHERE request = ?"
        if connection.execute(query, (request,)).fetchone()[0] != content:
            raise Refused("replayed", "A record with an id of this body is here, with other content.")
        return 0

    def _promised(self, connection: Connection) -> bool:
        """Whether the store still promises what this process tells."""
        query = "SELECT least, least_users, records_per_user FROM settings"
        return bool(connection.execute(query).fetchone() == self._promises)

    def _enough(self, connection: Connection) -> bool:
        records, users = _count(connection)
        return records >= self._promises[0] and users >= self._promises[1] and self._promised(connection)

    def make_batch(self) -> bool:
        """Turn all that waits into a batch, if enough of enough users wait and no other is being sent."""
        with self._store.transaction(write=True) as connection:
            if _batch(connection) is not None or not self._enough(connection):
                return False
            old = [row[0] for row in connection.execute("SELECT request FROM waiting")]
            for new, request in fresh_ids(old):
                query = "SELECT content FROM waiting WHERE request = ?"
                content = connection.execute(query, (request,)).fetchone()[0]
                row = (new, with_new_id(self._header + content, new))
                connection.execute("INSERT INTO outgoing VALUES (?, ?)", row)
            for tag in sorted(self._tag(_DOMAIN + request) for request in old):
                connection.execute("INSERT INTO shuffled VALUES (?)", (tag,))
            connection.execute("DELETE FROM waiting")
            batch = (secrets.token_bytes(ID_BYTES), len(old), b"")
            connection.execute("INSERT INTO batch VALUES (1, ?, ?, ?)", batch)
        self._store.empty_log()
        return True

    def piece(self, batch: Batch, *, most: int) -> list[bytes]:
        """The next records of a batch that are not acknowledged, ``most`` at once; empty at its end."""
        query = "SELECT data FROM outgoing WHERE request > ? ORDER BY request LIMIT ?"
        with self._store.transaction(write=False) as connection:
            now = _batch(connection)
            if now is None or now.name != batch.name:
                return []
            return [row[0] for row in connection.execute(query, (now.acknowledged, most))]

    def acknowledge(self, batch: Batch, request: bytes) -> None:
        """Store that the collector has all records of a batch up to this new id."""
        with self._store.transaction(write=True) as connection:
            connection.execute("UPDATE batch SET acknowledged = ? WHERE name = ?", (request, batch.name))

    def finish(self, batch: Batch) -> None:
        """Delete a batch that the collector has sealed; one that is gone already is left."""
        with self._store.transaction(write=True) as connection:
            if connection.execute("DELETE FROM batch WHERE name = ?", (batch.name,)).rowcount:
                connection.execute("DELETE FROM outgoing")
        self._store.empty_log()

    def _tag(self, what: bytes) -> bytes:
        return hmac.digest(self._secret, what, "sha256")


def _count(connection: Connection) -> tuple[int, int]:
    """How many records wait, and of how many known users."""
    found = connection.execute("SELECT count(*), count(DISTINCT sender) FROM waiting").fetchone()
    return int(found[0]), int(found[1])


def _batch(connection: Connection) -> Batch | None:
    row = connection.execute("SELECT name, records, acknowledged FROM batch").fetchone()
    return None if row is None else Batch(*row)
