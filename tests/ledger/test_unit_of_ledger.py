"""A ledger adds up the epsilons of one unit: fixed once, on disk, and never mixed."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
from pathlib import Path

import pytest

from dp_forward.errors import InvalidInput, LedgerCorrupt
from dp_forward.ledger import Cap, Charge, Ledger
from dp_forward.ledger.ledger_file import read_mechanism, seal, write_mechanism
from dp_forward.ledger.terms import Terms
from dp_forward.ledger.verification import VerifiedChain
from dp_forward.privacy import LABEL, RECORD, TEXT, TOKEN, phrase
from dp_forward.privacy.units import Unit, parse_unit

ONE = Charge.pure(1.0)


def key(number: int) -> bytes:
    return number.to_bytes(16, "big")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "budget.ledger"


def make(path: Path, unit: Unit | None = None) -> Ledger:
    return Ledger.create(path, cap=Cap.pure(100.0), unit=unit)


def write(path: Path, *mechanisms: str) -> None:
    """Charges as an older version wrote them, which kept no unit and knew of none."""
    make(path).close()
    with Ledger.open(path) as book:
        for number, mechanism in enumerate(mechanisms):
            book._chain._units.clear()
            book.reserve(key(number), ONE, mechanism=mechanism)
    assert column(path) == ["", *mechanisms]


def column(path: Path) -> list[str]:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return [text for (text,) in connection.execute("SELECT mechanism FROM events ORDER BY sequence")]


@pytest.mark.parametrize("unit", [TEXT, TOKEN, phrase(5), LABEL, RECORD], ids=str)
def test_the_first_charge_fixes_the_unit_for_ever(path: Path, unit: Unit) -> None:
    with make(path) as book:
        assert (book.unit, book.summary().unit) == (None, None)
        assert book.reserve(key(1), ONE, mechanism="privunit", unit=unit).unit == unit
        assert parse_unit(book.summary().unit or "") == book.unit == unit
        assert repr(book).endswith(f" per {unit}")
    with Ledger.open(path) as book:
        book.verify()
        assert book.unit == unit
        found = book.find(key(1))
        assert found is not None
        assert (found.unit, found.mechanism) == (unit, "privunit")
        book.reserve(key(2), ONE, unit=unit)


@pytest.mark.parametrize("fixed", ["at its making", "by a charge"])
@pytest.mark.parametrize("other", [TOKEN, phrase(2), RECORD, None], ids=str)
def test_another_unit_is_refused_before_anything_is_charged(
    path: Path, fixed: str, other: Unit | None
) -> None:
    with make(path, TEXT if fixed == "at its making" else None) as book:
        if fixed == "by a charge":
            book.reserve(key(1), ONE, unit=TEXT)
        before, spent = book.releases, book.spent()
        for refused in (lambda: book.reserve(key(2), ONE, unit=other), lambda: book.check_kind(ONE, other)):
            with pytest.raises(InvalidInput, match=r"charges are per text.*a ledger for each") as error:
                refused()
            assert error.value.exit_code == 2
        assert (book.releases, book.spent(), book.unit) == (before, spent, TEXT)
        assert book.find(key(2)) is None
        book.check_kind(ONE, TEXT)
        book.reserve(key(2), ONE, unit=TEXT)
        book.verify()


def test_two_phrases_of_other_lengths_are_two_units(path: Path) -> None:
    with make(path, phrase(2)) as book, pytest.raises(InvalidInput, match="phrase of 2 tokens"):
        book.reserve(key(1), ONE, unit=phrase(3))


def test_charges_that_say_no_unit_stay_among_themselves(path: Path) -> None:
    with make(path) as book:
        book.reserve(key(1), ONE)
        book.reserve(key(2), ONE)
        assert book.unit is None
        with pytest.raises(InvalidInput, match="no known unit"):
            book.reserve(key(3), ONE, unit=TEXT)
        assert " per " not in repr(book)


def test_a_known_key_is_given_only_to_its_own_unit(path: Path) -> None:
    with make(path, TEXT) as book:
        first = book.reserve(key(1), ONE, unit=TEXT)
        assert book.reserve(key(1), ONE, unit=TEXT) == first
        with pytest.raises(InvalidInput, match="per text"):
            book.reserve(key(1), ONE, unit=TOKEN)
        assert book.releases == 1


def test_a_word_is_no_unit(path: Path) -> None:
    with pytest.raises(InvalidInput, match="be a Unit"):
        make(path, "text")  # type: ignore[arg-type]
    assert not path.exists()
    with make(path) as book, pytest.raises(InvalidInput, match="be a Unit"):
        book.reserve(key(1), ONE, unit="text")  # type: ignore[arg-type]


# Files from before units were kept


@pytest.mark.parametrize(
    ("mechanism", "unit"),
    [
        ("ask: privunit per text", TEXT),
        ("ask: matrix-gaussian per token", TOKEN),
        ("corpus: privunit per phrase of 12 tokens", phrase(12)),
        ("corpus: privunit per text", TEXT),
        ("corpus: privunit per text + label", RECORD),
    ],
)
def test_an_older_file_has_the_unit_of_its_names(path: Path, mechanism: str, unit: Unit) -> None:
    write(path, mechanism, mechanism)
    with Ledger.open(path) as book:
        assert book.unit == unit
        with pytest.raises(InvalidInput, match="unit"):
            book.reserve(key(9), ONE, unit=LABEL)
        assert book.reserve(key(1), ONE, unit=unit).id == 2
        book.reserve(key(9), ONE, unit=unit)
        book.verify()


@pytest.mark.parametrize(
    "mechanisms",
    [("ask: privunit per text", "ask: privunit per token"), ("ask: privunit per text", "mine"), ("mine",)],
)
def test_an_older_file_without_one_unit_is_read_and_charged_no_more(
    path: Path, mechanisms: tuple[str, ...]
) -> None:
    write(path, *mechanisms)
    with Ledger.open(path) as book:
        book.verify()
        assert (book.unit, book.summary().unit, book.releases) == (None, None, len(mechanisms))
        for unit in (TEXT, TOKEN):
            with pytest.raises(InvalidInput, match="no known unit, or of several"):
                book.reserve(key(9), ONE, unit=unit)
        assert book.reserve(key(0), ONE, unit=TEXT).id == 1, "what was paid for is still given"


def test_names_of_others_say_nothing_about_a_unit() -> None:
    for name in ("", "matrix-gaussian", "ask: mine per day", "ask: privunit per text and more"):
        assert read_mechanism(name) == (name, None)
    assert read_mechanism("corpus: privunit per token + label")[1] is None
    assert read_mechanism(write_mechanism("ask: x per text", TOKEN)) == ("ask: x per text", TOKEN)


# On disk


def test_the_unit_is_in_the_chain(path: Path) -> None:
    with make(path, TEXT) as book:
        book.reserve(key(1), ONE, mechanism="privunit", unit=TEXT)
    assert column(path) == ["\ntext", "privunit\ntext"]
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("DROP TRIGGER events_no_update")
        connection.execute(
            "UPDATE events SET mechanism = 'privunit' || char(10) || 'token' WHERE sequence = 2"
        )
        connection.execute(
            "CREATE TRIGGER events_no_update BEFORE UPDATE ON events BEGIN\n"
            "    SELECT RAISE(ABORT, 'the events of a ledger are append-only');\nEND"
        )
        connection.commit()
    with pytest.raises(LedgerCorrupt, match="row 2 is damaged: its hash"):
        Ledger.open(path)


@pytest.mark.parametrize(
    ("opened", "reserved", "problem"),
    [
        ("\ntext", "x\ntoken", "row 2 is damaged: its unit is not the one"),
        ("\nfoot", "x\ntext", "row 1 is damaged: its unit is unknown"),
        ("", "x\nfoot", "row 2 is damaged: its unit is unknown"),
        ("x\ntext", "x\ntext", "row 1 is damaged: opening a ledger releases nothing"),
    ],
)
def test_a_sealed_chain_that_breaks_the_law_of_units_is_refused(
    opened: str, reserved: str, problem: str
) -> None:
    chain = VerifiedChain()

    def read() -> None:
        first = chain.terms_event(Terms.of(Cap.pure(8.0), None))
        chain.append(seal(first._replace(mechanism=opened)))
        second = chain.next_event("reserved", release=1, charge=ONE)
        chain.append(seal(second._replace(key=key(1), mechanism=reserved)))

    with pytest.raises(LedgerCorrupt, match=problem):
        read()


@pytest.mark.slow
def test_of_many_that_race_for_an_empty_ledger_one_unit_wins(path: Path) -> None:
    for turn in range(10):
        place = path.with_name(f"{turn}.ledger")
        make(place).close()
        children = []
        for number in range(4):
            child = os.fork()
            if child == 0:
                with contextlib.suppress(BaseException), Ledger.open(place) as book:
                    unit = TEXT if number % 2 else TOKEN
                    book.reserve(key(number), ONE, unit=unit)
                    if turn % 2:
                        os.kill(os.getpid(), signal.SIGKILL)  # what was charged is on disk
                os._exit(0)
            children.append(child)
        for child in children:
            os.waitpid(child, 0)
        with Ledger.open(place) as book:
            book.verify()
            assert book.unit in (TEXT, TOKEN)
            assert {release.unit for release in book.pending()} == {book.unit}
            assert book.releases == 2
