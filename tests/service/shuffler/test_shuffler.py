"""A shuffler passes each record on once, in a batch, in an order that nobody chose, under a new id."""

from __future__ import annotations

import asyncio
import itertools
import shutil
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from scipy.stats import chi2
from starlette.applications import Starlette
from starlette.testclient import TestClient

from dp_forward.errors import InvalidInput, LedgerUnavailable
from dp_forward.service.client.transport import RetryPolicy, ServerRefused, Transport
from dp_forward.service.collector.collection_store import Collection
from dp_forward.service.collector.collector_routes import RecordReader, collector_routes
from dp_forward.service.protocol.collection import CollectionSpec
from dp_forward.service.server import base_app
from dp_forward.service.server.audit_log import AuditLog
from dp_forward.service.server.metrics import Metrics
from dp_forward.service.server.request_limits import Refused
from dp_forward.service.server.settings import ServerSettings
from dp_forward.service.server.users import Users, UserStore
from dp_forward.service.shuffler import shuffler_store as store_module
from dp_forward.service.shuffler.shuffler_app import Forwarder, fetch_spec, make_shuffler_app, send_batch
from dp_forward.service.shuffler.shuffler_store import Batch, ShufflerStore, fresh_ids
from postgres_server import PostgresServer
from service.collector.collect_cases import summary
from service.shuffler.shuffle_cases import (
    OCTETS,
    TOKEN,
    changed,
    collector_app,
    content,
    made,
    manifest,
    read,
    running,
    spec,
    stored,
)

MOST = 10_000
LOCAL = ServerSettings(port=0)
QUICK = RetryPolicy(attempts=2, first=0.01, longest=0.02, timeout=5.0)


def opened(place: Path | str, least: int = 50, **users: int) -> ShufflerStore:
    return ShufflerStore(place, spec(), least=least, **users)


def collecting(folder: Path) -> TestClient:
    """The collector's routes alone, without a socket."""
    collection = Collection.open_or_create(folder, spec())
    app = Starlette(routes=collector_routes(collection, LOCAL, metrics=Metrics(), shuffler_token=TOKEN))
    return TestClient(app, headers={"authorization": f"Bearer {TOKEN}"})


class Killed(BaseException):
    """The process ends here."""


def over(
    client: TestClient, said: list[bytes], *, calls: int | None = None, arrives: bool = False
) -> Transport:
    """A transport into the collector, which notes what is said; killed at call number ``calls``."""

    def answered(request: httpx.Request) -> httpx.Response:
        last = len(said) == calls
        if last and not arrives:
            raise Killed
        said.append(request.content)
        kind = {"content-type": request.headers["content-type"]}
        found = client.post(request.url.path, content=request.content, headers=kind)
        if last:
            raise Killed
        return httpx.Response(found.status_code, content=found.content)

    inner = httpx.MockTransport(answered)
    return Transport("http://127.0.0.1:1", token=TOKEN, retry=QUICK, transport=inner)


def bytes_of(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.iterdir()))


# ---------------------------------------------------------------------------------------------- on loopback


@pytest.mark.slow
def test_records_of_three_users_arrive_in_one_sealed_batch_and_not_before(tmp_path: Path) -> None:
    users = [made(20, seed=seed) for seed in range(3)]
    collector = collector_app(tmp_path / "collected", LOCAL)
    with running(collector, LOCAL) as behind:
        line = Transport(behind, token=TOKEN, retry=QUICK)
        with closing(ShufflerStore(tmp_path / "shuffle", fetch_spec(line), least=50)) as store:
            forwarder = Forwarder(store, line, at_once=25)
            app = make_shuffler_app(store, forwarder, settings=LOCAL, most=MOST)
            with running(app, LOCAL) as before, httpx.Client(base_url=before) as client:
                offered = CollectionSpec.from_dict(client.get("/v1/collection").json())
                assert (offered.shuffler_least, offered.manifest) == (50, manifest())
                for user in users[:2]:
                    reply = client.post("/v1/records", content=b"".join(user), headers=OCTETS)
                    assert reply.json() == {"stored": 20, "known": 0}
                time.sleep(0.3)
                assert stored(tmp_path / "collected") == []  # below the least nothing leaves
                assert not any(
                    b"batches" in name.encode() for name in collector.state.handler.metrics.records
                )
                page = client.get("/metrics").text
                assert "dpf_shuffle_batches_total 0" in page
                assert "waiting" not in page
                assert "40" not in page
                client.post("/v1/records", content=b"".join(users[2]), headers=OCTETS)
                until = time.monotonic() + 20
                while forwarder.batches == 0 and time.monotonic() < until:
                    time.sleep(0.01)
                assert "dpf_shuffle_records_total 60" in client.get("/metrics").text
                again = client.post("/v1/records", content=b"".join(users[0]), headers=OCTETS)
                assert again.json() == {"stored": 0, "known": 20}
        line.close()
    sent = list(itertools.chain(*users))
    found = stored(tmp_path / "collected")
    assert Counter(inside for _, inside, _ in found) == Counter(map(content, sent))
    assert len({batch for _, _, batch in found} - {None}) == 1
    assert not {request for request, _, _ in found} & {record[96:112] for record in sent}
    with Collection.open(tmp_path / "collected") as collection:
        assert summary(collection) == {"records": 60, "waiting": 0, "batches": 1}


# ----------------------------------------------------------------------------------- what survives a crash


CALLS = 4
"""60 records in pieces of 20, and the seal."""


@pytest.mark.slow
@pytest.mark.parametrize(("calls", "arrives"), [(k, a) for k in range(CALLS) for a in (False, True)])
def test_a_crash_anywhere_neither_loses_nor_doubles_a_record(
    tmp_path: Path, calls: int, arrives: bool
) -> None:
    """Killed at call number ``calls``, before it arrives or before its answer does."""
    records = made(60)
    collector = collecting(tmp_path / "collected")
    store = opened(tmp_path / "first")
    store.add(read(records), most=MOST)
    assert store.make_batch()
    said: list[bytes] = []
    with pytest.raises(Killed):
        send_batch(store, over(collector, said, calls=calls, arrives=arrives), at_once=20)
    # What a kill leaves is what the files hold at this moment: nothing is flushed or closed.
    shutil.copytree(tmp_path / "first", tmp_path / "second")
    if calls < CALLS - 1:
        assert not summary(Collection.open(tmp_path / "collected"))["records"]  # unsealed: never exported

    with closing(opened(tmp_path / "second")) as again:
        assert send_batch(again, over(collector, said), at_once=20) == 60
        assert (again.waiting, again.batch) == (0, None)
        assert again.add(read(records), most=MOST) == (0, 60)
    store.close()
    found = stored(tmp_path / "collected")
    assert Counter(inside for _, inside, _ in found) == Counter(map(content, records))
    assert summary(Collection.open(tmp_path / "collected")) == {"records": 60, "waiting": 0, "batches": 1}
    assert len(said) == CALLS + arrives  # what was acknowledged is not said again
    # Whatever was said twice was said in the same bytes.
    by_start: dict[bytes, bytes] = {}
    for body in said:
        assert by_start.setdefault(body[:112], body) == body
    assert len(by_start) == CALLS


def test_a_crash_before_the_batch_leaves_all_records_waiting(tmp_path: Path) -> None:
    records = made(60)
    store = opened(tmp_path / "first")
    store.add(read(records), most=MOST)
    shutil.copytree(tmp_path / "first", tmp_path / "second")
    with closing(opened(tmp_path / "second")) as again:
        assert (again.waiting, again.batch) == (60, None)
        assert again.add(read(records), most=MOST) == (0, 60)
    store.close()


def test_a_batch_is_made_whole_or_not_at_all(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(opened(place)) as store:
        store.add(read(made(60)), most=MOST)
        done = []

        def failing(data: bytes, request: bytes) -> bytes:
            done.append(request)
            if len(done) == 40:
                raise LedgerUnavailable("the disk is full")
            return data

        with monkeypatch.context() as patch:
            patch.setattr(store_module, "with_new_id", failing)
            with pytest.raises(LedgerUnavailable):
                store.make_batch()
        assert (store.waiting, store.batch, store.piece(store.batch, most=5)) == (60, None, [])
        assert store.make_batch()
        assert len(store.piece(store.batch, most=100)) == 60


@pytest.mark.slow
def test_a_collector_that_lost_pieces_gets_them_again(tmp_path: Path, place: str) -> None:
    with closing(opened(place, least=20)) as store:
        store.add(read(made(20)), most=MOST)
        store.make_batch()
        with pytest.raises(Killed):  # before the seal
            send_batch(store, over(collecting(tmp_path / "lost"), [], calls=2), at_once=10)
        restored = collecting(tmp_path / "restored")
        with pytest.raises(ServerRefused):
            send_batch(store, over(restored, []), at_once=10)
        assert send_batch(store, over(restored, []), at_once=10) == 20
    assert summary(Collection.open(tmp_path / "restored")) == {"records": 20, "waiting": 0, "batches": 1}


def test_a_collector_that_refuses_or_is_away_costs_nothing(place: str) -> None:
    weather: Iterator[int] = iter([401, 503, 503])
    line = Transport(
        "http://127.0.0.1:1",
        token=TOKEN,
        retry=QUICK,
        transport=httpx.MockTransport(lambda request: httpx.Response(next(weather), json={"error": "x"})),
    )
    with closing(opened(place, least=20)) as store:
        store.add(read(made(20)), most=MOST)
        forwarder = Forwarder(store, line, at_once=20)
        for _ in range(2):
            with pytest.raises(Exception, match=r"token|attempts"):
                forwarder.once()
            assert store.batch is not None
            assert len(store.piece(store.batch, most=100)) == 20
        # While one is on its way, the next ones gather.
        store.add(read(made(30, seed=1)), most=MOST)
        assert not store.make_batch()
        assert store.waiting == 30


# ------------------------------------------------------------------------------------------------ the order


def spread(counts: Counter[Any], cells: int) -> float:
    """How far counts are from equal, as a p-value."""
    expected = counts.total() / cells
    statistic = sum((n - expected) ** 2 for n in counts.values()) / expected
    statistic += expected * (cells - len(counts))
    return float(chi2.sf(statistic, cells - 1))


def counting() -> Any:
    numbers = itertools.count(1 << 64)
    return lambda size: next(numbers).to_bytes(size, "big")


@pytest.mark.slow
def test_every_order_is_as_likely() -> None:
    old = [bytes([i]) * 16 for i in range(6)]
    orders = Counter(tuple(request[0] for _, request in fresh_ids(old)) for _ in range(36_000))
    assert spread(orders, 720) > 1e-6
    # The control: ids that grow keep the order, and the same test sees it.
    draw = counting()
    kept = Counter(tuple(request[0] for _, request in fresh_ids(old, draw)) for _ in range(3600))
    assert spread(kept, 720) < 1e-6


def places(folder: Path, rounds: int) -> Counter[int]:
    """Where in its batch the record with the least id comes out."""
    found: Counter[int] = Counter()
    base = read(made(6))
    with closing(opened(folder, least=6)) as store:
        for number in range(rounds):
            ids = [(number * 6 + i).to_bytes(16, "big") for i in range(6)]
            records = [changed(one.data, request=new) for one, new in zip(base, ids, strict=True)]
            store.add(read(records), most=MOST)
            store.make_batch()
            found[[content(one) for one in store.piece(store.batch, most=6)].index(content(records[0]))] += 1
            store.finish(store.batch)
    return found


@pytest.mark.slow
def test_a_record_comes_out_anywhere_in_its_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert spread(places(tmp_path / "fair", 90), 6) > 1e-6
    draw = counting()
    monkeypatch.setattr(store_module, "fresh_ids", lambda old: fresh_ids(sorted(old), draw))
    assert spread(places(tmp_path / "kept", 30), 6) < 1e-6


def test_two_equal_ids_are_refused(tmp_path: Path) -> None:
    with pytest.raises(LedgerUnavailable):
        fresh_ids([b"a" * 16, b"b" * 16], lambda size: b"c" * size)
    with pytest.raises(LedgerUnavailable):
        fresh_ids([b"a" * 16], lambda size: b"a" * size)


# ---------------------------------------------------------------------------------------- what is forgotten


@pytest.mark.slow
def test_no_old_id_is_left_in_the_files_after_a_batch(tmp_path: Path) -> None:
    records = made(300)
    old = [record[96:112] for record in records]
    with closing(opened(tmp_path)) as store:
        for start in range(0, 300, 15):
            store.add(read(records[start : start + 15]), most=MOST)
        before = bytes_of(tmp_path)
        assert all(request in before for request in old)  # the control: this search finds them
        store.make_batch()
        after = bytes_of(tmp_path)
        assert not any(request in after for request in old)
        new = [one[96:112] for one in store.piece(store.batch, most=300)]
        assert all(request in after for request in new)
        assert store.add(read(records[:5]), most=MOST) == (0, 5)
        store.finish(store.batch)
        gone = bytes_of(tmp_path)
        assert not any(request in gone for request in new)
        assert not any(content(record)[40:80] in gone for record in records)
    assert (tmp_path / "shuffle.sqlite").stat().st_mode & 0o777 == 0o600


def tables_of(postgres: PostgresServer, url: str) -> bytes:
    """All files of the tables of a server; not its write-ahead log, which keeps what was deleted."""
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CHECKPOINT")
    files = sorted((postgres.folder / "data" / "base").rglob("*"))
    return b"".join(path.read_bytes() for path in files if path.is_file())


def test_no_old_id_is_left_in_the_tables_of_postgres_after_a_batch(postgres: PostgresServer) -> None:
    url, records = postgres.database(), made(60)
    old = [record[96:112] for record in records]
    with closing(opened(url)) as store:
        store.add(read(records), most=MOST)
        before = tables_of(postgres, url)
        assert all(request in before for request in old)  # the control: this search finds them
        store.make_batch()
        after = tables_of(postgres, url)
        assert not any(request in after for request in old)


def test_headers_of_a_batch_are_alike_whatever_machine_wrote_them(place: str) -> None:
    records = made(20)
    wanted = manifest()
    odd = [
        changed(one, epsilon=wanted.epsilon * (1 + 1e-12), step=wanted.step * (1 + 1e-12)) for one in records
    ]
    with closing(opened(place, least=20)) as store:
        store.add(read(odd[:10] + records[10:]), most=MOST)
        assert store.add(read(records), most=MOST) == (0, 20)  # the same record, whoever wrote its header
        store.make_batch()
        sent = store.piece(store.batch, most=20)
    assert len({one[:96] + one[112:128] for one in sent}) == 1
    assert {one[112:120] for one in sent} == {bytes(8)}
    assert Counter(map(content, sent)) == Counter(map(content, records))


# ------------------------------------------------------------------------------------------ what is refused


def test_the_same_id_with_another_content_is_refused_whole(place: str) -> None:
    records = made(3)
    other = made(1, seed=9, ids=[records[0][96:112]])
    with closing(opened(place)) as store:
        store.add(read(records[:1]), most=MOST)
        with pytest.raises(Refused) as refused:
            store.add(read([*records[1:], *other]), most=MOST)
        assert (refused.value.code, refused.value.status) == ("replayed", 409)
        assert store.waiting == 1


def test_a_full_store_refuses_new_records_and_knows_old_ones(place: str) -> None:
    records = made(60)
    with closing(opened(place)) as store:
        store.add(read(records[:50]), most=55)
        store.make_batch()  # those on their way count too
        with pytest.raises(Refused) as refused:
            store.add(read(records[50:]), most=55)
        assert (refused.value.status, refused.value.retry_after) == (429, 30)
        assert store.waiting == 0
        assert store.add(read(records[:50]), most=55) == (0, 50)
        assert store.add(read(records[50:55]), most=55) == (5, 0)


def test_a_store_is_for_one_process_one_collection_and_its_promise(tmp_path: Path) -> None:
    with closing(opened(tmp_path, least=50)) as store:
        store.add(read(made(5)), most=MOST)
        with pytest.raises(InvalidInput, match="another process"):
            opened(tmp_path)
    with pytest.raises(InvalidInput, match="this collection"):
        ShufflerStore(tmp_path, spec("none"), least=50)
    with pytest.raises(InvalidInput, match="`least`"):
        opened(tmp_path, least=49)
    with pytest.raises(InvalidInput):
        opened(tmp_path / "new", least=1)
    with closing(opened(tmp_path, least=60)) as store:
        assert (store.waiting, store.offered.shuffler_least) == (5, 60)


# ------------------------------------------------------------------------------------- who hides whom


@pytest.fixture
def users(tmp_path: Path) -> Iterator[tuple[Users, dict[str, str]]]:
    """Those of a store, and their tokens by name."""
    with closing(UserStore(tmp_path / "users")) as store:
        names = ("victim", "attacker", *(f"user-{number}" for number in range(49)))
        tokens = {name: store.add(name) for name in names}
    known = Users(tmp_path / "users", AuditLog(None))
    yield known, tokens
    asyncio.run(known.close())


def idle(store: ShufflerStore) -> Forwarder:
    """A forwarder whose collector is away."""
    away = httpx.MockTransport(lambda request: httpx.Response(503))
    return Forwarder(store, Transport("http://127.0.0.1:1", token=TOKEN, transport=away), at_once=5)


def attacked(store: ShufflerStore, users: Users | None, tokens: Mapping[str, str]) -> tuple[bool, int, str]:
    """One honest record waits, an attacker with one account sends all that is taken, then 49 others come.

    Whether a batch isolates the record for him, how many others are in its batch, and what a page told him.
    """
    forwarder = idle(store)
    forwarder.wake = lambda: None  # type: ignore[method-assign]
    app = make_shuffler_app(store, forwarder, settings=LOCAL, most=MOST, users=users)
    victim, own, others = made(1), made(60, seed=1), made(49, seed=2)
    with TestClient(app) as client:

        def send(record: bytes, user: str) -> int:
            headers = {**OCTETS, "authorization": f"Bearer {tokens.get(user)}"}
            return client.post("/v1/records", content=record, headers=headers).status_code

        assert send(victim[0], "victim") == 200
        page = client.get("/metrics").text
        taken = [record for record in own if send(record, "attacker") == 200]
        if not store.make_batch():
            assert all(send(record, f"user-{i}") == 200 for i, record in enumerate(others))
            assert store.make_batch()
        assert store.batch is not None
        batch = {content(one) for one in store.piece(store.batch, most=200)}
    assert content(victim[0]) in batch
    left = batch - set(map(content, taken)) - {content(victim[0])}
    return not left, len(left), page


def test_one_account_cannot_isolate_a_record(place: str, users: tuple[Users, dict[str, str]]) -> None:
    with closing(opened(place, least=50, least_users=50, records_per_user=1)) as store:
        isolated, others, page = attacked(store, *users)
    assert (isolated, others) == (False, 49)
    assert "waiting" not in page
    assert 'outcome="records"' not in page
    assert 'outcome="stored"' not in page


def _counts_with(caplog: pytest.LogCaptureFixture, outcome: str) -> list[dict[str, int]]:
    """What was counted in the log, as soon as ``outcome`` is, or after some seconds."""
    end = time.monotonic() + 20
    while True:
        found = [record.counts for record in caplog.records if hasattr(record, "counts")]
        if any(outcome in one for one in found) or time.monotonic() > end:
            return found
        time.sleep(0.01)


def test_the_log_of_a_shuffler_does_not_tell_when_records_come(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base_app, "_COUNT_SECONDS", 0.01)
    caplog.set_level("INFO", logger="dp_forward")
    store = opened(tmp_path)
    app = make_shuffler_app(store, idle(store), settings=LOCAL, most=MOST)
    with closing(store), TestClient(app) as client:
        assert client.post("/v1/records", content=made(1)[0], headers=OCTETS).status_code == 200
        assert client.get("/nothing").status_code == 404
        counts = _counts_with(caplog, "not_found")
    assert {"not_found": 1} in counts, "the control: other outcomes are logged"
    assert not any("records" in one for one in counts)


def test_a_quota_of_a_user_counts_at_the_shuffler_too(tmp_path: Path) -> None:
    with closing(UserStore(tmp_path / "users")) as known:
        token = known.add("alice", per_day=2)
    users = Users(tmp_path / "users", AuditLog(None))
    with closing(opened(tmp_path / "box")) as store:
        app = make_shuffler_app(store, idle(store), settings=LOCAL, most=MOST, users=users)
        with TestClient(app, headers={**OCTETS, "authorization": f"Bearer {token}"}) as client:
            codes = [client.post("/v1/records", content=one).status_code for one in made(3)]
        assert (codes, store.waiting) == ([200, 200, 429], 2)
    asyncio.run(users.close())


def test_without_known_users_the_attack_succeeds_and_the_log_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The control: the same attack isolates the record, and the operator was warned."""
    with closing(opened(tmp_path, least=50)) as store:
        assert attacked(store, None, {})[:2] == (True, 0)
    assert "users are not told apart" in caplog.text


def test_the_log_says_so_where_one_user_may_fill_a_batch(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    users = Users(tmp_path / "users", AuditLog(None))
    for name, each in (("half", 5), ("all but one", 9)):
        with closing(opened(tmp_path / name, least=10, least_users=2, records_per_user=each)) as store:
            make_shuffler_app(store, idle(store), settings=LOCAL, most=MOST, users=users)
        assert ("one user may fill a batch" in caplog.text) == (each == 9)
    asyncio.run(users.close())


def test_a_batch_waits_for_different_users_however_many_records_there_are(place: str) -> None:
    records = made(12)
    with closing(opened(place, least=5, least_users=3, records_per_user=4)) as store:
        store.add(read(records[:4]), most=MOST, user="a")
        with pytest.raises(Refused, match="at most 4 records of one user") as refused:
            store.add(read(records[4:5]), most=MOST, user="a")
        assert (refused.value.status, store.waiting) == (429, 4)
        assert store.add(read(records[:4]), most=MOST, user="a") == (0, 4)  # a retry is free
        store.add(read(records[4:6]), most=MOST, user="b")
        store.add(read(records[6:7]), most=MOST)  # nobody knows who: all of these are one user
        with pytest.raises(Refused):
            store.add(read(records[7:12]), most=MOST)
        assert store.due
        assert store.make_batch()
        store.add(read(records[7:11]), most=MOST, user="a")  # the next batch has room for him again
        assert not store.make_batch()


def test_users_leave_no_trace_once_their_batch_is_made(tmp_path: Path) -> None:
    with closing(opened(tmp_path, least=20, least_users=20, records_per_user=1)) as store:
        for number, record in enumerate(made(20)):
            store.add(read([record]), most=MOST, user=f"user-{number}")
        with store._store.transaction(write=False) as connection:
            senders = [row[0] for row in connection.execute("SELECT sender FROM waiting")]
        before = bytes_of(tmp_path)
        assert b"user-1" not in before
        assert all(sender in before for sender in senders)  # the control: this search finds them
        store.make_batch()
        after = bytes_of(tmp_path)
        assert not any(sender in after for sender in senders)


def test_what_is_promised_of_users_needs_users(tmp_path: Path) -> None:
    with closing(opened(tmp_path / "a", least=5, least_users=5, records_per_user=1)) as store:
        with pytest.raises(InvalidInput, match="users that are known"):
            make_shuffler_app(store, idle(store), settings=LOCAL, most=MOST)
        told = CollectionSpec.from_dict(store.offered.as_dict())
        assert (told.least_users, told.records_per_user, told.body_records) == (5, 1, 1)
        store.add(read(made(1)), most=MOST, user="a")
    for weaker in (
        {},
        {"least_users": 4, "records_per_user": 1},
        {"least_users": 5, "records_per_user": 2},
    ):
        with pytest.raises(InvalidInput, match="as strict"):
            opened(tmp_path / "a", least=5, **weaker)
    for wrong in (
        {"least_users": 6, "records_per_user": 1},
        {"least_users": 1, "records_per_user": 1},
        {"least_users": 5},
        {"least_users": 5, "records_per_user": 0},
    ):
        with pytest.raises(InvalidInput):
            opened(tmp_path / "b", least=5, **wrong)


def test_a_shuffler_whose_store_cannot_be_read_is_not_ready(
    place: str, users: tuple[Users, dict[str, str]]
) -> None:
    store = opened(place, least_users=50, records_per_user=1)
    app = make_shuffler_app(store, idle(store), settings=LOCAL, most=MOST, users=users[0])
    with TestClient(app) as client:
        assert client.get("/readyz").json() == {"status": "ok"}
        store.close()
        time.sleep(1.1)  # it is looked at once in a second
        found = client.get("/readyz")
        assert (found.status_code, found.json()) == (503, {"status": "store"})
        assert client.get("/healthz").status_code == 200


# -------------------------------------------------------------------------------- several over one Postgres


def test_two_shufflers_make_each_batch_once_and_one_sends(postgres: PostgresServer, tmp_path: Path) -> None:
    url, collector = postgres.database(), collecting(tmp_path / "collected")
    records, said = made(60), [[], []]
    with closing(opened(url)) as one, closing(opened(url)) as other:
        one.add(read(records[:30]), most=MOST)
        assert other.add(read(records[20:]), most=MOST) == (30, 10)
        with one.try_lock() as mine:
            assert mine
            Forwarder(other, over(collector, said[1]), at_once=20).once()
            assert said == [[], []]  # another process sends
        threads = [
            threading.Thread(target=Forwarder(store, over(collector, words), at_once=20).once)
            for store, words in zip((one, other), said, strict=True)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (one.batch, other.waiting) == (None, 0)
    assert sorted(len(words) for words in said) == [0, CALLS]
    assert Counter(inside for _, inside, _ in stored(tmp_path / "collected")) == Counter(
        map(content, records)
    )


def test_a_sender_that_was_overtaken_neither_mixes_nor_deletes_a_batch(postgres: PostgresServer) -> None:
    url = postgres.database()
    with closing(opened(url, least=5)) as slow, closing(opened(url, least=5)) as quick:
        slow.add(read(made(5)), most=MOST)
        slow.make_batch()
        old = slow.batch
        assert old is not None
        quick.finish(old)  # the other one has sent and sealed it
        quick.add(read(made(5, seed=1)), most=MOST)
        quick.make_batch()
        assert slow.piece(old, most=9) == []
        slow.acknowledge(old, b"\xff" * 16)
        slow.finish(old)
        now = quick.batch
        assert now is not None
        assert len(quick.piece(now, most=9)) == 5


def test_a_shuffler_with_other_promises_takes_the_store_from_the_first(postgres: PostgresServer) -> None:
    url = postgres.database()
    with closing(opened(url, least=5)) as first:
        first.add(read(made(4)), most=MOST)
        with pytest.raises(InvalidInput, match="as strict"):
            opened(url, least=4)
        with closing(opened(url, least=6)) as second:
            second.add(read(made(1, seed=1)), most=MOST)
            assert not first.make_batch()  # five wait, and the fifth was told six
            with pytest.raises(Refused, match="set up anew"):
                first.add(read(made(1, seed=2)), most=MOST)


def test_a_folder_that_cannot_be_written_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(LedgerUnavailable, match="cannot be written") as error:
        opened(tmp_path / "file" / "below")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"time": 1}, "time"),
        ({"epsilon": 9.0}, "budget"),
        ({"front": b"x" * 32}, "front"),
    ],
)
def test_users_are_refused_as_at_the_collector(tmp_path: Path, change: dict[str, Any], code: str) -> None:
    records = made(3)
    line = Transport("http://127.0.0.1:1", token=TOKEN, retry=QUICK)
    with closing(opened(tmp_path)) as store:
        app = make_shuffler_app(
            store, Forwarder(store, line, at_once=5), settings=ServerSettings(token=TOKEN), most=MOST
        )
        with TestClient(app, headers={"authorization": f"Bearer {TOKEN}"}) as client:
            body = b"".join([*records[:2], changed(records[2], **change)])
            refused = client.post("/v1/records", content=body, headers=OCTETS)
            assert (refused.status_code, refused.json()["error"]) == (400, code)
            assert "Record 2" in refused.json()["message"]
            bare = records[0][:128] + bytes(len(records[0]) - 128)
            found = client.post("/v1/records", content=bare, headers=OCTETS)
            assert found.json()["error"] == "no_noise"
            assert store.waiting == 0
            assert client.get("/healthz", headers={"authorization": ""}).status_code == 200
            assert client.get("/metrics").status_code == 403  # it is not for users
            assert client.get("/v1/collection", headers={"authorization": ""}).status_code == 401
            assert client.get("/v1/batches").status_code == 404


def test_a_shuffler_is_not_put_behind_another(tmp_path: Path) -> None:
    page = replace(spec(), shuffler_least=5).as_dict()
    line = Transport(
        "http://127.0.0.1:1",
        token=TOKEN,
        transport=httpx.MockTransport(lambda _: httpx.Response(200, json=page)),
    )
    with pytest.raises(InvalidInput, match="collect by itself"):
        fetch_spec(line)


def test_adding_and_batching_side_by_side_keeps_every_record(place: str) -> None:
    users = [made(24, seed=seed) for seed in range(4)]
    seen: list[bytes] = []
    with closing(opened(place, least=10)) as store:

        def push(records: list[bytes]) -> None:
            for start in range(0, 24, 3):
                store.add(read(records[start : start + 3]), most=MOST)

        threads = [threading.Thread(target=push, args=(user,)) for user in users]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads) or store.waiting >= 10:
            if store.make_batch():
                seen += store.piece(store.batch, most=1000)
                store.finish(store.batch)
        rest = store.waiting
    sent = Counter(map(content, itertools.chain(*users)))
    assert len(seen) + rest == 96
    assert not Counter(map(content, seen)) - sent


def test_what_senders_and_collectors_are_told_cannot_be_replaced(tmp_path: Path) -> None:
    store, other = opened(tmp_path / "store"), spec("none")
    collection = Collection.open_or_create(tmp_path / "collection", spec())
    for owner, name, value in (
        (store, "offered", spec()),
        (store, "waiting", 10**6),
        (store, "batch", Batch(bytes(16), 10**6, b"")),
        (collection, "spec", other),
        (RecordReader(spec()), "spec", other),
        (spec(), "shuffler_least", 10**6),
        (manifest(), "epsilon", 0.1),
        (manifest().offers[0], "epsilon", 0.1),
    ):
        with pytest.raises(AttributeError):
            setattr(owner, name, value)
    assert store.offered.shuffler_least == 50
    store.close()
    collection.close()
