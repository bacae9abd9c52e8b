"""Store of collected records, in a folder or in a Postgres database; idempotent inserts.

    DIR/collection.json   what is collected; written last, so a folder without it was never used
    DIR/records.sqlite    the records, and which batches of a shuffler are complete (sealed)

In Postgres all of it lies in the schema dpf_records: one collection in each database.

Guarantees:
    `Collection.add` stores all of its records in one synchronous transaction, or none of them: when it
    returns, they are on disk. A record is identified by its id: the same record again is not stored a second
    time, another record under the same id is refused. A record belongs to one batch, or to none, for ever.
    A sealed batch takes no new records, and has exactly as many as it was sealed with. Both files are for
    their owner only (mode 0600). Processes, and over Postgres machines, write in turns; readers do not wait.
Edges:
    A full disk refuses (code "full"), and nothing of that call is stored. The rows lie in the order of
    arrival: who may read this folder learns what the provider learnt anyway. An export forgets the order.
"""

import json
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Final, Self

from dp_forward.errors import DpForwardError, InvalidInput, refuse_if
from dp_forward.service.protocol.collection import CollectionSpec, Record
from dp_forward.service.protocol.frame import WireError
from dp_forward.service.server.request_limits import Refused
from dp_forward.storage.database import Database, Problem
from dp_forward.storage.files import write_file
from dp_forward.storage.json_files import read_json
from dp_forward.storage.postgres import PostgresDatabase
from dp_forward.storage.stores import Connection, Place, Store, is_url, shown_place

__all__ = ["Collection"]

_SPEC: Final = "collection.json"
RECORDS: Final = "records.sqlite"
_FORMAT: Final = 1
_REMEDY: Final = "Name the folder of a collection."
_TABLES: Final = (
    "CREATE TABLE records (request BLOB PRIMARY KEY NOT NULL, digest BLOB NOT NULL, label INTEGER, "
    "noisy BLOB NOT NULL, batch BLOB) STRICT",
    "CREATE INDEX records_by_batch ON records (batch)",
    "CREATE TABLE batches (batch BLOB PRIMARY KEY NOT NULL, records INTEGER NOT NULL) STRICT",
)
_SPEC_TABLE: Final = (
    "CREATE TABLE spec (one INTEGER PRIMARY KEY CHECK (one = 1), format INTEGER NOT NULL, spec TEXT NOT NULL)"
)


class Collection:
    """An open collection; see the module. Threads may share one."""

    def __init__(self, place: Place, spec: CollectionSpec, store: Store) -> None:
        self.place, self._spec, self._store = place, spec, store
        self.close = store.close  # close the store; closing twice is harmless
        self.snapshot = store.snapshot  # one moment of the collection, on a connection of its own

    @classmethod
    def open(cls, place: Place) -> Self:
        """Open the collection in a folder or database; anything else is refused."""
        if is_url(place):
            store: Store = PostgresDatabase(str(place), "records", refuse=_refuse, form=("spec", _FORMAT))
            with store.transaction(write=False) as connection:
                settings = json.loads(connection.execute("SELECT spec FROM spec").fetchone()[0])
        else:
            place = Path(place).absolute()
            settings = read_json(place / _SPEC, name="collect", remedy=_REMEDY)
            # A checkpoint after every 16 commits: each may hold a body of 8 MiB.
            store = Database(place / RECORDS, refuse=_refuse, check=_check_format, checkpoint_every=16)
        try:
            collection = cls(place, CollectionSpec.from_dict(settings), store)
        except WireError:
            rule = f"hold a readable {_SPEC}"
            raise InvalidInput("collect", rule, "something else", _REMEDY) from None
        len(collection)  # refuses what is no collection
        return collection

    @classmethod
    def open_or_create(cls, place: Place, spec: CollectionSpec) -> Self:
        """Open the collection of this spec, made if the place is new or empty; any other is refused."""
        settings = json.dumps(spec.as_dict(), indent=1, sort_keys=True) + "\n"
        if is_url(place):
            row = ("INSERT INTO spec VALUES (1, ?, ?)", (_FORMAT, settings))
            PostgresDatabase(str(place), "records", [*_TABLES, _SPEC_TABLE, row], refuse=_refuse).close()
        elif not (Path(place) / _SPEC).is_file():
            try:
                _create(Path(place).absolute(), settings)
            except OSError as error:
                rule, why = "be a folder that can be written", error.strerror
                raise InvalidInput("collect", rule, why, "Choose another folder.") from None
        found = cls.open(place)
        there = found.spec.as_dict()
        other = [name for name, wanted in spec.as_dict().items() if there[name] != wanted]
        if other:
            found.close()
            rule = "be new, or collect the same"
            raise InvalidInput("collect", rule, f"one of other {', '.join(other)}", "Choose another place.")
        return found

    @property
    def spec(self) -> CollectionSpec:
        """What is collected."""
        return self._spec

    def add(self, records: Sequence[Record], batch: bytes | None = None) -> tuple[int, int]:
        """Store these records, in a batch of a shuffler or in none; how many are new, and how many known.

        Edges:
            `Refused`, and nothing stored: "replayed" for an id that is there with other content or in another
            batch, "batch" for new records of a sealed one, "full" or "disk" where it cannot be written.
            The records are taken as they are: a `RecordReader` of this spec has checked them.
        """
        with self._store.transaction(write=True) as connection:
            sealed = batch is not None and _sealed(connection, batch) is not None
            stored = sum([_add(connection, record, batch, sealed=sealed) for record in records])
        return stored, len(records) - stored

    def seal(self, batch: bytes, records: int) -> None:
        """Mark a batch as complete, with exactly so many records; twice the same is harmless.

        Edges:
            `Refused` ("batch") where another number is stored, or it was sealed with another one.
        """
        with self._store.transaction(write=True) as connection:
            sealed = _sealed(connection, batch)
            query = "SELECT count(*) FROM records WHERE batch = ?"
            there = connection.execute(query, (batch,)).fetchone()[0] if sealed is None else sealed
            if there != records:
                raise Refused("batch", f"The batch has {there} records, not {records}.")
            if sealed is None:
                connection.execute("INSERT INTO batches VALUES (?, ?)", (batch, records))

    def __len__(self) -> int:
        with self._store.transaction(write=False) as connection:
            return _count(connection)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Collection({Path(shown_place(self.place)).name}, {self.spec!r})"


def _create(place: Path, settings: str) -> None:
    taken = InvalidInput("collect", "be new or empty", place.name, "Choose another folder.")
    if place.exists() and not place.is_dir():
        raise taken
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    # What a maker that was killed left behind is taken over, if nothing was ever stored in it.
    ours = (RECORDS, f".{RECORDS}.", f".{_SPEC}.")
    if any(not path.name.startswith(ours) for path in place.iterdir()):
        raise taken
    tables = [*_TABLES, f"PRAGMA user_version = {_FORMAT}"]
    made = Database.open_or_create(place / RECORDS, tables, refuse=_refuse, check=_check_format)
    with closing(made) as store, store.transaction(write=False) as connection:
        if _count(connection):
            raise taken
    with suppress(FileExistsError):  # another process was first: its spec is compared
        write_file(place / _SPEC, settings, private=True, new=True)


def _count(connection: Connection) -> int:
    return int(connection.execute("SELECT count(*) FROM records").fetchone()[0])


def counts(connection: Connection) -> dict[str, int]:
    """``records`` that an export would hold, ``waiting`` ones of unsealed batches, sealed ``batches``."""
    every, waiting, batches = connection.execute(
        "SELECT (SELECT count(*) FROM records), (SELECT count(*) FROM records WHERE batch IS NOT NULL "
        "AND batch NOT IN (SELECT batch FROM batches)), (SELECT count(*) FROM batches)"
    ).fetchone()
    return {"records": every - waiting, "waiting": waiting, "batches": batches}


def _add(connection: Connection, record: Record, batch: bytes | None, *, sealed: bool) -> int:
    """1 where the record is new, 0 where it is known."""
    row = (record.header.request, record.digest, record.label, record.noisy, batch)
    query = "INSERT INTO records VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"
    if not sealed and connection.execute(query, row).rowcount:
        return 1
    query = "SELECT digest, batch FROM records WHERE request = ?"
    known = connection.execute(query, (record.header.request,)).fetchone()
    if known is None:
        raise Refused("batch", "The batch is sealed: it takes no new records.")
    if known != (record.digest, batch):
        raise Refused("replayed", "An id of this body is there already, with another record or place.")
    return 0


def _sealed(connection: Connection, batch: bytes) -> int | None:
    """With how many records a batch was sealed."""
    row = connection.execute("SELECT records FROM batches WHERE batch = ?", (batch,)).fetchone()
    return None if row is None else int(row[0])


def _check_format(connection: Connection) -> None:
    found = connection.execute("PRAGMA user_version").fetchone()[0]
    refuse_if(found != _FORMAT, RECORDS, f"be of format {_FORMAT}", found, "Update dp-forward.")


def _refuse(problem: Problem) -> DpForwardError:
    if problem.kind == "missing":
        return InvalidInput("collect", f"hold {RECORDS}", "none", "Bring it back: it is the data.")
    code, what = "disk", "The collector cannot read or write its records"
    if problem.kind == "full":
        code, what = "full", "The collector's disk is full"
    return Refused(code, f"{what}: try the same again.", retry_after=30)
