"""Kills over charges: quotas of users at a server, and the ledger of a client (see `benchmarks.kills`)."""

from __future__ import annotations

import contextlib
import hashlib
import json
import random
import secrets
import sqlite3
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from benchmarks.killed_children import DAY, Say, kill_children
from dp_forward.errors import InvalidInput
from dp_forward.ledger import Ledger
from dp_forward.privacy import NoiseSpec
from dp_forward.service.client.client import Client
from dp_forward.service.client.transport import RetryPolicy
from dp_forward.service.protocol.frame import HEADER_BYTES, parse_frame
from dp_forward.service.protocol.manifest import Manifest
from dp_forward.service.protocol.policy import Policy
from dp_forward.service.server.replay_store import ReplayStore
from dp_forward.service.server.users import Charge, User, UserStore
from dp_forward.split.artifacts import AskingSide, load_asking_side

BODY, CAP, EPSILON = 3, 30, 8.0
"""Items of a body, quota of a user, charge of a text."""
NOTHING = bytes(16)

# Quotas


def user_of(body: bytes) -> User:
    """A tenth of a second has a user of its own, whose cap is a quarter of what is asked for."""
    return User(f"user{int.from_bytes(body[:8], 'big') // 40}", per_day=CAP)


def items_of(body: bytes) -> tuple[bytes, ...]:
    return tuple(body[:15] + bytes([one]) for one in range(BODY))


def count(place: str, say: Say, *, careless: bool = False) -> None:
    """Ask for bodies, few at a time, so that children meet; ``careless``: answer whoever is refused.

    Some requests fail later. They are nobody else's: what two children ask for is not given back by one.
    """
    store, known = UserStore(place), ""
    while True:
        fails = random.random() < 0.2
        moment = (int(time.monotonic() * 100) * 4 + random.randrange(4)).to_bytes(8, "big")
        body = moment + (secrets.token_bytes(7) if fails else bytes(7)) + b"\0"
        user = user_of(body)
        if user.name != known:
            known = user.name
            with contextlib.suppress(InvalidInput):  # another one added it
                store.add(known, per_day=CAP)
        say(b"b", body, NOTHING)
        (charge,) = store.charge([Charge(user, items_of(body), int(time.time() // DAY))])
        if charge.taken and fails:
            store.charge([replace(charge, taken=False)])
        elif charge.taken or careless:
            say(b"a", body, NOTHING)


def kill_quota(place: str, kills: int, *, careless: bool = False) -> dict[str, Any]:
    UserStore(place).close()
    found = kill_children(partial(count, careless=careless), place, kills=kills, number=3)
    every = tuple(item for body in found["begun"] for item in items_of(body))
    with contextlib.closing(UserStore(place)) as store:
        # Whoever asks for all of it is charged for what was not counted before. First of all, since what a
        # child sent to a database before it was killed may still be done: from now on it changes nothing.
        (last,) = store.charge([Charge(User("last", per_day=len(every)), every, int(time.time() // DAY))])
        used = {user["name"]: user["used"] for user in store.list_users()}
    fresh, counted = set(last.new), Counter[str]()
    bodies = {body: BODY - len(fresh & {*items_of(body)}) for body in found["begun"]}
    for body, items in bodies.items():
        counted[user_of(body).name] += items
    return {
        "party": "quota",
        "acknowledged": len(found["acknowledged"]),
        "counted": sum(counted.values()),
        "users": len(used),
        "at_their_cap": sum(1 for number in used.values() if number == CAP),
        "lost": sum(1 for body in found["acknowledged"] if bodies[body] < BODY),
        "torn": sum(1 for items in bodies.values() if items not in (0, BODY)),
        "twice": sum(max(0, number - counted[name]) for name, number in used.items()),
        "uncounted": sum(max(0, counted[name] - number) for name, number in used.items()),
        "above": sum(max(0, number - CAP) for number in used.values()),
    }


# The ledger of a client


class ToServer:
    """A transport of httpx that ends in a server's memory, without a network, and fails now and then."""

    def __init__(self, place: str, user: AskingSide, hear: Callable[[bytes], object], fails: float) -> None:
        self._memory, self._hear, self._fails = ReplayStore(place, seconds=DAY), hear, fails
        self._manifest = Manifest(release=Policy.of(user).release).as_dict()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        body = request.read()
        if not body:
            return httpx.Response(200, json=self._manifest)
        if random.random() < self._fails:
            raise httpx.ConnectError("no connection")
        self._hear(hashlib.sha256(body[HEADER_BYTES:]).digest()[:16])
        name, digest = parse_frame(body).header.request, hashlib.sha256(body).digest()
        own = {"label": "good", "probabilities": {"bad": 0.25, "good": 0.75}, "request": name.hex()}
        found = self._memory.read(name, digest)
        found = found or self._memory.write(name, digest, json.dumps(own).encode())
        if random.random() < self._fails:
            raise httpx.ReadError("the answer was lost")
        return httpx.Response(200, content=found)

    def close(self) -> None:
        self._memory.close()


def client_of(
    place: str, user: AskingSide, ledger: Path, hear: Callable[[bytes], object], *, fails: float = 0.0
) -> Client:
    """``hear`` is given a digest of the integers of every frame that leaves."""
    retry, server = RetryPolicy(attempts=50, first=0.001, longest=0.004), ToServer(place, user, hear, fails)
    return Client(user, server="http://127.0.0.1:1", ledger=ledger, budget=1e6, retry=retry, transport=server)


def text_of(request: bytes) -> str:
    """A text of its own for every number: its octal digits in words."""
    words = ("lovely", "bright", "warm", "moving", "dull", "cold", "grim", "tired")
    return " ".join(words[int(digit)] for digit in f"{int.from_bytes(request, 'big'):o}")


def ask(
    place: str, say: Say, *, user: AskingSide, ledger: Path, began: float, careless: bool = False
) -> None:
    """Ask about texts, often again; ``careless``: do not know a text again, every other time."""
    request = NOTHING
    with client_of(place, user, ledger, lambda drawn: say(b"s", request, drawn), fails=0.1) as client:
        while True:
            # New ones as time goes on, and older ones, over which others were killed.
            now = int((time.monotonic() - began) * 60) * 2 + random.randrange(2)
            request = max(0, now - random.choice((0, random.randrange(40)))).to_bytes(16, "big")
            say(b"b", request, NOTHING)
            client.ask(text_of(request) + (" film" if careless and random.random() < 0.5 else ""))
            say(b"a", request, NOTHING)


def make_front(folder: Path) -> AskingSide:
    """The user's half of a tiny random model."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    import torch

    import tiny_user

    torch.set_num_threads(1)  # a fork has no others
    return load_asking_side(tiny_user.write_user(folder, noise=NoiseSpec(epsilon=EPSILON)) / "front")


def kill_client(place: str, kills: int, *, careless: bool = False) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="dpf-kills-") as folder:
        user, ledger, heard = make_front(Path(folder, "run")), Path(folder, "me.ledger"), list[bytes]()
        client_of(place, user, ledger, heard.append).close()
        work = partial(ask, user=user, ledger=ledger, began=time.monotonic(), careless=careless)
        found = kill_children(work, place, kills=kills, number=2, longest=0.25)
        draws, late = found["answers"], set[bytes]()
        with client_of(place, user, ledger, heard.append) as client:
            for request in found["begun"]:
                heard.clear()
                if client.ask(text_of(request), resend=True).charge:
                    late.add(request)
                draws[request].update(heard)
        with Ledger.open(ledger) as book:
            book.verify()
            spent = book.spent()
        with contextlib.closing(sqlite3.connect(ledger)) as connection:
            (charges,) = connection.execute("SELECT count(*) FROM events WHERE kind = 'reserved'").fetchone()
    undecided = found["begun"] - found["acknowledged"]
    redrawn = sum(1 for each in draws.values() if len(each - {NOTHING}) != 1)
    return {
        "party": "client",
        "acknowledged": len(found["acknowledged"]),
        "interrupted": found["said"][b"b"] - found["said"][b"a"],
        "texts": len(found["begun"]),
        "charges": charges,
        "lost": len(found["acknowledged"] & late),
        "twice": abs(charges - len(found["begun"])) + redrawn,
        "torn": int(spent != charges * EPSILON),
        "killed_before_commit": len(undecided & late),
        "killed_after_commit": len(undecided - late),
    }
