"""Files that appear whole or not at all.

Guarantees:
    A file under its final name is complete and on disk: the draft is synced before it is renamed, and the
    folder after it. A crash leaves at most a hidden draft, which is never read.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from dp_forward.errors import InvalidInput

__all__ = [
    "SECRET_BYTES",
    "create_file",
    "draft_of",
    "make_secret",
    "read_secret",
    "sync_folder",
    "write_file",
]

SECRET_BYTES: Final = 32
_OWNER_ONLY: Final = 0o600


@contextlib.contextmanager
def draft_of(path: Path) -> Iterator[Path]:
    """A draft to fill by any means; at the end of the block it takes the place of ``path``.

    Edges:
        An error in the block removes the draft and leaves ``path`` as it was.
    """
    draft = _draft(path)
    try:
        yield draft
        _sync(draft)
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)
    sync_folder(path.parent)


def write_file(path: Path, content: bytes | str, *, private: bool = False) -> None:
    """Write a file whole, in place of an older one; ``private`` lets only its owner read it."""
    data = content.encode() if isinstance(content, str) else content
    with draft_of(path) as draft:
        _write_new(draft, data, _OWNER_ONLY if private else 0o666)


def create_file(path: Path, content: bytes | str) -> None:
    """Write a new file whole, for its owner only; `FileExistsError` where there is one already."""
    data = content.encode() if isinstance(content, str) else content
    draft = _draft(path)
    try:
        _write_new(draft, data, _OWNER_ONLY)
        os.link(draft, path)  # exclusive: of two makers one is refused
        sync_folder(path.parent)
    finally:
        draft.unlink(missing_ok=True)


def make_secret(path: Path) -> None:
    """Write 32 random bytes to a new file; `FileExistsError` where there is one already."""
    create_file(path, secrets.token_bytes(SECRET_BYTES))


def read_secret(path: Path, *, remedy: str) -> bytes:
    """The secret in a file; one of another size, or that others may read, is refused."""
    try:
        mode, secret = stat.S_IMODE(path.stat().st_mode), path.read_bytes()
    except FileNotFoundError:
        mode, secret = _OWNER_ONLY, b""
    if len(secret) != SECRET_BYTES:
        raise InvalidInput(path.name, f"hold {SECRET_BYTES} bytes", "none, or another file", remedy)
    if os.name == "posix" and mode & 0o077:
        raise InvalidInput(path.name, "be readable by its owner only", oct(mode), "Use chmod 600.")
    return secret


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    _sync(folder)


def _draft(path: Path) -> Path:
    return path.with_name(f".{path.name}.{secrets.token_hex(8)}.new")


def _write_new(path: Path, data: bytes, mode: int) -> None:
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
