"""SQLite file of a ledger: where it may lie, how it is created and opened, and its refusals."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from dp_forward.errors import DpForwardError, InvalidInput, LedgerCorrupt, LedgerUnavailable
from dp_forward.ledger.events import check_tables, create_tables
from dp_forward.storage.database import Database, Problem, create_database

if TYPE_CHECKING:
    import os

__all__ = ["locate"]

BUSY_SECONDS: Final = 30.0


def locate(path: str | os.PathLike[str]) -> Path:
    """The absolute path, links followed; its folder must exist and it must not be a folder."""
    place = Path(path).resolve()
    if not place.parent.is_dir():
        remedy = "Make the folder first, or check the path."
        raise InvalidInput("ledger", "lie in an existing folder", place, remedy)
    if place.is_dir():
        raise InvalidInput("ledger", "be a file", f"the folder {place}", "Name a file in it.")
    return place


def create_ledger_file(path: Path, fill: Callable[[sqlite3.Connection], object]) -> None:
    """Create a new ledger, complete or not at all; ``fill`` writes its first event."""

    def refuse(problem: Problem) -> DpForwardError:
        if problem.kind == "unavailable":
            return LedgerUnavailable(f"The ledger cannot be made: {problem.detail}.")
        return _refusal(path, problem)

    def tables_and_first_event(connection: sqlite3.Connection) -> None:
        create_tables(connection)
        fill(connection)

    create_database(path, tables_and_first_event, refuse=refuse)


def open_ledger_file(path: Path) -> Database:
    """Open an existing ledger; a file with other tables is refused and left unchanged."""
    return Database(
        path,
        refuse=lambda problem: _refusal(path, problem),
        check=check_tables,
        busy_seconds=BUSY_SECONDS,
    )


def _refusal(path: Path, problem: Problem) -> DpForwardError:
    """The error of a ledger for a problem of its file."""
    detail = problem.detail
    known: dict[str, DpForwardError] = {
        "exists": InvalidInput(
            "ledger", "not exist yet", path.with_name(detail or path.name), "Open it, or choose another name."
        ),
        "missing": InvalidInput("ledger", "exist", path, "Create it first, with a cap and a delta."),
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
        "its folder; nothing was sent."
    )
    return known.get(problem.kind, unavailable)
