"""A training record on the wire: one frame, and its label behind it (docs/wire-format.md).

    header (128 bytes, time 0) | rows * width integers | label (int32, little-endian; -1: none)

Guarantees:
    `parse_record` gives a `Record` or raises `WireError`, for any bytes whatever. What parses tells no time.
Edges:
    The id of a record is the ``request`` of its header. Two records are the same where id, integers and label
    are (`Record.digest`): the header's budget may differ in its last digits between two machines.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass, field
from typing import Final

from dp_forward.service.protocol.frame import HEADER_BYTES, Frame, Header, Values, WireError, parse_frame

__all__ = ["Record"]

RECORD_LABEL_BYTES: Final = 4
ID_BYTES: Final = 16

_LABEL: Final = struct.Struct("<i")
_NONE: Final = -1
_MOST_LABEL: Final = (1 << 31) - 1
_ID_AT: Final = slice(96, 96 + ID_BYTES)
"""Where the id lies in a header."""
_DOMAIN: Final = b"dp-forward/record/1\0"


@dataclass(frozen=True, slots=True, eq=False)
class Record:
    """A record as it was received; ``values`` [rows, width] cannot be written to, ``data`` is all of it."""

    header: Header
    values: Values = field(repr=False)
    label: int | None = field(repr=False)
    data: bytes = field(repr=False)

    @property
    def request(self) -> bytes:
        """Its id."""
        return self.header.request

    @property
    def noisy(self) -> bytes:
        """The integers, as they lie in a corpus."""
        return self.data[HEADER_BYTES:-RECORD_LABEL_BYTES]

    @property
    def digest(self) -> bytes:
        """SHA-256 of id, integers and label."""
        return record_digest(self.request, self.noisy, self.label)


def record_digest(request: bytes, noisy: bytes, label: int | None) -> bytes:
    """What `Record.digest` is, from the parts."""
    digest = hashlib.sha256(_DOMAIN + request + _label_bytes(label))
    digest.update(noisy)
    return digest.digest()


def pack_record(frame: bytes, label: int | None) -> bytes:
    """The record of a frame whose time is 0 and whose request is the record's id; None for no label."""
    _timeless(frame)
    return frame + _label_bytes(label)


def parse_record(data: bytes, *, labels: int | None) -> Record:
    """The record in these bytes; ``labels`` is how many there are, None where none are collected.

    Edges:
        Every defect is a `WireError`: those of a frame, "time" for one that tells it, "label" for a label out
        of range, or one where none is wanted.
    """
    if not isinstance(data, bytes):
        raise WireError("type", f"A record comes as bytes, not as {type(data).__name__}")
    if len(data) < HEADER_BYTES + RECORD_LABEL_BYTES:
        raise WireError("length", f"A record has more than {HEADER_BYTES} bytes, not {len(data)}")
    frame = _timeless(data[:-RECORD_LABEL_BYTES])
    (label,) = _LABEL.unpack(data[-RECORD_LABEL_BYTES:])
    if labels is None:
        if label != _NONE:
            raise WireError("label", "No labels are collected: the label of a record is -1")
    elif not 0 <= label < labels:
        raise WireError("label", f"The label of a record lies in 0 to {labels - 1}")
    return Record(frame.header, frame.values, None if labels is None else label, data)


def with_new_id(data: bytes, request: bytes) -> bytes:
    """The same integers and label under another id; what is no record, or no id, is a `WireError`."""
    if not isinstance(request, bytes) or len(request) != ID_BYTES:
        raise WireError("request", f"The id of a record has {ID_BYTES} bytes")
    if not isinstance(data, bytes) or len(data) < HEADER_BYTES + RECORD_LABEL_BYTES:
        raise WireError("length", f"A record has more than {HEADER_BYTES} bytes")
    header = Header.unpack(data[:HEADER_BYTES])
    if len(data) != HEADER_BYTES + header.payload_bytes + RECORD_LABEL_BYTES:
        raise WireError("length", "A record has another length than its header says")
    return data[: _ID_AT.start] + request + data[_ID_AT.stop :]


def _label_bytes(label: int | None) -> bytes:
    if label is None:
        return _LABEL.pack(_NONE)
    if type(label) is not int or not 0 <= label <= _MOST_LABEL:
        raise WireError("label", "The label of a record is a whole number, 0 or more, or none")
    return _LABEL.pack(label)


def _timeless(data: bytes) -> Frame:
    frame = parse_frame(data)
    if frame.header.time != 0:
        raise WireError("time", "A record tells no time: its header has the time 0")
    return frame
