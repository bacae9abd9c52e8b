"""One interface, two stores: whole transactions, one writer at a time, nothing of a URL in an error."""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import threading
import time
import traceback
from pathlib import Path
from typing import Any

import pytest

from dp_forward.errors import InvalidInput
from dp_forward.storage.database import Problem
from dp_forward.storage.postgres import PostgresDatabase
from dp_forward.storage.stores import Store, is_url, open_store, shown_place
from postgres_server import PostgresServer

TABLES = (
    "CREATE TABLE form (one INTEGER PRIMARY KEY CHECK (one = 1), format INTEGER NOT NULL) STRICT",
    ("INSERT INTO form VALUES (1, ?)", (7,)),
    "CREATE TABLE rows (name BLOB PRIMARY KEY, number INTEGER NOT NULL, share REAL, said TEXT) STRICT, "
    "WITHOUT ROWID",
)
PASSWORD = "a-secret-of-the-database"


class Refusal(InvalidInput):
    def __init__(self, problem: Problem) -> None:
        super().__init__("file", "be usable", problem.kind, problem.detail)
        self.kind = problem.kind


def opened(place: str, **options: Any) -> Store:
    return open_store(place, TABLES, refuse=Refusal, form=("form", 7), name="rows", **options)


def count_up(store: Store, times: int) -> None:
    """Read, then write: exact only where one writer is alone."""
    for _ in range(times):
        with store.transaction(write=True) as connection:
            found = connection.execute("SELECT number FROM rows WHERE name = ?", (b"n",)).fetchone()
            number = 1 if found is None else found[0] + 1
            query = "INSERT INTO rows VALUES (?, ?, ?, ?) ON CONFLICT (name) DO UPDATE SET number = ?"
            connection.execute(query, (b"n", number, 0.1, "%s ? \u00e4", number))


def in_children(work: Any, number: int) -> list[int]:
    children = []
    for _ in range(number):
        if (child := os.fork()) == 0:
            code = 1
            try:
                work()
                code = 0
            finally:
                os._exit(code)
        children.append(child)
    return children


def test_a_transaction_is_whole_or_nothing_and_values_come_back_as_they_were(place: str) -> None:
    store = opened(place)
    count_up(store, 2)
    with pytest.raises(AssertionError), store.transaction(write=True) as connection:
        assert connection.execute("DELETE FROM rows WHERE name = ?", (b"n",)).rowcount != 1
    store.close()
    store = opened(place)
    with store.transaction(write=False) as connection:
        assert connection.execute("SELECT * FROM rows").fetchall() == [(b"n", 2, 0.1, "%s ? \u00e4")]
    with store.transaction(write=True) as connection:
        connection.execute("DELETE FROM rows")
        assert connection.execute("SELECT count(*) FROM rows").fetchone()[0] == 0
    store.close()
    with pytest.raises(Refusal, match="closed"), store.transaction(write=False):
        pass


def test_processes_write_one_at_a_time(place: str) -> None:
    """Parent and children share what was opened before the fork."""
    store = opened(place)
    count_up(store, 1)
    children = in_children(lambda: count_up(store, 15), 3)
    count_up(store, 15)
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0, 0, 0]
    with store.transaction(write=False) as connection:
        assert connection.execute("SELECT number FROM rows").fetchone()[0] == 61
    store.close()


def test_makers_at_the_same_time_make_one_store(place: str) -> None:
    children = in_children(lambda: count_up(opened(place), 3), 4)
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0] * 4
    with contextlib.closing(opened(place)) as store, store.snapshot() as moment:
        assert moment.execute("SELECT number FROM rows").fetchone()[0] == 12


def test_a_snapshot_is_one_moment_and_holds_nobody_up(place: str) -> None:
    store = opened(place)
    count_up(store, 1)
    with store.snapshot() as moment:
        first = iter(moment.execute("SELECT number FROM rows"))
        count_up(store, 1)
        assert moment.execute("SELECT number FROM rows WHERE name = ?", (b"n",)).fetchone() == (1,)
        assert next(first) == (1,)
    with pytest.raises(Refusal), store.snapshot() as moment:  # it is for reading
        moment.execute("DELETE FROM rows").fetchone()
    store.close()


def test_another_format_is_refused(place: str) -> None:
    opened(place).close()
    with pytest.raises(Refusal, match="damaged"):
        count_up(open_store(place, TABLES, refuse=Refusal, form=("form", 8), name="rows"), 1)


def test_a_killed_writer_leaves_nothing_and_holds_nobody_up(place: str) -> None:
    store = opened(place)
    count_up(store, 1)
    reading, writing = os.pipe()

    def begin() -> None:
        with store.transaction(write=True) as connection:
            connection.execute("DELETE FROM rows")
            os.write(writing, b".")
            time.sleep(60)

    (child,) = in_children(begin, 1)
    os.read(reading, 1)
    os.kill(child, signal.SIGKILL)
    began = time.monotonic()
    count_up(store, 1)
    assert time.monotonic() - began < 5
    os.waitpid(child, 0)
    with store.transaction(write=False) as connection:
        assert connection.execute("SELECT number FROM rows").fetchone()[0] == 2
    store.close()


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Refusal, match="unavailable"):
        opened(str(tmp_path / "file" / "below"))
    opened(str(tmp_path / "new")).close()
    assert stat.S_IMODE((tmp_path / "new" / "rows.sqlite").stat().st_mode) == 0o600


# ------------------------------------------------------------------------------------------- Postgres alone


def test_a_lost_connection_is_opened_anew(postgres: PostgresServer) -> None:
    store = opened(postgres.database())
    count_up(store, 1)
    postgres.stop()
    with pytest.raises(Refusal, match="unavailable"):
        count_up(store, 1)
    postgres.start()
    count_up(store, 1)
    with pytest.raises(Refusal, match="unavailable"), store.transaction(write=True) as connection:
        connection.execute("SELECT pg_terminate_backend(pg_backend_pid())")
    count_up(store, 1)  # at once: an old connection that was lost costs nothing
    with store.transaction(write=False) as connection:
        assert connection.execute("SELECT number FROM rows").fetchone()[0] == 3
    store.close()


def test_a_lock_is_one_processs_until_it_is_killed(postgres: PostgresServer) -> None:
    store = opened(postgres.database())
    reading, writing = os.pipe()

    def hold() -> None:
        with store.try_lock() as mine:
            os.write(writing, b"1" if mine else b"0")
            time.sleep(60)

    (child,) = in_children(hold, 1)
    assert os.read(reading, 1) == b"1"
    with store.try_lock() as mine:
        assert not mine
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    until, mine = time.monotonic() + 5, False
    while not mine and time.monotonic() < until:
        with store.try_lock() as mine:
            time.sleep(0.01)
    assert mine
    store.close()


def test_a_writer_that_waits_too_long_is_told_so(postgres: PostgresServer) -> None:
    url = postgres.database()
    holder, other = opened(url), opened(url, busy_seconds=0.1)
    with holder.transaction(write=True), pytest.raises(Refusal, match="busy"):
        count_up(other, 1)
    count_up(other, 1)
    with other.transaction(write=False) as connection:
        assert connection.execute("SHOW synchronous_commit").fetchone()[0] == "on"
    with contextlib.closing(opened(url, durable=False)) as loose, loose.transaction(write=True) as connection:
        assert connection.execute("SHOW synchronous_commit").fetchone()[0] == "off"
    holder.close()
    other.close()


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://me:{PASSWORD}@127.0.0.1:1/nothing",
        f"postgresql://me:{PASSWORD}@127.0.0.1:port/nothing",
        f"postgresql://me:{PASSWORD}@[/nothing",
        f"postgresql:///nothing?host=/nowhere&user=me&password={PASSWORD}",
        f"postgresql:///nothing?password={PASSWORD}&wrong=1",
        f"postgresql:///no-such-database?host=HERE&user=dpf&password={PASSWORD}",
        f"postgresql:///postgres?host=HERE&user=nobody&password={PASSWORD}",
    ],
)
def test_no_error_and_nothing_shown_holds_a_password(
    postgres: PostgresServer, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(InvalidInput) as error:
        opened(url.replace("HERE", str(postgres.folder)))
    assert "\n" not in str(error.value)
    assert PASSWORD not in "".join(traceback.format_exception(error.value)) + caplog.text
    assert is_url(url)
    assert PASSWORD not in shown_place(url)


def test_a_store_that_is_not_there_is_made_by_statements_alone(postgres: PostgresServer) -> None:
    url = postgres.database()
    with pytest.raises(Refusal, match="missing"):
        PostgresDatabase(url, "rows", refuse=Refusal)
    failing = (*TABLES[:2], "CREATE TABLE rows (name NOTYPE)")
    with pytest.raises(InvalidInput):
        open_store(url, failing, refuse=Refusal, name="rows")
    with pytest.raises(Refusal, match="missing"):  # nothing of it is left
        PostgresDatabase(url, "rows", refuse=Refusal)
    store = opened(url)
    assert PASSWORD not in repr(store)
    threads = [threading.Thread(target=count_up, args=(store, 5)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with store.transaction(write=False) as connection:
        assert connection.execute("SELECT number FROM rows").fetchone()[0] == 20
    store.close()


def test_a_relative_folder_is_a_place_as_any(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store = opened("box")
    monkeypatch.chdir("/")
    count_up(store, 2)
    store.close()
    assert (tmp_path / "box" / "rows.sqlite").is_file()
