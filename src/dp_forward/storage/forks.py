"""Connections do not cross a fork: each is closed before it, and opened anew at need on both sides."""

import os
import threading
import weakref
from typing import Protocol


class _Connected(Protocol):
    lock: threading.RLock
    snapshot_lock: threading.RLock

    def disconnect(self) -> None: ...


_open: weakref.WeakSet[_Connected] = weakref.WeakSet()
_open_lock = threading.Lock()
_held: list[_Connected] = []


def survive_forks(database: _Connected) -> None:
    """Close the connection of this database before every fork, once its transactions have ended."""
    with _open_lock:
        _open.add(database)


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


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)
