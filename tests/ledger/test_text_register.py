"""Data is known by its content: releases add up, what was seen raw is refused, and no entry is lost."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import sqlite3
import stat
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dp_forward.errors import BudgetExhausted, InvalidInput, LedgerCorrupt, LedgerUnavailable
from dp_forward.ledger.text_register import TextRegister
from dp_forward.privacy.charge import Charge


def prints(texts: range, *, seed: int = 0) -> np.ndarray:
    """Fingerprints of texts that are known by their number."""
    everybody = np.random.default_rng(seed).integers(1, 2**63, (2000, 17), dtype=np.uint64)
    return everybody[list(texts)]


def charge(book: TextRegister, key: int, texts: range, epsilon: float = 4.0, **settings: Any) -> Any:
    usual = {"unit": "text", "ledger": "ledger", "delta": 0.0}
    return book.charge(bytes([key]) * 32, prints(texts), Charge.pure(epsilon), **{**usual, **settings})


@pytest.fixture
def book(tmp_path: Path) -> TextRegister:
    return TextRegister(tmp_path / "home" / "register")


def released(book: TextRegister) -> int:
    return int(book.summary()["released"]["entries"])


# --- what adds up -------------------------------------------------------------------------------------------


def test_different_texts_do_not_add_up_and_the_same_ones_do(book: TextRegister) -> None:
    assert charge(book, 1, range(100)) == (4.0, 0, 0)
    assert charge(book, 2, range(100, 200)) == (4.0, 0, 0)
    with pytest.raises(BudgetExhausted, match=r"1 of 50 texts were released before.*budget=8\.0") as refused:
        charge(book, 3, range(199, 249))
    assert refused.value.exit_code == 3
    assert released(book) == 2, "what is refused is not entered"
    assert charge(book, 3, range(199, 249), budget=8.0)[0] == 8.0
    with pytest.raises(BudgetExhausted, match=r"epsilon 12\.0"):
        charge(book, 4, range(150, 220), budget=8.0)


def test_what_counts_is_the_text_that_has_spent_most(book: TextRegister) -> None:
    for key, texts in enumerate((range(10), range(5, 15), range(9, 20))):
        charge(book, key, texts, budget=100.0)
    assert charge(book, 9, range(20), budget=100.0) == (16.0, 20, 0), "text 9 is in all of them"
    assert charge(book, 8, range(10, 12), budget=100.0)[0] == 16.0


def test_a_release_is_charged_once_and_withdrawn_whole(book: TextRegister) -> None:
    for _ in range(3):
        assert charge(book, 1, range(10))[0] == 4.0
    assert released(book) == 1
    book.withdraw(bytes([1]) * 32)
    assert charge(book, 2, range(10))[0] == 4.0


def test_a_ledger_that_was_asked_for_is_added_up_and_not_bounded_here(book: TextRegister) -> None:
    charge(book, 1, range(10))
    assert charge(book, 2, range(10), bounded=False) == (8.0, 10, 0)
    with pytest.raises(BudgetExhausted, match=r"epsilon 12\.0"):
        charge(book, 3, range(10), budget=8.0)


def test_epsilons_of_two_kinds_do_not_add_up(book: TextRegister) -> None:
    charge(book, 1, range(10))
    noisy: dict[str, Any] = {"ledger": "", "delta": 1e-5, "budget": 100.0}
    for key, unit, cost in ((2, "token", Charge.pure(4.0)), (3, "text", Charge.gaussian(0.1))):
        with pytest.raises(InvalidInput, match="two kinds do not add up"):
            book.charge(bytes([key]) * 32, prints(range(9, 20)), cost, unit=unit, **noisy)
        book.charge(bytes([key]) * 32, prints(range(10 * key, 10 * key + 10)), cost, unit=unit, **noisy)


def test_a_mixture_is_covered_in_the_proportion_of_the_release(book: TextRegister) -> None:
    """A cap on the sum of unlike charges is no filter: each kind has its share."""
    usual: dict[str, Any] = {"unit": "record", "ledger": "", "delta": 1e-5, "budget": 100.0}
    much, little = Charge(4 * 10**9, 10**14), Charge(10**9, 10**15)
    book.charge(b"a" * 32, prints(range(5)), much, **usual)
    found = book.charge(b"b" * 32, prints(range(5)), little, **usual)
    assert found[0] == little.times(5).epsilon(1e-5) > (much + little).epsilon(1e-5)


# --- what was seen raw, and what is public ------------------------------------------------------------------


def test_one_text_that_a_front_saw_raw_is_refused(book: TextRegister) -> None:
    seen = [book.declare("raw", prints(range(100)))]
    assert book.refuse_seen(prints(range(100, 200)), seen, name="model", rule="not have seen them") == 0
    assert book.refuse_seen(prints(range(100)), [], name="model", rule="") == 0, "another front"
    with pytest.raises(InvalidInput, match="`model` must not have seen them; got 1 of 101 texts"):
        book.refuse_seen(prints(range(99, 200)), seen, name="model", rule="not have seen them")
    close = prints(range(100, 110))
    close[:, 9:] = prints(range(10))[:, 9:]
    assert book.refuse_seen(close, seen, name="model", rule="") == 10, "near-duplicates are counted"


def test_one_in_ten_may_be_public_by_accident(book: TextRegister) -> None:
    book.declare("public", prints(range(10)))
    charge(book, 1, range(100))
    with pytest.raises(InvalidInput, match="10 of 99 texts that were declared public"):
        charge(book, 2, range(99), budget=100.0)
    with pytest.raises(InvalidInput, match="11 of 100 texts that were released as private"):
        book.declare("public", prints(range(89, 200)))
    book.declare("public", prints(range(90, 200)))


def test_a_commitment_is_of_these_texts_and_of_this_owner(book: TextRegister, tmp_path: Path) -> None:
    first = book.declare("raw", prints(range(50)))
    assert book.declare("raw", prints(range(49, -1, -1))) == first, "in any order, entered once"
    assert book.summary()["raw"] == {"entries": 1, "texts": 50}
    assert (
        len({first, book.declare("raw", prints(range(49))), book.declare("public", prints(range(50)))}) == 3
    )
    with TextRegister(tmp_path / "other") as other:
        assert other.unknown([first, "no digest"]) == [first, "no digest"]
        assert other.refuse_seen(prints(range(50)), [first], name="model", rule="") == 0
        assert other.declare("raw", prints(range(50))) != first
    assert book.unknown([first]) == []


# --- the file -----------------------------------------------------------------------------------------------


def test_the_file_is_private_and_holds_no_plain_fingerprint(tmp_path: Path) -> None:
    place, texts = tmp_path / "register", prints(range(64))
    with TextRegister(place) as book:
        book.declare("raw", texts)
    assert stat.S_IMODE(place.stat().st_mode) == 0o600
    data = place.read_bytes()
    assert not [number for number in texts.ravel() if number.tobytes() in data]


@pytest.mark.parametrize(
    ("variables", "place"),
    [
        ({"DPF_HOME": "mine"}, "mine/register"),
        ({"XDG_DATA_HOME": "data"}, "data/dp-forward/register"),
        ({"HOME": "."}, ".local/share/dp-forward/register"),
    ],
)
def test_where_it_lies(
    variables: dict[str, str], place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("DPF_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, str(tmp_path / value))
    with TextRegister() as book:
        assert book.summary()["register"] == str(tmp_path / place)
    assert stat.S_IMODE((tmp_path / place).parent.stat().st_mode) == 0o700


def test_a_damaged_register_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "register").write_bytes(b"something else" * 100)
    with pytest.raises(LedgerCorrupt, match="never reset"):
        TextRegister(tmp_path / "register")
    assert (tmp_path / "register").read_bytes() == b"something else" * 100
    (tmp_path / "file").touch()
    with pytest.raises(LedgerUnavailable, match="DPF_HOME"):
        TextRegister(tmp_path / "file" / "register")


def test_no_error_or_repr_holds_a_fingerprint(book: TextRegister) -> None:
    charge(book, 1, range(10))
    with pytest.raises(BudgetExhausted) as refused:
        charge(book, 2, range(10))
    # An address in memory is no fingerprint.
    shown = re.sub(" at 0x[0-9a-f]+>", ">", f"{refused.value} {book!r}")
    assert not re.search(r"[0-9]{10}|[0-9a-f]{16}", shown)


@pytest.mark.slow
def test_the_size_and_speed_are_those_of_a_tenth_of_a_million(tmp_path: Path) -> None:
    """As `benchmarks.parts.register`, smaller, and with room for a loaded machine."""
    random, many = np.random.default_rng(0), 100_000
    texts = random.integers(1, 2**64, (many, 17), dtype=np.uint64)
    place = tmp_path / "register"
    with TextRegister(place) as book:
        seen = [book.declare("public", texts)]
        began = time.process_time()
        asked = random.integers(1, 2**64, (many, 17), dtype=np.uint64)
        book.refuse_seen(asked, seen, name="front", rule="")
        assert many / (time.process_time() - began) > 20_000
    assert place.stat().st_size < 200 * many


# --- kills, and two at a time -------------------------------------------------------------------------------


def _die_after(place: Path, number: int, before: bool) -> None:
    with TextRegister(place) as book:
        if before:
            book._database.transaction = _killing  # type: ignore[method-assign]
        charge(book, number, range(10 * number, 10 * number + 10))
        os.kill(os.getpid(), signal.SIGKILL)


def _killing(*, write: bool) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
def test_what_was_entered_survives_a_kill(tmp_path: Path) -> None:
    place, context = tmp_path / "register", multiprocessing.get_context("fork")
    for number, before in ((1, False), (2, True), (3, False)):
        process = context.Process(target=_die_after, args=(place, number, before))
        process.start()
        process.join()
        assert process.exitcode == -signal.SIGKILL
    with TextRegister(place) as book:
        assert released(book) == 2
        with pytest.raises(BudgetExhausted, match="20 of 40"):
            charge(book, 9, range(40))
    with sqlite3.connect(place) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def _charge_all(place: Path, first: int, results: Any) -> None:
    admitted = 0
    for number in range(first, first + 20):
        with TextRegister(place) as book:
            try:
                charge(book, number, range(10), budget=40.0)
            except BudgetExhausted:
                continue
            admitted += 1
    results.put(admitted)


@pytest.mark.slow
def test_two_processes_never_pass_a_budget_together(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    results: Any = context.Queue()
    processes = [
        context.Process(target=_charge_all, args=(tmp_path / "register", first, results))
        for first in (0, 100)
    ]
    for process in processes:
        process.start()
    assert results.get(timeout=60) + results.get(timeout=60) == 10
    for process in processes:
        process.join()
        assert process.exitcode == 0
