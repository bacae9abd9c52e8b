"""Between the file and the replay: rows read, rows written, and everything read again."""

from __future__ import annotations

import contextlib
import hashlib
import time
from typing import TYPE_CHECKING, Final

from dp_forward.errors import LedgerCorrupt
from dp_forward.ledger.hash_chain import Event, seal
from dp_forward.privacy.charge import Charge

if TYPE_CHECKING:
    import sqlite3

    from dp_forward.ledger.replay import Replay

__all__ = ["catch_up", "check_pages", "check_payloads", "insert", "next_event", "read_payload"]

_INSERT_EVENT: Final = "INSERT INTO events VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
# The order of the columns is the order of `Event`; opening checked that the table is ours.
_EVENTS_FROM: Final = "SELECT * FROM events WHERE sequence >= ? ORDER BY sequence"
_BEFORE_ALL: Final = -(2**63)
_NOTHING: Final = Charge()


def next_event(replay: Replay, kind: str, *, release: int = 0, charge: Charge = _NOTHING) -> Event:
    """The row that would follow, not sealed yet; what its kind does not use is 0 or empty."""
    total = replay.total + charge
    return Event(
        sequence=replay.sequence + 1,
        kind=str(kind),
        release=release,
        key=b"",
        mechanism="",
        epsilon_units=charge.epsilon_units,
        mu2_units=charge.mu2_units,
        total_epsilon_units=total.epsilon_units,
        total_mu2_units=total.mu2_units,
        payload_sha256=b"",
        payload_length=0,
        cap=0.0,
        delta=0.0,
        per_day=0.0,
        time_ns=time.time_ns(),
        previous=replay.head,
    )


def insert(connection: sqlite3.Connection, event: Event, payload: bytes = b"") -> Event:
    """Seal a row and write it, with its payload if it has one; returns what was written."""
    if payload:
        event = event._replace(payload_sha256=hashlib.sha256(payload).digest(), payload_length=len(payload))
    sealed = seal(event)
    connection.execute(_INSERT_EVENT, sealed)
    if payload:
        connection.execute("INSERT INTO payloads VALUES (?, ?)", (sealed.sequence, payload))
    return sealed


def catch_up(replay: Replay, connection: sqlite3.Connection) -> None:
    """Read the rows that came since; what was read before must still be there.

    Guarantees:
        Afterwards ``replay`` is the whole chain as this transaction sees it, every row checked.
    """
    known = replay.sequence
    with contextlib.closing(connection.execute(_EVENTS_FROM, (known or _BEFORE_ALL,))) as cursor:
        rows = map(Event._make, cursor)
        if known:
            last = next(rows, None)
            if last is None or last.sequence != known or last.digest != replay.head:
                raise LedgerCorrupt(
                    f"Ledger row {known} has changed or gone since it was read; an older copy of "
                    "the file may have been restored."
                )
        replay.extend(rows)
    head = connection.execute("SELECT sequence, digest FROM head").fetchall()
    if head != [(replay.sequence, replay.head)]:
        raise LedgerCorrupt(
            f"Ledger row {replay.sequence + 1} is missing: the chain does not end where it should."
        )


def read_payload(replay: Replay, connection: sqlite3.Connection, release_id: int) -> bytes:
    """The stored bytes of a release that is ready, checked against the chain."""
    stored = replay.payloads[release_id]
    row = connection.execute("SELECT bytes FROM payloads WHERE sequence = ?", (stored.sequence,)).fetchone()
    data: object = row[0] if row else None
    if not isinstance(data, bytes) or hashlib.sha256(data).digest() != stored.sha256:
        raise LedgerCorrupt(
            f"Ledger row {stored.sequence} is damaged: the payload of release {release_id} is not "
            "the one that was stored."
        )
    return data


def check_payloads(replay: Replay, connection: sqlite3.Connection) -> None:
    """Every payload is the one in the chain, and there are no others."""
    for release_id, stored in replay.payloads.items():
        if len(read_payload(replay, connection, release_id)) != stored.length:
            raise LedgerCorrupt(f"Ledger row {stored.sequence} is damaged: the payload has another length.")
    (count,) = connection.execute("SELECT count(*) FROM payloads").fetchone()
    if count != len(replay.payloads):
        raise LedgerCorrupt("The ledger holds payloads that no row speaks of.")


def check_pages(connection: sqlite3.Connection) -> None:
    """SQLite's own look at every page, index and reference."""
    (verdict,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
    if verdict != "ok":
        raise LedgerCorrupt(f"The ledger is damaged: {' '.join(verdict.split())}.")
    if connection.execute("PRAGMA foreign_key_check").fetchone():
        raise LedgerCorrupt("The ledger is damaged: a row refers to one that is not there.")
