"""Every problem of the file becomes an error of the ledger, in one line that says what to do."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from dp_forward.errors import DpForwardError, InvalidInput, LedgerCorrupt, LedgerUnavailable
from dp_forward.ledger import Cap, Ledger
from dp_forward.ledger.ledger_file import _refusal
from dp_forward.storage.database import Kind, Problem

PLACE = Path("/folder/budget.ledger")
ERRORS: dict[Kind, tuple[type[DpForwardError], str]] = {
    "busy": (LedgerUnavailable, "locked by another process for 30 seconds"),
    "full": (LedgerUnavailable, "(DETAIL). Check the disk"),
    "unavailable": (LedgerUnavailable, "(DETAIL). Check the disk"),
    "damaged": (LedgerCorrupt, "SQLite reports DETAIL. It is never reset"),
    "exists": (InvalidInput, "must not exist yet; got /folder/DETAIL"),
    "missing": (InvalidInput, "must exist; got /folder/budget.ledger"),
    "gone": (LedgerCorrupt, "The ledger file DETAIL while in use"),
    "forked": (LedgerUnavailable, "open ledgers after the fork"),
    "closed": (InvalidInput, "must be open"),
}


def test_every_problem_of_a_file_is_an_error_of_the_ledger() -> None:
    assert set(ERRORS) == set(get_args(Kind))
    for kind, (error, text) in ERRORS.items():
        found = _refusal(PLACE, Problem(kind, "DETAIL"))
        assert type(found) is error
        assert text in str(found)
        assert "\n" not in str(found)


def test_a_full_disk_never_says_that_nothing_was_sent() -> None:
    """The last step notes that a release arrived: when it fails, the release has left."""
    for kind in ("full", "unavailable"):
        said = str(_refusal(PLACE, Problem(kind, "SQLITE_FULL")))
        assert "nothing was sent" not in said
        assert "that release was sent, and sending it again costs nothing" in said


def test_a_stale_journal_is_never_replayed_into_a_new_ledger(tmp_path: Path) -> None:
    path = tmp_path / "budget.ledger"
    path.with_name(path.name + "-wal").write_bytes(b"stale")
    for make in (Ledger.create, Ledger.open_or_create):
        with pytest.raises(InvalidInput, match=r"not exist yet; got .*budget\.ledger-wal"):
            make(path, cap=Cap.pure(8.0))


def test_a_ledger_that_cannot_be_made_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("os.link", refuse)
    with pytest.raises(LedgerUnavailable, match="cannot be made: Operation not permitted"):
        Ledger.create(tmp_path / "budget.ledger", cap=Cap.pure(8.0))
    assert list(tmp_path.iterdir()) == []
