"""Files that appear whole or not at all.

Guarantees:
    A file under its final name is complete and on disk: the draft is synced before it is renamed, and the
    folder after it. A crash leaves at most a hidden draft, which is never read.
"""

import contextlib
import fcntl
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from dp_forward.errors import InvalidInput

__all__ = ["draft_of", "lock_folder", "make_secret", "read_secret", "write_file"]

SECRET_BYTES: Final = 32
_OWNER_ONLY: Final = 0o600


@contextlib.contextmanager
def draft_of(path: Path, *, new: bool = False) -> Iterator[Path]:
    """A draft to fill by any means; at the end of the block it takes the place of ``path``.

    Edges:
        An error in the block removes the draft and leaves ``path`` as it was. A ``new`` file never takes the
        place of another: `FileExistsError`. A draft that is a folder takes the place of an empty one only.
    """
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}.new")
    try:
        yield draft
        _sync(draft)
        if new:
            os.link(draft, path)
        else:
            os.replace(draft, path)
    finally:
        if draft.is_dir():
            shutil.rmtree(draft, ignore_errors=True)
        else:
            draft.unlink(missing_ok=True)
    _sync(path.parent)


@contextlib.contextmanager
def lock_folder(path: Path) -> Iterator[None]:
    """Hold a folder for the block; threads and processes that want to hold it wait. A crash lets it go."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def write_file(path: Path, content: bytes | str, *, private: bool = False, new: bool = False) -> None:
    """Write a file whole, in place of an older one unless ``new``; ``private``: for its owner only."""
    with draft_of(path, new=new) as draft:
        mode = _OWNER_ONLY if private else 0o666
        with os.fdopen(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode), "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)


def make_secret(path: Path) -> None:
    """Write 32 random bytes to a new file; `FileExistsError` where there is one already."""
    write_file(path, secrets.token_bytes(SECRET_BYTES), private=True, new=True)


def read_secret(path: Path, *, remedy: str) -> bytes:
    """The secret in a file; one of another size, or that others may read, is refused."""
    try:
        mode, secret = stat.S_IMODE(path.stat().st_mode), path.read_bytes()
    except FileNotFoundError:
        mode, secret = _OWNER_ONLY, b""
    if len(secret) != SECRET_BYTES:
        raise InvalidInput(path.name, f"hold {SECRET_BYTES} bytes", "none, or another file", remedy)
    if mode & 0o077:
        raise InvalidInput(path.name, "be readable by its owner only", oct(mode), "Use chmod 600.")
    return secret


def _sync(path: Path) -> None:
    """Make the bytes of a file, or the names in a folder, durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
