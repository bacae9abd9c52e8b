"""Verification of a ledger: what a chain of events proves, checked row by row.

The ledger answers from this state and not from queries, so a damaged index can make it refuse but never
forget a charge.
"""

import contextlib
import hashlib
import sqlite3
import struct
import time
from dataclasses import dataclass, field, replace
from datetime import date, timedelta
from enum import StrEnum
from functools import lru_cache
from typing import Final

from dp_forward.errors import DpForwardError, InvalidInput, LedgerCorrupt
from dp_forward.ledger.ledger_file import DIGEST_BYTES, GENESIS, Event, digest_of, read_mechanism
from dp_forward.ledger.terms import NO_LIMIT, Terms
from dp_forward.privacy import Unit
from dp_forward.privacy.cap import Cap
from dp_forward.privacy.charge import Charge

KEY_BYTES: Final = range(16, 65)
DAY_NS: Final = 86_400 * 10**9  # a day of UTC; unix time knows no leap seconds

_NOTHING: Final = Charge()
_BEFORE_ALL: Final = -(2**63)
# The order of the columns is the order of `Event`; opening the file checked its tables.
_EVENTS_FROM: Final = "SELECT * FROM events WHERE sequence >= ? ORDER BY sequence"


class State(StrEnum):
    """How far a release has come: charged, drawn and stored, known to have arrived."""

    RESERVED = "reserved"
    READY = "ready"
    DELIVERED = "delivered"


_OPENED: Final = "opened"
_RESTATED: Final = "restated"
_DUE: Final = {State.READY: State.RESERVED, State.DELIVERED: State.READY}
"""The state that a release must have before each step."""
_COLUMNS: Final = {
    _OPENED: ("key", "mechanism", "epsilon_units", "mu2_units", "cap", "delta", "per_day"),
    State.RESERVED: ("key", "mechanism"),
    State.READY: ("payload_sha256", "payload_length"),
    State.DELIVERED: (),
    _RESTATED: ("epsilon_units", "mu2_units", "cap", "delta"),
}
"""What a row of each kind states itself; all else in it follows from its charge and from the rows before."""


@dataclass(frozen=True, slots=True)
class Release:
    """One noisy matrix that leaves (or left): its ``id``, ``state``, ``mechanism`` (a name) and cost."""

    id: int
    state: State
    charge: Charge
    mechanism: str = ""
    key: bytes = field(default=b"", repr=False)
    unit: Unit | None = None
    time_ns: int = field(default=0, compare=False)
    """When it was charged, by this machine's clock."""


class VerifiedChain:
    """The state after the first rows of a chain, every one of them verified.

    Guarantees:
        `append` accepts a row only if its hash is right, it follows the row before it, its totals add up, and
        its release takes the next step of reserved -> ready -> delivered; else nothing changes.
    """

    def __init__(self) -> None:
        self.sequence = 0
        self.head = GENESIS
        self._terms: Terms | None = None
        self._older: Event | None = None
        self.payloads: dict[int, Event] = {}
        self.total = _NOTHING  # the charge of all releases together
        self._releases: list[Release] = []
        self._by_key: dict[bytes, int] = {}
        self._pending: dict[int, None] = {}
        self._days: dict[int, Charge] = {}
        self._units: dict[Unit | None, None] = {}

    def __len__(self) -> int:
        return len(self._releases)

    def total_since(self, day: int) -> Charge:
        """The charge of the releases of this day (days since 1970, UTC) and of all later ones."""
        return sum((cost for other, cost in self._days.items() if other >= day), _NOTHING)

    @property
    def terms(self) -> Terms:
        """What the ledger promises and admits."""
        if self._terms is None:
            raise LedgerCorrupt("The ledger states no shares.")
        return self._terms

    @property
    def older(self) -> bool:
        """Whether this is a chain of schema version 2, whose promise is to be restated first."""
        return self._older is not None and self._terms is None

    def terms_event(self, terms: Terms | None = None) -> Event:
        """The row that states the terms of a new ledger, or from now on those of an older one."""
        kind = _OPENED
        if terms is None:
            kind, terms = _RESTATED, self._restated_terms()
        return self.next_event(kind)._replace(
            epsilon_units=terms.limit.epsilon_units,
            mu2_units=terms.limit.mu2_units,
            cap=0.0 if terms.cap is None else terms.cap.epsilon,
            delta=terms.delta,
            per_day=terms.per_day or 0.0 if kind == _OPENED else 0.0,
        )

    def _restated_terms(self) -> Terms:
        if self._older is None:
            raise LedgerCorrupt("The ledger states its shares already.")
        opened = self._older
        return Terms.restate(opened.cap, opened.delta, opened.per_day or None, self.total)

    @property
    def unit(self) -> Unit | None:
        """The unit that all charges protect; None where it is not fixed yet or was never stated."""
        return next(iter(self._units)) if len(self._units) == 1 else None

    def admits(self, unit: Unit | None) -> bool:
        """Whether a charge of this unit would leave the ledger with one unit, known or not."""
        return not self._units or self._units.keys() == {unit}

    def get(self, release_id: int) -> Release | None:
        return self._releases[release_id - 1] if 1 <= release_id <= len(self) else None

    def find(self, key: bytes) -> Release | None:
        return self.get(self._by_key.get(key, 0))

    def pending(self) -> tuple[Release, ...]:
        """Releases that were charged and are not known to have arrived, oldest first."""
        return tuple(self._releases[number - 1] for number in self._pending)

    def latest(self, most: int) -> tuple[Release, ...]:
        """The last releases that were charged, newest first."""
        return tuple(reversed(self._releases[-most:]))

    def next_event(self, kind: str, *, release: int = 0, charge: Charge = _NOTHING) -> Event:
        """The row that would follow now, not sealed yet."""
        total = self.total + charge
        return Event(
            sequence=self.sequence + 1,
            kind=str(kind),
            release=release,
            epsilon_units=charge.epsilon_units,
            mu2_units=charge.mu2_units,
            total_epsilon_units=total.epsilon_units,
            total_mu2_units=total.mu2_units,
            time_ns=time.time_ns(),
            previous=self.head,
        )

    def catch_up(self, connection: sqlite3.Connection) -> None:
        """Read the rows that were added since; what was read before must still be there.

        Guarantees:
            Afterwards this is the whole chain as the transaction sees it, every row checked.
        """
        known = self.sequence
        with contextlib.closing(connection.execute(_EVENTS_FROM, (known or _BEFORE_ALL,))) as cursor:
            rows = map(Event._make, cursor)
            if known:
                last = next(rows, None)
                if last is None or last.sequence != known or last.digest != self.head:
                    raise LedgerCorrupt(
                        f"Ledger row {known} has changed or gone since it was read; an older copy of "
                        "the file may have been restored."
                    )
            for event in rows:
                self.append(event)
        head = connection.execute("SELECT sequence, digest FROM head").fetchall()
        if head != [(self.sequence, self.head)]:
            told = "is missing: the chain does not end where it should"
            raise LedgerCorrupt(f"Ledger row {self.sequence + 1} {told}.")

    def append(self, event: Event) -> None:
        try:
            problem = self._broken_row(event) or self._broken_law(event)
        except (struct.error, TypeError, AttributeError, UnicodeError):
            problem = "a column holds a value of the wrong type"
        except InvalidInput:
            problem = "its unit is unknown"
        if problem:
            raise LedgerCorrupt(f"Ledger row {self.sequence + 1} is damaged: {problem}.")
        self._take(event)

    def check_budgets(self) -> None:
        """Refuse a chain that charged more than it was allowed to, in all or on one day."""
        if not self.sequence:
            raise LedgerCorrupt("Ledger row 1 is missing: the chain is empty.")
        terms = self._restated_terms() if self.older else self.terms
        if not self.total <= terms.limit:
            told = f"{self.total} was charged of {terms.limit} in all"
            raise LedgerCorrupt(f"Ledger row {self.sequence} is damaged: {told}.")
        for day, charged in self._days.items():
            if not charged <= terms.day_limit:
                told = f"{charged} on {_date(day)} where {terms.day_limit} a day is allowed"
                raise LedgerCorrupt(f"The ledger is damaged: {told}.")

    def read_payload(self, connection: sqlite3.Connection, release_id: int) -> bytes:
        """The stored bytes of a release that is ready, checked against the chain."""
        row = self.payloads[release_id]
        query = "SELECT bytes FROM payloads WHERE sequence = ?"
        found = connection.execute(query, (row.sequence,)).fetchone()
        data: object = found[0] if found else None
        if not isinstance(data, bytes) or hashlib.sha256(data).digest() != row.payload_sha256:
            raise LedgerCorrupt(
                f"Ledger row {row.sequence} is damaged: the payload of release {release_id} is not the one "
                "that was stored."
            )
        return data

    def check_payloads(self, connection: sqlite3.Connection) -> None:
        """Refuse a file in which a payload is not the one of the chain, or belongs to no row."""
        for release_id, row in self.payloads.items():
            if len(self.read_payload(connection, release_id)) != row.payload_length:
                raise LedgerCorrupt(f"Ledger row {row.sequence} is damaged: the payload has another length.")
        (count,) = connection.execute("SELECT count(*) FROM payloads").fetchone()
        if count != len(self.payloads):
            raise LedgerCorrupt("The ledger holds payloads that no row speaks of.")

    def _broken_row(self, event: Event) -> str:
        """Whether a row is other than the one that would be written here for what it states."""
        if event.digest != digest_of(event):
            return "its hash does not match its contents"
        columns = _COLUMNS.get(event.kind)
        if columns is None:
            return "its kind is unknown"
        charge, release = _charge(event.epsilon_units, event.mu2_units), len(self) + 1
        if event.kind != State.RESERVED:
            charge, release = _NOTHING, event.release if event.kind in _DUE else 0
        due = self.next_event(event.kind, release=release, charge=charge)
        free = {name: getattr(event, name) for name in (*columns, "time_ns", "digest")}
        rows = zip(Event._fields, event, due._replace(**free), strict=True)
        other = [name for name, found, wanted in rows if found != wanted]
        return f"its {other[0]} does not follow from the rows before it" if other else ""

    def _broken_law(self, event: Event) -> str:
        if (event.kind == _OPENED) != (event.sequence == 1):
            return "a ledger is opened once, by its first row"
        if event.kind in (_OPENED, _RESTATED):
            return self._broken_terms(event)
        if event.kind == State.RESERVED:
            return self._broken_reservation(event)
        due, release = _DUE[State(event.kind)], self.get(event.release)
        if release is None or release.state is not due:
            return f"release {event.release} is not {due}"
        held = len(event.payload_sha256) == DIGEST_BYTES and event.payload_length > 0
        return "" if held or event.kind != State.READY else "its payload's digest or length makes no sense"

    def _broken_terms(self, event: Event) -> str:
        if read_mechanism(event.mechanism)[0]:
            return "opening a ledger releases nothing"
        if event.kind == _RESTATED and not self.older:
            return "only an older ledger is restated, and once"
        try:
            terms = self._stated_terms(event)
        except DpForwardError:
            return "the cap, the budget of a day or delta makes no sense"
        if terms is not None and not self.total <= terms.limit:
            return "more was charged than it allows"
        return ""

    def _stated_terms(self, event: Event) -> Terms | None:
        """The terms of a row ``opened`` or ``restated``; None for an opening of schema version 2."""
        shares = _charge(event.epsilon_units, event.mu2_units)
        sense = InvalidInput("terms", "make sense", "others", "The file is damaged.")
        if event.kind == _RESTATED:
            terms = self._restated_terms()
            promised = None if terms.cap is None else (terms.cap.epsilon, terms.delta, 0.0)
            if (event.cap, event.delta, event.per_day) != promised:
                raise sense
            return replace(terms, limit=shares, day_limit=terms.day_limit if terms.per_day else shares)
        if event.cap and shares:
            return Terms.of(Cap(event.cap, event.delta, shares), event.per_day or None)
        if event.cap:
            Terms.restate(event.cap, event.delta, event.per_day or None, _NOTHING)
            return None
        if shares != NO_LIMIT or event.delta:
            raise sense
        return Terms.of(None, event.per_day)

    def _broken_reservation(self, event: Event) -> str:
        if not event.epsilon_units and not event.mu2_units:
            return "a release that costs nothing"
        if self._older is not None and event.mu2_units and not self._older.delta:
            return "a Gaussian release in a ledger with delta 0"
        if len(event.key) not in KEY_BYTES or event.key in self._by_key:
            return "its key is too short, too long or not new"
        # Only where a row states its unit: rows from before units were stored may differ. A ledger in which
        # they do has no unit, and accepts no further charge.
        name, unit = read_mechanism(event.mechanism)
        stated = name != event.mechanism
        return "its unit is not the one of the ledger" if stated and not self.admits(unit) else ""

    def _take(self, event: Event) -> None:
        number, (name, unit) = event.release, read_mechanism(event.mechanism)
        if event.kind in (_OPENED, _RESTATED):
            self._terms = self._stated_terms(event)
            self._older = self._older or (event if self._terms is None else None)
            if unit is not None:
                self._units[unit] = None
        elif event.kind == State.RESERVED:
            charge, day = _charge(event.epsilon_units, event.mu2_units), event.time_ns // DAY_NS
            state = State.RESERVED
            self._releases.append(Release(number, state, charge, name, event.key, unit, event.time_ns))
            self._by_key[event.key] = number
            self._pending[number] = self._units[unit] = None
            self.total += charge
            self._days[day] = self._days.get(day, _NOTHING) + charge
        else:
            self._releases[number - 1] = replace(self._releases[number - 1], state=State(event.kind))
            if event.kind == State.READY:
                self.payloads[number] = event
            else:
                del self._pending[number]
        self.sequence, self.head = event.sequence, event.digest


def check_pages(connection: sqlite3.Connection) -> None:
    """Refuse a file in which SQLite itself finds a broken page, index or reference."""
    (verdict,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
    if verdict != "ok":
        raise LedgerCorrupt(f"The ledger is damaged: {' '.join(verdict.split())}.")
    if connection.execute("PRAGMA foreign_key_check").fetchone():
        raise LedgerCorrupt("The ledger is damaged: a row refers to one that is not there.")


@lru_cache(maxsize=1024)  # most rows of a ledger are alike
def _charge(epsilon_units: int, mu2_units: int) -> Charge:
    if min(epsilon_units, mu2_units) < 0:
        raise TypeError("units are never negative")
    return Charge(epsilon_units, mu2_units)


def _date(day: int) -> str:
    return str(date(1970, 1, 1) + timedelta(days=day))  # 64 bits of nanoseconds end in 2262
