"""What lies beside a ledger: the secret that makes its keys, and the answers that came back.

    LEDGER           what was charged, and the releases themselves (privacy.ledger)
    LEDGER.secret    32 random bytes: a text is known to the ledger under a keyed digest only
    LEDGER.answers   what servers answered, under the same keys

All three are for their owner's eyes only (mode 0600). No text or token is written to any of them.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import secrets
import sqlite3
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from torch import Tensor

from dp_forward.errors import InvalidInput, LedgerUnavailable
from dp_forward.ledger import Ledger

__all__ = ["SECRET_BYTES", "Asked", "make_secret", "secret_beside"]

SECRET_BYTES: Final = 32
_BUSY_SECONDS: Final = 30.0
_DOMAIN: Final = b"dp-forward/ask/1\0"
_TABLE: Final = """CREATE TABLE IF NOT EXISTS answers (
    key BLOB NOT NULL, server TEXT NOT NULL, label TEXT NOT NULL, probabilities TEXT NOT NULL,
    PRIMARY KEY (key, server)
) STRICT"""


class Asked:
    """The keys and the answers of one ledger.

    Guarantees:
        The same tokens, front, noise and bits have the same key for as long as the secret lives. Without the
        secret a key tells nothing about a text, however short the list of possible texts.
    Edges:
        If the secret is lost, known texts cannot be recognised: a ledger with releases is then refused, since
        every text in it would be charged again. So a ledger in which something else was charged before the
        first question (a corpus) is refused too: use one ledger for each.
        The answers may be deleted at any time: asking again costs nothing. No connection is kept open between
        calls, so forks and threads are safe.
    """

    def __init__(self, path: Path, ledger: Ledger) -> None:
        self._secret = secret_beside(path, ledger)
        self._path = path.with_name(path.name + ".answers")
        with contextlib.suppress(FileExistsError), _writable():
            os.close(os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        with self._open() as connection:
            connection.execute(_TABLE)

    def key(self, tokens: Mapping[str, Tensor], public: Mapping[str, Any]) -> bytes:
        """The ledger's key for one text: its tokens, and the public settings of the release."""
        digest = hmac.new(self._secret, _DOMAIN, hashlib.sha256)
        _add(digest, json.dumps(dict(public), sort_keys=True).encode())
        for name in sorted(tokens):
            _add(digest, f"{name} {tuple(tokens[name].shape)}".encode())
            _add(digest, tokens[name].cpu().numpy().astype("<i8").tobytes())
        return digest.digest()

    def keep(self, key: bytes, server: str, label: str, probabilities: Mapping[str, float]) -> None:
        """Store an answer, in place of an older one of the same server."""
        row = (key, server, label, json.dumps(dict(probabilities)))
        with self._open() as connection:
            connection.execute("INSERT OR REPLACE INTO answers VALUES (?, ?, ?, ?)", row)

    def recall(self, key: bytes, server: str) -> tuple[str, dict[str, float]] | None:
        """The answer of this server to this text, if it came before."""
        query = "SELECT label, probabilities FROM answers WHERE key = ? AND server = ?"
        with self._open() as connection:
            row = connection.execute(query, (key, server)).fetchone()
        try:
            return None if row is None else (row[0], dict(json.loads(row[1])))
        except (ValueError, TypeError):  # damaged; asking again costs nothing
            return None

    def __len__(self) -> int:
        with self._open() as connection:
            return int(connection.execute("SELECT count(*) FROM answers").fetchone()[0])

    def __repr__(self) -> str:
        return f"Asked({self._path.name})"

    @contextlib.contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        problem = ""
        try:
            connection = sqlite3.connect(self._path, timeout=_BUSY_SECONDS, isolation_level=None)
            with contextlib.closing(connection):
                for pragma in ("trusted_schema = OFF", "synchronous = FULL"):
                    connection.execute(f"PRAGMA {pragma}")
                yield connection
        except sqlite3.Error as error:
            problem = getattr(error, "sqlite_errorname", "unreadable")
        if problem:
            raise LedgerUnavailable(
                f"The answers beside the ledger could not be read or written ({problem}). Check the disk, or "
                f"remove {self._path.name}: asking again costs nothing."
            )


def secret_beside(path: Path, ledger: Ledger) -> bytes:
    """The secret of a ledger, made when the ledger is still empty."""
    place = path.with_name(path.name + ".secret")
    # In this order: a secret is made before the first release, so a ledger with releases has one by now.
    if ledger.releases == 0 and not place.exists():
        with contextlib.suppress(FileExistsError), _writable():
            make_secret(place)
    try:
        status = place.stat()
        secret = place.read_bytes()
    except FileNotFoundError:
        secret = b""
    except OSError as error:
        raise LedgerUnavailable(f"The secret beside the ledger cannot be read: {error.strerror}.") from None
    if len(secret) != SECRET_BYTES:
        raise InvalidInput(
            "ledger",
            f"have its secret beside it ({place.name})",
            "none, or another file",
            "Bring it back, or use a new ledger: without it every text would be charged again.",
        )
    if os.name == "posix" and stat.S_IMODE(status.st_mode) & 0o077:
        raise InvalidInput(
            place.name, "be readable by its owner only", oct(stat.S_IMODE(status.st_mode)), "Use chmod 600."
        )
    return secret


def make_secret(place: Path) -> None:
    """32 random bytes in a file of mode 0600, all or nothing; `FileExistsError` where there is one."""
    draft = place.with_name(f".{place.name}.{secrets.token_hex(8)}.new")
    descriptor = os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(secrets.token_bytes(SECRET_BYTES))
            file.flush()
            os.fsync(file.fileno())
        os.link(draft, place)
        folder = os.open(place.parent, os.O_RDONLY)
        try:
            os.fsync(folder)  # before any charge that needs it
        finally:
            os.close(folder)
    finally:
        draft.unlink(missing_ok=True)


@contextlib.contextmanager
def _writable() -> Iterator[None]:
    try:
        yield
    except FileExistsError:
        raise
    except OSError as error:
        raise LedgerUnavailable(f"Nothing can be written beside the ledger: {error.strerror}.") from None


def _add(digest: hmac.HMAC, part: bytes) -> None:
    """With its length, so that no two lists of parts look alike."""
    digest.update(len(part).to_bytes(8, "little") + part)
