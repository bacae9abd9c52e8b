"""JSON files: written whole, checked when they are read."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dp_forward.errors import InvalidInput
from dp_forward.storage.files import write_file

__all__ = ["read_json", "write_json"]


def write_json(
    path: Path, content: Mapping[str, Any], *, sort_keys: bool = False, private: bool = False
) -> None:
    """Write one JSON object, indented, in place of an older file."""
    write_file(path, json.dumps(content, indent=2, sort_keys=sort_keys) + "\n", private=private)


def read_json(path: Path, *, name: str, remedy: str) -> dict[str, Any]:
    """The JSON object in a file; ``name`` is what the caller calls the file or its folder.

    Edges:
        A missing file, other bytes and JSON that is no object are `InvalidInput`, which repeats none of it.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        found = "no such file"
    except (OSError, ValueError, RecursionError):
        found = "a file that cannot be read"
    else:
        if isinstance(content, dict):
            return content
        found = "something else"
    raise InvalidInput(name, f"hold a readable {path.name}", found, remedy)
