"""Kills at random moments: what was acknowledged is stored, and nothing is stored twice.

python -m benchmarks.kills --store sqlite|postgres [--url postgresql://...] [--kills 500] [--json]

Children do only what a party does with its store, one after another is killed (SIGKILL) and replaced, and
then the store is read:

* collector: bodies of three records, by two processes;
* shuffler: records are taken, mixed and passed on to a collection, by one process over SQLite and by two over
  Postgres;
* server: ids are looked up, answered and remembered, by three processes. Each computes an answer of its own,
  so two answers to one id would be seen;
* quota: bodies are counted for users with a cap by three processes, some are given back, many are retried.
  What was used is what was counted, each once, and never above the cap;
* client: two processes with one ledger (a file, whatever the store) ask a server that remembers in the store,
  over a network that fails. In the end every text is asked once more: it has one charge and one draw, whose
  charges add up to what was spent.

Without --url, Postgres runs in a temporary folder (tests/postgres_server.py). The exit code is 1 where
something was lost, doubled, torn, not counted or above a cap.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import random
import secrets
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

from benchmarks.charge_kills import kill_client, kill_quota
from benchmarks.killed_children import DAY, Say, kill_children
from dp_forward.privacy import NoiseSpec
from dp_forward.release_spec import ReleaseSpec
from dp_forward.service.client.transport import Call, Reply
from dp_forward.service.collector.collection_store import Collection, counts
from dp_forward.service.protocol.collection import CollectionSpec, Record, pack_record, parse_record
from dp_forward.service.protocol.manifest import Manifest
from dp_forward.service.server.replay_store import ReplayStore
from dp_forward.service.shuffler.shuffler_app import send_batch
from dp_forward.service.shuffler.shuffler_store import ShufflerStore
from dp_forward.storage.stores import is_url

BODY, LEAST = 3, 9
"""Records of a body, and the fewest of a batch."""


@cache
def spec() -> CollectionSpec:
    release = ReleaseSpec(
        noise=NoiseSpec(epsilon=8.0),
        cut="encoder.2",
        front="ab" * 32,
        labels=("bad", "good"),
        rows=4,
        width=16,
        bits=8,
    )
    return CollectionSpec.of(Manifest(release=release), "public")


def record(request: bytes) -> Record:
    """The one record of an id; its integers follow from the id."""
    noisy = hashlib.shake_128(request).digest(spec().manifest.release.payload_bytes)
    header = spec().manifest.header(request=request).pack()
    return parse_record(pack_record(header + noisy, noisy[0] % 2), labels=2)


def fresh_body() -> list[Record]:
    """Records whose ids differ in their last byte only."""
    name = secrets.token_bytes(15)
    return [record(name + bytes([number])) for number in range(BODY)]


def collect(place: str, say: Say) -> None:
    with Collection.open(place) as collection:
        while True:
            body = fresh_body()
            say(b"b", body[0].header.request, bytes(16))
            collection.add(body)
            say(b"a", body[0].header.request, bytes(16))


def collect_carelessly(place: str, say: Say) -> None:
    """The control: acknowledged before it is stored."""
    with Collection.open(place) as collection:
        while True:
            body = fresh_body()
            say(b"a", body[0].header.request, bytes(16))
            collection.add(body)


class ToCollection:
    """A transport that ends in a collection, without a network."""

    def __init__(self, collection: Collection) -> None:
        self._collection = collection

    def send(self, call: Call) -> Reply:
        batch, what = call.path.split("/")[3:]
        body = call.body or b""
        if what == "seal":
            self._collection.seal(bytes.fromhex(batch), json.loads(body)["records"])
            return Reply(200, json.dumps({"sealed": True}).encode())
        size = spec().record_bytes
        records = [parse_record(body[at : at + size], labels=2) for at in range(0, len(body), size)]
        stored, known = self._collection.add(records, bytes.fromhex(batch))
        return Reply(200, json.dumps({"stored": stored, "known": known}).encode())


def shuffle(place: str, say: Say) -> None:
    store = ShufflerStore(place, spec(), least=LEAST)
    with Collection.open(beside(place)) as collection:
        while True:
            body = fresh_body()
            say(b"b", body[0].header.request, bytes(16))
            store.add(body, most=1 << 20)
            say(b"a", body[0].header.request, bytes(16))
            forward(store, collection)


def forward(store: ShufflerStore, collection: Collection) -> None:
    while store.due:
        with store.try_lock() as mine:
            if not mine:
                return
            store.make_batch()
            send_batch(store, ToCollection(collection), at_once=4)  # type: ignore[arg-type]


def beside(place: str) -> str:
    """Where the shuffler's collector stores: the same database, or a folder beside it."""
    return place if is_url(place) else f"{place}-collected"


def answer(place: str, say: Say, *, careless: bool = False) -> None:
    memory = ReplayStore(place, seconds=DAY)
    while True:
        # Few ids at a time, so that children meet.
        number = int(time.monotonic() * 100) * 4 + random.randrange(4)
        request, own = hashlib.sha256(number.to_bytes(8, "big")).digest()[:16], secrets.token_bytes(16)
        found = memory.read(request, request)
        if found is None:
            found = memory.write(request, request, own)
            found = own if careless else found
        say(b"a", request, found)


def answer_carelessly(place: str, say: Say) -> None:
    """The control: gives its own answer, whatever stands."""
    answer(place, say, careless=True)


def outcome(party: str, found: dict[str, Any], there: Counter[bytes], **more: int) -> dict[str, Any]:
    """What became of the bodies; ``there`` counts how often each record is stored, by its id."""
    bodies = Counter(request[:15] for request in there)
    undecided = found["begun"] - found["acknowledged"]
    return {
        "party": party,
        "acknowledged": len(found["acknowledged"]),
        "lost": sum(1 for request in found["acknowledged"] if bodies[request[:15]] < BODY),
        "twice": sum(1 for times in there.values() if times > 1),
        "torn": sum(1 for records in bodies.values() if records != BODY),
        "killed_before_commit": sum(1 for request in undecided if not bodies[request[:15]]),
        "killed_after_commit": sum(1 for request in undecided if bodies[request[:15]]),
        **more,
    }


def kill_collector(place: str, kills: int, *, careless: bool = False) -> dict[str, Any]:
    Collection.open_or_create(place, spec()).close()
    work = collect_carelessly if careless else collect
    found = kill_children(work, place, kills=kills, number=2)
    with Collection.open(place) as collection, collection.snapshot() as moment:
        rows = moment.execute("SELECT request, noisy FROM records WHERE batch IS NULL").fetchall()
    assert all(record(request).noisy == noisy for request, noisy in rows)
    return outcome("collector", found, Counter(request for request, _ in rows))


def kill_shuffler(place: str, kills: int) -> dict[str, Any]:
    Collection.open_or_create(beside(place), spec()).close()
    found = kill_children(shuffle, place, kills=kills, number=2 if is_url(place) else 1, longest=0.25)
    with contextlib.closing(ShufflerStore(place, spec(), least=LEAST)) as store:
        with Collection.open(beside(place)) as collection:
            forward(store, collection)
            with collection.snapshot() as moment:
                sums = counts(moment)
                sent = moment.execute("SELECT noisy FROM records WHERE batch IS NOT NULL").fetchall()
        with store._store.transaction(write=False) as connection:
            waiting = connection.execute("SELECT request, content FROM waiting").fetchall()
        retried = [record(request) for request in sorted(found["acknowledged"])[:60]]
        known = store.add(retried, most=1 << 20) == (0, len(retried))
    # The ids of a batch are new ones; the integers tell which record it was.
    every = {request[:15] + bytes([n]) for request in found["begun"] for n in range(BODY)}
    by_noisy = {record(request).noisy: request for request in every}
    there = Counter(by_noisy[row[0]] for row in sent)
    there.update(request for request, _ in waiting)
    unsealed = sums["waiting"] + (not known)
    return outcome("shuffler", found, there, batches=sums["batches"], unsealed=unsealed)


def kill_server(place: str, kills: int, *, careless: bool = False) -> dict[str, Any]:
    ReplayStore(place, seconds=DAY).close()
    work = answer_carelessly if careless else answer
    found = kill_children(work, place, kills=kills, number=3)
    with contextlib.closing(ReplayStore(place, seconds=DAY)) as memory:
        stored = {request: memory.read(request, request) for request in found["answers"]}
    return {
        "party": "server",
        "acknowledged": found["said"].total(),
        "ids": len(stored),
        "lost": sum(1 for kept in stored.values() if kept is None),
        "twice": sum(1 for given in found["answers"].values() if len(given) > 1),
        "torn": sum(1 for request, given in found["answers"].items() if stored[request] not in given),
    }


def run(place: Callable[[], str], kills: int) -> list[dict[str, Any]]:
    """An equal share of the kills for each party, each over a store of its own."""
    parties = (kill_collector, kill_shuffler, kill_server, kill_quota, kill_client)
    shares = [kills // len(parties) + (number < kills % len(parties)) for number in range(len(parties))]
    found = []
    for party, share in zip(parties, shares, strict=True):
        began = time.monotonic()
        found.append({"kills": share, **party(place(), share)})
        found[-1]["seconds"] = round(time.monotonic() - began, 1)
    return found


def wrong(rows: list[dict[str, Any]]) -> int:
    """How much was lost, doubled, torn, left open, not counted or above a cap."""
    names = ("lost", "twice", "torn", "unsealed", "uncounted", "above")
    return sum(row.get(name, 0) for row in rows for name in names)


@contextlib.contextmanager
def places(store: str, url: str | None) -> Iterator[Callable[[], str]]:
    """Makes a new place for every party."""
    with contextlib.ExitStack() as stack:
        if store == "sqlite":
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="dpf-kills-"))
            yield lambda: os.path.join(folder, secrets.token_hex(4))
        elif url is not None:
            yield lambda: url  # the parties have schemas of their own
        else:
            from tests.postgres_server import PostgresServer

            server = PostgresServer()
            stack.callback(server.remove)
            yield server.database


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--store", choices=("sqlite", "postgres"), required=True)
    parser.add_argument("--url", help="an empty database of a Postgres server that runs already")
    parser.add_argument("--kills", type=int, default=500)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(arguments)
    with places(given.store, given.url) as place:
        rows = run(place, given.kills)
    if given.json:
        print(json.dumps({"store": given.store, "kills": given.kills, "wrong": wrong(rows), "parties": rows}))
    else:
        for row in rows:
            print(", ".join(f"{name} {value}" for name, value in row.items()))
    return 1 if wrong(rows) else 0


if __name__ == "__main__":
    sys.exit(main())
