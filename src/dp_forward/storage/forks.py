"""Connections do not cross a fork: each is closed before it, and opened anew at need on both sides."""

import os
import threading
import weakref
from typing import Any


class ForkSafe:
    """One connection that threads take in turns; it is closed before a fork, once its transactions ended."""

    _connection: Any

    def __init__(self) -> None:
        self.lock, self.snapshot_lock = threading.RLock(), threading.RLock()
        self._connection, self._process, self._closed = None, 0, False
        with _open_lock:
            _open.add(self)

    def close(self) -> None:
        """Give the connection back. Closing twice is harmless."""
        with self.lock:
            self._closed = True
            self.disconnect()

    def disconnect(self) -> None:
        """Close the connection; the next transaction opens another."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


_open: weakref.WeakSet[ForkSafe] = weakref.WeakSet()
_open_lock = threading.Lock()
_held: list[ForkSafe] = []


def _before_fork() -> None:
    _open_lock.acquire()
    for database in list(_open):
        database.snapshot_lock.acquire()
        database.lock.acquire()
        _held.append(database)
        database.disconnect()


def _after_fork() -> None:
    while _held:
        database = _held.pop()
        database.lock.release()
        database.snapshot_lock.release()
    _open_lock.release()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)
