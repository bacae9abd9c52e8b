"""Users of a server: their tokens and quotas in a store, and the guard that says who asks.

A token is 256 random bits, drawn here and shown once. So its SHA-256 is enough to keep: nobody can search
through that many. A lookup is by that digest: its time tells nothing about a token that is not known.

Guarantees:
    The store holds no token. A token that is revoked, rotated or past its grace is refused by every process
    within a second. A quota is exact for all processes on one store: of requests and records that are new,
    never more than ``per_day`` are taken from a user in a day of UTC. A retry of the same bytes does not
    count. A request that is refused for another reason does not, unless the same bytes were taken meanwhile:
    an item is given back only if nobody else claims it. A kill at any moment changes nothing in that.
    Nothing in the store links a user to a request or a record: counts lie by user, digests of what was
    counted by themselves, in the order of the digests.
Edges:
    Where the store cannot be read for five seconds, users are refused ("disk"); a shared token still works.
    A digest is kept for two days, longer than a frame is taken. A record sent again later counts again.
    Of two bodies under one id that reach two workers at once, one is answered, and both may count.
    Wrong tokens are slowed by address, and a right one is answered at once, whatever came from its address.
    So whoever guesses over many connections is slowed little: the length of a token is what protects it.
"""

import hashlib
import hmac
import logging
import math
import re
import secrets
import stat
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from starlette.requests import HTTPConnection

from dp_forward.errors import DpForwardError, InvalidInput, refuse_if
from dp_forward.privacy.checks import count as checked_count
from dp_forward.service.server.audit_log import AuditLog
from dp_forward.service.server.batching import Batcher
from dp_forward.service.server.request_limits import Refused, address_of
from dp_forward.storage.database import Problem
from dp_forward.storage.stores import Place, is_url, open_store

__all__ = ["User", "UserStore", "Users"]

_log = logging.getLogger("dp_forward.service")

_SCHEMA: Final = (
    "CREATE TABLE users (name TEXT PRIMARY KEY NOT NULL, class TEXT NOT NULL, per_day INTEGER) STRICT",
    "CREATE TABLE tokens (digest BLOB PRIMARY KEY NOT NULL, name TEXT NOT NULL, until INTEGER) STRICT",
    "CREATE TABLE usage (name TEXT NOT NULL, day INTEGER NOT NULL, used INTEGER NOT NULL, "
    "PRIMARY KEY (name, day)) STRICT",
    "CREATE TABLE counted (item BLOB PRIMARY KEY NOT NULL, day INTEGER NOT NULL, claims INTEGER NOT NULL) "
    "STRICT, WITHOUT ROWID",
)
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,63}")
_DAY_S: Final = 86_400
_REFRESH_S, _STALE_S = 0.5, 5.0


@dataclass(frozen=True, slots=True)
class User:
    """A user; ``group`` is the class that metrics and the audit log may name, ``per_day`` None for no cap."""

    name: str
    group: str = "user"
    per_day: int | None = None


@dataclass(frozen=True, slots=True)
class Charge:
    """Requests or records of a user on a day; ``new`` ones were counted, ``taken`` if the quota allowed."""

    user: User
    items: tuple[bytes, ...]
    day: int
    taken: bool = True
    new: tuple[bytes, ...] = ()


class UserStore:
    """The store of users, open; see the module. Threads may share one. Only if ``new`` may it be made."""

    def __init__(self, place: Place, *, new: bool = True) -> None:
        file = None if is_url(place) else Path(place) / "users.sqlite"
        missing = file is not None and not new and not file.is_file()
        refuse_if(missing, "store", "hold users", place, "Check the path, or add one: dpf serve users add.")

        def refuse(problem: Problem) -> DpForwardError:
            rule = "be a folder or a database that can be used"
            return InvalidInput("store", rule, problem.detail or problem.kind, "Name another.")

        self._database = open_store(place, _SCHEMA, refuse=refuse, name="users")
        if file is not None:  # whoever may write here adds a token of his own
            for path in (file.parent, file):
                if (mode := stat.S_IMODE(path.stat().st_mode)) & 0o022:
                    self._database.close()
                    raise InvalidInput("store", "be writable by its owner only", oct(mode), "Use chmod go-w.")
        self.close = self._database.close  # close the store; closing twice is harmless
        self._pruned = 0

    def add(self, name: str, *, per_day: int | None = None, group: str = "user") -> str:
        """Add a user: the token, which is nowhere else."""
        for what, word in (("name", name), ("class", group)):
            found, rule = f"{len(word)} characters", "be one word of up to 64 letters, digits and . _ @ + -"
            refuse_if(_NAME.fullmatch(word) is None, what, rule, found, "Use such as alice.")
        if per_day is not None:
            checked_count("per-day", per_day, at_least=0, remedy="Leave it out for no cap.")
        token = secrets.token_hex(32)
        with self._database.transaction(write=True) as connection:
            new = "INSERT INTO users VALUES (?, ?, ?) ON CONFLICT DO NOTHING RETURNING name"
            if connection.execute(new, (name, group, per_day)).fetchone() is None:
                raise InvalidInput("name", "be new", name, "Use rotate for another token.")
            connection.execute("INSERT INTO tokens VALUES (?, ?, NULL)", (_digest(token), name))
        return token

    def revoke(self, name: str) -> None:
        """Remove a user with all tokens; what was used today stays counted for the name."""
        with self._database.transaction(write=True) as connection:
            _check_known(connection, name)
            connection.execute("DELETE FROM users WHERE name = ?", (name,))
            connection.execute("DELETE FROM tokens WHERE name = ?", (name,))

    def rotate(self, name: str, *, grace: int = 0) -> str:
        """Another token; the old ones stop, after ``grace`` seconds or at the end they had before."""
        checked_count("grace", grace, at_least=0, remedy="It is a number of seconds.")
        token, now = secrets.token_hex(32), time.time()
        until = math.ceil(now + grace) if grace else int(now)  # a grace is never shorter than said
        with self._database.transaction(write=True) as connection:
            _check_known(connection, name)
            connection.execute("DELETE FROM tokens WHERE name = ? AND until <= ?", (name, int(now)))
            old = "UPDATE tokens SET until = ? WHERE name = ? AND (until IS NULL OR until > ?)"
            connection.execute(old, (until, name, until))
            connection.execute("INSERT INTO tokens VALUES (?, ?, NULL)", (_digest(token), name))
        return token

    def list_users(self) -> list[dict[str, Any]]:
        """Name, class, cap, use of today (of a cap) and the number of working tokens of every user."""
        query = (
            "SELECT name, class, per_day, CASE WHEN per_day IS NOT NULL THEN "
            "coalesce((SELECT used FROM usage WHERE usage.name = users.name AND day = ?), 0) END, "
            "(SELECT count(*) FROM tokens WHERE tokens.name = users.name AND (until IS NULL OR until > ?)) "
            "FROM users ORDER BY name"
        )
        now = int(time.time())
        with self._database.transaction(write=False) as connection:
            rows = connection.execute(query, (now // _DAY_S, now)).fetchall()
        names = ("name", "class", "per_day", "used", "tokens")
        return [dict(zip(names, row, strict=True)) for row in rows]

    def tokens(self) -> dict[bytes, tuple[User, int | None]]:
        """Digest -> user and end (None: never), of all tokens."""
        query = "SELECT digest, until, name, class, per_day FROM tokens JOIN users USING (name)"
        with self._database.transaction(write=False) as connection:
            rows = connection.execute(query).fetchall()
        return {bytes(digest): (User(*user), until) for digest, until, *user in rows}

    def charge(self, wanted: Sequence[Charge]) -> list[Charge]:
        """Count what is new, each charge whole or not at all; one that is not ``taken`` is taken back."""
        with self._database.transaction(write=True) as connection:
            if wanted and wanted[-1].day > self._pruned:
                self._pruned = wanted[-1].day
                connection.execute("DELETE FROM usage WHERE day < ?", (self._pruned - 1,))
                connection.execute("DELETE FROM counted WHERE day < ?", (self._pruned - 2,))
            return [_take(connection, one) if one.taken else _give_back(connection, one) for one in wanted]


def _take(connection: Any, charge: Charge) -> Charge:
    """The charge with the items that are new; not ``taken``, and nothing changed, where the cap is passed."""
    user, day = charge.user, charge.day
    claim = (
        "INSERT INTO counted VALUES (?, ?, 1) "
        "ON CONFLICT (item) DO UPDATE SET claims = counted.claims + 1 RETURNING claims"
    )
    new = tuple(i for i in charge.items if connection.execute(claim, (i, day)).fetchone()[0] == 1)
    connection.execute("INSERT INTO usage VALUES (?, ?, 0) ON CONFLICT DO NOTHING", (user.name, day))
    grow = "UPDATE usage SET used = used + ? WHERE name = ? AND day = ? AND used + ? <= ? RETURNING used"
    allowed = connection.execute(grow, (len(new), user.name, day, len(new), user.per_day)).fetchone()
    if new and allowed is None:
        _unclaim(connection, charge.items)
        return replace(charge, taken=False)
    return replace(charge, new=new)


def _give_back(connection: Any, charge: Charge) -> Charge:
    """Refund what was new with this charge and is claimed by no other: others' items were others' charges."""
    refunded = _unclaim(connection, charge.items) & set(charge.new)
    shrink = "UPDATE usage SET used = used - ? WHERE name = ? AND day = ?"
    connection.execute(shrink, (len(refunded), charge.user.name, charge.day))
    return charge


def _unclaim(connection: Any, items: Sequence[bytes]) -> set[bytes]:
    """Take one claim off each item; those that nobody claims any more, which are forgotten."""
    for item in items:
        connection.execute("UPDATE counted SET claims = claims - 1 WHERE item = ?", (item,))
    gone = "DELETE FROM counted WHERE item = ? AND claims <= 0 RETURNING day"
    return {item for item in items if connection.execute(gone, (item,)).fetchone() is not None}


def _check_known(connection: Any, name: str) -> None:
    if connection.execute("SELECT name FROM users WHERE name = ?", (name,)).fetchone() is None:
        raise InvalidInput("name", "be a user of this store", name, "See dpf serve users list.")


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "replace")).digest()


class Users:
    """The users of a store as one server knows them, and what it counts for ``audit``; without one, nobody.

    A thread reads the store twice a second, so no request waits for it; another connection counts.
    """

    def __init__(self, place: Place | None = None, audit: AuditLog | None = None) -> None:
        self.audit = audit or AuditLog(None)
        self.classes = Counter[str]()  # answers and bodies of records by class of user
        self.known = place is not None
        self._tokens, self._names = dict[bytes, tuple[User, int | None]](), dict[str, User]()
        self._read, self._stopping = 0.0, threading.Event()
        self._stores = [] if place is None else [UserStore(place), UserStore(place)]
        if self._stores:
            self._refresh()
            threading.Thread(target=self._follow, name="dpf-users", daemon=True).start()
            count = self._stores[1].charge
            self._charges = Batcher[Charge, Charge](count, max_batch=256, max_wait_ms=0, queue=1 << 14)

    def check(self) -> None:
        """Read the store once more; its error where that fails."""
        if self._stores:
            self._stores[0].tokens()

    def by_token(self, token: str) -> User | None:
        """Whose token this is."""
        user, until = self._tokens.get(_digest(token), (None, 0))
        if user is not None and time.monotonic() - self._read > _STALE_S:
            raise Refused("disk", "The store of users cannot be used (unavailable).", retry_after=5)
        return user if until is None or time.time() < until else None

    @asynccontextmanager
    async def counted(self, name: str | None, items: Sequence[bytes]) -> AsyncIterator[None]:
        """Count these digests for the block, and no longer if it fails.

        `Refused` past the cap ("quota"), and for a user who was revoked since the request began.
        """
        user, charge, now = self._names.get(name or ""), None, time.time()
        if user is None and name is not None:
            raise Refused("token", "This token was revoked.")
        if user is not None and user.per_day is not None:
            charge = await self._charges.submit(Charge(user, tuple(items), int(now // _DAY_S)))
            if not charge.taken:
                self.audit.count("quota_refused", user.group)
                message = f"The quota of {user.per_day} a day is used up. It is new at midnight UTC."
                raise Refused("quota", message, retry_after=1 + int(_DAY_S - now % _DAY_S))
        try:
            yield
        except Exception:
            if charge is not None:
                await self._charges.submit(replace(charge, taken=False))
            raise
        if user is not None:
            self.classes[user.group] += 1

    async def close(self) -> None:
        """Finish counting, write what the audit log is owed, close the store."""
        self._stopping.set()
        if self._stores:
            await self._charges.close()
        for store in self._stores:
            store.close()
        self.audit.flush()

    def _refresh(self) -> None:
        began, tokens = time.monotonic(), self._stores[0].tokens()
        self._names = {user.name: user for user, _ in tokens.values()}
        self._tokens, self._read = tokens, began

    def _follow(self) -> None:
        while not self._stopping.wait(_REFRESH_S):
            try:
                self._refresh()
            except DpForwardError as error:
                if not self._stopping.is_set():
                    _log.warning("%s", error)


class Guard:
    """Who may ask: who has the ``token`` or one of ``others``, and all ``users``; or else everybody.

    Edges:
        After five wrong tokens within a minute from an address (of IPv6: from its /64), the refusal of the
        next comes later and later, up to two seconds. At most 4,096 addresses are remembered.
    """

    _FREE, _FORGET_S, _LONGEST_S, _MOST = 5, 60.0, 2.0, 4096

    def __init__(self, token: str | None, *others: str, users: Users | None = None) -> None:
        self._users = users or Users()
        self._open = token is None and not self._users.known
        self._tokens = [known.encode() for known in (token, *others) if known is not None]
        self._wrong: OrderedDict[str, tuple[int, float]] = OrderedDict()

    def __call__(self, connection: HTTPConnection) -> str | None:
        """The name of the user, None for a shared token; else `Refused`, in constant time."""
        if self._open:
            return None
        scheme, _, given = connection.headers.get("authorization", "").partition(" ")
        token = given if scheme == "Bearer" else ""
        data = token.encode("utf-8", "replace")
        shared = sum([hmac.compare_digest(data, known) for known in self._tokens])
        user = self._users.by_token(token)
        if shared:
            return None
        if user is not None:
            return user.name
        self._users.audit.count("token_refused")
        message = "This server answers with its token only. Send it as a bearer token."
        raise Refused("token", message, delay=self._delay(address_of(connection)))

    def _delay(self, host: str) -> float:
        """Seconds that the refusal of one more wrong token from this address waits."""
        now = time.monotonic()
        count, last = self._wrong.pop(host, (0, now))
        count = 1 if now - last > self._FORGET_S else count + 1
        self._wrong[host] = (count, now)
        if len(self._wrong) > self._MOST:
            self._wrong.popitem(last=False)
        return min(self._LONGEST_S, 0.125 * 2.0 ** min(count - self._FREE, 9)) if count > self._FREE else 0.0
