"""Ledgers of schema version 2 are upgraded with a promise that holds, in one step, and never silently."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sqlite3
import warnings
from pathlib import Path

import pytest

from dp_forward.errors import BudgetExhausted, InvalidInput, LedgerCorrupt, LedgerRestated
from dp_forward.ledger import Cap, Charge, Ledger, State
from dp_forward.ledger.ledger_file import seal
from dp_forward.ledger.terms import Terms
from dp_forward.ledger.verification import VerifiedChain
from dp_forward.privacy import Budget
from ledger.old_ledger import write_old_ledger
from ledger.test_ledger_crash import die_at, is_sound

PURE, GAUSSIAN = Charge.pure(1.0), Charge.gaussian(0.3)
HELD = {"pure": [PURE] * 4, "gaussian": [GAUSSIAN] * 5, "mixed": [PURE, GAUSSIAN, PURE], "empty": []}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "old.ledger"


def upgraded(path: Path, match: str = "made by an older version") -> Ledger:
    """The ledger, opened with the warning that says what it promises."""
    with pytest.warns(LedgerRestated, match=match):
        return Ledger.open(path)


def rows(path: Path) -> tuple[list[tuple[object, ...]], list[tuple[object, ...]]]:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        events = connection.execute("SELECT * FROM events ORDER BY sequence").fetchall()
        return events, connection.execute("SELECT * FROM payloads ORDER BY sequence").fetchall()


@pytest.mark.slow
@pytest.mark.parametrize("held", HELD)
def test_every_row_and_payload_is_kept_and_one_row_restates_the_promise(path: Path, held: str) -> None:
    write_old_ledger(path, HELD[held])
    events, payloads = rows(path)
    with upgraded(path) as book:
        book.verify()
        assert book.charged() == sum(HELD[held], start=Charge())
        assert book.releases == len(HELD[held])
    after, kept = rows(path)
    assert (after[:-1], kept) == (events, payloads)
    assert after[-1][1] == "restated"


@pytest.mark.slow
@pytest.mark.parametrize("held", ["pure", "gaussian", "mixed"])
def test_the_promise_is_the_curve_of_both_kinds_at_the_old_cap(path: Path, held: str) -> None:
    """The old rule let whoever saw the releases choose the kind: each could reach the cap by itself."""
    write_old_ledger(path, HELD[held])
    with upgraded(path, r"\(15\.9999, 1e-05\)-DP.*8\.0 holds") as book:
        both = Cap.pure(8.0).shares + Cap.gaussian(Budget(8.0, 1e-5)).shares
        assert book.cap == Cap(15.9999, 1e-5, both)
        assert both.delta(15.9999) <= 1e-5 < both.delta(15.9997)
        found = book.summary()
        assert (found.cap, found.delta, found.spent) == (15.9999, 1e-5, None)
        assert "8.0 holds" in found.promise


@pytest.mark.slow
@pytest.mark.parametrize(("held", "admitted"), [("pure", PURE), ("gaussian", GAUSSIAN), ("mixed", None)])
def test_only_the_kind_that_it_holds_is_admitted_up_to_the_old_cap(
    path: Path, held: str, admitted: Charge | None
) -> None:
    write_old_ledger(path, HELD[held])
    with upgraded(path) as book:
        for charge in (PURE, GAUSSIAN, PURE + GAUSSIAN):
            number = 1000
            if charge == admitted:
                with contextlib.suppress(BudgetExhausted):
                    while number < 2000:
                        book.reserve(number.to_bytes(16, "big"), charge)
                        number += 1
                most = book.charged()
                assert most.epsilon(1e-5) <= 8.0 < (most + charge).epsilon(1e-5)
            with pytest.raises((BudgetExhausted, InvalidInput)):
                book.reserve(number.to_bytes(16, "big"), charge)
        book.verify()
    with Ledger.open(path) as book:
        book.verify()
        assert len(book.pending()) > 0
        found = book.find((2).to_bytes(16, "big"))
        assert found is not None
        assert (found.state, book.payload(2)) == (State.DELIVERED, b"payload 2")


@pytest.mark.slow
def test_a_promise_that_was_true_stays_as_it_was(path: Path) -> None:
    write_old_ledger(path, [PURE] * 3, delta=0.0)
    with upgraded(path, r"are 8\.0-DP, in [^.]*\.$") as book:
        assert (book.cap, book.spent(), book.summary().remaining) == (Cap.pure(8.0), 3.0, 5.0)
    empty = path.with_name("empty.ledger")
    write_old_ledger(empty, [])
    with upgraded(empty, r"\(8\.0, 1e-05\)-DP, in [^.]*\.$") as book:
        assert book.cap == Cap.gaussian(Budget(8.0, 1e-5))


@pytest.mark.slow
def test_a_budget_per_day_is_kept(path: Path) -> None:
    write_old_ledger(path, [PURE] * 2, per_day=2.0)
    with upgraded(path) as book:
        assert book.per_day == 2.0
        book.reserve(b"a" * 16, PURE)
        book.reserve(b"b" * 16, PURE)
        with pytest.raises(BudgetExhausted, match="per day"):
            book.reserve(b"c" * 16, PURE)
    mixed = path.with_name("mixed.ledger")
    write_old_ledger(mixed, [Charge.pure(0.5), GAUSSIAN], per_day=4.0)
    with upgraded(mixed) as book, pytest.raises(BudgetExhausted):
        book.reserve(b"a" * 16, PURE)


@pytest.mark.slow
def test_an_upgrade_is_said_once(path: Path) -> None:
    write_old_ledger(path, HELD["pure"])
    upgraded(path).close()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Ledger.open(path).close()


@pytest.mark.slow
def test_a_ledger_that_is_filled_to_the_last_unit_is_upgraded(path: Path) -> None:
    for number, (cap, delta) in enumerate([(8.0, 1e-5), (0.1, 1e-12), (64.0, 1e-3)]):
        place = path.with_name(f"{number}.ledger")
        full = Cap.gaussian(Budget(cap, delta)).shares
        while full.epsilon(delta) > cap:  # what the old rule admitted
            full = Charge(0, full.mu2_units - max(1, full.mu2_units // 10**13))
        write_old_ledger(place, [full], cap=cap, delta=delta)
        with upgraded(place) as book:
            book.verify()


@pytest.mark.parametrize(
    "charges",
    [[Charge.pure(8.1)], [Charge.gaussian(1.8)], [Charge.pure(5.0), Charge.gaussian(1.2)]],
)
def test_an_old_ledger_that_passed_its_cap_is_refused_and_left_alone(
    path: Path, charges: list[Charge]
) -> None:
    write_old_ledger(path, charges)
    before = rows(path)
    with pytest.raises(LedgerCorrupt, match="was charged of"):
        Ledger.open(path)
    assert rows(path) == before


def test_an_old_day_that_was_passed_is_refused(path: Path) -> None:
    write_old_ledger(path, [PURE] * 3, per_day=2.0)
    with pytest.raises(LedgerCorrupt, match="on 2024-10-04 where epsilon 2"):
        Ledger.open(path)


def test_a_new_file_without_shares_is_refused(path: Path) -> None:
    write_old_ledger(path, HELD["pure"])
    with contextlib.closing(sqlite3.connect(path)) as connection:  # today's tables with an old first row
        (sql,) = connection.execute("SELECT sql FROM sqlite_schema WHERE name = 'events'").fetchone()
        new = sql.replace("'delivered'", "'delivered', 'restated'")
        for kind in ("epsilon", "mu2"):
            new = new.replace(f"total_{kind}_units >= {kind}_units", f"total_{kind}_units >= 0")
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute("UPDATE sqlite_schema SET sql = ? WHERE name = 'events'", (new,))
        connection.execute("PRAGMA user_version = 3")
        connection.commit()
    with pytest.raises(LedgerCorrupt, match="states no shares"):
        Ledger.open(path)


def old_chain() -> VerifiedChain:
    chain = VerifiedChain()
    opened = chain.next_event("opened")._replace(key=bytes(16), cap=8.0, delta=1e-5)
    chain.append(seal(opened))
    chain.append(seal(chain.next_event("reserved", release=1, charge=PURE)._replace(key=bytes(16))))
    return chain


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"cap": 8.0}, "makes no sense"),
        ({"delta": 1e-6}, "makes no sense"),
        ({"per_day": 1.0}, "its per_day"),
        ({"epsilon_units": 1}, "more was charged"),
        ({"release": 1}, "its release"),
        ({"total_epsilon_units": 0}, "total_epsilon"),
    ],
)
def test_a_restatement_that_breaks_a_law_is_refused(changes: dict[str, float], match: str) -> None:
    chain = old_chain()
    with pytest.raises(LedgerCorrupt, match="no shares"):
        chain.terms  # noqa: B018 - it raises
    with pytest.raises(LedgerCorrupt, match=match):
        chain.append(seal(chain.terms_event()._replace(**changes)))  # type: ignore[arg-type]
    chain.append(seal(chain.terms_event()))
    with pytest.raises(LedgerCorrupt, match="and once"):
        chain.append(seal(chain.next_event("restated")))
    new = VerifiedChain()
    new.append(seal(new.terms_event(Terms.of(Cap.pure(8.0), None))._replace(key=bytes(16))))
    with pytest.raises(LedgerCorrupt, match="shares already"):
        new.terms_event()


@pytest.mark.slow
def test_a_crash_at_any_statement_of_an_upgrade_leaves_the_old_ledger_or_the_new_one(tmp_path: Path) -> None:
    write_old_ledger(tmp_path / "before", HELD["mixed"])
    events, payloads = rows(tmp_path / "before")
    versions = set()
    for step in range(1, 1000):
        path = shutil.copy(tmp_path / "before", tmp_path / f"{step}.ledger")
        killed, _ = die_at(step, lambda _, path=path: Ledger.open(path).close())
        with contextlib.closing(sqlite3.connect(path)) as connection:
            versions.add(connection.execute("PRAGMA user_version").fetchone()[0])
        after, kept = rows(path)
        assert (after[: len(events)], kept) == (events, payloads)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", LedgerRestated)
            assert is_sound(path)
        if not killed:
            break
    assert not killed
    assert versions == {2, 3}
    print(f"{step - 1} crash points inside an upgrade: the old ledger or the new one")


@pytest.mark.slow
def test_of_many_that_open_an_old_ledger_one_upgrades_it(path: Path) -> None:
    for turn in range(6):
        place = path.with_name(f"{turn}.ledger")
        write_old_ledger(place, HELD["pure"])
        children = []
        for number in range(4):
            child = os.fork()
            if child == 0:
                code = 1
                with contextlib.suppress(BaseException):
                    warnings.simplefilter("ignore")
                    with Ledger.open(place) as book:
                        book.reserve(bytes([number]) * 17, Charge.pure(0.5))
                    code = 0
                    if turn % 2:
                        os.kill(os.getpid(), signal.SIGKILL)
                os._exit(code)
            children.append(child)
        assert {os.waitpid(child, 0)[1] for child in children} == {signal.SIGKILL if turn % 2 else 0}
        with Ledger.open(place) as book:
            book.verify()
            assert book.charged() == Charge.pure(6.0)
        assert [row[1] for row in rows(place)[0]].count("restated") == 1
