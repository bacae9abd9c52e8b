"""Ledger of one user's privacy budget: every release is charged here before its bytes leave."""

import contextlib
import secrets
import sqlite3
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

from dp_forward.errors import InvalidInput, LedgerRestated, refuse_if
from dp_forward.ledger import admission, ledger_file
from dp_forward.ledger.terms import Terms
from dp_forward.ledger.verification import DAY_NS, Release, State, VerifiedChain, check_pages
from dp_forward.privacy import Unit, checks
from dp_forward.privacy.cap import Cap
from dp_forward.privacy.charge import Charge
from dp_forward.privacy.units import format_unit
from dp_forward.storage.database import Database
from dp_forward.storage.stores import Place


@dataclass(frozen=True, slots=True)
class Summary:
    """State of a ledger at one moment.

    ``cap`` (at ``delta``) is the promise over all releases; None in a ledger with a budget per day only.
    ``shares`` and ``charged`` hold an ``epsilon`` for pure releases and a ``mu`` for Gaussian ones. ``spent``
    is what was charged where that is a valid epsilon at any time: in a pure ledger, else None. ``remaining``
    is the epsilon at ``delta`` of what is left of the shares, as one release. ``charged_today``,
    ``spent_today`` and ``remaining_today`` are the same of this day; the last and ``per_day`` are None
    without a budget per day. A release must fit both. Of the ``releases``, some are ``pending`` and some
    ``delivered``. ``promise`` says it in words. ``unit`` is what every epsilon here protects (text, token,
    phrase:5, label, record); None where it is not fixed yet or was never stated.
    """

    cap: float | None
    delta: float
    shares: dict[str, float] | None
    charged: dict[str, float]
    spent: float | None
    remaining: float | None
    releases: int
    pending: int
    delivered: int
    per_day: float | None
    charged_today: dict[str, float]
    spent_today: float | None
    remaining_today: float | None
    unit: str | None
    promise: str

    @property
    def usable(self) -> float:
        """What is left now: the lesser of what the cap and the day leave."""
        return min(left for left in (self.remaining, self.remaining_today) if left is not None)


class Ledger(contextlib.AbstractContextManager["Ledger"]):
    """Append-only record of what one user has spent.

    Make one with `create`, `open` or `open_or_create` (not from a ``database``), and use it as a context
    manager. A release goes through three steps, each on disk before the call returns:

    >>> from dp_forward.privacy import TEXT
    >>> with Ledger.create("me.ledger", cap=Cap.pure(16.0), unit=TEXT) as ledger:
    ...     release = ledger.reserve(b"sixteen bytes...", Charge.pure(8.0), unit=TEXT)  # charged: now draw
    ...     data = ledger.ready(release.id, b"what was drawn")  # stored: send exactly these bytes
    ...     ledger.delivered(release.id)  # arrived: nothing to resend
    ...     print(ledger.summary().spent, ledger.summary().remaining)
    8.0 8.0

    Guarantees:
        The releases that this ledger admits are together what its cap promises, although each may be chosen
        on what was seen before: pure epsilons and Gaussian mu^2 are held against shares that were fixed when
        the ledger was made; see `Cap` for the proof. The check and the charge are one transaction, so no
        interleaving of threads, processes or crashes passes a share. What `reserve` returned is on disk (WAL,
        synchronous = FULL). A crash after `reserve` leaves a charge without a release: privacy that was paid
        for and not used, never the reverse. A file that breaks any law is refused, never repaired or reset.

        With a budget per day, the releases of any one day of UTC are (per_day, delta)-DP together too: the
        same proof, for the shares of that day. A pure ledger may have a budget per day and no cap: then k
        days are together (k per_day)-DP, and no number bounds all of them. Within 24 hours around a midnight
        two days meet: (2 per_day, 2 delta)-DP (basic composition), and no more than the cap.

        A file of schema version 2 is upgraded when it is opened, with a warning (`LedgerRestated`) that says
        what it promises in truth (`Terms.restate` has the proof).

        All releases protect one unit (a text, a token, ...). It is fixed by `create`, or else by the first
        charge; a charge of another unit, or of none that is stated, is refused.

        At each opening and, for new rows, at each call, the chain of hashes is recomputed. That detects
        accidents: bit rot, lost or edited rows, a lost tail, another file in its place while it is open.
    Edges:
        While a ledger is open its ``-wal`` file is part of it: move or copy both, or close first.
        The hashes have no secret in them. An owner who rewrites the whole file, restores an old copy or
        deletes the ``-wal`` file between uses is *not* detected; neither is a disk that reports "written" and
        did not write. Whoever holds the file spends their own privacy.
        A day is what this machine's clock says when a charge is written (`admission.refuse_beyond_budget`
        says what becomes of a clock that is set back). A clock set forward begins a new day: the cap is the
        promise that no clock can change.
        Keys should be keyed digests of the request (HMAC): a plain one can be guessed back. Keys and payloads
        never appear in an error, a log or a repr.
        Threads may share an object; a fork may use it on both sides.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._chain = VerifiedChain()
        with self._reading():
            self._chain.check_budgets()
        if self._chain.older:
            self._upgrade()

    def _upgrade(self) -> None:
        with self._writing() as (connection, written):
            if not self._chain.older:
                return  # another process was quicker, and said it
            self._chain.check_budgets()
            ledger_file.upgrade_tables(connection)
            written.append(ledger_file.insert_event(connection, self._chain.terms_event()))
        said = f"The ledger {self._database.path.name} was made by an older version and is upgraded."
        warnings.warn(f"{said} {self._chain.terms.promise(self._per_unit())}", LedgerRestated, stacklevel=4)

    @classmethod
    def create(
        cls, path: Place, *, cap: Cap | None = None, per_day: float | None = None, unit: Unit | None = None
    ) -> Self:
        """A new, empty ledger; refuses a path that exists. ``per_day`` is a second cap, for each day.

        Edges:
            ``cap`` fixes the kinds of releases that it can hold, for ever: `Cap.pure`, `Cap.gaussian`,
            `Cap.mixed`. Without one it is a pure ledger with a budget per day and no total. Without a
            ``unit`` the first charge fixes it.
        """
        terms = Terms.of(cap, per_day)
        place = ledger_file.locate(path)
        mechanism, key = ledger_file.write_mechanism("", admission.check_unit(unit)), secrets.token_bytes(16)
        opened = VerifiedChain().terms_event(terms)._replace(key=key, mechanism=mechanism)
        ledger_file.create_ledger_file(place, opened)
        return cls(ledger_file.open_ledger_file(place))

    @classmethod
    def open(cls, path: Place) -> Self:
        """An existing ledger, its chain and totals recomputed first (`verify` reads payloads too).

        Edges:
            A missing file is `InvalidInput`; an empty, foreign, damaged or newer one is
            `LedgerCorrupt`. None of them is changed.
        """
        return cls(ledger_file.open_ledger_file(ledger_file.locate(path)))

    @classmethod
    def open_or_create(cls, path: Place, *, cap: Cap | None = None, per_day: float | None = None) -> Self:
        """The ledger at this path, made if there is none; other terms than asked are an error."""
        terms = Terms.of(cap, per_day)
        place = ledger_file.locate(path)
        if not place.exists():
            try:
                return cls.create(place, cap=cap, per_day=per_day)
            except InvalidInput:
                if not place.exists():  # otherwise another process was quicker
                    raise
        ledger = cls.open(place)
        if (ledger.cap, ledger.per_day) != (terms.cap, terms.per_day):
            found = ledger._chain.terms
            ledger.close()
            raise admission.other_terms(terms, found)
        return ledger

    def reserve(
        self, key: bytes, charge: Charge, *, mechanism: str = "", unit: Unit | None = None
    ) -> Release:
        """Charge one release, before anything is drawn; it is on disk when this returns.

        Edges:
            A known key costs nothing, and returns its release in the state it has reached. `InvalidInput` if
            it was charged something else then, or where the ledger has another ``unit`` or no share for this
            kind of charge; `BudgetExhausted` if a share, in all or of the day, would be passed.
            Charges that say no unit go together, in a ledger of their own.
        """
        key, charge = admission.check_key(key), admission.check_charge(charge)
        mechanism, unit = admission.check_mechanism(mechanism), admission.check_unit(unit)
        with self._writing() as (connection, written):
            known = self._chain.find(key)
            if known is not None:
                admission.refuse_another_charge(known, charge, unit)
                return known
            now = time.time_ns()
            admission.refuse_another_unit(self._chain, unit)
            admission.refuse_beyond_budget(self._chain, charge, now)
            release = Release(len(self._chain) + 1, State.RESERVED, charge, mechanism, key, unit, now)
            event = self._chain.next_event(release.state, release=release.id, charge=charge)
            column = ledger_file.write_mechanism(mechanism, unit)
            event = event._replace(key=key, mechanism=column, time_ns=now)  # the time it was admitted at
            written.append(ledger_file.insert_event(connection, event))
        return release

    def ready(self, release_id: int, payload: bytes) -> bytes:
        """Store the drawn bytes and return the bytes to send.

        Guarantees:
            The first writer wins: everyone sends the same bytes, so no charge pays for two draws.
        """
        data = admission.check_payload(payload)
        with self._writing() as (connection, written):
            release = self._release(release_id)
            if release.state is not State.RESERVED:
                return self._chain.read_payload(connection, release.id)
            event = self._chain.next_event(State.READY, release=release.id)
            written.append(ledger_file.insert_event(connection, event, data))
        return data

    def delivered(self, release_id: int) -> None:
        """Note that the bytes arrived; harmless when noted before, an error before `ready`."""
        with self._writing() as (connection, written):
            release = self._drawn(release_id)
            if release.state is State.READY:
                event = self._chain.next_event(State.DELIVERED, release=release.id)
                written.append(ledger_file.insert_event(connection, event))

    def payload(self, release_id: int) -> bytes:
        """The stored bytes of a release, checked against the chain."""
        with self._reading() as connection:
            return self._chain.read_payload(connection, self._drawn(release_id).id)

    def find(self, key: bytes) -> Release | None:
        """The release that was reserved under this key, if any."""
        admission.check_key(key)
        with self._reading():
            return self._chain.find(key)

    def pending(self) -> tuple[Release, ...]:
        """Releases reserved or ready but not delivered, oldest first: what a crash interrupted."""
        with self._reading():
            return self._chain.pending()

    def latest(self, most: int = 20) -> tuple[Release, ...]:
        """The last releases that were charged, newest first."""
        most = checks.count("most", most, remedy="Ask for at least one.")
        with self._reading():
            return self._chain.latest(most)

    @property
    def cap(self) -> Cap | None:
        """The promise over all releases; None where there is a budget per day only."""
        return self._chain.terms.cap

    @property
    def per_day(self) -> float | None:
        """The epsilon that no day of UTC passes; None where only the cap counts."""
        return self._chain.terms.per_day

    @property
    def unit(self) -> Unit | None:
        """What every charge protects; None where that is not fixed yet, or was never said."""
        return self._chain.unit

    def check_kind(self, charge: Charge, unit: Unit | None) -> None:
        """Refuse a kind of charge or a unit that could not be charged here; charges nothing.

        Edges:
            `reserve` checks again: in a ledger without a unit another process may be first.
        """
        with self._reading():
            admission.refuse_another_kind(self._chain.terms, admission.check_charge(charge))
            admission.refuse_another_unit(self._chain, admission.check_unit(unit))

    @property
    def releases(self) -> int:
        """How many releases were charged, by all processes."""
        with self._reading():
            return len(self._chain)

    def charged(self) -> Charge:
        """The sum of everything charged so far: pure epsilon, and Gaussian mu^2."""
        with self._reading():
            return self._chain.total

    def spent(self) -> float | None:
        """What was charged, where that is a valid epsilon at any time: in a pure ledger. Else None."""
        return self.charged().pure_epsilon if self._chain.terms.pure else None

    def summary(self) -> Summary:
        """All of the above at one moment."""
        with self._reading():
            terms, releases, pending = self._chain.terms, len(self._chain), len(self._chain.pending())
            charged, today = self._chain.total, self._chain.total_since(time.time_ns() // DAY_NS)
        cap, per_day = terms.cap, terms.per_day
        return Summary(
            cap=None if cap is None else cap.epsilon,
            delta=terms.delta,
            shares=None if cap is None else terms.limit.as_dict(),
            charged=charged.as_dict(),
            spent=charged.pure_epsilon if terms.pure else None,
            remaining=None if cap is None else _left(terms.limit, charged, terms.delta, cap.epsilon),
            releases=releases,
            pending=pending,
            delivered=releases - pending,
            per_day=per_day,
            charged_today=today.as_dict(),
            spent_today=today.pure_epsilon if terms.pure else None,
            remaining_today=None if per_day is None else _left(terms.day_limit, today, terms.delta, per_day),
            unit=None if self.unit is None else format_unit(self.unit),
            promise=terms.promise(self._per_unit()),
        )

    def verify(self) -> None:
        """Read every byte again, on a new connection; return only if every law holds.

        Raises:
            LedgerCorrupt: with one line that names the first bad row.
        """
        database = self._database
        # In the order in which a fork takes them: nobody writes between the snapshot and the last check.
        with database.snapshot_lock, database.lock, database.snapshot() as connection:
            chain = VerifiedChain()
            chain.catch_up(connection)
            chain.check_budgets()
            chain.check_payloads(connection)
            check_pages(connection)
            self._chain.catch_up(connection)  # what this object has read must still be there

    def close(self) -> None:
        """Give the file back. Closing twice is harmless."""
        self._database.close()

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        """What was known at the last call; reads no file."""
        daily = "" if self.per_day is None else f", per_day={self.per_day}"
        known = f"cap={self.cap}{daily}, charged={self._chain.total}, releases={len(self._chain)}"
        return f"Ledger({known}){self._per_unit()}"

    def _per_unit(self) -> str:
        return "" if self.unit is None else f" per {self.unit}"

    def _release(self, release_id: int) -> Release:
        number = checks.count("release_id", release_id, remedy="Use the id of a Release.")
        release = self._chain.get(number)
        if release is None:
            remedy = f"It has {len(self._chain)}; reserve first."
            raise InvalidInput("release_id", "be a release of this ledger", number, remedy)
        return release

    def _drawn(self, release_id: int) -> Release:
        release = self._release(release_id)
        found, rule = f"release {release.id}, reserved only", "be a release whose payload is stored"
        refuse_if(release.state is State.RESERVED, "release_id", rule, found, "Call ready() first.")
        return release

    @contextlib.contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with self._database.transaction(write=False) as connection:
            self._chain.catch_up(connection)
            yield connection

    @contextlib.contextmanager
    def _writing(self) -> Iterator[tuple[sqlite3.Connection, list[ledger_file.Event]]]:
        """The write lock, the newest state, and a list of events to accept once committed."""
        written: list[ledger_file.Event] = []
        with self._database.lock:
            with self._database.transaction(write=True) as connection:
                self._chain.catch_up(connection)
                yield connection, written
            for event in written:
                self._chain.append(event)


def _left(limit: Charge, charged: Charge, delta: float, whole: float) -> float:
    """The epsilon at ``delta`` of what is left, as one release; calibrated to it, a release still fits."""
    left = limit.left_by(charged)
    left = Charge(left.epsilon_units, max(0, left.mu2_units - 1))  # what a charge may be rounded up by
    return min(whole, left.epsilon(delta)) if charged else whole
