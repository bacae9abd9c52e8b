"""An SQLite file that one process at a time has open, and what its errors mean: a release's, a shuffler's.

Guarantees:
    The file is never made here. It stays locked from opening to closing, and the lock ends with the process.
    No message repeats SQLite's own, which can hold a column's contents.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from dp_forward.errors import DpForwardError, LedgerUnavailable

__all__ = ["LockedFile"]

_BUSY: Final = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_NO_ROOM: Final = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY)


class LockedFile:
    """``busy`` and ``damaged`` make the refusals; ``kept`` ends the line about a disk without room."""

    def __init__(
        self,
        path: Path,
        pragmas: Sequence[str],
        *,
        busy: Callable[[], DpForwardError],
        damaged: Callable[[Path], DpForwardError],
        kept: str,
    ) -> None:
        self._path, self._kept, self._busy, self._damage = path, kept, busy, damaged
        uri = f"{path.resolve().as_uri()}?mode=rw"  # never makes a file
        try:
            # The lock of another process is told at once. Whoever shares this among threads has a lock.
            self._connection = sqlite3.connect(
                uri, uri=True, timeout=0, isolation_level=None, check_same_thread=False
            )
        except sqlite3.Error:
            raise damaged(path) from None
        try:
            for statement in (*(f"PRAGMA {pragma}" for pragma in pragmas), "BEGIN EXCLUSIVE", "COMMIT"):
                self._run(statement)
        except BaseException:
            self._connection.close()
            raise

    def _damaged(self) -> DpForwardError:
        return self._damage(self._path)

    def _one(self, statement: str, values: tuple[Any, ...] = ()) -> Any:
        return self._run(statement, values).fetchone()

    def _run(self, statement: str, values: tuple[Any, ...] = ()) -> sqlite3.Cursor:
        try:
            return self._connection.execute(statement, values)
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            if code in _BUSY:
                raise self._busy() from None
            if code in _NO_ROOM:
                told = f"`{self._path.name}` cannot be written: the disk is full or fails."
                raise LedgerUnavailable(f"{told} {self._kept}") from None
            raise self._damaged() from None
