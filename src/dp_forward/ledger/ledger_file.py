"""SQLite file of a ledger: its hash-chained events, their tables, how it is created and opened.

``events`` is the chain and only grows. ``payloads`` holds the bytes of each release, tied to the chain by
their digest. ``head`` repeats the last row of the chain, so that a lost tail is noticed. Triggers refuse
every other change: they prevent accidents, and the hashes reveal what bypassed them.

The unit that a charge protects is stored on the second line of the column ``mechanism``, below the name; for
a ledger that was created for a unit, in its first row, below an empty name. Rows from before units were
stored have no second line: their unit is taken from names such as "ask: privunit per text", or is unknown.

The row ``opened`` states the terms: the shares of the cap in the columns of a charge, the epsilon and delta
that they promise, and the budget of a day. In files of schema version 2 it states no shares; a row
``restated`` at the end of the chain does, once such a file is upgraded (`terms`).

Guarantees:
    The digest of a row covers its unit and its terms. No file is changed or refused for rows from before
    units were stored. An upgrade is one transaction: it keeps every row and payload, and a crash leaves the
    old file or the new one.
"""

import hashlib
import os
import re
import sqlite3
import struct
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from dp_forward.errors import DpForwardError, InvalidInput, LedgerCorrupt, LedgerUnavailable, refuse_if
from dp_forward.privacy import RECORD, TEXT, Unit, parse_unit, phrase
from dp_forward.privacy.units import format_unit
from dp_forward.storage.database import Database, Problem, create_database

BUSY_SECONDS: Final = 30.0
APPLICATION_ID: Final = 0x6470664C  # "dpfL" in the file's header
SCHEMA_VERSION: Final = 3
_OLDER_VERSION: Final = 2
DIGEST_BYTES: Final = 32
GENESIS: Final = bytes(DIGEST_BYTES)  # the previous hash of the first event

_DOMAIN: Final = b"dp-forward/ledger/event/2\0"
_NUMBERS: Final = struct.Struct(">8q3d5q")
_INSERT: Final = "INSERT INTO events VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_BETWEEN: Final = "\n"
_OLD_NAME: Final = re.compile(r"(?:ask|corpus): \S+ per (text|token|phrase of (\d{1,9}) tokens)( \+ label)?")

# No column is NULL: a kind that does not use one holds 0 or the empty string, and the verification checks
# that. So the hashed encoding needs no second way to say "nothing".
_EVENTS: Final = """CREATE TABLE events (
    sequence INTEGER PRIMARY KEY,
    kind TEXT NOT NULL CHECK (kind IN ('opened', 'reserved', 'ready', 'delivered', 'restated')),
    release INTEGER NOT NULL,
    key BLOB NOT NULL,
    mechanism TEXT NOT NULL,
    epsilon_units INTEGER NOT NULL CHECK (epsilon_units >= 0),
    mu2_units INTEGER NOT NULL CHECK (mu2_units >= 0),
    total_epsilon_units INTEGER NOT NULL CHECK (total_epsilon_units >= 0),
    total_mu2_units INTEGER NOT NULL CHECK (total_mu2_units >= 0),
    payload_sha256 BLOB NOT NULL,
    payload_length INTEGER NOT NULL CHECK (payload_length >= 0),
    cap REAL NOT NULL,
    delta REAL NOT NULL,
    per_day REAL NOT NULL,
    time_ns INTEGER NOT NULL,
    previous BLOB NOT NULL CHECK (length(previous) = 32),
    digest BLOB NOT NULL UNIQUE CHECK (length(digest) = 32)
) STRICT"""
_OLDER_EVENTS: Final = (
    _EVENTS.replace(", 'restated'", "")
    .replace("total_epsilon_units >= 0", "total_epsilon_units >= epsilon_units")
    .replace("total_mu2_units >= 0", "total_mu2_units >= mu2_units")
)
_OTHER_STATEMENTS: Final = (
    "CREATE UNIQUE INDEX one_event_of_a_kind ON events (release, kind)",
    "CREATE UNIQUE INDEX one_release_per_key ON events (key) WHERE kind = 'reserved'",
    """CREATE TABLE payloads (
    sequence INTEGER PRIMARY KEY REFERENCES events (sequence),
    bytes BLOB NOT NULL
) STRICT""",
    """CREATE TABLE head (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    sequence INTEGER NOT NULL REFERENCES events (sequence),
    digest BLOB NOT NULL CHECK (length(digest) = 32)
) STRICT""",
    """CREATE TRIGGER head_follows AFTER INSERT ON events BEGIN
    INSERT INTO head VALUES (1, NEW.sequence, NEW.digest)
    ON CONFLICT (one) DO UPDATE SET sequence = excluded.sequence, digest = excluded.digest;
END""",
    """CREATE TRIGGER head_only_grows BEFORE UPDATE ON head
WHEN NEW.one != 1 OR NEW.sequence != OLD.sequence + 1 BEGIN
    SELECT RAISE(ABORT, 'the head of a ledger only moves forward');
END""",
    """CREATE TRIGGER head_stays BEFORE DELETE ON head BEGIN
    SELECT RAISE(ABORT, 'the head of a ledger is never deleted');
END""",
    *(
        f"""CREATE TRIGGER {table}_no_{verb.lower()} BEFORE {verb} ON {table} BEGIN
    SELECT RAISE(ABORT, 'the {table} of a ledger are append-only');
END"""
        for table in ("events", "payloads")
        for verb in ("UPDATE", "DELETE")
    ),
)
_STATEMENTS: Final = {
    SCHEMA_VERSION: (_EVENTS, *_OTHER_STATEMENTS),
    _OLDER_VERSION: (_OLDER_EVENTS, *_OTHER_STATEMENTS),
}


class Event(NamedTuple):
    """A row of the chain, in the order of its columns; what a kind does not use is 0 or empty."""

    sequence: int
    kind: str
    release: int = 0
    key: bytes = b""
    mechanism: str = ""
    epsilon_units: int = 0
    mu2_units: int = 0
    total_epsilon_units: int = 0
    total_mu2_units: int = 0
    payload_sha256: bytes = b""
    payload_length: int = 0
    cap: float = 0.0
    delta: float = 0.0
    per_day: float = 0.0
    time_ns: int = 0
    previous: bytes = GENESIS
    digest: bytes = b""

    def __repr__(self) -> str:
        return f"Event(sequence={self.sequence}, kind={self.kind!r}, release={self.release})"


def digest_of(event: Event) -> bytes:
    """SHA-256 of everything in the event except its own digest.

    Guarantees:
        Two different events never have the same encoding: eleven numbers of fixed width, the five lengths of
        fixed width, then the five strings in the same order.
    Edges:
        Raises `struct.error`, `TypeError`, `AttributeError` or `UnicodeError` where a damaged row holds a
        value of another type; the verification turns these into `LedgerCorrupt`.
    """
    # Taken apart once: this runs for every row of every opening.
    (sequence, kind, release, key, mechanism, epsilon, mu2, total_epsilon, total_mu2) = event[:9]
    (sha256, length, cap, delta, per_day, time_ns, previous) = event[9:16]
    strings = (kind.encode(), key, mechanism.encode(), sha256, previous)
    counts = (sequence, release, epsilon, mu2, total_epsilon, total_mu2, length, time_ns)
    numbers = _NUMBERS.pack(*counts, cap, delta, per_day, *map(len, strings))
    return hashlib.sha256(b"".join((_DOMAIN, numbers, *strings))).digest()


def seal(event: Event) -> Event:
    """The same event with its digest filled in."""
    return event._replace(digest=digest_of(event))


def insert_event(connection: sqlite3.Connection, event: Event, payload: bytes = b"") -> Event:
    """Seal an event and write it, with its payload if it has one; returns the sealed event."""
    if payload:
        event = event._replace(payload_sha256=hashlib.sha256(payload).digest(), payload_length=len(payload))
    sealed = seal(event)
    connection.execute(_INSERT, sealed)
    if payload:
        connection.execute("INSERT INTO payloads VALUES (?, ?)", (sealed.sequence, payload))
    return sealed


def write_mechanism(mechanism: str, unit: Unit | None) -> str:
    """The column ``mechanism``: the name and, where it is known, the unit."""
    return mechanism if unit is None else f"{mechanism}{_BETWEEN}{format_unit(unit)}"


@lru_cache(maxsize=1024)  # most rows of a ledger are alike
def read_mechanism(column: str) -> tuple[str, Unit | None]:
    """The name and the unit of a row.

    Edges:
        `InvalidInput` for a second line that is no unit.
    """
    name, between, unit = column.partition(_BETWEEN)
    if between:
        return name, parse_unit(unit)
    old = _OLD_NAME.fullmatch(name)
    if old is None:
        return name, None
    found = parse_unit(old[1]) if old[2] is None else phrase(int(old[2]))
    if old[3] is None:
        return name, found
    return name, RECORD if found == TEXT else None


def locate(path: str | os.PathLike[str]) -> Path:
    """The absolute path, links followed; its folder must exist and it must not be a folder."""
    place = Path(path).resolve()
    remedy = "Make the folder first, or check the path."
    refuse_if(not place.parent.is_dir(), "ledger", "lie in an existing folder", place, remedy)
    refuse_if(place.is_dir(), "ledger", "be a file", f"the folder {place}", "Name a file in it.")
    return place


def create_ledger_file(path: Path, first: Event) -> None:
    """Create a new ledger with its first event, complete or not at all."""

    def refuse(problem: Problem) -> DpForwardError:
        if problem.kind == "unavailable":
            return LedgerUnavailable(f"The ledger cannot be made: {problem.detail}.")
        return _refusal(path, problem)

    numbers = (f"PRAGMA application_id = {APPLICATION_ID}", f"PRAGMA user_version = {SCHEMA_VERSION}")
    statements: list[Any] = [*numbers, *_STATEMENTS[SCHEMA_VERSION], (_INSERT, seal(first))]
    create_database(path, statements, refuse=refuse)


def open_ledger_file(path: Path) -> Database:
    """Open an existing ledger; a file with other tables is refused and left unchanged."""
    refuse = partial(_refusal, path)
    return Database(path, refuse=refuse, check=_check_tables, busy_seconds=BUSY_SECONDS)


def _check_tables(connection: sqlite3.Connection) -> None:
    """Refuse a file that is not a ledger, or whose tables and triggers are not the ones above."""
    connection.execute("BEGIN")  # all of one moment: another process may be upgrading the file
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    version = _version(connection)
    found = connection.execute("SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL").fetchall()
    connection.execute("COMMIT")
    if application != APPLICATION_ID:
        raise LedgerCorrupt("The file is an SQLite database, but not a ledger of dp-forward.")
    if version not in _STATEMENTS:
        raise LedgerCorrupt(
            f"The ledger has schema version {version}; this software knows {_OLDER_VERSION} and "
            f"{SCHEMA_VERSION} only. Use the dp-forward that made it, or a new ledger: what the old one "
            "holds stays spent, and both add up."
        )
    if sorted(sql for (sql,) in found) != sorted(_STATEMENTS[version]):
        raise LedgerCorrupt("The ledger's tables and triggers are not the ones that were made.")


def _version(connection: sqlite3.Connection) -> int:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    return int(version)


def upgrade_tables(connection: sqlite3.Connection) -> None:
    """Turn the tables of schema version 2 into today's, within the caller's transaction; no row changes."""
    if _version(connection) != _OLDER_VERSION:
        raise LedgerCorrupt("Ledger row 1 is damaged: it states no shares.")
    connection.execute("PRAGMA defer_foreign_keys = ON")  # payloads and head refer to these rows
    rows = connection.execute("SELECT * FROM events ORDER BY sequence").fetchall()
    connection.execute("DROP TABLE events")  # with its indexes and triggers
    connection.execute(_EVENTS)
    connection.executemany(_INSERT, rows)
    kept = {sql for (sql,) in connection.execute("SELECT sql FROM sqlite_schema")}
    for statement in _OTHER_STATEMENTS:
        if statement not in kept:
            connection.execute(statement)
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


def _refusal(path: Path, problem: Problem) -> DpForwardError:
    """The error of a ledger for a problem of its file."""
    detail = problem.detail
    there, remedy = path.with_name(detail or path.name), "Open it, or choose another name."
    known: dict[str, DpForwardError] = {
        "exists": InvalidInput("ledger", "not exist yet", there, remedy),
        "missing": InvalidInput("ledger", "exist", path, "Create it first, with a cap."),
        "closed": InvalidInput("ledger", "be open", "a closed one", "Open it again."),
        "gone": LedgerCorrupt(f"The ledger file {detail} while in use."),
        "damaged": LedgerCorrupt(
            f"The file is damaged, or no ledger: SQLite reports {detail}. It is never reset."
        ),
        "busy": LedgerUnavailable(
            f"The ledger was locked by another process for {BUSY_SECONDS:g} seconds; nothing was written. "
            "Try again."
        ),
        "forked": LedgerUnavailable(
            "The process was forked behind Python's back with the ledger open; open ledgers after the fork."
        ),
    }
    unavailable = LedgerUnavailable(
        f"The ledger could not be read or written ({detail}). Check the disk and the rights of the file and "
        "its folder. Every earlier step is kept; this one may not be noted. Where it was to note that a "
        "release arrived, that release was sent, and sending it again costs nothing."
    )
    return known.get(problem.kind, unavailable)
