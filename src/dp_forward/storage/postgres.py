"""Stores in Postgres (psycopg 3), with the surface of `Database`.

A store is a schema of its own in the database that a URL names, made with its tables in one transaction.
Passwords may come from PGPASSWORD, a pgpass file or a service file.

Guarantees:
    A write transaction is alone in its store, whatever process or machine it runs on: it holds an advisory
    lock, which ends with the transaction, and with the process. When it ends without an error it is on the
    server's disk, unless the store is not ``durable``: then a crash of the *server* may lose the last ones.
    A read sees one moment. A connection that was lost is opened anew by the next transaction.
    No error holds anything of the URL, of a row, or of a message of the server.
Edges:
    Where a connection is lost during a commit, nobody knows whether it happened. So owners store only what
    may be stored twice.
    A deleted row stays in the server's files until it is vacuumed. Deleting all rows of a table removes its
    file at the commit (TRUNCATE). Both stay in the write-ahead log, in replicas and in backups.
    Between here and the server only session pooling keeps `try_lock`.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from dp_forward.errors import InvalidInput
from dp_forward.storage.database import Kind, Problem, Refuse, Statement, check_form, fill
from dp_forward.storage.forks import ForkSafe

if TYPE_CHECKING:
    import psycopg

__all__ = ["PostgresDatabase"]

_PATIENCE: Final = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
    "client_encoding": "utf8",
}
"""Unless the URL says otherwise: a server that vanished is noticed within half a minute."""
_READ: Final = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SELECT 1"  # the moment is now
_SETTINGS: Final = """SET search_path = {schema}; SET lock_timeout = '{busy}s';
SET idle_in_transaction_session_timeout = '60s';
SELECT set_config('synchronous_commit', '{commit}', false) WHERE current_setting('synchronous_commit') = 'off'
OR '{commit}' = 'off'"""
_KINDS: Final[tuple[tuple[str, Kind, str], ...]] = (
    ("53100", "full", "its disk is full"),
    ("55P03", "busy", "another process holds it"),
    ("40", "busy", "another process holds it"),
    ("28", "unavailable", "it refuses the user or the password"),
    ("3D", "unavailable", "there is no such database"),
    ("42501", "unavailable", "the user may not do this"),
    ("25", "unavailable", "it takes no writes"),
    *((state, "unavailable", "no connection") for state in ("08", "53", "57", "58")),
)
"""How a code of Postgres begins, and what it means; any other is damage."""
_TYPES: Final = {"BLOB": "BYTEA", "INTEGER": "BIGINT", "REAL": "DOUBLE PRECISION"}


@lru_cache(maxsize=256)
def _translate(sql: str) -> str:
    """SQL as SQLite reads it, for psycopg; tables lose what only SQLite has.

    A vacuum after deleting all rows would wait for other processes, by seconds; TRUNCATE does not.
    """
    if sql.lstrip().startswith("CREATE"):
        sql = re.sub(r"\b(BLOB|INTEGER|REAL)\b", lambda found: _TYPES[found[0]], sql)
        return re.sub(r"(\s*,?\s*\b(STRICT|WITHOUT ROWID))+\s*$", "", sql)
    sql = re.sub(r"^DELETE FROM (\w+)$", r"TRUNCATE \1", sql)
    return sql.replace("%", "%%").replace("?", "%s")


class _Connection:
    """One transaction on a connection; ``streamed``: rows come in small portions, for reads only."""

    def __init__(self, connection: psycopg.Connection[Any], *, streamed: bool = False) -> None:
        self._connection, self._names = connection, itertools.count() if streamed else None

    def execute(self, sql: str, parameters: Sequence[Any] = (), /) -> Any:
        if self._names is None:
            return self._connection.execute(_translate(sql), parameters or None)
        rows = self._connection.cursor(f"c{next(self._names)}")
        rows.itersize = 32  # one row may have megabytes
        return rows.execute(_translate(sql), parameters)


class PostgresDatabase(ForkSafe):
    """The store ``name`` in a database; without ``statements`` it must be there.

    Threads take its connection in turns. For the options see `Database`.

    Edges:
        `InvalidInput` where the database cannot be used at the start; later through ``refuse``.
    """

    _connection: psycopg.Connection[Any] | None

    def __init__(
        self,
        url: str,
        name: str,
        statements: Iterable[Statement] | None = None,
        *,
        refuse: Refuse,
        form: tuple[str, int] | None = None,
        busy_seconds: float = 30.0,
        durable: bool = True,
        **of_files: object,
    ) -> None:
        self._url, self._schema = url, f"dpf_{name}"
        self._refuse: Refuse = _refuse_at_start
        commit = "on" if durable else "off"
        self._set = _SETTINGS.format(schema=self._schema, busy=busy_seconds, commit=commit)
        self._key = int.from_bytes(hashlib.sha256(self._schema.encode()).digest()[:7], "big") << 1
        super().__init__()
        try:
            with self.transaction(write=True) as connection:
                absent = connection.execute("SELECT to_regnamespace(?) IS NULL", (self._schema,)).fetchone()
                if absent[0]:
                    if statements is None:
                        raise refuse(Problem("missing"))
                    connection.execute(f"CREATE SCHEMA {self._schema}")
                    fill(connection, statements)
                check_form(connection, form, refuse)
        except BaseException:
            self.close()
            raise
        self._refuse = refuse

    @contextlib.contextmanager
    def transaction(self, *, write: bool) -> Iterator[_Connection]:
        """All or nothing: committed at the end of the block, rolled back on any error."""
        # Not REPEATABLE READ: each statement must see what was committed before the lock was had.
        alone = f"BEGIN ISOLATION LEVEL READ COMMITTED; SELECT pg_advisory_xact_lock({self._key})"
        with self.lock, self._translated():
            connection = self._begun(alone if write else _READ)
            try:
                yield _Connection(connection)
                connection.execute("COMMIT")
            except BaseException:
                try:
                    connection.execute("ROLLBACK")
                except Exception:  # of a connection that is lost, or in the middle of something
                    self.disconnect()
                raise

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[_Connection]:
        """One moment of the store, on a connection of its own; others write meanwhile."""
        with self.snapshot_lock, self._translated(), contextlib.closing(self._open()) as own:
            own.execute("SET idle_in_transaction_session_timeout = 0")
            own.execute(_READ)
            yield _Connection(own, streamed=True)

    @contextlib.contextmanager
    def try_lock(self) -> Iterator[bool]:
        """Whether no other process holds this lock; then it is held for the block, at most until a kill."""
        with self._translated(), contextlib.closing(self._open()) as own:
            found = own.execute(f"SELECT pg_try_advisory_lock({self._key + 1})").fetchone()
            yield bool(found and found[0])

    def empty_log(self) -> None:
        """Do nothing: the write-ahead log is the server's; see the module."""

    def _begun(self, how: str) -> psycopg.Connection[Any]:
        """A connection with a transaction begun; an old one that was lost meanwhile is replaced."""
        import psycopg

        old = self._connection is not None
        try:
            self._connected().execute(how)
        except psycopg.Error:
            lost = old and self._connected().closed
            self.disconnect()
            if not lost:
                raise
            self._connected().execute(how)
        return self._connected()

    def _connected(self) -> psycopg.Connection[Any]:
        if self._closed:
            raise self._refuse(Problem("closed"))
        if self._connection is None:
            self._connection, self._process = self._open(), os.getpid()
        if self._process != os.getpid():
            raise self._refuse(Problem("forked"))
        return self._connection

    def _open(self) -> psycopg.Connection[Any]:
        import psycopg
        from psycopg.conninfo import conninfo_to_dict

        settings: dict[str, Any] = {**_PATIENCE, **conninfo_to_dict(self._url)}
        connection = psycopg.connect(autocommit=True, **settings)
        try:
            connection.execute(self._set)
        except BaseException:
            connection.close()
            raise
        return connection

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            import psycopg
        except ImportError:
            remedy = "pip install 'dp-forward[postgres]'."
            raise InvalidInput("postgresql", "be spoken by psycopg", "none here", remedy) from None
        try:
            yield
        except psycopg.Error as error:
            state = error.sqlstate or "08"
        else:
            return
        found = (Problem(kind, said) for start, kind, said in _KINDS if state.startswith(start))
        raise self._refuse(next(found, Problem("damaged", f"Postgres says {state}"))) from None


def _refuse_at_start(problem: Problem) -> InvalidInput:
    remedy = "Check host, port, database, user and password of the URL."
    return InvalidInput("postgresql", "name a database that can be used", problem.detail, remedy)
