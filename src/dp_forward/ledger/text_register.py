"""Register of an owner's texts: which were released, which a model saw raw, which were declared public.

One SQLite file on the owner's machine, never in a run: ``$DPF_HOME/register``, else
``$XDG_DATA_HOME/dp-forward/register``, else ``~/.local/share/dp-forward/register``. It holds no text and no
plain digest of one: every fingerprint (`data.fingerprints`) goes through AES-256 under a secret of this file,
and 8 bytes of the result are kept, in a sorted array for each entry.

Why it charges by text. A ledger adds all that is charged in it, as if all were about the same records. Here
each release is charged to the texts that are in it, and what counts is the largest total of any one text:
different records do not add up, the same ones do, in whatever file they lie.

Guarantees:
    What was entered is on disk before the call returns. Asking and entering are one transaction: of two
    processes that release the same texts, the second is charged on top of the first. The commitment to an
    entry (`declare`) is a keyed digest: it tells nothing about the texts, and only their owner's register
    knows it. No error, log or repr holds a text or a fingerprint.
Edges:
    Near-duplicates (half of the runs of four words, or more) are counted for people, and not refused. A text
    that is in several records of one release is charged once: the promise is about a record.
    The secret lies in the file: whoever has it can confirm a guess at a text. What was charged in a register
    that is lost or deleted is not added up any more.
"""

import hmac
import math
import os
import secrets
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from fractions import Fraction
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from dp_forward.errors import BudgetExhausted, DpForwardError, InvalidInput, LedgerCorrupt, LedgerUnavailable
from dp_forward.privacy.charge import Charge
from dp_forward.storage.database import Database, Problem

__all__ = ["FROM_ELSEWHERE", "TextRegister", "compare_texts"]

FROM_ELSEWHERE: Final = (
    "The model was trained on raw texts that this register does not know: that yours are not among them is "
    "assumed."
)

Prints = NDArray[np.uint64]
Mask = NDArray[np.bool_]

_FORMAT: Final = 1
_PIECE, _AT_ONCE = 1 << 20, 1 << 16  # texts of one row of the file, and of one call of the cipher
_TABLES: Final = (
    "CREATE TABLE owner (format INTEGER NOT NULL, secret BLOB NOT NULL) STRICT",
    "CREATE TABLE entries (number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, kind TEXT NOT NULL, "
    "texts INTEGER NOT NULL, epsilon_units INTEGER NOT NULL, mu2_units INTEGER NOT NULL, "
    "protects TEXT NOT NULL, ledger TEXT NOT NULL) STRICT",
    "CREATE TABLE pieces (entry INTEGER NOT NULL REFERENCES entries ON DELETE CASCADE, "
    "texts BLOB NOT NULL, runs BLOB NOT NULL) STRICT",
    "CREATE INDEX pieces_of ON pieces (entry)",
)


class _Entry(NamedTuple):
    number: int
    charge: Charge
    protects: str


class TextRegister(AbstractContextManager["TextRegister"]):
    """The register of one owner; see the module; ``path`` is by default the owner's.

    ``prints`` are fingerprints of texts [N, 17], as `data.fingerprints` makes them.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        place = self.usual_path() if path is None else Path(path).absolute()
        try:
            place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise _refuse(Problem("unavailable", error.strerror or "")) from None
        new: list[Any] = [*_TABLES, ("INSERT INTO owner VALUES (?, ?)", (_FORMAT, secrets.token_bytes(32)))]
        only_ours = {"form": ("owner", _FORMAT), "forget": True}
        self._database = Database.open_or_create(place, new, refuse=_refuse, **only_ours)
        with self._database.transaction(write=False) as connection:
            (self._secret,) = connection.execute("SELECT secret FROM owner").fetchone()

    @staticmethod
    def usual_path() -> Path:
        """Where the owner's register is, or will be."""
        home, data = os.environ.get("DPF_HOME"), os.environ.get("XDG_DATA_HOME")
        folder = Path(home) if home else Path(data or Path.home() / ".local" / "share") / "dp-forward"
        return folder.expanduser().absolute() / "register"

    def declare(self, kind: Literal["raw", "public"], prints: Prints) -> str:
        """Enter texts that are about to be used as they are; returns the commitment to this entry.

        Edges:
            The same texts of the same kind are one entry, with one commitment. To declare public what was
            released as private is refused above one in ten texts of a release.
        """
        keyed = self._keyed(prints)
        texts = _distinct(keyed[:, 0])
        name = hmac.digest(self._secret, kind.encode() + texts.tobytes(), "sha256")[:16].hex()
        with self._database.transaction(write=True) as connection:
            if not _entries(connection, "id", name):
                for entry in _entries(connection, "kind", "released") if kind == "public" else ():
                    private = np.concatenate([known for known, _ in _pieces(connection, entry.number)])
                    found = "texts that were released as private"
                    _refuse_many(_among(private, texts), "public", "have other texts than these", found)
                _insert(connection, name, kind, keyed)
        return name

    def unknown(self, commitments: Iterable[str]) -> list[str]:
        """Those of the commitments that are not of this register."""
        with self._database.transaction(write=False) as connection:
            return [name for name in commitments if not _entries(connection, "id", name)]

    def refuse_seen(self, prints: Prints, commitments: Iterable[str], *, name: str, rule: str) -> int:
        """Refuse texts that a front has seen raw, by its commitments; how many are nearly such."""
        keyed = self._keyed(prints)
        near = np.zeros(len(keyed), dtype=np.bool_)
        with self._database.transaction(write=False) as connection:
            for commitment in commitments:
                for entry in _entries(connection, "id", commitment):
                    exact, close = _compare(connection, entry, keyed)
                    near |= close
                    _refuse_many(exact, name, rule, "texts that it has seen raw", most=0.0)
        return int(near.sum())

    def charge(
        self,
        key: bytes,
        prints: Prints,
        charge: Charge,
        *,
        unit: str,
        ledger: str,
        delta: float,
        budget: float | None = None,
        bounded: bool = True,
    ) -> tuple[float, int, int]:
        """Charge a release to its texts, before anything is drawn; the same ``key`` is charged once.

        Args:
            ledger: where the release is charged too.
            budget: what a text may spend in all; by default this release, so nothing that was released.
            bounded: False where a ledger that was asked for bounds it: then the total is only told.

        Returns:
            The epsilon of the text that has spent most, how many were released before, how many more nearly.

        Raises:
            BudgetExhausted: a text would pass the budget; nothing was entered.
            InvalidInput: one was released per another unit, or with another kind of noise; or more than one
                in ten were declared public (fewer may be so by accident).
        """
        keyed, cost = self._keyed(prints), (charge.epsilon_units, charge.mu2_units)
        noise = {(True, False): "pure", (False, True): "Gaussian"}.get((cost[0] > 0, cost[1] > 0), "mixed")
        protects, spent = f"{noise} per {unit}", np.zeros((len(keyed), 2), dtype=object)
        before, near, declared = np.zeros((3, len(keyed)), dtype=np.bool_)
        with self._database.transaction(write=True) as connection:
            new = not _entries(connection, "id", key.hex())
            for entry in _entries(connection, "kind", "released") if new else ():
                exact, close = _compare(connection, entry, keyed)
                if bounded and exact.any() and entry.protects != protects:
                    rule = f"be {entry.protects}, as before for some of these texts"
                    remedy = "Epsilons of two kinds do not add up: charge this one alone, with ledger=FILE."
                    raise InvalidInput("release", rule, protects, remedy)
                spent[exact] += np.array([entry.charge.epsilon_units, entry.charge.mu2_units], dtype=object)
                before, near = before | exact, near | close
            # The shares of both kinds of noise in the proportion of this release: so they are a filter.
            most = [part + max(spent[:, place]) for place, part in enumerate(cost)]
            parts = max(Fraction(total, part) for total, part in zip(most, cost, strict=True) if part)
            epsilon = Charge(*(math.ceil(parts * part) for part in cost)).epsilon(delta)
            if new:
                if bounded:
                    _refuse_beyond(before, epsilon, budget)
                for entry in _entries(connection, "kind", "public"):
                    declared |= _compare(connection, entry, keyed)[0]
                _refuse_many(declared, "texts", "be private", "texts that were declared public")
                _insert(connection, key.hex(), "released", keyed, *cost, protects, ledger)
        return epsilon, int(before.sum()), int((near & ~before).sum())

    def withdraw(self, key: bytes) -> None:
        """Forget a release that was refused elsewhere, so that nothing was drawn."""
        with self._database.transaction(write=True) as connection:
            connection.execute("DELETE FROM entries WHERE id = ?", (key.hex(),))

    def summary(self) -> dict[str, Any]:
        """Entries and texts of each kind, and the size of the file."""
        query = "SELECT kind, count(*), sum(texts) FROM entries GROUP BY kind"
        with self._database.transaction(write=False) as connection:
            found = {kind: {"entries": n, "texts": texts} for kind, n, texts in connection.execute(query)}
            pages = "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size"
            (size,) = connection.execute(pages).fetchone()
        kinds = {kind: found.get(kind, {"entries": 0, "texts": 0}) for kind in ("released", "raw", "public")}
        return {"register": str(self._database.path), "bytes": size, **kinds}

    def verify(self) -> None:
        """Check every page; raises `LedgerCorrupt`."""
        with self._database.transaction(write=False) as connection:
            if connection.execute("PRAGMA integrity_check").fetchall() != [("ok",)]:
                raise _refuse(Problem("damaged"))

    def __exit__(self, *error: object) -> None:
        self._database.close()

    def _keyed(self, prints: Prints) -> Prints:
        """Each number as a block of AES, of which 8 bytes are kept: a keyed function of the number."""
        found = np.empty(prints.shape, dtype="<u8")
        cipher = Cipher(algorithms.AES256(self._secret), modes.ECB())  # noqa: S305 - single blocks
        for start in range(0, len(prints), _AT_ONCE):
            some = prints[start : start + _AT_ONCE]
            blocks = np.zeros((some.size, 2), dtype="<u8")
            blocks[:, 0] = some.ravel()
            sealed = np.frombuffer(cipher.encryptor().update(blocks.tobytes()), dtype="<u8")
            found[start : start + _AT_ONCE] = np.where(some, sealed[::2].reshape(some.shape), 0)
        return found


def compare_texts(prints: Prints, others: Prints) -> tuple[int, int]:
    """How many of the texts are also among the others, and how many more are near-duplicates."""
    exact = _among(prints[:, 0], _distinct(others[:, 0]))
    near = _share_runs(prints, _distinct(others[:, 1:])) & ~exact
    return int(exact.sum()), int(near.sum())


def _compare(connection: sqlite3.Connection, entry: _Entry, keyed: Prints) -> tuple[Mask, Mask]:
    """Which texts are in an entry, and which others nearly."""
    exact, near = np.zeros((2, len(keyed)), dtype=np.bool_)
    for texts, runs in _pieces(connection, entry.number):
        exact |= _among(keyed[:, 0], texts)
        near |= _share_runs(keyed, runs)
    return exact, near & ~exact


def _distinct(values: Prints) -> Prints:
    """In order, each once; much quicker than `np.unique`, which counts by a hash table."""
    found: Prints = np.sort(values, axis=None)
    first = np.ones(len(found), dtype=np.bool_)
    first[1:] = found[1:] != found[:-1]
    return found[first]


def _among(values: Prints, known: Prints) -> Mask:
    """Which of the values are among the ``known``, which are sorted; asked in order, which is quicker."""
    found = np.zeros(values.size, dtype=np.bool_)
    if known.size:
        order = np.argsort(values, axis=None)
        asked = values.ravel()[order]
        found[order] = known[np.minimum(np.searchsorted(known, asked), known.size - 1)] == asked
    return found.reshape(values.shape)


def _share_runs(prints: Prints, known: Prints) -> Mask:
    """Which texts have half of their runs of words or more among the ``known``."""
    some = prints[:, 1:] != 0
    shared = (_among(prints[:, 1:], known) & some).sum(axis=1)
    return np.asarray((2 * shared >= some.sum(axis=1)) & (shared > 0))


def _refuse_many(found: Mask, name: str, rule: str, what: str, *, most: float = 0.1) -> None:
    if found.sum() > most * len(found):
        remedy = "No release protects them: name other data, or a model that has not seen them."
        raise InvalidInput(name, rule, f"{found.sum()} of {len(found)} {what}", remedy)


def _refuse_beyond(before: Mask, spent: float, budget: float | None) -> None:
    if before.any() and (budget is None or spent > budget):
        cap = "one release" if budget is None else budget
        raise BudgetExhausted(
            f"{before.sum()} of {len(before)} texts were released before: with this release, epsilon {spent} "
            f"would be charged to a text, beyond {cap}. Nothing was charged. Say budget={spent} if that is "
            "meant; ledger=FILE charges in a ledger that knows of no other."
        )


def _entries(connection: sqlite3.Connection, column: str, value: str) -> list[_Entry]:
    query = f"SELECT number, epsilon_units, mu2_units, protects FROM entries WHERE {column} = ?"  # noqa: S608
    rows = connection.execute(query, (value,)).fetchall()
    return [_Entry(number, Charge(pure, mu2), protects) for number, pure, mu2, protects in rows]


def _pieces(connection: sqlite3.Connection, entry: int) -> Iterator[tuple[Prints, Prints]]:
    for texts, runs in connection.execute("SELECT texts, runs FROM pieces WHERE entry = ?", (entry,)):
        yield np.frombuffer(texts, dtype="<u8"), np.frombuffer(runs, dtype="<u8")


def _insert(connection: sqlite3.Connection, name: str, kind: str, keyed: Prints, *cost: int | str) -> None:
    row = (name, kind, len(_distinct(keyed[:, 0])), *(cost or (0, 0, "", "")))
    made = connection.execute("INSERT INTO entries VALUES (NULL, ?, ?, ?, ?, ?, ?, ?)", row)
    for start in range(0, len(keyed), _PIECE):
        some = keyed[start : start + _PIECE]
        runs = _distinct(some[:, 1:])
        blobs = _distinct(some[:, 0]).tobytes(), runs[runs != 0].tobytes()
        connection.execute("INSERT INTO pieces VALUES (?, ?, ?)", (made.lastrowid, *blobs))


def _refuse(problem: Problem) -> DpForwardError:
    if problem.kind == "damaged":
        return LedgerCorrupt(
            "The register of texts is damaged, or another file. It is never reset: bring back a copy. Where "
            "it is moved away, what was entered is forgotten."
        )
    return LedgerUnavailable(
        f"The register of texts cannot be used ({problem.kind} {problem.detail}). Nothing was charged. Set "
        "DPF_HOME to a folder of your own that can be written."
    )
