"""The draw log: one owner, one draw per record, and files of earlier versions."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import pytest

from dp_forward.corpus.draw_log import DrawLog, Shard
from dp_forward.errors import InvalidInput, LedgerCorrupt

SETTINGS, IDENTITY = {"shard_records": 2}, b"a corpus"


def begun(path: Path) -> DrawLog:
    log = DrawLog.create(path, SETTINGS, IDENTITY)
    log.mark_charged()
    log.add(range(2), b"noisy", b"labels")
    return log


def changed(path: Path, statement: str) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(statement)


def test_a_file_with_a_rollback_journal_is_continued(tmp_path: Path) -> None:
    path = tmp_path / "draws"
    begun(path).close()
    changed(path, "PRAGMA journal_mode = DELETE")  # as earlier versions left it
    with DrawLog(path) as log:
        assert (log.charged, log.next_record, log.is_of(IDENTITY)) == (True, 2, True)
        log.finish(Shard(0, 2, 10, "ab"))
        log.add(range(2, 3), b"more", b"a")
        log.add(range(3, 4), b"most", b"b")
    with DrawLog(path) as log:
        assert (log.shards, log.draws()) == ([Shard(0, 2, 10, "ab")], (b"moremost", b"ab"))


def test_a_log_has_one_owner_and_is_never_made_twice(tmp_path: Path) -> None:
    path = tmp_path / "draws"
    log = begun(path)
    for other in (lambda: DrawLog(path), lambda: DrawLog.create(path, SETTINGS, IDENTITY)):
        with pytest.raises(InvalidInput, match="another process"):
            other()
    log.close()


def test_a_log_that_was_never_charged_is_discarded_without_a_trace(tmp_path: Path) -> None:
    DrawLog.create(tmp_path / "draws", SETTINGS, IDENTITY).discard()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "harm", ["UPDATE pieces SET noisy = x'00'", "UPDATE pieces SET first = 1", "UPDATE plan SET format = 9"]
)
def test_a_damaged_log_is_refused(tmp_path: Path, harm: str) -> None:
    path = tmp_path / "draws"
    begun(path).close()
    changed(path, harm)
    with pytest.raises(LedgerCorrupt, match="never reset"):
        DrawLog(path).draws()
