"""What a collector has been given, on its disk: each record once.

    DIR/collection.json   what is collected (`form`); written last, so a folder without it was never used
    DIR/records.sqlite    the records, and which batches of a shuffler are complete (sealed)

Guarantees:
    `Collection.add` stores all of its records in one synchronous transaction, or none of them: when it
    returns, they are on disk. A record is known by its id: the same one again is stored no second time,
    another one under the same id is refused. A record belongs to one batch, or to none, for ever. A sealed
    batch takes no new records, and has exactly as many as it was sealed with.
    Both files are for their owner's eyes only (mode 0600).
Edges:
    One writer at a time, within a process and between processes; readers do not wait. A full disk refuses
    (code "full"), and nothing of that call is stored. The rows lie in the order of arrival: who may read this
    folder learns what the provider learnt anyway. An export forgets the order.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from dp_forward.corpus.draw_log import sync_folder
from dp_forward.errors import InvalidInput
from dp_forward.privacy.checks import count
from dp_forward.service.protocol.collection_spec import CollectionSpec
from dp_forward.service.protocol.frame import WireError
from dp_forward.service.protocol.record import Record
from dp_forward.service.server.refusals import Refused

__all__ = ["BATCH_BYTES", "FORM", "RECORDS", "Collection"]

FORM: Final = "collection.json"
RECORDS: Final = "records.sqlite"
BATCH_BYTES: Final = 16
"""The id of a batch."""
_FORMAT: Final = 1
_BUSY_SECONDS: Final = 30.0
_LATER: Final = 30
"""Seconds after which a write that failed may be tried again."""
_SCHEMA: Final = f"""
CREATE TABLE IF NOT EXISTS records (
    request BLOB PRIMARY KEY NOT NULL, digest BLOB NOT NULL, label INTEGER, noisy BLOB NOT NULL, batch BLOB
) STRICT;
CREATE INDEX IF NOT EXISTS records_by_batch ON records (batch);
CREATE TABLE IF NOT EXISTS batches (batch BLOB PRIMARY KEY NOT NULL, records INTEGER NOT NULL) STRICT;
PRAGMA user_version = {_FORMAT};
"""


class Collection:
    """The open folder; see the module. Threads may share one."""

    def __init__(self, folder: Path, form: CollectionSpec) -> None:
        self.folder = folder
        self._form = form
        self._turn = threading.Lock()
        self._process = os.getpid()
        self._connection: sqlite3.Connection | None = None

    @classmethod
    def create(cls, folder: str | os.PathLike[str], form: CollectionSpec) -> Collection:
        """A new collection in a folder that is new or empty."""
        place = Path(folder).absolute()
        taken = InvalidInput("collect", "be new or empty", place.name, "Choose another folder.")
        if place.exists() and not place.is_dir():
            raise taken
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        # What a maker that was killed left behind is taken over, if nothing was ever stored in it.
        if any(not path.name.startswith((RECORDS, f".{FORM}.")) for path in place.iterdir()):
            raise taken
        with contextlib.suppress(FileExistsError):
            os.close(os.open(place / RECORDS, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        with _errors(), contextlib.closing(_connect(place)) as connection:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.executescript(_SCHEMA)
            if connection.execute("SELECT count(*) FROM records").fetchone()[0]:
                raise taken
        try:
            _write_once(place / FORM, json.dumps(form.as_dict(), indent=1, sort_keys=True) + "\n")
        except FileExistsError:
            raise taken from None
        return cls.open(place)

    @classmethod
    def open(cls, folder: str | os.PathLike[str]) -> Collection:
        """The collection in a folder; anything else is refused."""
        place = Path(folder).absolute()
        collection = cls(place, _read_form(place))
        if not (place / RECORDS).is_file():
            raise InvalidInput("collect", f"hold {RECORDS}", "no such file", "Bring it back: it is the data.")
        with collection._reading() as connection:
            found = connection.execute("PRAGMA user_version").fetchone()[0]
        if found != _FORMAT:
            raise InvalidInput(RECORDS, f"be of format {_FORMAT}", found, "Update dp-forward.")
        return collection

    @classmethod
    def open_or_create(cls, folder: str | os.PathLike[str], form: CollectionSpec) -> Collection:
        """The collection of this form in a folder, made if there is none; one of another form is refused."""
        if not (Path(folder) / FORM).is_file():
            return cls.create(folder, form)
        found, wanted = cls.open(folder), form.as_dict()
        there = found.form.as_dict()
        other = [name for name in wanted if there[name] != wanted[name]]
        if other:
            found.close()
            rule = "be new, or collect the same"
            raise InvalidInput("collect", rule, f"one of other {', '.join(other)}", "Choose another folder.")
        return found

    @property
    def form(self) -> CollectionSpec:
        """What is collected."""
        return self._form

    def add(self, records: Sequence[Record], batch: bytes | None = None) -> tuple[int, int]:
        """Store these records, in a batch of a shuffler or in none; how many are new, and how many known.

        Edges:
            `Refused`, and nothing stored: "replayed" for an id that is there with other content or in another
            batch, "batch" for new records of a sealed one, "full" or "disk" where it cannot be written.
            The records are taken as they are: a `RecordReader` of this form has checked them.
        """
        if batch is not None:
            _check_batch(batch)
        expected = self.form.manifest
        stored = 0
        with self._writing() as connection:
            sealed = batch is not None and _sealed(connection, batch) is not None
            for record in records:
                if record.values.shape != (expected.release.matrix_rows, expected.release.width):
                    raise Refused("shape", "A record has another shape than what is collected.")
                stored += _add(connection, record, batch, sealed=sealed)
        return stored, len(records) - stored

    def seal(self, batch: bytes, records: int) -> None:
        """Note that a batch is complete, with exactly so many records; twice the same is harmless.

        Edges:
            `Refused` ("batch") where another number is stored, or it was sealed with another one.
        """
        _check_batch(batch)
        count("records", records, remedy="A batch has records.")
        with self._writing() as connection:
            sealed = _sealed(connection, batch)
            query = "SELECT count(*) FROM records WHERE batch = ?"
            there = connection.execute(query, (batch,)).fetchone()[0] if sealed is None else sealed
            if there != records:
                raise Refused("batch", f"The batch has {there} records, not {records}.")
            if sealed is None:
                connection.execute("INSERT INTO batches VALUES (?, ?)", (batch, records))

    def __len__(self) -> int:
        with self._reading() as connection:
            return int(connection.execute("SELECT count(*) FROM records").fetchone()[0])

    def summary(self) -> dict[str, int]:
        """``records`` that an export would hold, ``waiting`` ones of unsealed batches, sealed ``batches``."""
        with self._reading() as connection:
            return counts(connection)

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[sqlite3.Connection]:
        """One moment of the collection, on a connection of its own; what is added meanwhile is not seen."""
        with _errors(), contextlib.closing(_connect(self.folder)) as connection:
            connection.execute("PRAGMA query_only = ON")
            connection.execute("BEGIN")
            yield connection
            connection.execute("COMMIT")

    def close(self) -> None:
        """Give the file back."""
        with self._turn:
            if self._connection is not None and self._process == os.getpid():
                self._connection.close()
            self._connection = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Collection({self.folder.name}, {self.form!r})"

    @contextlib.contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with self._turn, _errors():
            if self._connection is None or self._process != os.getpid():
                # A connection of another process is left alone: closing it would drop that one's locks.
                self._connection, self._process = _connect(self.folder), os.getpid()
            yield self._connection

    @contextlib.contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """One transaction: all of it on disk, or none of it."""
        with self._reading() as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise


def counts(connection: sqlite3.Connection) -> dict[str, int]:
    """As `Collection.summary`."""
    every, waiting, batches = connection.execute(
        "SELECT (SELECT count(*) FROM records), (SELECT count(*) FROM records WHERE batch IS NOT NULL "
        "AND batch NOT IN (SELECT batch FROM batches)), (SELECT count(*) FROM batches)"
    ).fetchone()
    return {"records": every - waiting, "waiting": waiting, "batches": batches}


def _add(connection: sqlite3.Connection, record: Record, batch: bytes | None, *, sealed: bool) -> int:
    """1 where the record is new, 0 where it is known."""
    query = "SELECT digest, batch FROM records WHERE request = ?"
    known = connection.execute(query, (record.request,)).fetchone()
    if known == (record.digest, batch):
        return 0
    if known is not None:
        raise Refused("replayed", "An id of this body is there already, with another record or place.")
    if sealed:
        raise Refused("batch", "The batch is sealed: it takes no new records.")
    row = (record.request, record.digest, record.label, record.noisy, batch)
    connection.execute("INSERT INTO records VALUES (?, ?, ?, ?, ?)", row)
    return 1


def _sealed(connection: sqlite3.Connection, batch: bytes) -> int | None:
    """With how many records a batch was sealed."""
    row = connection.execute("SELECT records FROM batches WHERE batch = ?", (batch,)).fetchone()
    return None if row is None else int(row[0])


def _check_batch(batch: object) -> None:
    if not isinstance(batch, bytes) or len(batch) != BATCH_BYTES:
        raise InvalidInput("batch", f"be {BATCH_BYTES} bytes", type(batch).__name__, "Draw it at random.")


def _connect(folder: Path) -> sqlite3.Connection:
    uri = f"{(folder / RECORDS).as_uri()}?mode=rw"  # never makes a file
    connection = sqlite3.connect(
        uri, uri=True, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
    )
    for pragma in ("trusted_schema = OFF", "synchronous = FULL"):
        connection.execute(f"PRAGMA {pragma}")
    return connection


@contextlib.contextmanager
def _errors() -> Iterator[None]:
    """What SQLite says, as a refusal; its words may hold a path or a value, so they are left out."""
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    else:
        return
    if code == sqlite3.SQLITE_FULL:
        message = "The collector's disk is full; nothing of this body was stored."
        raise Refused("full", message, retry_after=_LATER)
    message = "The collector cannot read or write its records; nothing of this body was stored."
    raise Refused("disk", message, retry_after=_LATER)


def _read_form(place: Path) -> CollectionSpec:
    try:
        return CollectionSpec.from_dict(json.loads((place / FORM).read_text(encoding="utf-8")))
    except OSError:
        found = "no such file"
    except (ValueError, RecursionError, WireError):
        found = "something else"
    raise InvalidInput("collect", f"hold a readable {FORM}", found, "Name the folder of a collection.")


def _write_once(path: Path, text: str) -> None:
    """All of the file or nothing; `FileExistsError` where there is one."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}.new")
    descriptor = os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.link(draft, path)
        sync_folder(path.parent)
    finally:
        draft.unlink(missing_ok=True)
