"""What a chain of events proves: read row by row, believed only while every law holds.

The ledger answers from this replay and not from queries, so a damaged index can make it refuse
but never forget a charge.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from datetime import date, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from dp_forward.errors import InvalidInput, LedgerCorrupt
from dp_forward.ledger.hash_chain import DIGEST_BYTES, GENESIS, Event, digest_of
from dp_forward.ledger.unit import read_mechanism
from dp_forward.privacy.charge import SMALLEST_DELTA, Charge

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dp_forward.privacy.units import Unit

__all__ = ["DAY_NS", "KEY_BYTES", "LARGEST_CAP", "Release", "Replay", "State", "StoredPayload"]

KEY_BYTES: Final = range(16, 65)
LARGEST_CAP: Final = 1000.0
"""The error of the Gaussian curve is proved up to this epsilon."""
DAY_NS: Final = 86_400 * 10**9
"""A day of UTC; unix time knows no leap seconds."""


class State(StrEnum):
    """How far a release has come: charged, drawn and stored, known to have arrived."""

    RESERVED = "reserved"
    READY = "ready"
    DELIVERED = "delivered"


_OPENED: Final = "opened"
_RESERVED: Final = State.RESERVED.value
_READY: Final = State.READY.value
_DUE: Final = {_READY: _RESERVED, State.DELIVERED.value: _READY}
"""What a release must be before it takes each step."""


@dataclass(frozen=True, slots=True)
class Release:
    """One noisy matrix that leaves (or left), and what it cost. The key is not shown."""

    id: int
    state: State
    charge: Charge
    mechanism: str = ""
    key: bytes = field(default=b"", repr=False)
    unit: Unit | None = None


class StoredPayload(NamedTuple):
    """Where the bytes of a release lie, and what they must hash to."""

    sequence: int
    sha256: bytes
    length: int


class Replay:
    """The state after some first rows of a chain.

    Guarantees:
        `apply` accepts a row only if its hash is right, it follows the row before it, its totals
        are the sums so far, and its release takes the next step of reserved -> ready ->
        delivered. A refused row changes nothing.
    """

    def __init__(self) -> None:
        self.sequence = 0
        self.head = GENESIS
        self.cap = 0.0
        self.delta = 0.0
        self.per_day = 0.0
        self.payloads: dict[int, StoredPayload] = {}
        self._total_epsilon_units = 0
        self._total_mu2_units = 0
        self._reserved: list[Event] = []
        self._states: list[str] = []
        self._by_key: dict[bytes, int] = {}
        self._pending: dict[int, None] = {}
        self._charges: dict[tuple[int, int], Charge] = {}
        self._days: dict[int, list[int]] = {}
        self._units: dict[Unit | None, None] = {}
        self._names: dict[str, tuple[str, Unit | None]] = {}

    def __len__(self) -> int:
        return len(self._states)

    @property
    def total(self) -> Charge:
        """What all releases cost together."""
        return Charge(self._total_epsilon_units, self._total_mu2_units)

    def total_since(self, day: int) -> Charge:
        """What the releases of this day (days since 1970, UTC) and of all later ones cost together."""
        units = [cost for other, cost in self._days.items() if other >= day]
        return Charge(sum(cost[0] for cost in units), sum(cost[1] for cost in units))

    @property
    def unit(self) -> Unit | None:
        """What all charges protect; None where that is not fixed yet, or was never said."""
        return next(iter(self._units)) if len(self._units) == 1 else None

    def admits(self, unit: Unit | None) -> bool:
        """Whether a charge of this unit would leave the ledger with one unit, known or not."""
        return not self._units or self._units.keys() == {unit}

    def get(self, release_id: int) -> Release | None:
        """The release with this number, counted from 1."""
        if not 1 <= release_id <= len(self):
            return None
        row, state = self._reserved[release_id - 1], State(self._states[release_id - 1])
        name, unit = self._name_of(row)
        return Release(release_id, state, self._charge_of(row), name, row.key, unit)

    def find(self, key: bytes) -> Release | None:
        """The release that was reserved under this key."""
        return self.get(self._by_key.get(key, 0))

    def pending(self) -> tuple[Release, ...]:
        """Releases that were charged and are not known to have arrived, oldest first."""
        found = (self.get(release_id) for release_id in self._pending)
        return tuple(release for release in found if release is not None)

    def extend(self, events: Iterable[Event]) -> None:
        """Apply rows in their order."""
        for event in events:
            self.apply(event)

    def apply(self, event: Event) -> None:
        """Believe one more row, or refuse it."""
        try:
            problem = self._broken_link(event) or self._broken_law(event)
        except (struct.error, TypeError, AttributeError, UnicodeError):
            problem = "a column holds a value of the wrong type"
        except InvalidInput:
            problem = "its unit is unknown"
        if problem:
            raise LedgerCorrupt(f"Ledger row {self.sequence + 1} is damaged: {problem}.")
        self._take(event)

    def check_cap(self) -> None:
        """Refuse a chain that spent more than it was allowed to, in all or on one day."""
        if not self.sequence:
            raise LedgerCorrupt("Ledger row 1 is missing: the chain is empty.")
        spent = self.total.epsilon(self.delta)
        if spent > self.cap:
            raise LedgerCorrupt(
                f"Ledger row {self.sequence} is damaged: epsilon {spent} was spent of a cap of {self.cap}."
            )
        for day, units in self._days.items() if self.per_day else ():
            if (spent := Charge(*units).epsilon(self.delta)) > self.per_day:
                allowed = f"where {self.per_day} a day is allowed"
                raise LedgerCorrupt(f"The ledger is damaged: epsilon {spent} on {_date(day)} {allowed}.")

    def _broken_link(self, event: Event) -> str:
        if event.sequence != self.sequence + 1:
            return f"its number is {event.sequence}"
        if event.previous != self.head:
            return "it does not follow the row before it"
        if event.digest != digest_of(event):
            return "its hash does not match its contents"
        return ""

    def _broken_law(self, event: Event) -> str:
        charge = self._charge_of(event)
        if (
            event.total_epsilon_units != self._total_epsilon_units + charge.epsilon_units
            or event.total_mu2_units != self._total_mu2_units + charge.mu2_units
        ):
            return "its totals are not the sums of the charges"
        if (event.kind == _OPENED) != (event.sequence == 1):
            return "a ledger is opened once, by its first row"
        if event.kind == _OPENED:
            return self._broken_opening(event, charge)
        if event.cap or event.delta or event.per_day:
            return "only the first row may state the cap"
        if event.kind == _RESERVED:
            return self._broken_reservation(event, charge)
        return self._broken_step(event, charge)

    def _charge_of(self, event: Event) -> Charge:
        """The row's charge; equal charges share one object, since most rows are alike."""
        units = (event.epsilon_units, event.mu2_units)
        charge = self._charges.get(units)
        if charge is None:
            if min(units) < 0:
                raise TypeError("units are never negative")
            charge = self._charges[units] = Charge(*units)
        return charge

    def _name_of(self, event: Event) -> tuple[str, Unit | None]:
        """The row's mechanism and unit, kept like its charge."""
        found = self._names.get(event.mechanism)
        if found is None:
            found = self._names[event.mechanism] = read_mechanism(event.mechanism)
        return found

    def _broken_opening(self, event: Event, charge: Charge) -> str:
        delta_is_sane = event.delta == 0 or SMALLEST_DELTA <= event.delta < 1
        if not (0 < event.cap <= LARGEST_CAP and delta_is_sane and 0 <= event.per_day <= event.cap):
            return "the cap, the budget of a day or delta makes no sense"
        if charge or event.release or event.payload_sha256 or event.payload_length or self._name_of(event)[0]:
            return "opening a ledger releases nothing"
        return ""

    def _broken_reservation(self, event: Event, charge: Charge) -> str:
        if event.release != len(self) + 1:
            return "its release is not the next one"
        if not charge:
            return "a release that costs nothing"
        if charge.mu2_units and not self.delta:
            return "a Gaussian release in a ledger with delta 0"
        if len(event.key) not in KEY_BYTES or event.key in self._by_key:
            return "its key is too short, too long or not new"
        if event.payload_sha256 or event.payload_length:
            return "a payload before its time"
        return self._broken_unit(event)

    def _broken_unit(self, event: Event) -> str:
        """Only where a row says its unit: those from before units were kept may differ.

        A ledger in which they do has no unit, and is charged no more.
        """
        name, unit = self._name_of(event)
        said = name != event.mechanism
        return "its unit is not the one of the ledger" if said and not self.admits(unit) else ""

    def _broken_step(self, event: Event, charge: Charge) -> str:
        due = _DUE.get(event.kind)
        if due is None:
            return "its kind is unknown"
        if not 1 <= event.release <= len(self) or self._states[event.release - 1] != due:
            return f"release {event.release} is not {due}"
        if charge or event.key or event.mechanism:
            return "only a reservation has a key, a mechanism and a charge"
        if event.kind == _READY:
            sane = len(event.payload_sha256) == DIGEST_BYTES and event.payload_length > 0
        else:
            sane = not event.payload_sha256 and not event.payload_length
        return "" if sane else "its payload's digest or length makes no sense"

    def _take(self, event: Event) -> None:
        kind, release = event.kind, event.release
        if kind == _OPENED:
            self.cap, self.delta, self.per_day = event.cap, event.delta, event.per_day
            if (made_for := self._name_of(event)[1]) is not None:
                self._units[made_for] = None
        elif kind == _RESERVED:
            self._reserved.append(event)
            self._states.append(kind)
            self._by_key[event.key] = release
            self._units[self._name_of(event)[1]] = None
            self._pending[release] = None
            self._total_epsilon_units = event.total_epsilon_units
            self._total_mu2_units = event.total_mu2_units
            units = self._days.setdefault(event.time_ns // DAY_NS, [0, 0])
            units[0] += event.epsilon_units
            units[1] += event.mu2_units
        elif kind == _READY:
            self._states[release - 1] = kind
            self.payloads[release] = StoredPayload(event.sequence, event.payload_sha256, event.payload_length)
        else:
            self._states[release - 1] = kind
            del self._pending[release]
        self.sequence, self.head = event.sequence, event.digest


def _date(day: int) -> str:
    return str(date(1970, 1, 1) + timedelta(days=day))  # 64 bits of nanoseconds end in 2262
