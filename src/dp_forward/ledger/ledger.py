"""The ledger: every release is charged here before its bytes leave."""

from __future__ import annotations

import contextlib
import secrets
import time
from typing import TYPE_CHECKING

from dp_forward.errors import BudgetExhausted, InvalidInput
from dp_forward.ledger import inputs, refusals, rows
from dp_forward.ledger.database import Store, locate, make_file
from dp_forward.ledger.replay import DAY_NS, Release, Replay, State
from dp_forward.ledger.summary import Summary
from dp_forward.ledger.unit import spelled, write_mechanism
from dp_forward.privacy import checks
from dp_forward.privacy.charge import Charge, difference_down

if TYPE_CHECKING:
    import os
    import sqlite3
    from collections.abc import Iterator
    from types import TracebackType

    from dp_forward.ledger.hash_chain import Event
    from dp_forward.privacy.units import Unit

__all__ = ["Ledger", "Summary"]


class Ledger:
    """What one user has spent, in a file that only grows.

    Make one with `create`, `open` or `open_or_create`, and use it as a context manager. A release
    goes through three steps, each on disk before the call returns::

        release = ledger.reserve(key, Charge.gaussian(mu))   # charged; only now may noise be drawn
        data = ledger.ready(release.id, drawn)               # stored; send exactly these bytes
        ledger.delivered(release.id)                         # arrived; nothing to resend

    Guarantees:
        The releases that this ledger admitted are (cap, delta)-DP together; see `Charge` for the
        proof and for the one mixture that it does not cover. The check and the charge are one
        transaction, so no interleaving of threads, processes or crashes passes the cap. What
        `reserve` returned is on disk (WAL, synchronous = FULL). A crash after `reserve` leaves a
        charge without a release: privacy that was paid for and not used, never the reverse.
        A file that breaks any law is refused, never repaired or reset.

        With a budget per day, the releases of any one day of UTC are (per_day, delta)-DP together
        too: the same proof, for the charges of that day. Over any number of days the cap holds as
        ever. Within 24 hours around a midnight two days meet, and their releases are together
        (2 per_day, 2 delta)-DP (basic composition) and no more than the cap.

        All releases protect one unit (a text, a token, ...), the one that every epsilon here speaks of. It is
        fixed by `create`, or else by the first charge; a charge of another unit, or of none that is said, is
        refused in the transaction that would write it.

        Every event holds the hash of the one before it, and the last hash is kept apart. At each
        opening and, for new rows, at each call, the chain is recomputed. That shows accidents:
        bit rot, lost or swapped or edited rows, a lost tail, totals that do not add up, another
        file in its place while it is open.
    Edges:
        While a ledger is open its ``-wal`` file is part of it: move or copy both, or close first.
        The hashes have no secret in them. An owner who rewrites the whole file, restores an old
        copy or deletes the ``-wal`` file between uses is *not* detected; neither is a disk that
        says "written" and is not. Whoever holds the file spends their own privacy.
        A day is what this machine's clock says when a charge is written, and stays with it. Where
        the clock was set back, charges of a later day count as today's; so after a clock that ran
        ahead the day is charged until that time has come. A clock set forward begins a new day:
        the cap is the promise that no clock can change.
        The ledger never sees a text. Keys should be keyed digests of the request (HMAC), because
        a plain digest of a guessable text can be guessed back. Keys and payloads never appear in
        an error, a log or a repr.
        Threads may share an object; a fork may use it on both sides.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._replay = Replay()
        with self._reading():
            self._replay.check_cap()

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        *,
        cap_epsilon: float,
        delta: float,
        per_day: float | None = None,
        unit: Unit | None = None,
    ) -> Ledger:
        """A new, empty ledger; refuses a path that exists. ``per_day`` is a second cap, for each day.

        Edges:
            ``delta = 0`` makes a ledger for pure releases only. The cap is at most 1000. Without a
            ``unit`` the first charge fixes it.
        """
        cap, delta = inputs.terms(cap_epsilon, delta)
        daily = inputs.per_day_within(cap, per_day)
        place = locate(path)
        blank = rows.next_event(Replay(), "opened")
        opened = blank._replace(
            key=secrets.token_bytes(16),
            mechanism=write_mechanism("", inputs.a_unit(unit)),
            cap=cap,
            delta=delta,
            per_day=daily,
        )
        make_file(place, lambda connection: rows.insert(connection, opened))
        return cls(Store(place))

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Ledger:
        """An existing ledger, its chain and totals recomputed first (`verify` reads payloads too).

        Edges:
            A missing file is `InvalidInput`; an empty, foreign, damaged or newer one is
            `LedgerCorrupt`. None of them is changed.
        """
        return cls(Store(locate(path)))

    @classmethod
    def open_or_create(
        cls, path: str | os.PathLike[str], *, cap_epsilon: float, delta: float, per_day: float | None = None
    ) -> Ledger:
        """The ledger at this path, made if there is none; other terms than asked are an error."""
        cap, delta = inputs.terms(cap_epsilon, delta)
        daily = inputs.per_day_within(cap, per_day) or None
        place = locate(path)
        if not place.exists():
            try:
                return cls.create(place, cap_epsilon=cap, delta=delta, per_day=daily)
            except InvalidInput:
                if not place.exists():  # otherwise another process was quicker
                    raise
        ledger = cls.open(place)
        if (ledger.cap, ledger.delta, ledger.per_day) != (cap, delta, daily):
            ledger.close()
            raise refusals.other_terms((cap, delta, daily), (ledger.cap, ledger.delta, ledger.per_day))
        return ledger

    def reserve(
        self, key: bytes, charge: Charge, *, mechanism: str = "", unit: Unit | None = None
    ) -> Release:
        """Charge one release, before anything is drawn; asking again with a key costs nothing.

        Guarantees:
            When this returns, the charge is on disk, once per key, and the sum is within the cap and
            that of its day within the budget per day.
        Edges:
            A known key returns its release in the state it has reached. `InvalidInput` if it was
            charged something else then, or where the ledger has another ``unit``; `BudgetExhausted` if
            the cap or the day's budget would be passed. Then nothing is written.
            Charges that say no unit go together, in a ledger of their own.
        """
        key = inputs.a_key(key)
        charge = inputs.a_charge(charge)
        mechanism = inputs.a_mechanism(mechanism)
        unit = inputs.a_unit(unit)
        with self._writing() as (connection, written):
            known = self._replay.find(key)
            if known is not None:
                return refusals.another_charge(known, charge, unit)
            now = time.time_ns()
            refusals.another_unit(self._replay, unit)
            self._admit(charge)
            self._admit_today(charge, now)
            release = Release(len(self._replay) + 1, State.RESERVED, charge, mechanism, key, unit)
            event = rows.next_event(self._replay, release.state, release=release.id, charge=charge)
            column = write_mechanism(mechanism, unit)
            event = event._replace(key=key, mechanism=column, time_ns=now)  # the time it was admitted at
            written.append(rows.insert(connection, event))
        return release

    def ready(self, release_id: int, payload: bytes) -> bytes:
        """Store the drawn bytes and return the bytes to send.

        Guarantees:
            The first writer wins: whoever drew for this release, everyone sends the same bytes,
            so one charge never pays for two draws.
        """
        data = inputs.a_payload(payload)
        with self._writing() as (connection, written):
            release = self._release(release_id)
            if release.state is not State.RESERVED:
                return rows.read_payload(self._replay, connection, release.id)
            event = rows.next_event(self._replay, State.READY, release=release.id)
            written.append(rows.insert(connection, event, data))
        return data

    def delivered(self, release_id: int) -> None:
        """Note that the bytes arrived; harmless when noted before, an error before `ready`."""
        with self._writing() as (connection, written):
            release = self._drawn(release_id)
            if release.state is State.READY:
                event = rows.next_event(self._replay, State.DELIVERED, release=release.id)
                written.append(rows.insert(connection, event))

    def payload(self, release_id: int) -> bytes:
        """The stored bytes of a release, checked against the chain."""
        with self._reading() as connection:
            return rows.read_payload(self._replay, connection, self._drawn(release_id).id)

    def find(self, key: bytes) -> Release | None:
        """The release that was reserved under this key, if any."""
        key = inputs.a_key(key)
        with self._reading():
            return self._replay.find(key)

    def pending(self) -> tuple[Release, ...]:
        """Releases reserved or ready but not delivered, oldest first: what a crash interrupted."""
        with self._reading():
            return self._replay.pending()

    @property
    def cap(self) -> float:
        """The epsilon that is never passed."""
        return self._replay.cap

    @property
    def delta(self) -> float:
        """The delta at which every epsilon of this ledger is stated."""
        return self._replay.delta

    @property
    def per_day(self) -> float | None:
        """The epsilon that no day of UTC passes; None where only the cap counts."""
        return self._replay.per_day or None

    @property
    def unit(self) -> Unit | None:
        """What every charge protects; None where that is not fixed yet, or was never said."""
        return self._replay.unit

    def check_unit(self, unit: Unit | None) -> None:
        """Refuse a unit that could not be charged here; charges nothing.

        Edges:
            `reserve` checks again: in a ledger without a unit another process may be first.
        """
        with self._reading():
            refusals.another_unit(self._replay, inputs.a_unit(unit))

    @property
    def releases(self) -> int:
        """How many releases were charged, by all processes."""
        with self._reading():
            return len(self._replay)

    def spent(self) -> float:
        """The epsilon of everything charged so far, rounded up."""
        with self._reading():
            return self._spent()

    def remaining(self) -> float:
        """Cap less spent, rounded down. Gaussian releases add up slower than their epsilons."""
        with self._reading():
            return difference_down(self.cap, self._spent())

    def summary(self) -> Summary:
        """All of the above at one moment."""
        with self._reading():
            releases, pending = len(self._replay), len(self._replay.pending())
            spent, today = self._spent(), self._spent_since(time.time_ns())
        return Summary(
            spent=spent,
            cap=self.cap,
            remaining=difference_down(self.cap, spent),
            delta=self.delta,
            releases=releases,
            pending=pending,
            delivered=releases - pending,
            per_day=self.per_day,
            spent_today=today,
            remaining_today=None if self.per_day is None else difference_down(self.per_day, today),
            unit=spelled(self.unit),
        )

    def verify(self) -> None:
        """Read every byte again, on a new connection; return only if every law holds.

        Raises:
            LedgerCorrupt: with one line that names the first bad row.
        """
        with self._store.fresh() as connection:
            replay = Replay()
            rows.catch_up(replay, connection)
            replay.check_cap()
            rows.check_payloads(replay, connection)
            rows.check_pages(connection)
            rows.catch_up(self._replay, connection)  # what this object has seen must still be there

    def close(self) -> None:
        """Give the file back. Closing twice is harmless."""
        self._store.close()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        """What was known at the last call; reads no file."""
        daily = "" if self.per_day is None else f", per_day={self.per_day}"
        unit = "" if self.unit is None else f" per {self.unit}"
        return (
            f"Ledger(cap={self.cap}{daily}, spent={self._spent()}, delta={self.delta}, "
            f"releases={len(self._replay)}){unit}"
        )

    def _spent(self) -> float:
        return self._replay.total.epsilon(self.delta)

    def _admit(self, charge: Charge) -> None:
        """Refuse a charge that would pass the cap.

        The charge is tried alone first, so that the sum cannot leave 64 bits.
        """
        alone = together = charge.epsilon(self.delta)
        if alone <= self.cap:
            together = (self._replay.total + charge).epsilon(self.delta)
        if together > self.cap:
            raise BudgetExhausted(
                f"The cap of epsilon {self.cap} (delta {self.delta}) would be passed: spent "
                f"{self._spent()}, this release costs {alone} by itself. Nothing was charged for it."
            )

    def _admit_today(self, charge: Charge, now: int) -> None:
        """Refuse a charge that fits the cap and would pass the budget of the day.

        What is charged under a later date counts too. So the last charge under any date was admitted with
        all others of that date in the sum, and no date passes the budget, however the clock was set.
        """
        if self.per_day is None:
            return
        together = (self._replay.total_since(now // DAY_NS) + charge).epsilon(self.delta)
        if together > self.per_day:
            raise BudgetExhausted(
                f"The budget of epsilon {self.per_day} per day (delta {self.delta}) would be passed: spent "
                f"{self._spent_since(now)} today, this release costs {charge.epsilon(self.delta)} by itself. "
                "Nothing was charged for it. A day ends at 00:00 UTC."
            )

    def _spent_since(self, now: int) -> float:
        return self._replay.total_since(now // DAY_NS).epsilon(self.delta)

    def _release(self, release_id: int) -> Release:
        number = checks.count("release_id", release_id, remedy="Use the id of a Release.")
        release = self._replay.get(number)
        if release is None:
            raise InvalidInput(
                "release_id",
                "be a release of this ledger",
                number,
                f"It has {len(self._replay)}; reserve first.",
            )
        return release

    def _drawn(self, release_id: int) -> Release:
        release = self._release(release_id)
        if release.state is State.RESERVED:
            raise InvalidInput(
                "release_id",
                "be a release whose payload is stored",
                f"release {release.id}, reserved only",
                "Call ready() first.",
            )
        return release

    @contextlib.contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with self._store.transaction(write=False) as connection:
            rows.catch_up(self._replay, connection)
            yield connection

    @contextlib.contextmanager
    def _writing(self) -> Iterator[tuple[sqlite3.Connection, list[Event]]]:
        """The write lock, the newest state, and a list of events to believe once committed."""
        written: list[Event] = []
        with self._store.lock:
            with self._store.transaction(write=True) as connection:
                rows.catch_up(self._replay, connection)
                yield connection, written
            self._replay.extend(written)
