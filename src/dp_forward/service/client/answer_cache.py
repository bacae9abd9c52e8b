"""Answer cache and key secret, stored next to a ledger.

    LEDGER           what was charged, and the releases themselves (`ledger`)
    LEDGER.secret    32 random bytes: a text is known to the ledger under a keyed digest only
    LEDGER.answers   what servers answered, under the same keys

All three are readable by their owner only (mode 0600). No text or token is written to any of them.
"""

import contextlib
import hashlib
import hmac
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dp_forward.errors import LedgerUnavailable
from dp_forward.ledger import Ledger
from dp_forward.service.client.question import Said
from dp_forward.storage.database import Database, Problem
from dp_forward.storage.files import make_secret, read_secret

_TABLE: Final = """CREATE TABLE answers (
    key BLOB NOT NULL, server TEXT NOT NULL, label TEXT NOT NULL, probabilities TEXT NOT NULL,
    PRIMARY KEY (key, server)
) STRICT"""


class AnswerCache:
    """Keys and answers of one ledger. Threads and forks may share one.

    Guarantees:
        The same tokens, front, noise and bits have the same key for as long as the secret lives. Without the
        secret a key tells nothing about a text, however short the list of possible texts.
    Edges:
        If the secret is lost, known texts cannot be recognised: a ledger with releases is then refused, since
        every text in it would be charged again. So a ledger in which something else was charged before the
        first question (a corpus) is refused too: use one ledger for each.
        The answers may be deleted at any time: asking again costs nothing.
    """

    def __init__(self, path: Path, ledger: Ledger) -> None:
        secret = path.with_name(path.name + ".secret")
        try:
            # In this order: the secret comes before the first release, so a ledger with releases has one.
            if ledger.releases == 0 and not secret.exists():
                with contextlib.suppress(FileExistsError):
                    make_secret(secret)
            remedy = "Bring it back, or use a new ledger: without it every text would be charged again."
            self._secret = read_secret(secret, remedy=remedy)
        except OSError as error:
            told = f"The secret beside the ledger cannot be read or written: {error.strerror}."
            raise LedgerUnavailable(told) from None
        self._path = path.with_name(path.name + ".answers")
        self._database = Database.open_or_create(self._path, [_TABLE], refuse=self._refuse)
        self.close = self._database.close  # give the file back
        len(self)  # refuses a damaged file now, before a text is read

    def key(self, tokens: Mapping[str, NDArray[np.int64]], public: Mapping[str, Any]) -> bytes:
        """The ledger's key for one text: its tokens, and the public settings of the release."""
        parts = [json.dumps(dict(public), sort_keys=True).encode()]
        for name in sorted(tokens):
            parts.append(f"{name} {tuple(tokens[name].shape)}".encode())
            parts.append(tokens[name].astype("<i8").tobytes())
        # Each with its length, so that no two lists of parts look alike.
        framed = b"".join(len(part).to_bytes(8, "little") + part for part in parts)
        return hmac.digest(self._secret, b"dp-forward/ask/1\0" + framed, hashlib.sha256)

    def store(self, key: bytes, server: str, said: Said) -> None:
        """Store an answer, in place of an older one of the same server."""
        row = (key, server, said.label, json.dumps([said.probabilities, said.reply]))
        with self._database.transaction(write=True) as connection:
            connection.execute("INSERT OR REPLACE INTO answers VALUES (?, ?, ?, ?)", row)

    def find(self, key: bytes, server: str) -> Said | None:
        """The answer of this server to this text, if it came before."""
        query = "SELECT label, probabilities FROM answers WHERE key = ? AND server = ?"
        with self._database.transaction(write=False) as connection:
            row = connection.execute(query, (key, server)).fetchone()
        with contextlib.suppress(ValueError, TypeError):  # none, or damaged; asking again costs nothing
            label, told = row
            probabilities, reply = json.loads(told)
            return Said(label, dict(probabilities), reply)
        return None

    def __len__(self) -> int:
        with self._database.transaction(write=False) as connection:
            return int(connection.execute("SELECT count(*) FROM answers").fetchone()[0])

    def _refuse(self, problem: Problem) -> LedgerUnavailable:
        remnant = problem.detail if problem.kind == "exists" else self._path.name
        why = f"could not be read or written ({problem.detail or problem.kind})"
        remedy = f"Check the disk, or remove {remnant}: asking again costs nothing."
        return LedgerUnavailable(f"The answers beside the ledger {why}. {remedy}")
