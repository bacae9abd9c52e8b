"""Laws of `Ledger` while nothing crashes and nothing is damaged."""

from __future__ import annotations

import contextlib
import os
import resource
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from dp_forward.errors import BudgetExhausted, DpForwardError, InvalidInput, LedgerCorrupt, LedgerUnavailable
from dp_forward.ledger import (
    Cap,
    Charge,
    Ledger,
    Release,
    State,
    admission,
    ledger_file,
)
from dp_forward.privacy import AnalyticGaussian, Budget, calibrate

ONE = Charge.pure(1.0)


def key(number: int) -> bytes:
    return number.to_bytes(16, "big")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "budget.ledger"


@pytest.fixture
def ledger(path: Path) -> Any:
    with Ledger.create(path, cap=Cap.pure(8.0)) as made:
        yield made


@pytest.fixture
def gaussian(tmp_path: Path) -> Any:
    with Ledger.create(tmp_path / "gaussian.ledger", cap=Cap.gaussian(Budget(8.0, 1e-5))) as made:
        yield made


# --- one release -------------------------------------------------------------------------------


def test_a_release_goes_from_reserved_to_ready_to_delivered(gaussian: Ledger) -> None:
    ledger = gaussian
    release = ledger.reserve(key(1), Charge.gaussian(0.5), mechanism="matrix-gaussian")
    assert release == Release(1, State.RESERVED, Charge.gaussian(0.5), "matrix-gaussian", key(1))
    assert ledger.pending() == (release,)
    assert ledger.ready(release.id, b"noisy") == b"noisy"
    assert ledger.payload(release.id) == b"noisy"
    assert [one.state for one in ledger.pending()] == [State.READY]
    ledger.delivered(release.id)
    ledger.delivered(release.id)
    assert ledger.pending() == ()
    found = ledger.find(key(1))
    assert found is not None
    assert found.state is State.DELIVERED
    assert ledger.find(key(2)) is None
    ledger.verify()


def test_asking_again_with_a_key_costs_nothing(ledger: Ledger) -> None:
    first = ledger.reserve(key(1), ONE)
    for _ in range(20):
        assert ledger.reserve(key(1), ONE) == first
    assert (ledger.spent(), ledger.releases) == (1.0, 1)


def test_a_known_key_is_answered_even_when_the_budget_is_exhausted(ledger: Ledger) -> None:
    ledger.reserve(key(1), Charge.pure(8.0))
    assert ledger.reserve(key(1), Charge.pure(8.0)).id == 1


def test_a_key_charged_otherwise_before_is_refused(ledger: Ledger) -> None:
    ledger.reserve(key(1), ONE)
    with pytest.raises(InvalidInput, match="charged before"):
        ledger.reserve(key(1), Charge.gaussian(1.0))
    assert ledger.releases == 1


def test_the_first_writer_wins(path: Path, ledger: Ledger) -> None:
    with Ledger.open(path) as other:
        mine, theirs = ledger.reserve(key(1), ONE), other.reserve(key(1), ONE)
        assert mine == theirs
        assert other.ready(theirs.id, b"theirs") == b"theirs"
        assert ledger.ready(mine.id, b"mine") == b"theirs"
        assert ledger.payload(mine.id) == b"theirs"
        ledger.delivered(mine.id)
        assert other.ready(theirs.id, b"late") == b"theirs"


def test_a_payload_is_needed_before_delivery(ledger: Ledger) -> None:
    release = ledger.reserve(key(1), ONE)
    with pytest.raises(InvalidInput, match="ready"):
        ledger.delivered(release.id)
    with pytest.raises(InvalidInput, match="ready"):
        ledger.payload(release.id)


def test_unknown_releases_are_refused(ledger: Ledger) -> None:
    for bad in (1, 0, -1, True, "1", None):
        with pytest.raises(InvalidInput, match="release_id"):
            ledger.ready(bad, b"x")  # type: ignore[arg-type]
    ledger.reserve(key(1), ONE)
    with pytest.raises(InvalidInput, match="reserve first"):
        ledger.delivered(2)


# --- the cap -----------------------------------------------------------------------------------


def test_the_cap_is_reached_exactly_and_never_passed(ledger: Ledger) -> None:
    for number in range(8):
        ledger.reserve(key(number), ONE)
    assert (ledger.spent(), ledger.summary().remaining) == (8.0, 0.0)
    with pytest.raises(BudgetExhausted) as refused:
        ledger.reserve(key(8), Charge(epsilon_units=1))
    message = str(refused.value)
    assert "\n" not in message
    assert "cap of epsilon 8.0" in message
    assert "epsilon 8.0 of epsilon 8.0 is charged" in message
    assert "costs epsilon 1e-09" in message
    assert ledger.find(key(8)) is None
    assert ledger.releases == 8


def test_gaussian_releases_add_their_mu2_up_to_their_share(gaussian: Ledger) -> None:
    charge, admitted = Charge.gaussian(0.7), 0
    while charge <= gaussian.cap.shares.left_by(gaussian.charged()):  # type: ignore[union-attr]
        gaussian.reserve(key(admitted), charge)
        admitted += 1
    with pytest.raises(BudgetExhausted, match=r"mu 1\.56525 of mu 1\.66604 is charged, .* costs mu 0\.70"):
        gaussian.reserve(key(admitted), charge)
    assert charge.times(admitted).epsilon(1e-5) <= 8.0 < charge.times(admitted + 1).epsilon(1e-5)
    assert admitted > 8.0 / charge.epsilon(1e-5)  # better than adding epsilons
    assert gaussian.charged() == charge.times(admitted)
    gaussian.verify()


def test_what_gaussian_releases_have_charged_is_a_mu_and_never_an_epsilon(gaussian: Ledger) -> None:
    gaussian.reserve(key(1), Charge.gaussian(0.5))
    found = gaussian.summary()
    assert (found.cap, found.delta, found.spent, found.spent_today) == (8.0, 1e-5, None, None)
    assert found.charged == found.charged_today == {"epsilon": 0.0, "mu": 0.5}
    assert gaussian.spent() is None
    assert "charged=mu 0.5" in repr(gaussian)
    assert "spent" not in repr(gaussian)


@pytest.mark.parametrize("used", [0.0, 0.01, 0.5, 1.6])
def test_a_release_that_is_calibrated_to_what_remains_still_fits(gaussian: Ledger, used: float) -> None:
    if used:
        gaussian.reserve(key(1), Charge.gaussian(used))
    left = gaussian.summary().remaining
    assert left is not None
    fits = calibrate(AnalyticGaussian, Budget(left, 1e-5), sensitivity=2.0)
    too_much = calibrate(AnalyticGaussian, Budget(left * 1.001, 1e-5), sensitivity=2.0)
    with pytest.raises(BudgetExhausted):
        gaussian.reserve(key(2), too_much.charge())
    gaussian.reserve(key(3), fits.charge())


def test_a_charge_too_large_for_any_sum_is_refused_as_exhausted(path: Path) -> None:
    with Ledger.create(path, cap=Cap.mixed(Budget(8.0, 1e-5), pure=2.0)) as ledger:
        ledger.reserve(key(1), ONE)
        with pytest.raises(BudgetExhausted):
            ledger.reserve(key(2), Charge(2**63 - 1, 2**63 - 1))


def test_a_kind_without_a_share_is_refused_with_the_way_to_one(path: Path, gaussian: Ledger) -> None:
    with Ledger.create(path, cap=Cap.pure(2.0)) as ledger:
        ledger.reserve(key(1), ONE)
        refusals = (
            (ledger, Charge.gaussian(0.1), r"no Gaussian one.*ledger create FILE --epsilon 8 --delta 1e-5"),
            (gaussian, ONE, r"no pure one.*--delta 1e-5 --pure-share 2"),
            (gaussian, ONE + Charge.gaussian(0.1), "no pure one"),
        )
        for book, charge, match in refusals:
            before = book.charged()
            with pytest.raises(InvalidInput, match=match):
                book.reserve(key(9), charge)
            with pytest.raises(InvalidInput, match=match):
                book.check_kind(charge, None)
            assert book.charged() == before


def test_shares_are_not_exchanged(path: Path) -> None:
    with Ledger.create(path, cap=Cap.mixed(Budget(8.0, 1e-5), pure=2.0)) as ledger:
        share = ledger.cap.shares.mu if ledger.cap else 0.0
        ledger.reserve(key(1), Charge.pure(2.0))
        with pytest.raises(BudgetExhausted, match=r"epsilon 2\.0 of epsilon 2\.0 and mu 1\.31"):
            ledger.reserve(key(2), Charge(epsilon_units=1))
        ledger.reserve(key(3), Charge.gaussian(0.99 * share))
        with pytest.raises(BudgetExhausted):
            ledger.reserve(key(4), Charge.gaussian(0.2 * share))
        assert ledger.charged() <= ledger.cap.shares  # type: ignore[union-attr]
        ledger.verify()


@pytest.mark.slow
def test_a_pure_cap_has_no_limit_of_its_own(path: Path) -> None:
    with Ledger.create(path, cap=Cap.pure(1e6)) as ledger:
        for number in range(300):
            ledger.reserve(key(number), Charge.pure(4.0))
        assert (ledger.spent(), ledger.summary().remaining) == (1200.0, 998_800.0)


@pytest.mark.parametrize("shared", [True, False])
def test_eight_threads_racing_never_pass_the_cap(path: Path, shared: bool) -> None:
    def attack(ledger: Ledger, number: int) -> int:
        won = 0
        for attempt in range(6):
            with contextlib.suppress(BudgetExhausted):
                ledger.reserve(key(100 * number + attempt), ONE)
                won += 1
        return won

    with contextlib.ExitStack() as stack:
        first = stack.enter_context(Ledger.create(path, cap=Cap.pure(13.0)))
        ledgers = [first if shared else stack.enter_context(Ledger.open(path)) for _ in range(8)]
        with ThreadPoolExecutor(8) as pool:
            won = sum(pool.map(attack, ledgers, range(8)))
        assert won == first.releases == 13
        assert first.spent() == 13.0
        first.verify()


def test_threads_asking_for_one_key_are_charged_once(ledger: Ledger) -> None:
    with ThreadPoolExecutor(8) as pool:
        releases = list(pool.map(lambda _: ledger.reserve(key(1), ONE), range(32)))
        drawn = list(pool.map(lambda n: ledger.ready(1, b"%d" % n), range(32)))
    assert {release.id for release in releases} == {1}
    assert len(set(drawn)) == 1
    assert ledger.spent() == 1.0


# --- opening and making ------------------------------------------------------------------------


def test_the_terms_survive_reopening(path: Path, ledger: Ledger) -> None:
    ledger.reserve(key(1), Charge.pure(2.0))
    ledger.close()
    ledger.close()
    assert [one.name for one in path.parent.iterdir()] == [path.name]
    with Ledger.open(str(path)) as again:
        assert (again.cap, again.spent()) == (Cap.pure(8.0), 2.0)


def test_the_repr_says_what_it_promises(ledger: Ledger) -> None:
    for number in range(3):
        ledger.reserve(key(number), Charge.pure(0.5), mechanism="privunit")
    assert repr(ledger) == "Ledger(cap=8.0-DP, charged=epsilon 1.5, releases=3)"
    ledger.close()
    assert repr(ledger) == "Ledger(cap=8.0-DP, charged=epsilon 1.5, releases=3)"


def test_the_latest_charges_are_listed_newest_first_with_their_time(path: Path, ledger: Ledger) -> None:
    before = time.time_ns()
    made = [ledger.reserve(key(number), Charge.pure(0.25)) for number in range(1, 5)]
    ledger.ready(made[-1].id, b"drawn")
    found = ledger.latest(3)
    assert [release.id for release in found] == [4, 3, 2]
    assert [release.state for release in found] == [State.READY, State.RESERVED, State.RESERVED]
    assert before <= found[1].time_ns <= found[0].time_ns <= time.time_ns()
    assert made[2].time_ns == found[1].time_ns
    with Ledger.open(path) as again:
        assert [release.time_ns for release in again.latest()][:3] == [release.time_ns for release in found]
    with pytest.raises(InvalidInput, match="most"):
        ledger.latest(0)


def test_the_summary_is_one_moment(ledger: Ledger) -> None:
    for number in range(3):
        ledger.reserve(key(number), ONE)
    ledger.ready(1, b"x")
    ledger.delivered(1)
    summary = ledger.summary()
    assert (summary.releases, summary.pending, summary.delivered) == (3, 2, 1)
    assert (summary.spent, summary.cap, summary.remaining) == (3.0, 8.0, 5.0)


def test_an_existing_path_is_never_overwritten(path: Path, ledger: Ledger) -> None:
    ledger.reserve(key(1), ONE)
    with pytest.raises(InvalidInput, match="not exist yet"):
        Ledger.create(path, cap=Cap.pure(8.0))
    assert ledger.releases == 1


def test_open_or_create_makes_once_and_never_changes_the_terms(path: Path) -> None:
    with Ledger.open_or_create(path, cap=Cap.pure(8.0)) as made:
        made.reserve(key(1), ONE)
    with Ledger.open_or_create(path, cap=Cap.pure(8.0)) as again:
        assert again.releases == 1
    for cap in (Cap.pure(9.0), Cap.pure(7.0), Cap.gaussian(Budget(8.0, 1e-6))):
        with pytest.raises(InvalidInput, match=r"a ledger with cap 8\.0-DP"):
            Ledger.open_or_create(path, cap=cap)


def test_open_or_create_takes_the_ledger_of_a_quicker_process(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = Ledger.create

    def late(*arguments: Any, **terms: Any) -> Ledger:
        create(*arguments, **terms).close()
        return create(*arguments, **terms)

    monkeypatch.setattr(Ledger, "create", late)
    with Ledger.open_or_create(path, cap=Cap.pure(8.0)) as ledger:
        assert ledger.releases == 0


def test_places_that_cannot_hold_a_ledger_are_refused(tmp_path: Path) -> None:
    for make in (Ledger.open, lambda p: Ledger.create(p, cap=Cap.pure(1.0))):
        with pytest.raises(InvalidInput, match="existing folder"):
            make(tmp_path / "no" / "ledger")
        with pytest.raises(InvalidInput, match="folder"):
            make(tmp_path)
    with pytest.raises(InvalidInput, match="exist"):
        Ledger.open(tmp_path / "none.ledger")
    assert list(tmp_path.iterdir()) == []


def test_a_closed_ledger_is_refused(ledger: Ledger) -> None:
    ledger.close()
    for use in (ledger.spent, ledger.verify):
        with pytest.raises(InvalidInput, match="closed"):
            use()


# --- what comes in -----------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [b"", b"x" * 15, b"x" * 65, "x" * 16, None, bytearray(16)])
def test_keys_have_16_to_64_bytes(ledger: Ledger, bad: object) -> None:
    with pytest.raises(InvalidInput, match="key"):
        ledger.reserve(bad, ONE)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="key"):
        ledger.find(bad)  # type: ignore[arg-type]


def test_what_leaves_is_never_free(ledger: Ledger) -> None:
    for bad in (Charge(), 1.0, None):
        with pytest.raises(InvalidInput, match="charge"):
            ledger.reserve(key(1), bad)  # type: ignore[arg-type]


def test_a_mechanism_is_a_short_printable_name(ledger: Ledger) -> None:
    for bad in ("x" * 201, "two\nlines", "\ud800", 7):
        with pytest.raises(InvalidInput, match="mechanism"):
            ledger.reserve(key(1), ONE, mechanism=bad)  # type: ignore[arg-type]
    assert ledger.reserve(key(1), ONE, mechanism="Gauß, d' = 16").mechanism == "Gauß, d' = 16"


def test_payloads_are_bytes_of_a_sane_size(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "LARGEST_PAYLOAD", 4)
    ledger.reserve(key(1), ONE)
    for bad in (b"", b"12345", "text", bytearray(3), None):
        with pytest.raises(InvalidInput, match="payload"):
            ledger.ready(1, bad)  # type: ignore[arg-type]
    assert ledger.ready(1, b"1234") == b"1234"


@pytest.mark.parametrize("terms", [{}, {"cap": 8.0}, {"cap": Cap.pure(1.0), "per_day": 2.0}])
def test_a_ledger_without_a_cap_is_not_made(path: Path, terms: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="cap"):
        Ledger.create(path, **terms)
    assert list(path.parent.iterdir()) == []


def test_no_error_or_repr_shows_a_key_or_a_payload(ledger: Ledger) -> None:
    hidden_key, hidden = b"SECRETSECRETSECRET", b"PRIVATEPAYLOAD"
    release = ledger.reserve(hidden_key, ONE)
    ledger.ready(release.id, hidden)
    said = [repr(ledger), repr(release), repr(ledger.pending()), repr(ledger.summary())]
    for ask in (
        lambda: ledger.reserve(hidden_key, Charge.pure(2.0)),
        lambda: ledger.reserve(hidden_key * 8, ONE),
        lambda: ledger.reserve(hidden_key + b"2", Charge.pure(9.0)),
        lambda: ledger.ready(2, hidden),
    ):
        with pytest.raises(DpForwardError) as refused:
            ask()
        said.append(str(refused.value))
    assert not [text for text in said if "SECRET" in text or "PRIVATE" in text]


# --- locks, disks, forks -----------------------------------------------------------------------


def test_a_locked_ledger_is_a_clear_refusal(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_file, "BUSY_SECONDS", 0.05)
    with Ledger.create(path, cap=Cap.pure(8.0)) as ledger:
        blocker = sqlite3.connect(path, isolation_level=None)
        blocker.execute("BEGIN IMMEDIATE")
        with pytest.raises(LedgerUnavailable, match="locked"):
            ledger.reserve(key(1), ONE)
        assert ledger.spent() == 0.0  # readers are not blocked
        blocker.close()
        ledger.reserve(key(1), ONE)


def test_a_full_disk_is_a_clear_refusal_and_charges_nothing(ledger: Ledger) -> None:
    ledger.reserve(key(1), ONE)
    connection = ledger._database._connection
    assert connection is not None
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    connection.execute(f"PRAGMA max_page_count = {pages + 1}")
    with pytest.raises(LedgerUnavailable, match="SQLITE_FULL"):
        ledger.ready(1, b"x" * 50_000)
    connection.execute("PRAGMA max_page_count = 100000")
    assert ledger.pending()[0].state is State.RESERVED
    assert ledger.ready(1, b"y" * 50_000) == b"y" * 50_000
    ledger.verify()


def test_a_disk_without_room_for_a_file_charges_nothing_and_works_again(path: Path) -> None:
    """Real writes that fail, at every step."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def without_room(most: int, step: Callable[[], object]) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))
        try:
            with pytest.raises(LedgerUnavailable, match=r"SQLITE_(FULL|IOERR)"):
                step()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    without_room(6_000, lambda: Ledger.create(path, cap=Cap.pure(8.0), per_day=2.0))
    assert list(path.parent.iterdir()) == []
    with Ledger.create(path, cap=Cap.pure(8.0), per_day=2.0) as ledger:
        log = path.with_name(path.name + "-wal")
        steps: list[tuple[Callable[[], object], State | None]] = [
            (lambda: ledger.reserve(key(1), ONE), None),
            (lambda: ledger.ready(1, b"x" * 9_000), State.RESERVED),
            (lambda: ledger.delivered(1), State.READY),
        ]
        for step, before in steps:
            without_room(log.stat().st_size if log.exists() else 0, step)
            with Ledger.open(path) as other:
                found = other.find(key(1))
                assert (None if found is None else found.state) == before
                assert other.summary().spent_today == (0.0 if before is None else 1.0)
                other.verify()
            step()
        assert ledger.summary().delivered == 1
        ledger.verify()


def test_a_file_replaced_or_removed_while_open_is_refused(path: Path, ledger: Ledger) -> None:
    ledger.reserve(key(1), ONE)
    path.rename(path.with_suffix(".old"))
    with pytest.raises(LedgerCorrupt, match="gone"):
        ledger.reserve(key(2), ONE)
    (path.parent / (path.name + "-wal")).unlink()
    (path.parent / (path.name + "-shm")).unlink()
    Ledger.create(path, cap=Cap.pure(8.0)).close()
    with pytest.raises(LedgerCorrupt, match="replaced"):
        ledger.reserve(key(2), ONE)


def in_child(work: Any) -> int:
    """Run ``work`` in a forked child; returns the process id."""
    process = os.fork()
    if process == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return process


@pytest.mark.slow
def test_a_fork_is_safe_on_both_sides(path: Path, ledger: Ledger) -> None:
    ledger.reserve(key(0), ONE)
    children = [in_child(lambda n=n: ledger.reserve(key(n), ONE)) for n in range(1, 5)]
    ledger.reserve(key(5), ONE)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 4
    assert ledger.releases == 6
    ledger.verify()


def test_a_child_that_outlives_its_parents_ledger_loses_nothing(path: Path, ledger: Ledger) -> None:
    # With a connection that was merely reopened after the fork, this charge is lost: the parent's
    # close deletes the write-ahead log under the child.
    ledger.reserve(key(0), ONE)
    to_parent, from_child = os.pipe()
    to_child, from_parent = os.pipe()

    def child_work() -> None:
        ledger.spent()
        os.write(from_child, b"x")
        os.read(to_child, 1)
        ledger.reserve(key(1), ONE)

    child = in_child(child_work)
    os.read(to_parent, 1)
    ledger.close()
    os.write(from_parent, b"x")
    assert os.waitpid(child, 0)[1] == 0
    with Ledger.open(path) as again:
        assert again.releases == 2
        again.verify()


# --- any order of operations, against a model --------------------------------------------------

CHARGES = (Charge.pure(0.25), Charge.pure(1.0), Charge.gaussian(0.3), Charge.gaussian(0.6))
CAP = Cap.mixed(Budget(4.0, 1e-5), pure=2.0)


class AnyOrder(RuleBasedStateMachine):
    """Random operations by two handles on one file, against dictionaries."""

    @initialize()
    def start(self) -> None:
        self.folder = TemporaryDirectory()
        self.path = Path(self.folder.name) / "l"
        first = Ledger.create(self.path, cap=CAP)
        self.handles = [first, Ledger.open(self.path)]
        self.known: dict[bytes, tuple[int, Charge]] = {}
        self.drawn: dict[int, bytes] = {}
        self.arrived: set[int] = set()

    @rule(handle=st.integers(0, 1), number=st.integers(0, 7), charge=st.sampled_from(CHARGES))
    def reserve(self, handle: int, number: int, charge: Charge) -> None:
        total = sum((cost for _, cost in self.known.values()), start=Charge())
        asked = key(number)
        if asked in self.known and self.known[asked][1] != charge:
            expected: type[DpForwardError] | None = InvalidInput
        elif asked not in self.known and not total + charge <= CAP.shares:
            expected = BudgetExhausted
        else:
            expected = None
        if expected is not None:
            with pytest.raises(expected):
                self.handles[handle].reserve(asked, charge)
            return
        self.known.setdefault(asked, (len(self.known) + 1, charge))
        release = self.handles[handle].reserve(asked, charge)
        assert (release.id, release.charge) == self.known[asked]
        assert release.state is self._state(release.id)

    @rule(handle=st.integers(0, 1), release=st.integers(1, 8), data=st.binary(min_size=1))
    def ready(self, handle: int, release: int, data: bytes) -> None:
        if release > len(self.known):
            with pytest.raises(InvalidInput):
                self.handles[handle].ready(release, data)
            return
        self.drawn.setdefault(release, data)
        assert self.handles[handle].ready(release, data) == self.drawn[release]

    @rule(handle=st.integers(0, 1), release=st.integers(1, 8))
    def delivered(self, handle: int, release: int) -> None:
        if release not in self.drawn:
            with pytest.raises(InvalidInput):
                self.handles[handle].delivered(release)
            return
        self.arrived.add(release)
        self.handles[handle].delivered(release)

    @rule(handle=st.integers(0, 1))
    def reopen(self, handle: int) -> None:
        self.handles[handle].close()
        self.handles[handle] = Ledger.open(self.path)

    @rule(handle=st.integers(0, 1))
    def verify(self, handle: int) -> None:
        self.handles[handle].verify()

    @invariant()
    def both_handles_agree_with_the_model(self) -> None:
        total = sum((cost for _, cost in self.known.values()), start=Charge())
        waiting = [n for n in range(1, len(self.known) + 1) if n not in self.arrived]
        for handle in self.handles:
            assert handle.charged() == total <= CAP.shares
            assert handle.releases == len(self.known)
            assert [one.id for one in handle.pending()] == waiting
            for asked, (release_id, _) in self.known.items():
                found = handle.find(asked)
                assert found is not None
                assert found.state is self._state(release_id)
            for release_id, data in self.drawn.items():
                assert handle.payload(release_id) == data

    def _state(self, release_id: int) -> State:
        if release_id in self.arrived:
            return State.DELIVERED
        return State.READY if release_id in self.drawn else State.RESERVED

    def teardown(self) -> None:
        for handle in self.handles:
            handle.close()
        self.folder.cleanup()


AnyOrder.TestCase.settings = settings(max_examples=25, stateful_step_count=30, deadline=None)
TestAnyOrderOfOperationsMatchesTheModel = pytest.mark.slow(AnyOrder.TestCase)
