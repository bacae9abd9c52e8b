"""A budget per day is a second cap: no day passes it, whatever the clock does, and the first holds too."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dp_forward.errors import BudgetExhausted, InvalidInput, LedgerCorrupt
from dp_forward.ledger import Cap, Charge, Ledger, admission, ledger, verification
from dp_forward.ledger.ledger_file import seal
from dp_forward.ledger.terms import Terms
from dp_forward.ledger.verification import DAY_NS, VerifiedChain
from dp_forward.privacy import Budget

ONE = Charge.pure(1.0)
NOON = (20_000 * 24 + 12) * 3600 * 10**9
"""A noon of UTC."""


def key(number: int) -> bytes:
    return number.to_bytes(16, "big")


class Clock:
    """The ledger's clock, set by hand."""

    def __init__(self) -> None:
        self.now = NOON

    def time_ns(self) -> int:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(ledger.time, "time_ns", made.time_ns)
    return made


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "budget.ledger"


def make(path: Path, *, cap: float = 8.0, per_day: float | None = 2.0) -> Ledger:
    return Ledger.create(path, cap=Cap.pure(cap), per_day=per_day)


def spend(book: Ledger, *, charge: Charge = ONE, most: int = 1000) -> int:
    """Charge until refused; how often it went."""
    for won in range(most):
        try:
            book.reserve(os.urandom(16), charge)
        except BudgetExhausted:
            return won
    return most


def test_a_day_is_spent_to_its_budget_and_no_further(path: Path, clock: Clock) -> None:
    with make(path) as book:
        assert spend(book) == 2
        with pytest.raises(BudgetExhausted) as refused:
            book.reserve(key(9), Charge(epsilon_units=1))
        assert refused.value.exit_code == 3
        for said in ("2.0 per day", "epsilon 2.0 is charged today", "costs epsilon 1e-09", "00:00 UTC"):
            assert said in str(refused.value)
        assert book.find(key(9)) is None
        found = book.summary()
        assert (found.per_day, found.spent_today, found.remaining_today) == (2.0, 2.0, 0.0)
        assert (found.spent, found.remaining, found.usable) == (2.0, 6.0, 0.0)
        book.verify()


def test_a_day_ends_at_midnight_utc_and_the_cap_in_all_does_not(path: Path, clock: Clock) -> None:
    with make(path, cap=5.0) as book:
        assert spend(book) == 2
        clock.now = (NOON // DAY_NS + 1) * DAY_NS - 1
        assert spend(book) == 0
        clock.now += 1  # a nanosecond later: twice the budget within 24 hours, as the docstring says
        assert spend(book) == 2
        clock.now += DAY_NS
        assert spend(book) == 1
        with pytest.raises(BudgetExhausted, match=r"cap of epsilon 5\.0"):
            book.reserve(key(1), ONE)
        clock.now += 10 * DAY_NS
        assert spend(book) == 0
        found = book.summary()
        assert (found.spent_today, found.remaining_today, found.usable) == (0.0, 2.0, 0.0)
        book.verify()


def test_a_known_key_costs_nothing_on_a_day_that_is_spent(path: Path, clock: Clock) -> None:
    with make(path, per_day=1.0) as book:
        book.reserve(key(1), ONE)
        assert book.reserve(key(1), ONE).id == 1
        assert spend(book) == 0


@pytest.mark.slow
def test_the_gaussian_releases_of_a_day_add_their_mu2(path: Path, clock: Clock) -> None:
    charge = Charge.gaussian(0.3)
    with Ledger.create(path, cap=Cap.gaussian(Budget(100.0, 1e-5)), per_day=4.0) as book:
        for _ in range(2):
            won = spend(book, charge=charge)
            assert charge.times(won).epsilon(1e-5) <= 4.0 < charge.times(won + 1).epsilon(1e-5)
            assert won > 4.0 / charge.epsilon(1e-5)
            assert book.summary().charged_today == charge.times(won).as_dict()
            clock.now += DAY_NS
        assert book.charged() == charge.times(2 * won)
        book.verify()


def test_a_clock_that_was_set_back_gives_no_second_day(path: Path, clock: Clock) -> None:
    with make(path) as book:
        assert spend(book, most=1) == 1
        clock.now -= 3 * DAY_NS
        assert book.summary().spent_today == 1.0
        assert spend(book) == 1
        clock.now += DAY_NS
        assert spend(book) == 1  # what lies in the past by now is not of this day
        clock.now += 2 * DAY_NS
        assert spend(book) == 1
        clock.now += DAY_NS
        assert spend(book) == 2
        book.verify()


@pytest.mark.slow
def test_no_day_passes_its_budget_however_the_clock_jumps(path: Path, clock: Clock) -> None:
    luck = random.Random(11)
    cap = Cap.mixed(Budget(60.0, 1e-5), pure=50.0)
    with Ledger.create(path, cap=cap, per_day=3.0) as book:
        for _ in range(400):
            clock.now = NOON + luck.randrange(-5, 6) * DAY_NS + luck.randrange(DAY_NS)
            with contextlib.suppress(BudgetExhausted):
                book.reserve(os.urandom(16), luck.choice([ONE, Charge.pure(0.4), Charge.gaussian(0.2)]))
        book.verify()
        releases = book.releases
    assert releases > 12
    with contextlib.closing(sqlite3.connect(path)) as connection:  # without the package
        days = connection.execute(
            f"SELECT sum(epsilon_units), sum(mu2_units) FROM events WHERE kind = 'reserved' "
            f"GROUP BY time_ns / {DAY_NS}"
        ).fetchall()
    assert len(days) > 3
    assert all(Charge(*units).epsilon(1e-5) <= 3.0 for units in days)
    assert {tuple(unit > 0 for unit in units) for units in days} >= {(True, True)}


def test_the_time_that_was_checked_is_the_time_that_is_written(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clock that says tomorrow at every first look and today at every second one."""
    with make(path) as book:
        looks = itertools.cycle([NOON + DAY_NS, NOON])
        monkeypatch.setattr(ledger.time, "time_ns", lambda: next(looks))
        for number in range(8):
            with contextlib.suppress(BudgetExhausted):
                book.reserve(key(number), ONE)
        book.verify()


def test_threads_and_handles_racing_never_pass_the_day(path: Path, clock: Clock) -> None:
    with contextlib.ExitStack() as stack:
        books = [stack.enter_context(make(path, cap=900.0, per_day=5.0))]
        books += [stack.enter_context(Ledger.open(path)) for _ in range(5)]
        with ThreadPoolExecutor(6) as pool:
            assert sum(pool.map(spend, books)) == 5
        books[0].verify()


def test_a_chain_that_passed_a_day_is_refused(
    path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse_beyond_cap(chain: VerifiedChain, charge: Charge, now: int) -> None:
        if not chain.total + charge <= chain.terms.limit:
            raise BudgetExhausted("beyond the cap")

    with monkeypatch.context() as careless, make(path) as book:
        careless.setattr(admission, "refuse_beyond_budget", refuse_beyond_cap)
        assert spend(book) == 8
    with pytest.raises(LedgerCorrupt, match=r"8\.0 on 2024-10-04 where epsilon 2\.0 a day"):
        Ledger.open(path)


def test_the_days_of_a_chain_are_those_of_its_rows() -> None:
    found = VerifiedChain()
    found.append(seal(found.terms_event(Terms.of(Cap.pure(8.0), 4.0))._replace(key=bytes(16))))
    for number, when in enumerate([NOON, NOON - DAY_NS, NOON + DAY_NS, -1, NOON], start=1):
        event = found.next_event("reserved", release=number, charge=ONE)
        found.append(seal(event._replace(key=key(number), time_ns=when)))
    found.check_budgets()
    assert [found.total_since(NOON // DAY_NS + n) for n in (-1, 0, 1, 2)] == [
        ONE.times(k) for k in (4, 3, 1, 0)
    ]
    assert verification._date(-1) == "1969-12-31"


def test_the_budget_per_day_survives_reopening_and_is_never_changed(path: Path) -> None:
    make(path).close()
    with Ledger.open(path) as book:
        assert (book.cap, book.per_day) == (Cap.pure(8.0), 2.0)
        assert repr(book) == "Ledger(cap=8.0-DP, per_day=2.0, charged=epsilon 0.0, releases=0)"
    terms = {"cap": Cap.pure(8.0)}
    Ledger.open_or_create(path, **terms, per_day=2.0).close()
    for other in (None, 1.0, 3.0):
        with pytest.raises(InvalidInput, match=r"cap 8\.0-DP .*and 2\.0 per day"):
            Ledger.open_or_create(path, **terms, per_day=other)
    with Ledger.open_or_create(path.with_name("new"), **terms, per_day=1.0) as book:
        assert book.per_day == 1.0


def test_without_a_budget_per_day_only_the_cap_counts(path: Path) -> None:
    with make(path, per_day=None) as book:
        assert spend(book) == 8
        found = book.summary()
        assert (found.per_day, found.spent_today, found.remaining_today, found.usable) == (
            None,
            8.0,
            None,
            0.0,
        )


@pytest.mark.parametrize("per_day", [0, -1.0, float("nan"), float("inf"), 8.01, "2", True])
def test_a_budget_per_day_is_positive_and_within_the_cap(path: Path, per_day: object) -> None:
    with pytest.raises(InvalidInput, match="per_day"):
        make(path, per_day=per_day)  # type: ignore[arg-type]
    assert list(path.parent.iterdir()) == []


@pytest.mark.slow
def test_a_pure_ledger_goes_by_the_day_without_a_total_and_says_what_that_means(
    path: Path, clock: Clock
) -> None:
    with Ledger.create(path, per_day=4.0) as book:
        for _ in range(300):
            assert spend(book, charge=Charge.pure(4.0), most=1) == 1
            assert spend(book) == 0
            clock.now += DAY_NS
        found = book.summary()
        assert (found.cap, found.remaining, found.shares, found.delta) == (None, None, None, 0.0)
        assert (found.spent, found.usable) == (1200.0, 4.0)
        assert "whoever sees k days learns up to k times 4.0" in found.promise
        assert "around a midnight two days meet" in found.promise
        with pytest.raises(InvalidInput, match="no Gaussian one"):
            book.reserve(key(1), Charge.gaussian(0.1))
    with Ledger.open(path) as book:
        book.verify()
        assert repr(book) == "Ledger(cap=None, per_day=4.0, charged=epsilon 1200.0, releases=300)"
        with pytest.raises(InvalidInput, match="no cap in all and 4"):
            Ledger.open_or_create(path, cap=Cap.pure(8.0), per_day=4.0)


@pytest.mark.slow
def test_the_shares_of_a_day_are_in_the_proportion_of_the_cap(path: Path, clock: Clock) -> None:
    cap = Cap.mixed(Budget(8.0, 1e-5), pure=2.0)
    with Ledger.create(path, cap=cap, per_day=2.0) as book:
        day = book._chain.terms.day_limit
        assert day.epsilon(1e-5) == pytest.approx(2.0)
        assert day.epsilon_units / cap.shares.epsilon_units == pytest.approx(
            day.mu2_units / cap.shares.mu2_units
        )
        book.reserve(key(1), day)
        with pytest.raises(BudgetExhausted, match="per day"):
            book.reserve(key(2), Charge(epsilon_units=1))
