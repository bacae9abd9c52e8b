"""A ledger that is not what was written is refused, whatever happened to it, and never reset."""

from __future__ import annotations

import contextlib
import hashlib
import random
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from dp_forward.errors import LedgerCorrupt
from dp_forward.ledger import Cap, Charge, Ledger, ledger_file
from dp_forward.ledger.ledger_file import Event, digest_of, seal
from dp_forward.ledger.terms import Terms
from dp_forward.ledger.verification import VerifiedChain, check_pages
from dp_forward.privacy import Budget

CAP = Cap.mixed(Budget(8.0, 1e-5), pure=4.0)
SECRETS = (b"SECRETKEYSECRETKEY", b"PRIVATEPAYLOAD")


def key(number: int) -> bytes:
    return SECRETS[0] + bytes([number])


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed ledger with releases in every state, and one payload larger than a page."""
    path = tmp_path_factory.mktemp("sound") / "sound.ledger"
    with Ledger.create(path, cap=CAP) as ledger:
        for number in range(9):
            charge = Charge.pure(0.25) if number % 2 else Charge.gaussian(0.1)
            release = ledger.reserve(key(number), charge, mechanism="matrix-gaussian")
            if number % 3:
                ledger.ready(release.id, SECRETS[1] * (1 + 500 * (number == 4)) + bytes([number]))
            if number % 3 == 2:
                ledger.delivered(release.id)
    return path


@pytest.fixture
def path(original: Path, tmp_path: Path) -> Path:
    return shutil.copy(original, tmp_path / "copy.ledger")


def contents(path: Path) -> list[list[Any]]:
    """Everything the file says, read without the package."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return [
            connection.execute(f"SELECT * FROM {table} ORDER BY 1").fetchall()
            for table in ("events", "payloads", "head")
        ]


def read_all(path: Path) -> None:
    with Ledger.open(path) as ledger:
        ledger.verify()


def refused(path: Path, match: str | None = None) -> None:
    """Refused in one line, without a key or a payload in it, and left as it was."""
    before = path.read_bytes()
    with pytest.raises(LedgerCorrupt, match=match) as error:
        read_all(path)
    message = str(error.value)
    assert "\n" not in message
    assert "SECRET" not in message
    assert "PRIVATE" not in message
    assert path.read_bytes() == before


def edit(path: Path, *statements: str) -> None:
    """Go around the triggers, then put them back, as someone who covers their tracks would."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        triggers = connection.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'trigger'").fetchall()
        for name, _ in triggers:
            connection.execute(f"DROP TRIGGER {name}")
        for statement in statements:
            connection.execute(statement)
        for _, sql in triggers:
            connection.execute(sql)
        connection.commit()
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def test_the_untouched_copy_is_sound(path: Path) -> None:
    edit(path)
    read_all(path)


# --- the triggers ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE events SET epsilon_units = 0",
        "UPDATE events SET time_ns = 0 WHERE sequence = 1",
        "DELETE FROM events",
        "DELETE FROM events WHERE sequence = (SELECT max(sequence) FROM events)",
        "UPDATE payloads SET bytes = x'00'",
        "DELETE FROM payloads",
        "DELETE FROM head",
        "UPDATE head SET sequence = 1",
        "REPLACE INTO head VALUES (1, 1, zeroblob(32))",
    ],
)
def test_the_tables_only_grow(path: Path, statement: str) -> None:
    before = contents(path)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA recursive_triggers = ON")
        with pytest.raises(sqlite3.IntegrityError, match="ledger"):
            connection.execute(statement)
    assert contents(path) == before


# --- files that are no ledger ------------------------------------------------------------------


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "empty"
    path.touch()
    refused(path, "empty")


def test_a_text_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("eps = 8\n" * 1000)
    refused(path, "no ledger")


def test_another_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE events (x)")
    refused(path, "not a ledger")


@pytest.mark.parametrize("version", [0, 1, 4])
def test_an_unknown_schema_version_is_refused_with_a_way_on(path: Path, version: int) -> None:
    edit(path, f"PRAGMA user_version = {version}")
    refused(path, f"version {version}.*that made it, or a new ledger")


@pytest.mark.parametrize(
    "statement",
    [
        "DROP TRIGGER events_no_update",
        "CREATE TABLE more (x)",
        "CREATE TRIGGER spy AFTER INSERT ON payloads BEGIN DELETE FROM head; END",
        "DROP INDEX one_release_per_key",
        "DROP TABLE payloads",
    ],
)
def test_other_tables_or_triggers_are_refused(path: Path, statement: str) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute(statement)
        connection.commit()
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    refused(path, "tables and triggers")


# --- rows that were edited ---------------------------------------------------------------------

LAST = "(SELECT max(sequence) FROM events)"


@pytest.mark.parametrize(
    ("statement", "match"),
    [
        ("UPDATE events SET total_epsilon_units = 0, epsilon_units = 0 WHERE sequence = 4", "row 4"),
        ("UPDATE events SET total_mu2_units = mu2_units WHERE sequence = 7", "row 7"),
        ("UPDATE events SET cap = 100.0 WHERE sequence = 1", "row 1"),
        ("UPDATE events SET delta = 0.5 WHERE sequence = 1", "row 1"),
        ("UPDATE events SET per_day = 4.0 WHERE sequence = 1", "row 1"),
        ("UPDATE events SET key = zeroblob(16) WHERE sequence = 2", "row 2"),
        ("UPDATE events SET mechanism = 'x' WHERE sequence = 2", "row 2"),
        ("UPDATE events SET mechanism = CAST(x'FF53454352' AS TEXT) WHERE sequence = 2", "unreadable"),
        ("UPDATE events SET time_ns = time_ns + 1 WHERE sequence = 3", "row 3"),
        ("UPDATE events SET kind = 'delivered' WHERE sequence = 4", "row 4"),
        ("UPDATE events SET previous = zeroblob(32) WHERE sequence = 5", "row 5"),
        ("UPDATE events SET digest = zeroblob(32) WHERE sequence = 5", "row 5"),
        (f"DELETE FROM events WHERE sequence = {LAST}", "missing"),
        (f"DELETE FROM events WHERE sequence > {LAST} - 5", "missing"),
        ("DELETE FROM events WHERE sequence = 6", "row 6"),
        ("DELETE FROM events", "row 1 is missing|does not end"),
        ("DELETE FROM head", "does not end"),
        ("UPDATE head SET digest = zeroblob(32)", "does not end"),
        ("UPDATE payloads SET bytes = x'00' WHERE sequence = 4", "row 4"),
        ("UPDATE payloads SET bytes = zeroblob(9) WHERE sequence = 4", "row 4"),
        ("DELETE FROM payloads WHERE sequence = 4", "row 4"),
        ("INSERT INTO payloads VALUES (2, x'00')", "no row speaks of"),
    ],
)
def test_an_edited_row_is_refused(path: Path, statement: str, match: str) -> None:
    edit(path, statement)
    refused(path, match)


def test_swapped_rows_are_refused(path: Path) -> None:
    edit(
        path,
        "UPDATE events SET sequence = -1 WHERE sequence = 3",
        "UPDATE events SET sequence = 3 WHERE sequence = 4",
        "UPDATE events SET sequence = 4 WHERE sequence = -1",
    )
    refused(path, "row 3")


def test_swapped_payloads_are_refused(path: Path) -> None:
    (first, *_, last) = [sequence for sequence, _ in contents(path)[1]]
    edit(
        path,
        f"UPDATE payloads SET sequence = -1 WHERE sequence = {first}",
        f"UPDATE payloads SET sequence = {first} WHERE sequence = {last}",
        f"UPDATE payloads SET sequence = {last} WHERE sequence = -1",
    )
    refused(path, f"row {first}")


def test_a_chain_cut_to_nothing_with_its_head_is_refused(path: Path) -> None:
    edit(
        path,
        "DELETE FROM payloads",
        "DELETE FROM events",
        "UPDATE head SET sequence = 0, digest = zeroblob(32)",
    )
    refused(path, "row 1 is missing")


def test_a_column_of_another_type_is_refused(path: Path) -> None:
    strict = "SELECT sql FROM sqlite_schema WHERE name = 'events'"
    with contextlib.closing(sqlite3.connect(path)) as connection:
        (made,) = connection.execute(strict).fetchone()
    edit(
        path,
        "PRAGMA writable_schema = ON",
        "UPDATE sqlite_schema SET sql = replace(sql, ') STRICT', ')') WHERE name = 'events'",
    )
    edit(path, "UPDATE events SET key = 'SECRETSECRETSECRET' WHERE sequence = 2")
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute("UPDATE sqlite_schema SET sql = ? WHERE name = 'events'", (made,))
        connection.commit()
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    refused(path, "row 2 is damaged: a column holds a value of the wrong type")


def test_a_damaged_index_is_refused(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        (page,) = connection.execute(
            "SELECT rootpage FROM sqlite_schema WHERE name = 'one_release_per_key'"
        ).fetchone()
    data = bytearray(path.read_bytes())
    place = data.index(SECRETS[0], (page - 1) * 4096)
    data[place] ^= 1
    path.write_bytes(data)
    with Ledger.open(path) as ledger:  # the chain itself is whole, and answers do not need it
        assert ledger.find(key(0)) is not None
    refused(path, "index|row")


def test_a_reference_to_nowhere_is_refused(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("INSERT INTO payloads VALUES (999, x'00')")
        with pytest.raises(LedgerCorrupt, match="refers"):
            check_pages(connection)


# --- a peer that misbehaves while the ledger is open -------------------------------------------


def test_an_older_copy_restored_in_place_is_refused(path: Path) -> None:
    with Ledger.open(path) as ledger:
        with contextlib.closing(sqlite3.connect(":memory:")) as old:
            with contextlib.closing(sqlite3.connect(path)) as connection:
                connection.backup(old)
            ledger.reserve(key(100), Charge.pure(1.0))
            with contextlib.closing(sqlite3.connect(path)) as connection:
                old.backup(connection)
        with pytest.raises(LedgerCorrupt, match="older copy"):
            ledger.reserve(key(101), Charge.pure(1.0))


def test_rows_that_another_process_forges_are_refused(path: Path) -> None:
    with Ledger.open(path) as ledger:
        with contextlib.closing(sqlite3.connect(path)) as connection:
            connection.execute(
                "INSERT INTO events SELECT sequence + 1, 'reserved', 10, zeroblob(16), '', 0, 1, "
                "total_epsilon_units, total_mu2_units + 1, x'', 0, 0.0, 0.0, 0.0, 0, digest, "
                f"zeroblob(32) FROM events WHERE sequence = {LAST}"
            )
            connection.commit()
        with pytest.raises(LedgerCorrupt, match="hash"):
            ledger.reserve(key(101), Charge.pure(1.0))


def test_a_payload_that_rots_while_open_is_not_sent(path: Path) -> None:
    with Ledger.open(path) as ledger:
        edit(path, "UPDATE payloads SET bytes = x'00' WHERE sequence = 4")
        with pytest.raises(LedgerCorrupt):
            ledger.payload(2)
        with pytest.raises(LedgerCorrupt):
            ledger.ready(2, b"again")


# --- the laws of the chain, one by one, with hashes that are right ------------------------------


def started(*, older: bool = False) -> VerifiedChain:
    """A chain in which release 1 is delivered, 2 is ready and 3 is reserved."""
    chain = VerifiedChain()
    blank = chain.terms_event(Terms.of(Cap.pure(8.0), None))._replace(key=bytes(16))
    chain.append(seal(blank._replace(epsilon_units=0) if older else blank))
    for number in (1, 2, 3):
        chain.append(reserved(chain, number))
    for kind, number in (("ready", 1), ("delivered", 1), ("ready", 2)):
        chain.append(step(chain, kind, number))
    return chain


def reserved(chain: VerifiedChain, number: int, **changes: Any) -> Event:
    event = chain.next_event("reserved", release=number, charge=Charge.pure(1.0))
    return seal(event._replace(**{"key": key(number), **changes}))


def step(chain: VerifiedChain, kind: str, number: int, **changes: Any) -> Event:
    event = chain.next_event(kind, release=number)
    if kind == "ready":
        event = event._replace(payload_sha256=bytes(32), payload_length=7)
    return seal(event._replace(**changes))


def test_the_chain_for_the_next_tests_is_sound() -> None:
    chain = started()
    chain.check_budgets()
    chain.append(reserved(chain, 4))
    assert (len(chain), chain.total) == (4, Charge.pure(4.0))


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"sequence": 1}, "sequence"),
        ({"sequence": -(2**63)}, "sequence"),
        ({"previous": bytes(32)}, "previous"),
        ({"total_epsilon_units": 1}, "total_epsilon"),
        ({"total_mu2_units": 1}, "total_mu2"),
        ({"epsilon_units": -1, "total_epsilon_units": 3 * 10**9 - 1}, "type"),
        ({"cap": 9.0}, "its cap"),
        ({"delta": 0.1}, "its delta"),
        ({"per_day": 1.0}, "its per_day"),
        ({"release": 5}, "its release"),
        ({"release": 1}, "its release"),
        ({"epsilon_units": 0, "total_epsilon_units": 3 * 10**9}, "nothing"),
        ({"key": b"short"}, "key"),
        ({"key": key(1)}, "key"),
        ({"payload_sha256": bytes(32)}, "payload_sha256"),
        ({"payload_length": 1}, "payload_length"),
        ({"kind": "opened", "release": 0, "total_epsilon_units": 3 * 10**9}, "opened once"),
        ({"kind": "bogus"}, "kind"),
        ({"kind": "ready"}, "its key"),
    ],
)
def test_a_reservation_that_breaks_a_law_is_refused(changes: dict[str, Any], match: str) -> None:
    chain = started()
    with pytest.raises(LedgerCorrupt, match=match):
        chain.append(reserved(chain, 4, **changes))
    assert (chain.sequence, len(chain)) == (7, 3)


@pytest.mark.parametrize(
    ("kind", "number", "changes", "match"),
    [
        ("ready", 1, {}, "not reserved"),
        ("ready", 2, {}, "not reserved"),
        ("ready", 4, {}, "not reserved"),
        ("ready", 0, {}, "not reserved"),
        ("delivered", 1, {}, "not ready"),
        ("delivered", 3, {}, "not ready"),
        ("ready", 3, {"epsilon_units": 1, "total_epsilon_units": 3 * 10**9 + 1}, "its epsilon_units"),
        ("ready", 3, {"key": bytes(16)}, "its key"),
        ("ready", 3, {"mechanism": "x"}, "its mechanism"),
        ("ready", 3, {"payload_sha256": b"short"}, "digest or length"),
        ("ready", 3, {"payload_length": 0}, "digest or length"),
        ("delivered", 2, {"payload_length": 7}, "payload_length"),
        ("delivered", 2, {"payload_sha256": bytes(32)}, "payload_sha256"),
    ],
)
def test_a_step_that_breaks_a_law_is_refused(
    kind: str, number: int, changes: dict[str, Any], match: str
) -> None:
    chain = started()
    with pytest.raises(LedgerCorrupt, match=match):
        chain.append(step(chain, kind, number, **changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"cap": 0.0},
        {"cap": float("nan")},
        {"per_day": 8.1},
        {"per_day": -1.0},
        {"per_day": float("nan")},
        {"delta": 1.0},
        {"delta": -1e-5},
        {"delta": 1e-310},
        {"release": 1},
        {"payload_length": 1},
        {"total_epsilon_units": 1},
        {"epsilon_units": 5 * 10**9},
        {"mu2_units": 2 * 10**15},
        {"mu2_units": 0},
        {"epsilon_units": 2**63 - 1, "mu2_units": 0, "cap": 0.0, "delta": 0.0},
        {"kind": "restated"},
    ],
)
def test_an_opening_that_makes_no_sense_is_refused(changes: dict[str, Any]) -> None:
    blank = VerifiedChain().terms_event(Terms.of(CAP, None))._replace(key=bytes(16))
    VerifiedChain().append(seal(blank))
    with pytest.raises(LedgerCorrupt, match="row 1"):
        VerifiedChain().append(seal(blank._replace(**changes)))


def test_gaussian_releases_in_a_pure_ledger_are_refused() -> None:
    chain = started(older=True)
    with pytest.raises(LedgerCorrupt, match="delta 0"):
        chain.append(reserved(chain, 4, mu2_units=1, total_mu2_units=1))
    chain = started()
    chain.append(reserved(chain, 4, mu2_units=1, total_mu2_units=1))
    with pytest.raises(LedgerCorrupt, match=r"mu 3\.16228e-08 was charged of epsilon 8\.0"):
        chain.check_budgets()


def test_a_chain_that_spent_more_than_its_cap_is_refused() -> None:
    chain = started()
    for number in range(4, 10):
        chain.append(reserved(chain, number))
    with pytest.raises(LedgerCorrupt, match=r"9\.0 was charged of epsilon 8\.0 in all"):
        chain.check_budgets()


def test_a_payload_of_another_length_is_refused(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        chain = VerifiedChain()
        chain.catch_up(connection)
        stored = chain.payloads[2]
        chain.payloads[2] = stored._replace(payload_length=stored.payload_length + 1)
        with pytest.raises(LedgerCorrupt, match="length"):
            chain.check_payloads(connection)


def test_the_hash_covers_every_field_and_is_golden() -> None:
    event = VerifiedChain().next_event("opened")._replace(key=b"k" * 16, cap=8.0, delta=1e-5, time_ns=1)
    assert digest_of(event).hex() == GOLDEN
    more: dict[type, Any] = {int: 1, float: 1.0, str: "x", bytes: b"x"}
    for name in Event._fields[:-1]:
        value = getattr(event, name)
        changed = event._replace(**{name: value + more[type(value)]})
        assert digest_of(changed) != digest_of(event), name
    # Moving a byte from one string to its neighbour changes the lengths, hence the hash.
    moved = event._replace(key=b"k" * 15, mechanism="k")
    assert digest_of(moved) != digest_of(event)
    assert repr(event) == "Event(sequence=1, kind='opened', release=0)"


GOLDEN = "00f144142f077c76cfaa7a79f0b37d2af0c1ca3022a696a3064a72edda6d4798"


def test_the_schema_is_golden() -> None:
    assert ledger_file.APPLICATION_ID.to_bytes(4, "big") == b"dpfL"
    assert ledger_file.SCHEMA_VERSION == 3
    golden = {
        2: "cf3207d97c05fdbcce83036ce8b39a2629ee4e145e9bdedf588afb853ba25731",
        3: "47221edea584eda886a5d4098cfedbe5322d22a6d6a8ebd0220cb1dd56a50882",
    }
    found = {
        version: hashlib.sha256("\n".join(statements).encode()).hexdigest()
        for version, statements in ledger_file._STATEMENTS.items()
    }
    assert found == golden


# --- damage at random places -------------------------------------------------------------------


def test_a_truncated_file_is_refused(original: Path, tmp_path: Path) -> None:
    data = original.read_bytes()
    for number, length in enumerate([*range(1, len(data), 1499), len(data) - 1]):
        path = tmp_path / f"{number}.ledger"
        path.write_bytes(data[:length])
        refused(path)


@pytest.mark.slow
def test_flipped_bytes_are_refused_or_harmless(original: Path, tmp_path: Path) -> None:
    data, truth = original.read_bytes(), contents(original)
    draw = random.Random(7)
    places = [*range(100), *(draw.randrange(len(data)) for _ in range(500))]
    harmless = 0
    for number, place in enumerate(places):
        path = tmp_path / f"{number}.ledger"
        damaged = bytearray(data)
        damaged[place] ^= draw.randrange(1, 256)
        path.write_bytes(damaged)
        try:
            read_all(path)
        except LedgerCorrupt:
            continue
        harmless += 1
        assert contents(path) == truth, place
    print(f"{len(places)} flips: {len(places) - harmless} refused, {harmless} in unused bytes")
    assert harmless < 0.7 * len(places)  # much of a small file is unused


@pytest.mark.slow
def test_every_flip_inside_a_stored_value_is_refused(original: Path, tmp_path: Path) -> None:
    data = original.read_bytes()
    events, payloads, _ = contents(original)
    stored = {value for row in events + payloads for value in row if isinstance(value, bytes)}
    draw = random.Random(8)
    path = tmp_path / "flipped.ledger"
    for value in sorted(stored - {b""}):
        part = value[:1000]  # a longer one goes on in another page
        flipped = bytearray(part)
        flipped[draw.randrange(len(part))] ^= 1 << draw.randrange(8)
        assert part in data
        # Everywhere: the live row, its indexes, and remains in unused bytes.
        path.write_bytes(data.replace(part, flipped))
        with pytest.raises(LedgerCorrupt):
            read_all(path)
