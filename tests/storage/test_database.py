"""The one way to open SQLite: whole files, durable commits, forks."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from pathlib import Path

import pytest

from dp_forward.errors import InvalidInput
from dp_forward.storage.database import Database, Problem, _settle, create_database


class Refusal(InvalidInput):
    def __init__(self, problem: Problem) -> None:
        super().__init__("file", "be usable", problem.kind, problem.detail)
        self.kind = problem.kind


FILL = ("CREATE TABLE rows (number INTEGER PRIMARY KEY) STRICT",)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    place = tmp_path / "rows.sqlite"
    create_database(place, FILL, refuse=Refusal)
    return place


def count(path: Path) -> int:
    """As another process would: with a connection of its own, opened in a child."""
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        with sqlite3.connect(path) as connection:
            os.write(writing, str(connection.execute("SELECT count(*) FROM rows").fetchone()[0]).encode())
        os._exit(0)
    os.waitpid(child, 0)
    return int(os.read(reading, 20))


def insert(database: Database, number: int) -> None:
    with database.transaction(write=True) as connection:
        connection.execute("INSERT INTO rows VALUES (?)", (number,))


def in_child(work) -> int:
    if (child := os.fork()) == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def forked_with_open(path: Path, opened) -> int:
    """Rows of a parent and of its child that both wrote around a fork, and of a parent that closed first."""
    parent = opened(path)
    insert(parent, 1)
    written, closed = os.pipe(), os.pipe()
    if (child := os.fork()) == 0:
        code = 1
        try:
            own = opened(path)
            insert(own, 2)
            os.write(written[1], b".")
            os.read(closed[0], 1)  # the parent has closed: what the child writes now must stay too
            insert(own, 3)
            code = 0
        finally:
            os._exit(code)  # killed: nothing is closed
    os.read(written[0], 1)
    parent.close()
    os.write(closed[1], b".")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    return count(path)


class Unguarded:
    """The negative control: a connection that simply lives across the fork."""

    def __init__(self, path: Path) -> None:
        self.connection = sqlite3.connect(path, isolation_level=None)
        self.connection.execute("PRAGMA journal_mode = WAL")

    def transaction(self, *, write: bool):
        assert write
        return self.connection

    def close(self) -> None:
        self.connection.close()


@pytest.mark.slow
def test_a_fork_with_an_open_database_loses_no_committed_row(tmp_path: Path) -> None:
    for trial in range(20):
        place = tmp_path / f"{trial}.sqlite"
        create_database(place, FILL, refuse=Refusal)
        assert forked_with_open(place, lambda path: Database(path, refuse=Refusal)) == 3


@pytest.mark.slow
def test_the_fork_test_catches_a_connection_that_lives_across_the_fork(tmp_path: Path) -> None:
    for trial in range(20):
        place = tmp_path / f"{trial}.sqlite"
        create_database(place, FILL, refuse=Refusal)
        if forked_with_open(place, Unguarded) < 3:
            return
    pytest.fail("no row was lost: the fork test shows nothing")


@pytest.mark.slow
def test_the_parent_goes_on_after_a_fork_and_so_does_the_child(path: Path) -> None:
    database = Database(path, refuse=Refusal)
    insert(database, 1)
    assert in_child(lambda: insert(database, 2)) == 0
    insert(database, 3)
    assert count(path) == 3


def test_an_exclusive_database_keeps_others_out_until_it_is_closed(path: Path) -> None:
    database = Database(path, refuse=Refusal, exclusive=True)
    with pytest.raises(Refusal) as caught:
        Database(path, refuse=Refusal, exclusive=True)
    assert caught.value.kind == "busy"
    database.close()
    Database(path, refuse=Refusal, exclusive=True).close()


@pytest.mark.slow
@pytest.mark.parametrize("end", ["closed", "killed"])
def test_an_exclusive_database_that_a_forked_child_used_is_refused(path: Path, end: str) -> None:
    database = Database(path, refuse=Refusal, exclusive=True)
    insert(database, 1)
    assert in_child(lambda: None) == 0
    insert(database, 2)  # the child left it alone
    ends = {"closed": database.close, "killed": lambda: None}[end]
    assert in_child(lambda: (insert(database, 3), ends())) == 0
    with pytest.raises(Refusal) as caught:
        insert(database, 4)
    assert caught.value.kind == "gone"


def test_a_transaction_is_all_or_nothing(path: Path) -> None:
    database = Database(path, refuse=Refusal)

    def fails() -> None:
        with database.transaction(write=True) as connection:
            connection.execute("INSERT INTO rows VALUES (1)")
            raise KeyError

    with pytest.raises(KeyError):
        fails()
    assert count(path) == 0


def test_a_snapshot_does_not_see_what_is_written_meanwhile_and_cannot_write(path: Path) -> None:
    database = Database(path, refuse=Refusal)
    insert(database, 1)
    with database.snapshot() as connection:
        writer = threading.Thread(target=insert, args=(database, 2))
        writer.start()
        writer.join()
        assert connection.execute("SELECT count(*) FROM rows").fetchone() == (1,)
        with pytest.raises(sqlite3.OperationalError):
            connection.execute("INSERT INTO rows VALUES (9)")
    assert count(path) == 2


def test_an_existing_file_is_never_made_again(path: Path) -> None:
    with pytest.raises(Refusal) as caught:
        create_database(path, FILL, refuse=Refusal)
    assert caught.value.kind == "exists"


@pytest.mark.parametrize("suffix", ["-wal", "-shm", "-journal"])
def test_a_stale_log_beside_the_name_is_refused(tmp_path: Path, suffix: str) -> None:
    (tmp_path / f"rows.sqlite{suffix}").write_bytes(b"stale")
    with pytest.raises(Refusal) as caught:
        create_database(tmp_path / "rows.sqlite", FILL, refuse=Refusal)
    assert caught.value.kind == "exists"


@pytest.mark.parametrize(
    ("harm", "kind"),
    [
        (lambda path: path.unlink(), "gone"),
        (lambda path: (path.unlink(), path.write_bytes(b"another")), "gone"),
    ],
)
def test_a_file_that_is_moved_while_in_use_is_refused(path: Path, harm, kind: str) -> None:
    database = Database(path, refuse=Refusal)
    insert(database, 1)
    harm(path)
    with pytest.raises(Refusal) as caught:
        insert(database, 2)
    assert caught.value.kind == kind


def test_what_is_no_database_is_refused_and_left_as_it_was(tmp_path: Path) -> None:
    place = tmp_path / "notes.txt"
    place.write_bytes(b"not a database, whatever its name says" * 100)
    with pytest.raises(Refusal) as caught, Database(place, refuse=Refusal).transaction(write=False):
        pass
    assert caught.value.kind == "damaged"
    assert place.read_bytes().startswith(b"not a database")


def test_no_refusal_repeats_the_words_of_sqlite(path: Path) -> None:
    database = Database(path, refuse=Refusal)
    with pytest.raises(Refusal) as caught, database.transaction(write=True) as connection:
        connection.execute("INSERT INTO rows VALUES ('a secret text')")
    assert "secret" not in str(caught.value)


def test_what_was_deleted_is_overwritten_where_the_owner_wants_it_forgotten(tmp_path: Path) -> None:
    found = {}
    for forget in (True, False):
        place = tmp_path / f"{forget}.sqlite"
        create_database(place, ["CREATE TABLE words (word TEXT) STRICT"], refuse=Refusal)
        database = Database(place, refuse=Refusal, forget=forget)
        if not forget:  # what SQLite does by itself depends on how it was built
            with database.transaction(write=False) as connection:
                connection.execute("PRAGMA secure_delete = OFF")
        for statement in ("INSERT INTO words VALUES ('remember-me')", "DELETE FROM words"):
            with database.transaction(write=True) as connection:
                connection.execute(statement)
        database.empty_log()
        database.close()
        found[forget] = b"remember-me" in place.read_bytes()
    assert found == {True: False, False: True}


def test_of_two_makers_one_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link, place = os.link, tmp_path / "rows.sqlite"

    def late(source: Path, target: Path) -> None:
        monkeypatch.setattr(os, "link", link)
        create_database(target, [*FILL, ("INSERT INTO rows VALUES (?)", (7,))], refuse=Refusal)
        link(source, target)

    monkeypatch.setattr(os, "link", late)
    with pytest.raises(Refusal) as caught:
        create_database(place, FILL, refuse=Refusal)
    assert caught.value.kind == "exists"
    assert [one.name for one in tmp_path.iterdir()] == [place.name]
    assert count(place) == 1, "the winner's file"


def test_a_disk_without_links_is_refused_and_left_clean(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(Refusal, match="not permitted") as caught:
        create_database(tmp_path / "rows.sqlite", FILL, refuse=Refusal)
    assert caught.value.kind == "unavailable"
    assert list(tmp_path.iterdir()) == []


def test_an_old_sqlite_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 36, 0))
    with pytest.raises(Refusal, match=r"3\.37"):
        create_database(tmp_path / "rows.sqlite", FILL, refuse=Refusal)


def test_a_disk_without_write_ahead_logs_is_refused() -> None:
    with pytest.raises(Refusal, match="write-ahead"):
        _settle(sqlite3.connect(":memory:"), Refusal)


def test_odd_names_are_fine_and_files_are_for_their_owner_only(tmp_path: Path) -> None:
    odd = tmp_path / "a b?mode=memory#%41.sqlite"
    create_database(odd, FILL, refuse=Refusal)
    assert [one.name for one in tmp_path.iterdir()] == [odd.name]
    database = Database(odd, refuse=Refusal)
    insert(database, 1)
    assert {one.stat().st_mode & 0o777 for one in tmp_path.iterdir()} == {0o600}


def test_every_commit_is_synchronised(path: Path) -> None:
    with Database(path, refuse=Refusal).transaction(write=False) as connection:
        found = {
            name: connection.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
        }
    assert found == {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1, "busy_timeout": 30_000}


def test_checkpoints_are_rare_and_never_automatic(path: Path) -> None:
    database = Database(path, refuse=Refusal, checkpoint_every=8)
    with database.transaction(write=False) as connection:
        assert connection.execute("PRAGMA wal_autocheckpoint").fetchone() == (0,)
    before = path.read_bytes()
    for number in range(7):
        insert(database, number)
    assert path.read_bytes() == before
    insert(database, 7)
    assert path.read_bytes() != before


def test_a_checkpoint_waits_for_no_reader(path: Path) -> None:
    writer, reader = (Database(path, refuse=Refusal, busy_seconds=5.0, checkpoint_every=2) for _ in range(2))
    insert(writer, 0)
    with reader.snapshot() as connection:
        began = time.perf_counter()
        for number in range(1, 6):
            insert(writer, number)
        assert time.perf_counter() - began < 2.5
        assert connection.execute("SELECT count(*) FROM rows").fetchone() == (1,)
    before = path.stat().st_mtime_ns
    for number in range(6, 8):
        insert(writer, number)
    assert path.stat().st_mtime_ns != before, "moved into the file once the reader is gone"
    assert count(path) == 8


def test_no_checkpoint_runs_beside_another_connections_commit(path: Path) -> None:
    database, other = Database(path, refuse=Refusal, busy_seconds=0.0), sqlite3.connect(path)
    insert(database, 1)
    before = (path.stat().st_mtime_ns, path.stat().st_size)
    other.execute("BEGIN IMMEDIATE")
    with database.transaction(write=False) as connection:
        pass
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        database._checkpoint(connection)
    # The negative control of a FULL checkpoint that does not wait: it goes on without the lock.
    assert (path.stat().st_mtime_ns, path.stat().st_size) == before
    assert connection.execute("PRAGMA wal_checkpoint(FULL)").fetchone()[0] == 1
    assert (path.stat().st_mtime_ns, path.stat().st_size) != before
    other.close()


def test_a_fork_behind_pythons_back_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    database = Database(path, refuse=Refusal)
    insert(database, 1)
    monkeypatch.setattr(os, "getpid", lambda: -1)
    with pytest.raises(Refusal) as caught:
        insert(database, 2)
    assert caught.value.kind == "forked"


@pytest.mark.slow
def test_a_fork_waits_for_the_transactions_of_other_threads(path: Path) -> None:
    database, stop = Database(path, refuse=Refusal), threading.Event()

    def busy(first: int) -> None:
        number = first
        while not stop.is_set():
            insert(database, number)
            number += 3

    threads = [threading.Thread(target=busy, args=(1000 + n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    codes = [in_child(lambda n=n: insert(database, n)) for n in range(5)]
    stop.set()
    for thread in threads:
        thread.join()
    assert codes == [0] * 5
    with database.transaction(write=False) as connection:
        assert connection.execute("SELECT count(*) FROM rows WHERE number < 5").fetchone() == (5,)
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_a_deleted_database_leaves_nothing_behind(path: Path) -> None:
    database = Database(path, refuse=Refusal, exclusive=True)
    insert(database, 1)
    database.delete()
    assert list(path.parent.iterdir()) == []
    create_database(path, FILL, refuse=Refusal)
    assert count(path) == 0


def test_a_file_with_a_rollback_journal_is_opened_and_keeps_its_rows(tmp_path: Path) -> None:
    path = tmp_path / "old.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute(*FILL)
        connection.execute("INSERT INTO rows VALUES (1)")
    database = Database(path, refuse=Refusal, exclusive=True)
    insert(database, 2)
    database.close()
    assert count(path) == 2
