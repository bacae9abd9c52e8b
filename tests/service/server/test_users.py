"""Users: tokens live in one store for all processes, quotas are exact, wrong tokens are slowed."""

from __future__ import annotations

import asyncio
import hashlib
import json
import sqlite3
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from starlette.datastructures import Headers
from starlette.testclient import TestClient

import tiny_user
from dp_forward.errors import InvalidInput
from dp_forward.service.collector.collection_store import Collection
from dp_forward.service.server import users as users_module
from dp_forward.service.server.app import make_app, make_collector_app
from dp_forward.service.server.audit_log import AuditLog
from dp_forward.service.server.request_limits import Refused, refusal
from dp_forward.service.server.settings import ServerSettings
from dp_forward.service.server.users import Charge, Guard, User, Users, UserStore
from dp_forward.storage.stores import is_url
from service.collector import collect_cases

SHARED = "a-token-of-enough-letters"
FRAME = {"content-type": "application/octet-stream"}


@pytest.fixture(autouse=True)
def _quick_refresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(users_module, "_REFRESH_S", 0.02)


@pytest.fixture
def store(place: str) -> Iterator[UserStore]:
    made = UserStore(place)
    yield made
    made.close()


def frame() -> bytes:
    return collect_cases.record(time=int(time.time()))[:-4]


def bearer(token: str) -> dict[str, str]:
    return {**FRAME, "authorization": f"Bearer {token}"}


def served(place: str, **settings: Any) -> TestClient:
    allowed = ServerSettings(store=place, **settings)
    made = make_app(collect_cases.provider(), front_digest=collect_cases.FRONT, settings=allowed)
    return TestClient(made, client=("127.0.0.1", 1))


def asks(token: str, host: str = "127.0.0.1") -> Any:
    """What a guard sees of a request."""
    return SimpleNamespace(headers=Headers(bearer(token)), client=SimpleNamespace(host=host))


def clock(now: float) -> Any:
    """What takes the place of the module `time`: another time of the day."""
    return SimpleNamespace(time=lambda: now, monotonic=time.monotonic)


def wait_until(true: Any, seconds: float = 30.0) -> None:
    until = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < until
        time.sleep(0.01)


def spoil(place: str) -> None:
    """Make a store unusable while it is open."""
    if is_url(place):
        with connected(place) as connection:
            connection.execute("ALTER SCHEMA dpf_users RENAME TO gone")
    else:
        file = Path(place, "users.sqlite")
        file.rename(file.with_name("gone"))
        file.write_bytes(b"damaged" * 1000)


def connected(place: str) -> Any:
    """A connection to a store without the package; it closes at the end of a block."""
    if not is_url(place):
        return closing(sqlite3.connect(Path(place, "users.sqlite")))
    import psycopg

    return psycopg.connect(place, options="-c search_path=dpf_users")


def files_of(place: str) -> list[Path]:
    """The files of a store: those of its folder, or of its database, as they are on disk."""
    folder = Path(place)
    if is_url(place):
        with connected(place) as connection:
            connection.execute("CHECKPOINT")
            number = "SELECT oid FROM pg_database WHERE datname = current_database()"
            (database,) = connection.execute(number).fetchone()
        folder = Path(parse_qs(urlsplit(place).query)["host"][0], "data", "base", str(database))
    return list(folder.iterdir())


def test_a_token_is_shown_once_and_the_store_holds_its_digest_alone(store: UserStore, place: str) -> None:
    token = store.add("alice", per_day=5, group="trial")
    assert len(token) == 64

    def holds(data: bytes) -> bool:
        return any(data in file.read_bytes() for file in files_of(place))

    assert holds(hashlib.sha256(token.encode()).digest())
    assert not holds(token.encode())
    assert not holds(bytes.fromhex(token))


def test_a_store_in_a_folder_is_for_its_owner(tmp_path: Path) -> None:
    store = UserStore(tmp_path / "store")
    store.add("alice")
    assert {stat.S_IMODE(file.stat().st_mode) for file in files_of(str(tmp_path / "store"))} == {0o600}
    store.close()


@pytest.mark.parametrize("name", ["", "two words", "-x", "ä", "a" * 65, "a\nb"])
def test_a_name_is_one_plain_word(store: UserStore, name: str) -> None:
    for words in ((name, "user"), ("alice", name)):
        with pytest.raises(InvalidInput):
            store.add(words[0], group=words[1])
    assert store.list_users() == []


def test_a_user_is_added_once_listed_rotated_and_revoked(store: UserStore) -> None:
    first = store.add("alice", per_day=5, group="trial")
    with pytest.raises(InvalidInput, match="rotate"):
        store.add("alice")
    assert store.list_users() == [{"name": "alice", "class": "trial", "per_day": 5, "used": 0, "tokens": 1}]
    second = store.rotate("alice", grace=60)
    third = store.rotate("alice")
    assert len({first, second, third}) == 3
    assert store.list_users()[0]["tokens"] == 1, "a rotation without grace ends the grace of another"
    store.revoke("alice")
    assert store.tokens() == {}
    for verb in (store.revoke, store.rotate):
        with pytest.raises(InvalidInput, match="users list"):
            verb("alice")


def test_the_guard_says_who_asks_and_a_revoked_token_stops(store: UserStore, place: str) -> None:
    alice, bob = store.add("alice"), store.add("bob")
    users = Users(place, AuditLog(None))
    guard = Guard(SHARED, users=users)
    assert [guard(asks(token)) for token in (alice, bob, SHARED)] == ["alice", "bob", None]
    store.revoke("alice")
    new = store.rotate("bob", grace=60)

    def is_refused(token: str) -> bool:
        try:
            return guard(asks(token)) == "nobody"
        except Refused as refused:
            return refused.code == "token"

    wait_until(lambda: is_refused(alice))
    wait_until(lambda: not is_refused(new))
    assert not is_refused(bob), "within its grace"
    with pytest.MonkeyPatch.context() as later:
        later.setattr(users_module, "time", clock(time.time() + 62))
        assert is_refused(bob)
        assert not is_refused(new)
    assert not is_refused(SHARED)
    asyncio.run(users.close())


def test_a_grace_is_never_shorter_than_said(store: UserStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.add("alice")
    monkeypatch.setattr(users_module, "time", clock(1000.9))
    store.rotate("alice", grace=1)
    assert sorted(until for _, until in store.tokens().values() if until is not None) == [1002]
    store.rotate("alice")
    assert store.list_users()[0]["tokens"] == 1, "without grace the old ones stop at once"


def test_without_tokens_everybody_asks_and_with_a_store_nobody_else_does(place: str) -> None:
    assert Guard(None)(asks("")) is None
    assert Guard(None, users=Users(None, AuditLog(None)))(asks("")) is None
    users = Users(place, AuditLog(None))
    for wrong in ("", "nobody", SHARED):
        with pytest.raises(Refused):
            Guard(None, users=users)(asks(wrong))
    asyncio.run(users.close())


def test_a_store_that_cannot_be_read_refuses_users_and_not_the_shared_token(
    store: UserStore, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = store.add("alice")
    users = Users(place, AuditLog(None))
    guard = Guard(SHARED, users=users)
    monkeypatch.setattr(users_module, "_STALE_S", 2.0)
    assert guard(asks(token)) == "alice"
    spoil(place)
    time.sleep(0.3)
    wait_until(lambda: time.monotonic() - users._read > 2.0)
    with pytest.raises(Refused) as refused:
        guard(asks(token))
    assert refused.value.code == "disk"
    assert guard(asks(SHARED)) is None
    asyncio.run(users.close())


@pytest.mark.parametrize("loose", ["", "users.sqlite"])
def test_a_store_that_others_may_write_to_is_refused(tmp_path: Path, loose: str) -> None:
    UserStore(tmp_path / "users").close()
    (tmp_path / "users" / loose).chmod(0o777)
    with pytest.raises(InvalidInput, match=r"writable by its owner only; got 0o777\. Use chmod go-w"):
        UserStore(tmp_path / "users")
    (tmp_path / "users" / loose).chmod(0o700)
    UserStore(tmp_path / "users").close()


def test_an_audit_log_that_was_there_before_is_closed_to_others(tmp_path: Path) -> None:
    path = tmp_path / "audit"
    path.touch(mode=0o644)
    path.chmod(0o644)
    AuditLog(path).write("start")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_wrong_tokens_are_slowed_by_address_and_a_right_one_never() -> None:
    guard = Guard(SHARED)

    def delay(host: str) -> float:
        with pytest.raises(Refused) as refused:
            guard(asks("wrong", host))
        return refused.value.delay

    assert [delay("10.0.0.1") for _ in range(12)] == [0] * 5 + [0.25, 0.5, 1, 2, 2, 2, 2]
    assert delay("10.0.0.2") == 0, "another address is not slowed"
    assert guard(asks(SHARED, "10.0.0.1")) is None, "nor is a right token of that address"
    assert [delay(f"2001:db8::{n}") for n in range(1, 8)][-1] == 0.5, "a /64 of IPv6 is one address"
    for n in range(5000):
        delay(f"10.{n // 250}.1.{n % 250}")
    assert len(guard._wrong) == 4096


def test_the_refusal_of_many_wrong_tokens_takes_its_time() -> None:
    async def send_all(many: int, guard: Guard) -> tuple[float, int]:
        began, sent = time.monotonic(), []

        async def send(message: Any) -> None:
            sent.append(message)

        for _ in range(many):
            try:
                guard(asks("wrong"))
            except Refused as refused:
                await refusal(refused)({"type": "http"}, None, send)  # type: ignore[arg-type]
        statuses = {message["status"] for message in sent if "status" in message}
        assert statuses == {401}
        return time.monotonic() - began, len(sent)

    assert asyncio.run(send_all(5, Guard(SHARED)))[0] < 0.7  # the control: a few are not slowed
    assert asyncio.run(send_all(7, Guard(SHARED)))[0] > 0.7


def test_a_quota_counts_new_frames_alone(store: UserStore, place: str) -> None:
    alice, bob = store.add("alice", per_day=3, group="trial"), store.add("bob", group="paid")
    with served(place) as client:

        def post(data: bytes, token: str) -> Any:
            return client.post("/v1/answer", content=data, headers=bearer(token))

        frames = [frame() for _ in range(4)]
        silent = frames[0][:-64] + bytes(64)
        assert post(silent[:-1], alice).status_code == 400
        for one in frames[:3]:
            assert [post(one, alice).status_code for _ in range(3)] == [200] * 3, "a retry is free"
        refused = post(frames[3], alice)
        assert (refused.status_code, refused.json()["error"]) == (429, "quota")
        midnight = 86_400 - time.time() % 86_400
        assert abs(int(refused.headers["retry-after"]) - midnight) < 5
        assert post(frames[0], alice).status_code == 200, "what was answered is answered again"
        assert post(frames[3], bob).status_code == 200, "the quota of one is not that of another"
        page = client.get("/metrics", headers=bearer(bob)).text
        assert 'dpf_classes_total{class="trial"} 3.0' in page
        assert 'dpf_classes_total{class="paid"} 1.0' in page
        assert 'outcome="quota"} 1.0' in page
        assert "alice" not in page
    assert [user["used"] for user in store.list_users()] == [3, None], "without a cap nothing is counted"


def test_a_request_that_fails_later_gives_its_count_back(store: UserStore, place: str) -> None:
    token = store.add("alice", per_day=1)
    with served(place) as client:
        handler = client.app.state.handler  # type: ignore[attr-defined]
        compute = handler.batcher._compute
        handler.batcher._compute = lambda batch: [value * float("nan") for value in compute(batch)]
        data = frame()
        assert client.post("/v1/answer", content=data, headers=bearer(token)).status_code == 500
        handler.batcher._compute = compute
        assert client.post("/v1/answer", content=frame(), headers=bearer(token)).status_code == 200
        assert client.post("/v1/answer", content=data, headers=bearer(token)).status_code == 429


def test_what_is_given_back_was_claimed_by_nobody_else(store: UserStore) -> None:
    """A body that will be refused does not carry the same records in for free."""
    alice, bob = User("alice", "user", 3), User("bob", "user", 3)

    def used() -> list[int]:
        return [user["used"] for user in store.list_users()]

    store.add("alice", per_day=3)
    store.add("bob", per_day=3)
    day = int(time.time() // 86_400)
    (refused,) = store.charge([Charge(alice, (b"1", b"2", b"bad"), day)])
    (stored,) = store.charge([Charge(alice, (b"1", b"2"), day)])
    assert (refused.new, stored.new) == ((b"1", b"2", b"bad"), ())
    store.charge([replace(refused, taken=False)])
    assert used() == [2, 0], "what was stored meanwhile stays counted"
    (more,) = store.charge([Charge(alice, (b"3", b"4"), day)])
    assert not more.taken
    (first,) = store.charge([Charge(alice, (b"5",), day)])
    (second,) = store.charge([Charge(bob, (b"5",), day)])
    store.charge([replace(first, taken=False), replace(second, taken=False)])
    assert used() == [3, 0], "nobody is refunded what another was charged"
    (again,) = store.charge([Charge(bob, (b"5",), day)])
    assert again.new == (b"5",), "what nobody claims is new"


def test_a_user_revoked_while_a_body_is_on_its_way_is_refused(store: UserStore, place: str) -> None:
    store.add("alice")
    users = Users(place, AuditLog(None))

    async def ask() -> None:
        async with users.counted("alice", [b"1"]):
            pass
        store.revoke("alice")
        await asyncio.to_thread(wait_until, lambda: "alice" not in users._names)
        with pytest.raises(Refused) as refused:
            async with users.counted("alice", [b"2"]):
                pass
        assert refused.value.code == "token"
        await users.close()

    asyncio.run(ask())


def test_training_records_count_as_requests_do_and_a_body_is_taken_whole(
    store: UserStore, place: str, tmp_path: Path
) -> None:
    token = store.add("alice", per_day=3)
    settings = ServerSettings(store=place)
    collection = Collection.open_or_create(tmp_path / "records", collect_cases.spec())
    with TestClient(make_collector_app(collection, settings=settings)) as client:

        def post(*records: bytes) -> int:
            sent = client.post("/v1/records", content=b"".join(records), headers=bearer(token))
            return sent.status_code

        records = [collect_cases.record(n) for n in range(4)]
        assert [post(*records[:2]), post(*records[:2])] == [200, 200]
        assert post(*records[2:]) == 429
        assert len(collection) == 2
        assert post(*records[1:3]) == 200, "one of them is known"
        assert len(collection) == 3
    assert store.list_users()[0]["used"] == 3


def test_a_quota_is_exact_for_several_connections_at_once(store: UserStore, place: str) -> None:
    user, taken = User("alice", "user", 50), []

    def charge(number: int) -> None:
        own = UserStore(place)
        for n in range(20):
            wanted = [Charge(user, (b"%d.%d" % (number, n),), 1), Charge(user, (b"shared%d" % n,), 1)]
            taken.extend(one for one in own.charge(wanted) if one.taken and one.new)
        own.close()

    store.add("alice", per_day=50)
    threads = [threading.Thread(target=charge, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(taken) == 50
    assert len({one.items for one in taken}) == 50, "each counted once"
    later = store.charge([Charge(user, (b"another",), 2), Charge(user, (b"more",), 1)])
    assert [one.taken for one in later] == [True, False], "a new day is a new quota"


def test_what_was_counted_stands_without_its_user(store: UserStore, place: str) -> None:
    users = [User(name, "user", 9) for name in ("alice", "bob")]
    items = [bytes([n]) * 32 for n in (9, 2, 7, 4)]
    for n, item in enumerate(items):
        store.charge([Charge(users[n % 2], (item,), 1)])
    store.close()
    with connected(place) as connection:
        found = connection.execute("SELECT * FROM counted")
        columns, rows = [column[0] for column in found.description], [row[0] for row in found.fetchall()]
    assert columns == ["item", "day", "claims"]
    assert sorted(rows) == sorted(items)
    if not is_url(place):  # in Postgres rows lie as they came, with the number of their transaction
        assert rows == sorted(items), "the order of arrival is not kept"


def test_the_audit_log_counts_and_names_no_token(store: UserStore, place: str, tmp_path: Path) -> None:
    token = store.add("alice", per_day=0, group="trial")
    with served(place, audit_log=tmp_path / "audit") as client:
        for _ in range(3):
            client.get("/v1/manifest", headers=bearer("a-wrong-token-of-some-length"))
        for _ in range(2):
            assert client.post("/v1/answer", content=frame(), headers=bearer(token)).status_code == 429
    text = (tmp_path / "audit").read_text()
    lines = [{k: v for k, v in json.loads(line).items() if k != "time"} for line in text.splitlines()]
    assert lines == [
        {"event": "quota_refused", "count": 2, "class": "trial"},
        {"event": "token_refused", "count": 3},
    ]
    assert stat.S_IMODE((tmp_path / "audit").stat().st_mode) == 0o600
    assert not any(word in text for word in (token, "wrong", "alice"))


def test_a_server_whose_store_cannot_be_read_is_not_ready(store: UserStore, place: str) -> None:
    with served(place) as client:
        assert client.get("/readyz").json() == {"status": "ok"}
        spoil(place)
        time.sleep(1.1)  # it is looked at once in a second
        found = client.get("/readyz")
        assert (found.status_code, found.json()) == (503, {"status": "store"})


def test_off_loopback_a_store_is_as_good_as_a_token(tmp_path: Path) -> None:
    cert, key = tiny_user.self_signed(tmp_path)
    tls = {"tls_cert": cert, "tls_key": key, "host": "0.0.0.0"}
    ServerSettings(store=tmp_path, **tls)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="--token-file, --tls-cert"):
        ServerSettings(**tls)  # type: ignore[arg-type]
    assert "password" not in repr(ServerSettings(store="postgresql://me:password@host/db"))
