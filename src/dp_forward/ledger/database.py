"""The SQLite file under a ledger: how it is made, opened, locked, and survives a fork.

Four traps of SQLite decide how this file is written:

* A connection must not live across a fork. Even a child that leaves the parent's connection alone
  and opens its own shares the library's memory of the parent's locks: when the parent then closes,
  it deletes the write-ahead log under the child, whose committed charges are gone. Detecting the
  fork afterwards is too late, so every connection is closed *before* a fork and reopened at need.
* Closing any descriptor of the file drops all locks that this process has on it. So nothing here
  ever reads the file by other means than SQLite.
* Up to SQLite 3.51.2 a checkpoint that runs beside another connection's commit can, rarely, lose
  committed rows (sqlite.org/wal.html, "the WAL-reset bug"). So automatic checkpoints are off, and
  ours hold the write lock.
* A stale ``-wal`` file beside a new database would be replayed into it. So a ledger is not made
  where one lies.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import sqlite3
import threading
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Final

from dp_forward.errors import DpForwardError, InvalidInput, LedgerCorrupt, LedgerUnavailable
from dp_forward.ledger import schema

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["Store", "locate", "make_file"]

BUSY_SECONDS: Final = 30.0
_OLDEST_SQLITE: Final = (3, 37, 0)  # STRICT tables
_SIDECARS: Final = ("-wal", "-shm", "-journal")

_BEFORE_READING: Final = (
    "PRAGMA trusted_schema = OFF",  # a hostile file's views and triggers run no functions
    "PRAGMA cell_size_check = ON",
    "PRAGMA mmap_size = 0",
)
_BEFORE_WRITING: Final = (
    "PRAGMA synchronous = FULL",
    "PRAGMA fullfsync = ON",  # macOS: through the disk's own cache
    "PRAGMA checkpoint_fullfsync = ON",
    "PRAGMA foreign_keys = ON",
    "PRAGMA wal_autocheckpoint = 0",  # see `Store._checkpoint`
)
_COMMITS_PER_CHECKPOINT: Final = 256

_BUSY: Final = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
_NOT_DAMAGE: Final = {
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_INTERRUPT,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_PROTOCOL,
    sqlite3.SQLITE_NOLFS,
    sqlite3.SQLITE_AUTH,
}


def _refusal(error: Exception) -> DpForwardError:
    """What an error of SQLite means for a ledger, in one line.

    SQLite's own message is not repeated: for a damaged row it can hold a column's contents.
    """
    code = getattr(error, "sqlite_errorcode", None)
    name = getattr(error, "sqlite_errorname", "an unreadable column")
    if code is not None and code & 0xFF in _BUSY:
        return LedgerUnavailable(
            f"The ledger was locked by another process for {BUSY_SECONDS:g} seconds; nothing was "
            "written. Try again."
        )
    if code is not None and code & 0xFF in _NOT_DAMAGE:
        return LedgerUnavailable(
            f"The ledger could not be read or written ({name}). Check the disk and the rights of "
            "the file and its folder; nothing was sent."
        )
    return LedgerCorrupt(f"The file is damaged, or no ledger: SQLite reports {name}. It is never reset.")


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, UnicodeDecodeError) as error:  # the latter for damaged text
        raise _refusal(error) from None


def locate(path: str | os.PathLike[str]) -> Path:
    """The absolute path, links followed; its folder must exist and it must not be a folder."""
    place = Path(path).resolve()
    if not place.parent.is_dir():
        raise InvalidInput(
            "ledger",
            "lie in an existing folder",
            place,
            "Make the folder first, or check the path.",
        )
    if place.is_dir():
        raise InvalidInput("ledger", "be a file", f"the folder {place}", "Name a file in it.")
    return place


def make_file(path: Path, fill: Callable[[sqlite3.Connection], object]) -> None:
    """Make a new ledger file, complete or not at all.

    Guarantees:
        ``path`` appears by one exclusive link to a file that is already filled and on disk, so no
        crash leaves half a ledger there and of two makers one is refused.
    Edges:
        A crash may leave a hidden temporary file in the folder; it is never read.
    """
    if sqlite3.sqlite_version_info < _OLDEST_SQLITE:
        raise LedgerUnavailable(
            f"Ledgers need SQLite 3.37 or later; this Python has {sqlite3.sqlite_version}."
        )
    for place in (path, *_beside(path)):
        if place.exists():
            raise InvalidInput("ledger", "not exist yet", place, "Open it, or choose another name.")
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.new")
    try:
        with _translated():
            _fill(temporary, fill)
        os.link(temporary, path)
        _sync(path.parent)
    except FileExistsError:
        raise InvalidInput("ledger", "not exist yet", path, "Open it, or choose another name.") from None
    except OSError as error:
        raise LedgerUnavailable(f"The ledger cannot be made: {error.strerror}.") from None
    finally:
        for place in (temporary, *_beside(temporary)):
            place.unlink(missing_ok=True)


def _beside(path: Path) -> list[Path]:
    return [path.with_name(path.name + suffix) for suffix in _SIDECARS]


def _fill(temporary: Path, fill: Callable[[sqlite3.Connection], object]) -> None:
    # Made by hand and not by SQLite: for its owner's eyes only.
    os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    with contextlib.closing(_connect(temporary)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        schema.build(connection)
        fill(connection)
        connection.execute("COMMIT")
        _settle(connection)
    _sync(temporary)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(
        f"{path.as_uri()}?mode=rw",  # never makes a file
        uri=True,
        timeout=BUSY_SECONDS,
        isolation_level=None,
        check_same_thread=False,
    )
    for pragma in _BEFORE_READING:
        connection.execute(pragma)
    return connection


def _settle(connection: sqlite3.Connection) -> None:
    """Turn on the write-ahead log and full synchronisation."""
    (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        raise LedgerUnavailable(f"The ledger's disk allows no write-ahead log (mode {mode}).")
    for pragma in _BEFORE_WRITING:
        connection.execute(pragma)


def _open(path: Path) -> sqlite3.Connection:
    """A connection to a file that is a ledger; anything else is left as it was and refused."""
    connection = _connect(path)
    try:
        schema.check(connection)
        _settle(connection)
    except BaseException:
        connection.close()
        raise
    return connection


class Store:
    """One ledger file, as one connection that threads take in turns.

    Guarantees:
        A transaction that ends without an error is on disk. The file is the same one from the
        first transaction to the last. Forks are safe for the parent and for the child.
    """

    def __init__(self, path: Path) -> None:
        if not path.exists():
            raise InvalidInput("ledger", "exist", path, "Create it first, with a cap and a delta.")
        status = path.stat()
        if not status.st_size:
            raise LedgerCorrupt("The file is empty; a ledger never is.")
        self.path = path
        self.lock = threading.RLock()
        self._identity = (status.st_dev, status.st_ino)
        self._connection: sqlite3.Connection | None = None
        self._process = 0
        self._commits = 0
        self._closed = False
        with _stores_lock:
            _stores.add(self)

    @contextlib.contextmanager
    def transaction(self, *, write: bool) -> Iterator[sqlite3.Connection]:
        """All or nothing: committed at the end of the block, rolled back on any error."""
        with self.lock, _translated():
            connection = self._connected()
            with _began(connection, write=write):
                yield connection
            if write:
                self._checkpoint(connection)

    def _checkpoint(self, connection: sqlite3.Connection) -> None:
        """Now and then, move the log into the main file; the last one to close does so too.

        FULL takes the write lock first, so no commit runs beside it. It is housekeeping: what was
        committed is safe in the log, so its failure is no failure of the transaction.
        """
        self._commits += 1
        if self._commits % _COMMITS_PER_CHECKPOINT == 0:
            with contextlib.suppress(sqlite3.OperationalError):
                connection.execute("PRAGMA wal_checkpoint(FULL)").fetchone()

    @contextlib.contextmanager
    def fresh(self) -> Iterator[sqlite3.Connection]:
        """A reading transaction on a connection of its own, with nothing cached."""
        with self.lock, _translated():
            self._connected()
            own = _open(self.path)
            with contextlib.closing(own), _began(own, write=False):
                yield own

    def close(self) -> None:
        """Give the file back. Closing twice is harmless."""
        with self.lock:
            self._closed = True
            self.disconnect()

    def disconnect(self) -> None:
        """Close the connection; the next transaction opens another."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _connected(self) -> sqlite3.Connection:
        if self._closed:
            raise InvalidInput("ledger", "be open", "a closed one", "Open it again.")
        try:
            status = os.stat(self.path)
        except OSError:
            raise LedgerCorrupt("The ledger file is gone while in use.") from None
        if (status.st_dev, status.st_ino) != self._identity:
            raise LedgerCorrupt("The ledger file was replaced by another one while in use.")
        if self._connection is None:
            self._connection, self._process = _open(self.path), os.getpid()
        elif self._process != os.getpid():
            raise LedgerUnavailable(
                "The process was forked behind Python's back with the ledger open; open ledgers "
                "after the fork."
            )
        return self._connection


@contextlib.contextmanager
def _began(connection: sqlite3.Connection, *, write: bool) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE" if write else "BEGIN")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            with contextlib.suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
        raise


_stores: weakref.WeakSet[Store] = weakref.WeakSet()
_stores_lock = threading.Lock()
_held: list[Store] = []


def _before_fork() -> None:
    """Wait for running transactions, then leave no connection for the child to inherit."""
    _stores_lock.acquire()
    for store in list(_stores):
        store.lock.acquire()
        _held.append(store)
        store.disconnect()


def _after_fork() -> None:
    while _held:
        _held.pop().lock.release()
    _stores_lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)
