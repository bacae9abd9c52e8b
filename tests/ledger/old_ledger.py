"""Writes ledgers of schema version 2, as earlier versions made them, without the rules of the package."""

from __future__ import annotations

import contextlib
import hashlib
import sqlite3
from pathlib import Path

from dp_forward.ledger import Charge, ledger_file
from dp_forward.ledger.ledger_file import GENESIS, Event, insert_event

NOTHING = Charge()
NOON = (20_000 * 24 + 12) * 3600 * 10**9


def write_old_ledger(
    path: Path, charges: list[Charge], *, cap: float = 8.0, delta: float = 1e-5, per_day: float = 0.0
) -> None:
    """A closed file with these charges in turn, two of three with a payload, a third of all delivered."""
    statements = ledger_file._STATEMENTS[2]
    assert hashlib.sha256("\n".join(statements).encode()).hexdigest().startswith("cf3207d97c05fdbc")
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(f"PRAGMA application_id = {ledger_file.APPLICATION_ID}")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA user_version = 2")
        for statement in statements:
            connection.execute(statement)
        total, last = Charge(), Event(0, "", digest=GENESIS)

        def add(
            kind: str, release: int, charge: Charge = NOTHING, payload: bytes = b"", **more: object
        ) -> None:
            nonlocal total, last
            total += charge
            event = Event(
                sequence=last.sequence + 1,
                kind=kind,
                release=release,
                epsilon_units=charge.epsilon_units,
                mu2_units=charge.mu2_units,
                total_epsilon_units=total.epsilon_units,
                total_mu2_units=total.mu2_units,
                time_ns=NOON,
                previous=last.digest,
            )
            last = insert_event(connection, event._replace(**more), payload)  # type: ignore[arg-type]

        add("opened", 0, key=bytes(16), cap=cap, delta=delta, per_day=per_day)
        for number, charge in enumerate(charges, start=1):
            add("reserved", number, charge, key=number.to_bytes(16, "big"), mechanism="mine")
            if number % 3:
                add("ready", number, payload=b"payload %d" % number)
            if number % 3 == 2:
                add("delivered", number)
