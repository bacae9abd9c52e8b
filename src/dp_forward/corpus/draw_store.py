"""Store of charges and draws by record, shared by the workers that draw a corpus; SQLite, or Postgres by URL.

A worker charges its records here, draws those that have no draw yet, and stores what it drew.

Guarantees:
    A record has at most one charge and one draw, whoever tries to add another: both are rows under the number
    of the record, and a row is never replaced. A draw without a charge is refused by the database. What
    `charge` and `add` have done is on disk when they return.
Edges:
    Of two workers that draw a record at the same time, one is stored; the other draw is dropped, and nobody
    was given it. Which one is stored does not depend on what was drawn.
    The charge of the whole release is in the ledger: disjoint records do not add up.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Final

from dp_forward.errors import DpForwardError, LedgerCorrupt, LedgerUnavailable
from dp_forward.privacy.charge import Charge
from dp_forward.storage.database import Problem
from dp_forward.storage.stores import Place, open_store

__all__ = ["DrawStore"]

_FORMAT: Final = 1
_AT_ONCE: Final = 4096  # rows of one statement, whose parameters are limited
_SCHEMA: Final = (
    "CREATE TABLE form (format INTEGER NOT NULL) STRICT",
    ("INSERT INTO form VALUES (?)", (_FORMAT,)),
    """CREATE TABLE charges (record INTEGER PRIMARY KEY, epsilon_units INTEGER NOT NULL,
    mu2_units INTEGER NOT NULL) STRICT""",
    """CREATE TABLE draws (record INTEGER PRIMARY KEY REFERENCES charges, noisy BLOB NOT NULL,
    label BLOB NOT NULL) STRICT""",
)


class DrawStore(AbstractContextManager["DrawStore"]):
    """The store of the release ``name`` (letters and digits) at a ``place``: a folder, or a Postgres URL."""

    def __init__(self, place: Place, name: str) -> None:
        self._store = open_store(
            place, _SCHEMA, refuse=_refuse, name=f"draws_{name}", form=("form", _FORMAT), busy_seconds=120.0
        )

    def charge(self, records: Sequence[int], cost: Charge) -> list[int]:
        """Charge these records, each once; returns those of them that have no draw yet."""
        rows = [(record, cost.epsilon_units, cost.mu2_units) for record in records]
        drawn: set[int] = set()
        with self._store.transaction(write=True) as connection:
            for some in _parts(rows):
                connection.execute(_insert("charges", some), [value for row in some for value in row])
                numbers = [row[0] for row in some]
                marks = ", ".join("?" * len(numbers))
                query = f"SELECT record FROM draws WHERE record IN ({marks})"  # noqa: S608
                drawn |= {int(record) for (record,) in connection.execute(query, numbers)}
        return [record for record in records if record not in drawn]

    def add(self, draws: Sequence[tuple[int, bytes, bytes]]) -> None:
        """Store draws: record, noisy matrix, label; those of records that have one are dropped."""
        with self._store.transaction(write=True) as connection:
            for some in _parts(draws):
                connection.execute(_insert("draws", some), [value for row in some for value in row])

    def read(self, records: range) -> tuple[bytes, bytes] | None:
        """The draws of these records, one after another; None while some are missing."""
        query = "SELECT noisy, label FROM draws WHERE record >= ? AND record < ? ORDER BY record"
        with self._store.transaction(write=False) as connection:
            found = connection.execute(query, (records.start, records.stop)).fetchall()
        if len(found) < len(records):
            return None
        return b"".join(noisy for noisy, _ in found), b"".join(label for _, label in found)

    def empty(self, records: range) -> None:
        """Drop the bytes of draws that are kept elsewhere; that they were drawn stays."""
        query = "UPDATE draws SET noisy = ?, label = ? WHERE record >= ? AND record < ?"
        with self._store.transaction(write=True) as connection:
            connection.execute(query, (b"", b"", records.start, records.stop))

    def counts(self) -> tuple[int, int]:
        """How many records are charged, and how many of them drawn."""
        query = "SELECT (SELECT count(*) FROM charges), (SELECT count(*) FROM draws)"
        with self._store.transaction(write=False) as connection:
            charges, draws = connection.execute(query).fetchone()
        return int(charges), int(draws)

    def close(self) -> None:
        """Give the store back."""
        self._store.close()

    def __exit__(self, *error: object) -> None:
        self.close()


def _parts(rows: Sequence[Any]) -> list[Sequence[Any]]:
    return [rows[start : start + _AT_ONCE] for start in range(0, len(rows), _AT_ONCE)]


def _insert(table: str, rows: Sequence[Any]) -> str:
    """Insert so many rows of three values; a row whose record is there stays as it is."""
    marks = ", ".join(["(?, ?, ?)"] * len(rows))
    return f"INSERT INTO {table} VALUES {marks} ON CONFLICT (record) DO NOTHING"  # noqa: S608


def _refuse(problem: Problem) -> DpForwardError:
    if problem.kind == "damaged":
        return LedgerCorrupt("The store of draws is damaged, or something else. It is never reset.")
    found = f"{problem.kind} {problem.detail}".strip()
    return LedgerUnavailable(f"The store of draws cannot be used ({found}). Nothing is lost: resume.")
