"""SQLite databases: how a file is made, opened, locked, and survives a fork.

Four traps of SQLite decide how this module is written:

* A connection must not live across a fork. Even a child that leaves the parent's connection alone and opens
  its own shares the library's memory of the parent's locks: when the parent then closes, it deletes the
  write-ahead log under the child, whose committed rows are gone. Detecting the fork afterwards is too late,
  so every connection is closed *before* a fork and reopened at need.
* Closing any descriptor of the file drops all locks that this process has on it. So nothing here reads the
  file by other means than SQLite.
* Up to SQLite 3.51.2 a checkpoint beside another connection's commit can, rarely, lose committed rows
  (sqlite.org/wal.html, "the WAL-reset bug"). Automatic checkpoints are off, and ours hold the write lock.
* A stale ``-wal`` file beside a new database would be replayed into it. So a database is not made where one
  lies.
"""

import contextlib
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, Self

from dp_forward.errors import DpForwardError, InvalidInput, LedgerCorrupt, LedgerUnavailable
from dp_forward.storage.files import draft_of
from dp_forward.storage.forks import ForkSafe

__all__ = ["Database", "Problem", "create_database", "refuse_one_user"]

_OLDEST_SQLITE: Final = (3, 37, 0)  # STRICT tables
_SIDECARS: Final = ("-wal", "-shm", "-journal")
_BEFORE_READING: Final = (
    "trusted_schema = OFF",  # a hostile file's views and triggers run no functions
    "cell_size_check = ON",
    "mmap_size = 0",
    "temp_store = MEMORY",
)
_BEFORE_WRITING: Final = (
    "synchronous = FULL",
    "fullfsync = ON",  # macOS: through the disk's own cache
    "checkpoint_fullfsync = ON",
    "foreign_keys = ON",
    "wal_autocheckpoint = 0",  # see `Database.transaction`
)
_NOT_DAMAGE: Final = {
    getattr(sqlite3, f"SQLITE_{name}")
    for name in ("PERM", "NOMEM", "READONLY", "INTERRUPT", "IOERR", "CANTOPEN", "PROTOCOL", "NOLFS", "AUTH")
}

Kind = Literal["busy", "full", "unavailable", "damaged", "exists", "missing", "gone", "forked", "closed"]


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a database cannot be used; its owner turns it into an error of its own.

    ``kind``: another process holds it (busy), the disk is full, it cannot be read or written (unavailable),
    it is damaged or something else, it exists already or does not exist, it was moved or replaced or used by
    another process meanwhile (gone), the process was forked behind Python's back (forked), it was closed.
    ``detail`` is a short word for people. SQLite's own message can hold a column's contents: it is left out.
    """

    kind: Kind
    detail: str = ""


Refuse = Callable[[Problem], DpForwardError]


@contextlib.contextmanager
def _translated(refuse: Refuse) -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, UnicodeDecodeError) as error:  # the latter for damaged text
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT)
        name = getattr(error, "sqlite_errorname", "an unreadable column")
    else:
        return
    kind: Kind = "damaged"
    if code & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        kind = "busy"
    elif code & 0xFF == sqlite3.SQLITE_FULL:
        kind = "full"
    elif code & 0xFF in _NOT_DAMAGE and code != sqlite3.SQLITE_IOERR_SHORT_READ:  # that one: a file cut short
        kind = "unavailable"
    raise refuse(Problem(kind, name))


def refuse_one_user(path: Path, *, taken: tuple[str, str], kept: str, made: str) -> Refuse:
    """The errors of a database that one process uses at a time.

    ``taken`` is the name of its folder for people, and how it is in use; ``kept`` says what a disk that fails
    leaves behind, and ``made`` what the file should be.
    """

    def refuse(problem: Problem) -> DpForwardError:
        if problem.kind in ("busy", "exists"):
            return InvalidInput(taken[0], "be free", taken[1], "Wait for its end.")
        if problem.kind in ("full", "unavailable"):
            return LedgerUnavailable(f"`{path.name}` cannot be written: the disk is full or fails. {kept}")
        if problem.kind == "gone":
            return LedgerUnavailable(f"`{path.name}` {problem.detail} meanwhile. {kept}")
        return LedgerCorrupt(f"`{path.name}` is damaged, or no {made}. It is never reset.")

    return refuse


Statement = str | tuple[str, tuple[Any, ...]]
"""SQL, with its parameters if it has some."""


def create_database(path: Path, statements: Iterable[Statement], *, refuse: Refuse) -> None:
    """Make a new database for its owner only, complete or not at all; the statements fill it.

    Guarantees:
        ``path`` appears by one exclusive link to a file that is already filled and on disk, so no crash
        leaves half a database there and of two makers one is refused ("exists").
    Edges:
        A crash may leave a hidden temporary file in the folder; it is never read.
    """
    if sqlite3.sqlite_version_info < _OLDEST_SQLITE:
        raise refuse(Problem("unavailable", f"SQLite 3.37 or later is needed, not {sqlite3.sqlite_version}"))
    for place in (path, *_beside(path)):
        if place.exists():
            raise refuse(Problem("exists", place.name))
    try:
        with draft_of(path, new=True) as draft, _translated(refuse):
            # Made by hand and not by SQLite: for its owner's eyes only.
            os.close(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
            try:
                with contextlib.closing(_connect(draft, 0)) as connection:
                    with _began(connection, "BEGIN IMMEDIATE"):
                        fill(connection, statements)
                    _settle(connection, refuse)
            finally:
                for place in _beside(draft):
                    place.unlink(missing_ok=True)
    except FileExistsError:
        raise refuse(Problem("exists", path.name)) from None
    except OSError as error:
        raise refuse(Problem("unavailable", error.strerror or "an error of the disk")) from None


def fill(connection: Any, statements: Iterable[Statement]) -> None:
    for one in statements:
        connection.execute(*([one] if isinstance(one, str) else one))


def check_form(connection: Any, form: tuple[str, int] | None, refuse: Refuse) -> None:
    """Compare the column ``format`` of a table with a number."""
    if form is not None:
        found = connection.execute(f"SELECT format FROM {form[0]}").fetchall()  # noqa: S608
        if found != [(form[1],)]:
            raise refuse(Problem("damaged", "another format"))


def _beside(path: Path) -> list[Path]:
    return [path.with_name(path.name + suffix) for suffix in _SIDECARS]


def _connect(path: Path, busy_seconds: float) -> sqlite3.Connection:
    connection = sqlite3.connect(
        f"{path.as_uri()}?mode=rw",  # never makes a file
        uri=True,
        timeout=busy_seconds,
        isolation_level=None,
        check_same_thread=False,
    )
    for pragma in _BEFORE_READING:
        connection.execute(f"PRAGMA {pragma}")
    return connection


def _settle(connection: sqlite3.Connection, refuse: Refuse) -> None:
    """Turn on the write-ahead log and full synchronisation."""
    (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        raise refuse(Problem("unavailable", f"no write-ahead log, mode {mode}"))
    for pragma in _BEFORE_WRITING:
        connection.execute(f"PRAGMA {pragma}")


@contextlib.contextmanager
def _began(connection: sqlite3.Connection, how: str) -> Iterator[None]:
    connection.execute(how)
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            with contextlib.suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
        raise


class Database(ForkSafe):
    """One SQLite file, as one connection that threads take in turns.

    ``check`` looks at an opened file before anything is written to it and raises where it is not what the
    owner made; ``form`` compares the column ``format`` of a table with a number. ``exclusive`` keeps every
    other process out from the first use to `close`, at once and without waiting. ``forget`` overwrites what
    is deleted. ``checkpoint_every`` is how many commits the log may hold. What is not ``durable`` survives
    every kill, but a power cut may take the last commits.

    Guarantees:
        A transaction that ends without an error is on disk. The file is the same one from the first
        transaction to the last. Forks are safe for parent and child. SQLite's errors go through ``refuse``.
    Edges:
        An exclusive file is given back for the moment of a fork. Where another process used it meanwhile,
        the next transaction is refused ("gone"), for what its owner remembers of it may be wrong.
    """

    _connection: sqlite3.Connection | None

    def __init__(
        self,
        path: Path,
        *,
        refuse: Refuse,
        check: Callable[[sqlite3.Connection], object] | None = None,
        form: tuple[str, int] | None = None,
        busy_seconds: float = 30.0,
        exclusive: bool = False,
        forget: bool = False,
        checkpoint_every: int = 256,
        durable: bool = True,
    ) -> None:
        self.path = path.resolve()
        self._refuse, self._check, self._form = refuse, check, form
        self._busy_seconds = 0.0 if exclusive else busy_seconds
        self._exclusive, self._forget, self._durable = exclusive, forget, durable
        self._checkpoint_every, self._commits = checkpoint_every, 0
        if not self.path.exists():
            raise refuse(Problem("missing"))
        status = self.path.stat()
        if not status.st_size:
            raise refuse(Problem("damaged", "an empty file"))
        self._identity = (status.st_dev, status.st_ino)
        self._left: dict[str, tuple[int, int]] | None = None
        super().__init__()
        if exclusive:
            with self.lock, _translated(refuse):
                self._connected()

    @classmethod
    def open_or_create(
        cls, path: Path, statements: Iterable[Statement], *, refuse: Refuse, **options: Any
    ) -> Self:
        """The database at this path, made if there is none; of two makers one takes that of the other."""
        if not path.exists():
            try:
                create_database(path, statements, refuse=refuse)
            except DpForwardError:
                if not path.exists():
                    raise
        return cls(path, refuse=refuse, **options)

    @contextlib.contextmanager
    def transaction(self, *, write: bool) -> Iterator[sqlite3.Connection]:
        """All or nothing: committed at the end of the block, rolled back on any error."""
        with self.lock, _translated(self._refuse):
            connection = self._connected()
            with _began(connection, "BEGIN IMMEDIATE" if write else "BEGIN"):
                yield connection
            if write:
                # Now and then the log is moved into the main file, as by the last one to close. What was
                # committed is safe in the log, so a failure of that is no failure of the transaction.
                self._commits += 1
                if self._commits % self._checkpoint_every == 0:
                    with contextlib.suppress(sqlite3.OperationalError):
                        self._checkpoint(connection)

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[sqlite3.Connection]:
        """One moment of the file, on a read-only connection of its own; other threads write meanwhile."""
        with self.snapshot_lock, _translated(self._refuse):
            with self.lock:
                self._connected()
                own = self._open()
            with contextlib.closing(own):
                own.execute("PRAGMA query_only = ON")
                with _began(own, "BEGIN"):
                    own.execute("SELECT count(*) FROM sqlite_schema").fetchone()  # the moment is now
                    yield own

    def try_lock(self) -> contextlib.AbstractContextManager[bool]:
        """Whether this process may do what one at a time does."""
        return contextlib.nullcontext(self._exclusive)

    def empty_log(self) -> None:
        """Move the write-ahead log into the file and cut it to nothing: it holds what was deleted."""
        with self.lock, _translated(self._refuse):
            if self._connected().execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]:
                raise self._refuse(Problem("busy"))

    def delete(self) -> None:
        """Delete an exclusive database with its log, and close it; nobody else can open it in between."""
        if not self._exclusive:
            raise AssertionError("only an exclusive database is deleted")
        with self.lock, _translated(self._refuse):
            connection = self._connected()
            connection.execute("PRAGMA journal_mode = DELETE")  # removes the log and keeps the lock
            self.path.unlink()
            self.close()

    def disconnect(self) -> None:
        """Close the connection, and remember the state of the file."""
        if self._connection is not None:
            super().disconnect()
            self._left = self._state()

    def _open(self) -> sqlite3.Connection:
        """A connection to a file that is the owner's; anything else is left as it was and refused."""
        connection = _connect(self.path, self._busy_seconds)
        try:
            if self._exclusive:
                connection.execute("PRAGMA locking_mode = EXCLUSIVE")
            if self._check is not None:
                self._check(connection)
            check_form(connection, self._form, self._refuse)
            _settle(connection, self._refuse)
            if self._forget:
                connection.execute("PRAGMA secure_delete = ON")
            if not self._durable:
                connection.execute("PRAGMA synchronous = NORMAL")
            if self._exclusive:
                with _began(connection, "BEGIN EXCLUSIVE"):
                    pass
        except BaseException:
            connection.close()
            raise
        return connection

    def _checkpoint(self, connection: sqlite3.Connection) -> None:
        """Move the log into the main file as far as readers allow, without a commit beside it.

        A FULL checkpoint waits for readers, and where it may not wait and another connection writes, it goes
        on without the write lock. So this connection holds that lock while another runs a PASSIVE one.
        """
        if self._exclusive:  # there is nobody to wait for
            connection.execute("PRAGMA wal_checkpoint(FULL)").fetchone()
            return
        with contextlib.closing(self._open()) as other, _began(connection, "BEGIN IMMEDIATE"):
            other.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()

    def _connected(self) -> sqlite3.Connection:
        if self._closed:
            raise self._refuse(Problem("closed"))
        if self._connection is not None and self._process != os.getpid():
            raise self._refuse(Problem("forked"))
        try:
            status = os.stat(self.path)
        except OSError:
            raise self._refuse(Problem("gone", "is gone")) from None
        if (status.st_dev, status.st_ino) != self._identity:
            raise self._refuse(Problem("gone", "was replaced by another one"))
        if self._connection is None:
            if self._exclusive and self._left not in (None, self._state()):
                raise self._refuse(Problem("gone", "was used by another process"))
            self._connection, self._process = self._open(), os.getpid()
        return self._connection

    def _state(self) -> dict[str, tuple[int, int]]:
        """What any write by another process changes: the file and, where it was killed, the log beside it."""
        found = {}
        for suffix in ("", "-wal"):
            with contextlib.suppress(OSError):
                status = os.stat(f"{self.path}{suffix}")
                found[suffix] = (status.st_mtime_ns, status.st_size)
        return found
