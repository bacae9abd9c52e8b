"""Finished jobs in one file of JSON lines: appended as they end, read by digest, never rewritten.

A line is whole or not there: it is written by one call, so several processes may append at once, and a line
that a crash cut short is left out when reading (the job is then done again).
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dp_forward.errors import DpForwardError, InvalidInput
from reproduction.jobs import digest_of
from reproduction.tables.table import Found

__all__ = ["ResultFile"]


class ResultFile:
    """The results of finished jobs."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def lines(self) -> dict[str, dict[str, Any]]:
        """Every finished job by digest; of two lines with one digest, the later.

        Edges:
            A line whose digest does not fit its own settings is left out: it was changed by hand, or it was
            made when a rule of `train.defaults` was another one, and is not the job that it would fill.
        """
        found: dict[str, dict[str, Any]] = {}
        if not self.path.exists():
            return found
        try:
            text = self.path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            raise InvalidInput("results", "be a file that can be read", self.path, "Check it.") from None
        for line in text.splitlines():
            try:
                entry = json.loads(line)
                if _fits(entry):
                    found[entry["digest"]] = entry
            except (ValueError, KeyError, TypeError, AttributeError, DpForwardError):
                continue
        return found

    def by_digest(self) -> Found:
        """Only what the jobs found."""
        return {digest: entry["result"] for digest, entry in self.lines().items()}

    def append(self, entry: Mapping[str, Any]) -> None:
        """Add a finished job, on disk when this returns."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        data = (json.dumps(dict(entry), sort_keys=True) + "\n").encode()
        handle = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            end = os.lseek(handle, 0, os.SEEK_END)
            if end and os.pread(handle, 1, end - 1) != b"\n":
                data = b"\n" + data  # a line that was cut short must not swallow this one
            os.write(handle, data)
            os.fsync(handle)
        finally:
            os.close(handle)


def _fits(entry: Mapping[str, Any]) -> bool:
    """Whether a line is what its digest says, and holds a result."""
    made = digest_of(entry["kind"], entry["settings"], entry["after"])
    return entry["digest"] == made and isinstance(entry["result"], Mapping)
