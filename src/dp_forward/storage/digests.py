"""SHA-256 of bytes, of files and of settings, as 64 hex digits."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["bytes_digest", "file_digest", "settings_digest"]


def bytes_digest(data: bytes) -> str:
    """The digest of these bytes."""
    return hashlib.sha256(data).hexdigest()


def file_digest(path: Path) -> str:
    """The digest of a file, read piece by piece."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def settings_digest(settings: Mapping[str, Any]) -> str:
    """The digest of plain settings; the order of the keys does not matter."""
    return bytes_digest(json.dumps(settings, sort_keys=True).encode())
