"""The draws of a corpus that is being released: kept on the user's disk, each record drawn once.

One SQLite file in the private folder. It holds the settings of the release, a secret, the draws of the shard
that is being filled (in small pieces), and the digests of the shards that are finished.

Guarantees:
    For every record at most one draw is ever committed: a piece is inserted in one synchronous transaction,
    only as the next records of the corpus, and is never replaced. It is dropped in the transaction that
    notes the finished shard which holds its bytes. Whoever restarts goes on after the last committed piece.
    One process at a time: the file stays locked while it is open, and the lock ends with the process.
Edges:
    What a crash can lose is the piece in memory, or one half written, which SQLite rolls back when the file
    is opened next. Such a draw is no release: it never was in a shard, nobody was given it, and it lay in
    the user's own memory and disk, where the texts themselves lie. Which draw survives depends on when the
    crash came and not on what was drawn, so the one that is kept has the mechanism's distribution.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from dp_forward.errors import InvalidInput, LedgerCorrupt
from dp_forward.storage.locked import LockedFile

__all__ = ["Drawn", "Piece", "Shard"]

_FORMAT: Final = 1
_SCHEMA: Final = """
CREATE TABLE plan (one INTEGER PRIMARY KEY CHECK (one = 1), format INTEGER NOT NULL, name TEXT NOT NULL,
                   secret BLOB NOT NULL, settings TEXT NOT NULL, tag BLOB NOT NULL,
                   charged INTEGER NOT NULL DEFAULT 0) STRICT;
CREATE TABLE pieces (first INTEGER PRIMARY KEY, records INTEGER NOT NULL, noisy BLOB NOT NULL,
                     labels BLOB NOT NULL, sha256 BLOB NOT NULL) STRICT;
CREATE TABLE shards (number INTEGER PRIMARY KEY, records INTEGER NOT NULL, bytes INTEGER NOT NULL,
                     sha256 TEXT NOT NULL) STRICT;
"""


@dataclass(frozen=True, slots=True)
class Piece:
    """The draws of some records in a row; the bytes are not shown."""

    first: int
    records: int
    noisy: bytes
    labels: bytes

    def __repr__(self) -> str:
        return f"Piece(first={self.first}, records={self.records})"

    @property
    def sha256(self) -> bytes:
        """Of everything in it."""
        numbers = f"{self.first} {self.records} {len(self.noisy)} {len(self.labels)}\n".encode()
        return hashlib.sha256(numbers + self.noisy + self.labels).digest()


@dataclass(frozen=True, slots=True)
class Shard:
    """A finished file."""

    number: int
    records: int
    bytes: int
    sha256: str


class Drawn(LockedFile):
    """The open file; use it as a context manager. Make one with `create` or `open`."""

    def __init__(self, path: Path) -> None:
        settings = ("trusted_schema = OFF", "synchronous = EXTRA", "locking_mode = EXCLUSIVE")
        kept = "Nothing is lost; resume when there is room."
        super().__init__(path, settings, busy=_busy, damaged=_damaged, kept=kept)
        try:
            self._load()
        except BaseException:
            self._connection.close()
            raise

    @classmethod
    def create(cls, path: Path, settings: dict[str, Any], identity: bytes) -> Drawn:
        """A new file for a release with these public settings of the corpus that ``identity`` stands for."""
        secret, name = secrets.token_bytes(32), secrets.token_hex(16)
        draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}.new")
        os.close(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        connection = sqlite3.connect(draft, isolation_level=None)
        try:
            connection.execute("PRAGMA synchronous = EXTRA")
            connection.executescript(_SCHEMA)
            connection.execute(
                "INSERT INTO plan VALUES (1, ?, ?, ?, ?, ?, 0)",
                (_FORMAT, name, secret, json.dumps(settings, sort_keys=True), _tag(secret, identity)),
            )
            connection.close()
            os.link(draft, path)  # exclusive: of two makers one is refused
            sync_folder(path.parent)
        except FileExistsError:
            raise _busy() from None
        finally:
            connection.close()
            draft.unlink(missing_ok=True)
        return cls(path)

    @classmethod
    def open(cls, path: Path) -> Drawn:
        """The file of a release that was begun."""
        return cls(path)

    def _load(self) -> None:
        row = self._one("SELECT format, name, secret, settings, tag, charged FROM plan")
        if row is None or row[0] != _FORMAT:
            raise self._damaged()
        _, self.name, self._secret, settings, self.key, charged = row
        self.settings: dict[str, Any] = json.loads(settings)
        """The public settings of the release."""
        self.charged = bool(charged)
        """Whether the ledger was charged: from then on draws may exist."""
        found = self._connection.execute("SELECT number, records, bytes, sha256 FROM shards ORDER BY number")
        self.shards = [Shard(*row) for row in found]
        """The finished shards."""
        if [shard.number for shard in self.shards] != list(range(len(self.shards))):
            raise self._damaged()
        self.next_record = sum(shard.records for shard in self.shards)
        """The first record that has no draw."""
        for first, records in self._connection.execute("SELECT first, records FROM pieces ORDER BY first"):
            if first != self.next_record:
                raise self._damaged()
            self.next_record += records

    def is_of(self, identity: bytes) -> bool:
        """Whether this release is of the corpus that ``identity`` stands for."""
        return hmac.compare_digest(self.key, _tag(self._secret, identity))

    def mark_charged(self) -> None:
        """Note that the ledger has the charge."""
        self._run("UPDATE plan SET charged = 1")
        self.charged = True

    def add(self, piece: Piece) -> None:
        """Commit the draws of the next records; on disk when this returns."""
        if not self.charged or piece.first != self.next_record:
            raise AssertionError("draws are charged first and committed in their order")
        row = (piece.first, piece.records, piece.noisy, piece.labels, piece.sha256)
        self._run("INSERT INTO pieces VALUES (?, ?, ?, ?, ?)", row)
        self.next_record += piece.records

    def pieces(self) -> list[Piece]:
        """The draws of the shard that is being filled, checked."""
        found = []
        for *fields, sha256 in self._connection.execute(
            "SELECT first, records, noisy, labels, sha256 FROM pieces ORDER BY first"
        ):
            piece = Piece(*fields)
            if piece.sha256 != sha256:
                raise self._damaged()
            found.append(piece)
        return found

    def finish(self, shard: Shard) -> None:
        """Note a finished shard and drop its pieces, both or neither."""
        self._run("BEGIN IMMEDIATE")
        self._run("INSERT INTO shards VALUES (?, ?, ?, ?)", _row(shard))
        self._run("DELETE FROM pieces")
        self._run("COMMIT")
        self.shards.append(shard)

    def discard(self) -> None:
        """Delete the file of a release that was never charged, hence never drawn."""
        if self.charged:
            raise AssertionError("what was charged is never discarded")
        self._path.unlink()
        self.close()

    def close(self) -> None:
        """Give the file back."""
        self._connection.close()

    def __enter__(self) -> Drawn:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Drawn({self._path.name})"


def _row(shard: Shard) -> tuple[Any, ...]:
    return shard.number, shard.records, shard.bytes, shard.sha256


def _tag(secret: bytes, identity: bytes) -> bytes:
    return hmac.digest(secret, b"dp-forward/corpus/1\0" + identity, "sha256")


def _busy() -> InvalidInput:
    return InvalidInput("out", "be free", "a folder that another process releases into", "Wait for its end.")


def _damaged(path: Path) -> LedgerCorrupt:
    return LedgerCorrupt(
        f"`{path.name}` is damaged, or no record of draws. It is never reset: release elsewhere."
    )


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
