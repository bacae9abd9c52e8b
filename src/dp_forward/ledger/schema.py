"""The tables of a ledger file, and the settings under which they are written.

``events`` is the chain and only ever grows. ``payloads`` holds the bytes of each release, tied to
the chain by their digest. ``head`` repeats the last row of the chain, so that a lost tail shows.
Triggers refuse every other change; they stop accidents, the chain shows what went around them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from dp_forward.errors import LedgerCorrupt

if TYPE_CHECKING:
    import sqlite3

__all__ = [
    "APPLICATION_ID",
    "SCHEMA_VERSION",
    "build",
    "check",
]

APPLICATION_ID: Final = 0x6470664C  # "dpfL" in the file's header
SCHEMA_VERSION: Final = 2

# No column is NULL: a kind that has no use for one holds 0 or the empty string, and the replay
# checks that. So the hashed encoding needs no second way to say "nothing".
_STATEMENTS: Final = (
    """CREATE TABLE events (
    sequence INTEGER PRIMARY KEY,
    kind TEXT NOT NULL CHECK (kind IN ('opened', 'reserved', 'ready', 'delivered')),
    release INTEGER NOT NULL,
    key BLOB NOT NULL,
    mechanism TEXT NOT NULL,
    epsilon_units INTEGER NOT NULL CHECK (epsilon_units >= 0),
    mu2_units INTEGER NOT NULL CHECK (mu2_units >= 0),
    total_epsilon_units INTEGER NOT NULL CHECK (total_epsilon_units >= epsilon_units),
    total_mu2_units INTEGER NOT NULL CHECK (total_mu2_units >= mu2_units),
    payload_sha256 BLOB NOT NULL,
    payload_length INTEGER NOT NULL CHECK (payload_length >= 0),
    cap REAL NOT NULL,
    delta REAL NOT NULL,
    per_day REAL NOT NULL,
    time_ns INTEGER NOT NULL,
    previous BLOB NOT NULL CHECK (length(previous) = 32),
    digest BLOB NOT NULL UNIQUE CHECK (length(digest) = 32)
) STRICT""",
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


def build(connection: sqlite3.Connection) -> None:
    """Make the tables in an empty database, inside the caller's transaction."""
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    for statement in _STATEMENTS:
        connection.execute(statement)


def check(connection: sqlite3.Connection) -> None:
    """Refuse a file that is not a ledger, or whose tables and triggers are not ours."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    if application != APPLICATION_ID:
        raise LedgerCorrupt("The file is an SQLite database, but not a ledger of dp-forward.")
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version != SCHEMA_VERSION:
        raise LedgerCorrupt(
            f"The ledger has schema version {version}; this software knows {SCHEMA_VERSION} only. Use the "
            "dp-forward that made it, or a new ledger: what the old one holds stays spent, and both add up."
        )
    found = connection.execute("SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL").fetchall()
    if sorted(sql for (sql,) in found) != sorted(_STATEMENTS):
        raise LedgerCorrupt("The ledger's tables and triggers are not the ones that were made.")
