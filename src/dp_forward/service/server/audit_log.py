"""Audit log of a server: JSON lines for its operator, about tokens and processes, never about contents.

Guarantees:
    A line holds the time, the event and fields that this package chose: a user's name where an operator added
    or revoked it, else counts by class. No text, token, payload, request id, address or record is ever in it.
    The file is for its owner only (mode 0600), and a line is appended by one write: processes may share it.
Edges:
    What clients cause (wrong tokens, quotas) is counted and written once a minute and at the end. A process
    that is killed loses the counts of its last minute. Each worker writes its own counts.
"""

import contextlib
import json
import logging
import os
import threading
import time
from collections import Counter
from typing import Any, Final

from dp_forward.errors import InvalidInput

__all__ = ["AuditLog"]

_log = logging.getLogger("dp_forward.service")
_SECONDS: Final = 60.0


class AuditLog:
    """Appends events to a file; with None for the file, nothing is written. Threads may share one."""

    def __init__(self, path: str | os.PathLike[str] | None) -> None:
        self._path = None if path is None else os.path.abspath(path)
        self._counts: Counter[tuple[str, str]] = Counter()
        self._lock, self._timer = threading.Lock(), threading.Timer(0, self.flush)
        try:
            self._append(b"")
        except OSError as error:
            rule, found = "be a file that can be appended to", error.strerror or "an error of the disk"
            raise InvalidInput("audit-log", rule, found, "Name another file.") from None

    def write(self, event: str, **fields: Any) -> None:
        """Append one event, at once."""
        line = {"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "event": event, **fields}
        try:
            self._append(json.dumps(line).encode() + b"\n")
        except OSError as error:
            _log.error("the audit log cannot be written: %s", error.strerror)

    def count(self, event: str, group: str = "") -> None:
        """Count an event, of a class of users where there is one."""
        with self._lock:
            self._counts[event, group] += 1
            if self._path is not None and not self._timer.is_alive():
                self._timer = threading.Timer(_SECONDS, self.flush)
                self._timer.daemon = True
                self._timer.start()

    def flush(self) -> None:
        """Write what was counted; at the end of a server."""
        with self._lock:
            self._timer.cancel()
            found, self._counts = self._counts, Counter()
        for (event, group), count in sorted(found.items()):
            self.write(event, count=count, **({"class": group} if group else {}))

    def _append(self, line: bytes) -> None:
        if self._path is None:
            return
        descriptor = os.open(self._path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
        try:
            with contextlib.suppress(OSError):  # of a pipe, or of another owner's file
                os.fchmod(descriptor, 0o600)  # one that was made before, by logrotate for example
            os.write(descriptor, line)
        finally:
            os.close(descriptor)
