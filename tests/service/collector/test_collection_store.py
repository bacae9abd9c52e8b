"""A collection has each record once, on disk, whole; and what is exported is what was pushed."""

from __future__ import annotations

import os
import secrets
import signal
import sqlite3
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dp_forward.corpus.reader import ReleasedCorpus
from dp_forward.corpus.shuffle_guarantee import ShuffledBatch
from dp_forward.errors import InvalidInput
from dp_forward.privacy import RandomizedResponse
from dp_forward.service.collector.collection_store import RECORDS, Collection
from dp_forward.service.collector.corpus_export import export_corpus
from dp_forward.service.protocol.collection import CollectionSpec, Record, parse_record
from dp_forward.service.server.request_limits import Refused
from postgres_server import PostgresServer
from service.collector.collect_cases import parsed, record, spec, stored, summary


@pytest.fixture
def collection(place: str) -> Iterator[Collection]:
    """In a folder, and in Postgres."""
    with Collection.open_or_create(place, spec()) as made:
        yield made


@pytest.fixture
def in_folder(tmp_path: Path) -> Collection:
    return Collection.open_or_create(tmp_path / "collected", spec())


def some(number: int, **settings) -> list[Record]:
    return [parsed(record(i, label=i % 3, **settings)) for i in range(number)]


def multiset(corpus: ReleasedCorpus) -> list[tuple[bytes, int]]:
    batch = ReleasedCorpus.open(corpus.folder, raw=True).__getitems__(range(len(corpus)))
    labels = [None] * len(corpus) if "labels" not in batch else batch["labels"].tolist()
    return sorted((v.tobytes(), label) for v, label in zip(batch["values"].numpy(), labels, strict=True))


def test_a_record_is_stored_once(collection: Collection) -> None:
    records = some(5)
    assert collection.add(records) == (5, 0)
    assert collection.add(records[2:] + some(1)) == (1, 3)
    assert collection.add([records[0], records[0]]) == (0, 2)
    assert len(collection) == 6 == len(stored(collection))
    again = Collection.open(collection.place)
    assert len(again) == 6
    assert again.spec.as_dict() == collection.spec.as_dict()


def test_the_same_id_with_another_record_stores_nothing(collection: Collection) -> None:
    first = some(1)
    collection.add(first)
    before = stored(collection)
    forged = parsed(record(9, request=first[0].header.request))
    with pytest.raises(Refused) as error:
        collection.add([*some(3), forged, *some(2)])
    assert (error.value.code, error.value.status) == ("replayed", 409)
    relabelled = parse_record(first[0].data[:-4] + (2).to_bytes(4, "little"), labels=3)
    with pytest.raises(Refused, match="already"):
        collection.add([relabelled])
    twin = some(1)[0]
    with pytest.raises(Refused):  # two of one id in one body
        collection.add([twin, parsed(record(3, request=twin.header.request))])
    assert stored(collection) == before


def test_files_are_for_their_owner_alone(in_folder: Collection) -> None:
    in_folder.add(some(2))
    files = list(in_folder.place.iterdir())
    assert {path.name for path in files} >= {"collection.json", RECORDS, RECORDS + "-wal"}
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
    assert stat.S_IMODE(in_folder.place.stat().st_mode) == 0o700


def limit_pages(collection: Collection, more: int) -> None:
    """Let the file grow by so many pages only."""
    with collection._store.transaction(write=False) as connection:
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages + more}")


def test_a_full_disk_refuses_and_stores_nothing(in_folder: Collection) -> None:
    in_folder.add(some(2))
    before = stored(in_folder)
    limit_pages(in_folder, 2)
    with pytest.raises(Refused) as error:
        in_folder.add(some(40))
    assert (error.value.code, error.value.status) == ("full", 507)
    assert error.value.retry_after
    assert stored(in_folder) == before
    limit_pages(in_folder, 100_000)
    assert in_folder.add(some(40)) == (40, 0)


def test_threads_share_one(collection: Collection) -> None:
    shared = some(20)
    found: list[tuple[int, int]] = []
    threads = [threading.Thread(target=lambda: found.append(collection.add(shared))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(new for new, _ in found) == 20 == len(collection)


@pytest.mark.slow
def test_a_kill_leaves_whole_bodies(collection: Collection) -> None:
    bodies = [some(8) for _ in range(30)]
    collection.close()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            mine = Collection.open(collection.place)
            for body in bodies:
                mine.add(body)
                os.write(write, b".")
        finally:
            os._exit(1)
    os.close(write)
    acknowledged = len(os.read(read, 5))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    while more := os.read(read, 100):
        acknowledged += len(more)
    os.close(read)
    there = {row[0] for row in stored(Collection.open(collection.place))}
    whole = [all(r.header.request in there for r in body) for body in bodies]
    assert len(there) % 8 == 0
    assert len(there) == 8 * sum(whole)
    assert all(whole[:acknowledged]), "what was acknowledged is on disk"


class LivesAcrossForks:
    """The negative control: a connection that stays open while the process forks."""

    def __init__(self, folder: Path) -> None:
        self._connection = sqlite3.connect(folder / RECORDS, isolation_level=None)

    def add(self, records: list[Record]) -> None:
        for one in records:
            row = (one.header.request, one.digest, one.label, one.noisy, None)
            self._connection.execute("INSERT INTO records VALUES (?, ?, ?, ?, ?)", row)

    def close(self) -> None:
        self._connection.close()


def bodies_after_a_fork(folder: Path, opened: Callable[[Path], Any]) -> int:
    """How many of three bodies are there: one before a fork, two of the child, around the parent's close."""
    Collection.open_or_create(folder, spec()).close()
    bodies = [some(1) for _ in range(3)]
    parent = opened(folder)
    parent.add(bodies[0])
    written, closed = os.pipe(), os.pipe()
    if (child := os.fork()) == 0:
        code = 1
        try:
            own = opened(folder)
            own.add(bodies[1])
            os.write(written[1], b".")
            os.read(closed[0], 1)
            own.add(bodies[2])
            code = 0
        finally:
            os._exit(code)  # killed: nothing is closed
    os.read(written[0], 1)
    parent.close()
    os.write(closed[1], b".")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    with Collection.open(folder) as collection:
        return len(collection)


@pytest.mark.slow
def test_a_fork_with_an_open_collection_loses_no_stored_record(tmp_path: Path) -> None:
    for trial in range(10):
        assert bodies_after_a_fork(tmp_path / f"{trial}", Collection.open) == 3
    control = [bodies_after_a_fork(tmp_path / f"control-{trial}", LivesAcrossForks) for trial in range(10)]
    assert min(control) < 3


def test_a_folder_is_one_collection(tmp_path: Path, in_folder: Collection) -> None:
    folder = in_folder.place
    assert Collection.open_or_create(folder, spec()).place == folder
    with pytest.raises(InvalidInput, match="labels"):
        Collection.open_or_create(folder, spec("none"))
    with pytest.raises(InvalidInput, match=r"collection\.json"):
        Collection.open(tmp_path / "nothing")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "a-file").write_text("mine")
    with pytest.raises(InvalidInput, match="new or empty"):
        Collection.open_or_create(tmp_path / "other", spec())
    (folder / RECORDS).unlink()
    with pytest.raises(InvalidInput, match="Bring it back"):
        Collection.open(folder)
    (folder / "collection.json").write_text("{")
    with pytest.raises(InvalidInput, match="readable"):
        Collection.open(folder)


def test_a_database_is_one_collection(postgres: PostgresServer, tmp_path: Path) -> None:
    url = f"{postgres.database()}&password=a-secret-of-the-database"
    with pytest.raises(InvalidInput, match="hold"):
        Collection.open(url)
    with Collection.open_or_create(url, spec()) as first, Collection.open_or_create(url, spec()) as second:
        records = some(4)
        assert [first.add(records[:3]), second.add(records)] == [(3, 0), (1, 3)]
        assert "secret" not in repr(first)
    with pytest.raises(InvalidInput, match="labels") as error:
        Collection.open_or_create(url, spec("none"))
    assert "secret" not in str(error.value)


def test_a_folder_that_cannot_be_written_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InvalidInput, match="be a folder that can be written") as error:
        Collection.open_or_create(tmp_path / "file" / "below", spec())
    assert "\n" not in str(error.value)


def test_a_maker_that_was_killed_is_taken_over(in_folder: Collection) -> None:
    (in_folder.place / "collection.json").unlink()
    assert Collection.open_or_create(in_folder.place, spec()).add(some(1)) == (1, 0)
    (in_folder.place / "collection.json").unlink()
    with pytest.raises(InvalidInput, match="new or empty"):  # records without a spec are never given one
        Collection.open_or_create(in_folder.place, spec())


# --- batches and export -------------------------------------------------------------------------------------


def test_a_sealed_batch_has_exactly_its_records(collection: Collection) -> None:
    batch, records = secrets.token_bytes(16), some(4)
    collection.add(records, batch)
    with pytest.raises(Refused) as error:
        collection.seal(batch, 5)
    assert (error.value.code, error.value.status) == ("batch", 409)
    collection.seal(batch, 4)
    collection.seal(batch, 4)
    with pytest.raises(Refused):
        collection.seal(batch, 3)
    with pytest.raises(Refused, match="sealed"):
        collection.add(some(1), batch)
    assert collection.add(records, batch) == (0, 4), "a retry is free"
    with pytest.raises(Refused, match="already"):  # one record, one place
        collection.add(records[:1], secrets.token_bytes(16))
    with pytest.raises(Refused, match="already"):
        collection.add(records[:1])


def test_an_export_is_what_was_collected_in_another_order(collection: Collection, tmp_path: Path) -> None:
    records = some(30)
    collection.add(records)
    seen: list[int] = []
    corpus = export_corpus(collection.place, tmp_path / "corpus", progress=seen.append)
    assert multiset(corpus) == sorted((r.noisy, r.label) for r in records)
    in_order = corpus.__getitems__(range(30))["labels"].tolist()
    assert in_order == [r.label for r in sorted(records, key=lambda r: r.header.request)]
    assert in_order != [r.label for r in records], "the control: they came in another order"
    assert corpus.shuffled is None
    assert seen == [30]
    assert corpus.guarantee.as_dict() == spec().corpus_spec(30, 30).guarantee().as_dict()
    again = export_corpus(collection.place, tmp_path / "again")
    assert {p.name: p.read_bytes() for p in again.folder.iterdir()} == {
        p.name: p.read_bytes() for p in corpus.folder.iterdir()
    }


def test_an_unsealed_batch_is_never_exported(collection: Collection, tmp_path: Path) -> None:
    first, second, third = (secrets.token_bytes(16) for _ in range(3))
    one, two = some(7), some(5)
    collection.add(one, first)
    with pytest.raises(InvalidInput, match="complete records"):
        export_corpus(collection.place, tmp_path / "none")
    assert not (tmp_path / "none").exists()
    collection.add(two, second)
    collection.add(some(3), third)
    collection.seal(first, 7)
    collection.seal(second, 5)
    assert summary(collection) == {"records": 12, "waiting": 3, "batches": 2}
    corpus = export_corpus(collection.place, tmp_path / "corpus")
    assert multiset(corpus) == sorted((r.noisy, r.label) for r in one + two)
    counted = {ShuffledBatch(7, (3, 2, 2)), ShuffledBatch(5, (2, 2, 1))}
    assert corpus.shuffled is not None
    assert set(corpus.shuffled) == counted
    collection.add(some(1))  # straight from a user: now not every record was shuffled
    assert export_corpus(collection.place, tmp_path / "mixed").shuffled is None


@pytest.mark.parametrize("labels", ["none", RandomizedResponse(1.0, 3)])
def test_other_labels_are_exported_as_they_were_collected(tmp_path: Path, labels) -> None:
    collection = Collection.open_or_create(tmp_path / "c", spec(labels))
    batch = secrets.token_bytes(16)
    wanted = None if labels == "none" else 2
    records = [parse_record(record(i, label=wanted), labels=spec(labels).label_count) for i in range(4)]
    collection.add(records, batch)
    collection.seal(batch, 4)
    corpus = export_corpus(collection.place, tmp_path / "corpus")
    assert (corpus.labels is None) == (wanted is None)
    assert (corpus.label_transition is None) == (labels == "none")
    assert corpus.shuffled == (ShuffledBatch(4, None),)
    assert multiset(corpus) == sorted((r.noisy, r.label) for r in records)


def test_an_export_is_all_or_nothing(
    in_folder: Collection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_folder.add(some(6))
    with sqlite3.connect(in_folder.place / RECORDS) as connection:
        connection.execute("UPDATE records SET label = (label + 1) % 3 WHERE rowid = 4")
    with pytest.raises(InvalidInput, match="damaged"):
        export_corpus(in_folder.place, tmp_path / "corpus")
    assert not [path for path in tmp_path.iterdir() if path.name != in_folder.place.name]
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "x").touch()
    with pytest.raises(InvalidInput, match="new or empty"):
        export_corpus(in_folder.place, tmp_path / "taken")


def test_several_shards_hold_every_record_once(
    collection: Collection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dp_forward.corpus.corpus_spec._MOST_SHARD_RECORDS", 4)
    records = some(10)
    collection.add(records)
    corpus = export_corpus(collection.place, tmp_path / "corpus")
    assert corpus.spec.shards == 3
    assert multiset(corpus) == sorted((r.noisy, r.label) for r in records)


def test_a_repr_tells_no_record(in_folder: Collection) -> None:
    records = some(1)
    in_folder.add(records)
    assert "collected" in repr(in_folder)
    assert records[0].header.request.hex() not in repr(in_folder)
    assert isinstance(in_folder.spec, CollectionSpec)
    assert not np.array_equal(records[0].values, some(1)[0].values), "the control: noise is drawn anew"
