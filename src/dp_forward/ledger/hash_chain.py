"""One event of a ledger, and the hash that binds it to all events before it."""

from __future__ import annotations

import hashlib
import struct
from typing import Final, NamedTuple

__all__ = ["DIGEST_BYTES", "GENESIS", "Event", "digest_of", "seal"]

DIGEST_BYTES: Final = 32
GENESIS: Final = bytes(DIGEST_BYTES)
"""What stands as the previous hash of the first event."""

_DOMAIN: Final = b"dp-forward/ledger/event/2\0"
_NUMBERS: Final = struct.Struct(">8q3d5q")


class Event(NamedTuple):
    """A row of the chain, in the order of its columns; what a kind does not use is 0 or empty."""

    sequence: int
    kind: str
    release: int
    key: bytes
    mechanism: str
    epsilon_units: int
    mu2_units: int
    total_epsilon_units: int
    total_mu2_units: int
    payload_sha256: bytes
    payload_length: int
    cap: float
    delta: float
    per_day: float
    time_ns: int
    previous: bytes
    digest: bytes = b""

    def __repr__(self) -> str:
        return f"Event(sequence={self.sequence}, kind={self.kind!r}, release={self.release})"


def digest_of(event: Event) -> bytes:
    """SHA-256 of everything in the event but its own digest.

    Guarantees:
        Two different events never have the same encoding: eleven numbers of fixed width, the five
        lengths of fixed width, then the five strings in the same order.
    Edges:
        Raises `struct.error`, `TypeError`, `AttributeError` or `UnicodeError` where a damaged row
        holds a value of another type; the replay turns these into `LedgerCorrupt`.
    """
    # Taken apart once: this runs for every row of every opening.
    (sequence, kind, release, key, mechanism, epsilon, mu2, total_epsilon, total_mu2) = event[:9]
    (sha256, length, cap, delta, per_day, time_ns, previous) = event[9:16]
    strings = (kind.encode(), key, mechanism.encode(), sha256, previous)
    numbers = _NUMBERS.pack(
        sequence,
        release,
        epsilon,
        mu2,
        total_epsilon,
        total_mu2,
        length,
        time_ns,
        cap,
        delta,
        per_day,
        *map(len, strings),
    )
    return hashlib.sha256(b"".join((_DOMAIN, numbers, *strings))).digest()


def seal(event: Event) -> Event:
    """The same event with its digest filled in."""
    return event._replace(digest=digest_of(event))
