"""Where a shuffler keeps records until a batch is made of them: one SQLite file, each record in one batch.

    DIR/shuffle.sqlite   settings   what is collected, and a secret
                         waiting    integers and labels by their old ids
                         batch      the one batch that is on its way, if any
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

import contextlib
import hmac
import json
import os
import secrets
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dp_forward.corpus.draw_log import sync_folder
from dp_forward.errors import InvalidInput, LedgerCorrupt, LedgerUnavailable
from dp_forward.service.protocol.collection_spec import CollectionSpec
from dp_forward.service.protocol.frame import HEADER_BYTES, Header
from dp_forward.service.protocol.record import Record, with_new_id
from dp_forward.service.server.refusals import Refused
from dp_forward.storage.locked import LockedFile

__all__ = ["Batch", "ShuffleStore", "fresh_ids"]

_FORMAT: Final = 1
_FILE: Final = "shuffle.sqlite"
_ID_BYTES: Final = 16
_TAG: Final = b"dp-forward/shuffled/1\0"
_FULL_SECONDS: Final = 30
_PRAGMAS: Final = (
    "trusted_schema = OFF",
    "locking_mode = EXCLUSIVE",
    "journal_mode = WAL",
    "synchronous = FULL",
    "fullfsync = ON",
    "secure_delete = ON",
    "temp_store = MEMORY",
)
_SCHEMA: Final = """
CREATE TABLE settings (one INTEGER PRIMARY KEY CHECK (one = 1), format INTEGER NOT NULL,
                       secret BLOB NOT NULL, form TEXT NOT NULL, least INTEGER NOT NULL) STRICT;
CREATE TABLE waiting (request BLOB PRIMARY KEY, content BLOB NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE batch (one INTEGER PRIMARY KEY CHECK (one = 1), name BLOB NOT NULL, records INTEGER NOT NULL,
                    acknowledged BLOB NOT NULL) STRICT;
CREATE TABLE outgoing (request BLOB PRIMARY KEY, data BLOB NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE shuffled (tag BLOB PRIMARY KEY) STRICT, WITHOUT ROWID;
"""


@dataclass(frozen=True, slots=True)
class Batch:
    """The batch on its way; ``acknowledged`` is the last new id that the collector has, or empty."""

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
    drawn = sorted((draw(_ID_BYTES), request) for request in old)
    if len({new for new, _ in drawn} | set(old)) != 2 * len(drawn):
        raise LedgerUnavailable("Two ids came out equal, which never happens by chance: check the machine.")
    return drawn


class ShuffleStore(LockedFile):
    """The open file; threads may share it. Make one with `open_or_create`."""

    def __init__(self, path: Path, form: CollectionSpec, *, least: int) -> None:
        kept = "What was stored is."
        super().__init__(path, _PRAGMAS, busy=_busy, damaged=_damaged, kept=kept)
        self._lock = threading.Lock()
        self._least = least
        try:
            self._header = _header(form)
            self._load(form)
            self._keep_least()
            self._empty_log()
        except BaseException:
            self._connection.close()
            raise

    @classmethod
    def open_or_create(
        cls, folder: str | os.PathLike[str], form: CollectionSpec, *, least: int
    ) -> ShuffleStore:
        """The store for what a collector wants, in batches of at least so many.

        Edges:
            `InvalidInput` for the store of another collection, or one that a process has open; and for a
            smaller ``least`` than before while records wait, since their senders were told the larger one.
        """
        form.with_shuffler(least)  # refuses what hides nobody
        place = Path(folder)
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = place / _FILE
        if not path.exists():
            _create(path, form, least)
        return cls(path, form, least=least)

    def _load(self, form: CollectionSpec) -> None:
        row = self._one("SELECT format, secret, form FROM settings")
        if row is None or row[0] != _FORMAT:
            raise self._damaged()
        if row[2] != _written(form):
            found = "one for another collection"
            raise InvalidInput("store", "be for this collection", found, "Use another folder.")
        self._secret: bytes = row[1]
        self._recount()

    def _keep_least(self) -> None:
        told = self._one("SELECT least FROM settings")[0]
        if self._waiting and self.least < told:
            raise InvalidInput(
                "least",
                f"be at least the {told} that the senders of waiting records were told",
                self.least,
                "Lower it when none wait.",
            )
        if self.least != told:
            self._run("UPDATE settings SET least = ?", (self.least,))

    def _recount(self) -> None:
        self._waiting = int(self._one("SELECT count(*) FROM waiting")[0])
        row = self._one("SELECT name, records, acknowledged FROM batch")
        self._batch = None if row is None else Batch(*row)

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
        """The batch on its way."""
        return self._batch

    def add(self, records: Sequence[Record], *, most: int) -> tuple[int, int]:
        """Store checked records: how many are new, and how many were known. All of them, or none.

        Edges:
            `Refused` "replayed" for an id that waits here with another content; "busy" where more than
            ``most`` records would lie here, those on their way included. Retries of known ones are taken.
        """
        stored = 0
        with self._transaction():
            for record in records:
                request, content = record.request, record.data[HEADER_BYTES:]
                if self._one("SELECT 1 FROM shuffled WHERE tag = ?", (self._tag(request),)) is not None:
                    continue
                known = self._one("SELECT content = ? FROM waiting WHERE request = ?", (content, request))
                if known is None:
                    self._run("INSERT INTO waiting VALUES (?, ?)", (request, content))
                    stored += 1
                elif not known[0]:
                    raise Refused("replayed", "A record with an id of this body is here, with other content.")
            if stored and self._held + stored > most:
                raise Refused("busy", "Too many records wait here.", retry_after=_FULL_SECONDS)
            self._waiting += stored
        return stored, len(records) - stored

    @property
    def _held(self) -> int:
        return self._waiting + (0 if self._batch is None else self._batch.records)

    def make_batch(self) -> bool:
        """Turn all that waits into a batch, if at least `least` wait and no other is on its way."""
        with self._transaction():
            if self._batch is not None or self._waiting < self.least:
                return False
            old = [row[0] for row in self._run("SELECT request FROM waiting")]
            for new, request in fresh_ids(old):
                content = self._one("SELECT content FROM waiting WHERE request = ?", (request,))[0]
                self._run(
                    "INSERT INTO outgoing VALUES (?, ?)", (new, with_new_id(self._header + content, new))
                )
            for tag in sorted(map(self._tag, old)):
                self._run("INSERT INTO shuffled VALUES (?)", (tag,))
            self._run("DELETE FROM waiting")
            self._batch = Batch(secrets.token_bytes(_ID_BYTES), len(old), b"")
            self._waiting = 0
            self._run("INSERT INTO batch VALUES (1, ?, ?, ?)", (self._batch.name, len(old), b""))
        with self._lock:
            self._empty_log()
        return True

    def piece(self, *, most: int) -> list[bytes]:
        """The next records of the batch that are not acknowledged, ``most`` at once; empty at its end."""
        with self._lock:
            after = b"" if self._batch is None else self._batch.acknowledged
            found = self._run(
                "SELECT data FROM outgoing WHERE request > ? ORDER BY request LIMIT ?", (after, most)
            )
            return [row[0] for row in found]

    def acknowledge(self, request: bytes) -> None:
        """Note that the collector has all records up to this new id."""
        with self._transaction():
            if self._batch is None:
                raise AssertionError("a batch is acknowledged while it is on its way")
            self._run("UPDATE batch SET acknowledged = ?", (request,))
            self._batch = Batch(self._batch.name, self._batch.records, request)

    def finish(self) -> None:
        """Delete the batch that the collector has sealed."""
        with self._transaction():
            self._run("DELETE FROM outgoing")
            self._run("DELETE FROM batch")
            self._batch = None
        with self._lock:
            self._empty_log()

    def close(self) -> None:
        """Give the file back; what waits stays in it."""
        with self._lock:
            self._connection.close()

    def __repr__(self) -> str:
        return f"ShuffleStore(waiting={self._waiting}, on its way={self._held - self._waiting})"

    def _tag(self, request: bytes) -> bytes:
        return hmac.digest(self._secret, _TAG + request, "sha256")

    def _empty_log(self) -> None:
        """The write-ahead log holds what was deleted until it is cut."""
        if self._one("PRAGMA wal_checkpoint(TRUNCATE)")[0]:
            raise self._busy()

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._lock:
            self._run("BEGIN IMMEDIATE")
            try:
                yield
                self._run("COMMIT")
            except Refused:  # before anything was counted
                self._run("ROLLBACK")
                raise
            except BaseException:
                if self._connection.in_transaction:
                    self._run("ROLLBACK")
                self._recount()
                raise


def _create(path: Path, form: CollectionSpec, least: int) -> None:
    """All of the file under its name, or none of it."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}.new")
    os.close(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    connection = sqlite3.connect(draft, isolation_level=None)
    try:
        connection.execute("PRAGMA synchronous = EXTRA")
        connection.executescript(_SCHEMA)
        row = (_FORMAT, secrets.token_bytes(32), _written(form), least)
        connection.execute("INSERT INTO settings VALUES (1, ?, ?, ?, ?)", row)
        connection.close()
        with contextlib.suppress(FileExistsError):  # another maker was first; its file is opened
            os.link(draft, path)
            sync_folder(path.parent)
    finally:
        connection.close()
        draft.unlink(missing_ok=True)


def _header(form: CollectionSpec) -> bytes:
    """The header of every record of a batch, but for its id."""
    return Header.as_asked(form.manifest, request=bytes(_ID_BYTES)).pack()


def _written(form: CollectionSpec) -> str:
    return json.dumps(form.as_dict(), sort_keys=True)


def _busy() -> InvalidInput:
    return InvalidInput("store", "be free", "a folder that another process shuffles in", "Wait for its end.")


def _damaged(path: Path) -> LedgerCorrupt:
    return LedgerCorrupt(f"`{path.name}` is damaged, or no store of a shuffler. It is never reset.")
