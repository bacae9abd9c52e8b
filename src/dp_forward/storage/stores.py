"""One small interface of stores: SQLite files by default, Postgres where the place is a URL."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

from dp_forward.storage.database import Database, Problem, Refuse, Statement
from dp_forward.storage.postgres import PostgresDatabase

__all__ = ["Connection", "Place", "Store", "is_url", "open_store", "shown_place"]

Place = str | os.PathLike[str]
"""A folder, or the URL of a Postgres database."""


class Connection(Protocol):
    """A transaction; parameters stand as ``?`` in the SQL, and what comes back is a cursor."""

    def execute(self, sql: str, parameters: Sequence[Any] = (), /) -> Any: ...


Store = Database | PostgresDatabase
"""What both have is used: `transaction`, `snapshot`, `try_lock`, `empty_log` and `close`."""


def open_store(
    place: Place, statements: Iterable[Statement], *, refuse: Refuse, name: str = "store", **options: Any
) -> Store:
    """The store of this name at a place, made by the statements if there is none.

    In a folder it is the file NAME.sqlite, at a URL the schema dpf_NAME. ``options`` are those of `Database`;
    Postgres heeds ``form``, ``busy_seconds`` and ``durable``.
    """
    if is_url(place):
        return PostgresDatabase(str(place), name, statements, refuse=refuse, **options)
    path = Path(place).absolute() / f"{name}.sqlite"
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise refuse(Problem("unavailable", error.strerror or "an error of the disk")) from None
    return Database.open_or_create(path, statements, refuse=refuse, **options)


def is_url(place: Place) -> bool:
    """Whether a place is a Postgres database, and not a folder."""
    return str(place).startswith(("postgresql://", "postgres://"))


def shown_place(place: Place) -> str:
    """A place as it may be printed and stored: nothing of a URL, for it may hold a password anywhere."""
    return "postgresql://..." if is_url(place) else str(place)
