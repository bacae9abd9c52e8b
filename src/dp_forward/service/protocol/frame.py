"""The wire: one release as one frame of bytes (docs/wire-format.md).

A frame is a header of 128 bytes and then ``rows * width`` little-endian integers, row by row; nothing else.
Its length follows from the model alone, so it tells nothing about a text.

Guarantees:
    `frame_of` takes a `Released` and nothing else, and reads step, epsilon and delta off it: nobody types a
    number of the promise. `parse_frame` gives a `Frame` or raises `WireError`, for any bytes whatever.
    A `Header` that exists obeys every rule of the format, and ``Header.unpack(data).pack() == data``.
Edges:
    A header is a *claim* of whoever sent it. It promises the receiver nothing about the noise inside.
"""

import math
import re
import struct
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from dp_forward.errors import DpForwardError, InvalidInput, refuse_if
from dp_forward.noise import Released, serialise
from dp_forward.privacy.rounding import brief, shown_up
from dp_forward.split.cut import parse_cut

__all__ = ["HEADER_BYTES", "frame_of"]

HEADER_BYTES: Final = 128
MAGIC: Final = b"DPFW"
VERSION: Final = 1
MOST_ENTRIES: Final = 1 << 24
LEAST_STEP: Final = 2.0**-120
LARGEST_STEP: Final = 2.0**100  # between these, every integer times the step is an ordinary float32
LATEST: Final = 1 << 40  # unix seconds lie below this: any clock fits, and no arithmetic on them overflows
MOST_BEHIND_S: Final = 24 * 3600
MOST_AHEAD_S: Final = 300  # how far the time of a frame may lie behind and ahead of the server's
MECHANISMS: Final = {"privunit": 1, "matrix-gaussian": 2, "gaussian": 3, "k-ary-response": 4}
"""The mechanisms that can be released, with their numbers on the wire."""

_PURE: Final = ("privunit", "k-ary-response")
_NAMES: Final = {number: name for name, number in MECHANISMS.items()}
_LAYOUT: Final = struct.Struct("<4sBBBBIIddd24s32s16sQ8s")
_CUT_BYTES: Final = 24
_NOTHING: Final = bytes(8)
HEX_DIGEST: Final = re.compile(r"[0-9a-f]{64}")

Values = NDArray[np.int8] | NDArray[np.int16]


class WireError(DpForwardError):
    """Bytes or a manifest that break the protocol; ``code`` is the reason as one short word.

    The codes of a frame: type, length, magic, version, dtype, mechanism, reserved, shape, step, budget, cut,
    front, request, time. Of a manifest: manifest. No message holds a value of a release.
    """

    exit_code = 4

    def __init__(self, code: str, message: str) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message

    def __str__(self) -> str:
        return f"{self.message} ({self.code})"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Header:
    """What a frame says about itself; see the module. ``front`` and ``request`` are 32 and 16 bytes."""

    bits: int
    mechanism: str
    rows: int
    width: int
    step: float
    epsilon: float
    delta: float
    cut: str
    front: bytes
    request: bytes
    time: int

    def __post_init__(self) -> None:
        if type(self.bits) is not int or self.bits not in (8, 16):
            raise WireError("dtype", "A frame holds integers of 8 or 16 bits")
        if not isinstance(self.mechanism, str) or self.mechanism not in MECHANISMS:
            raise WireError("mechanism", f"The mechanism of a frame is one of {', '.join(MECHANISMS)}")
        shape = (self.rows, self.width)
        if not (all(type(n) is int and n >= 1 for n in shape) and math.prod(shape) <= MOST_ENTRIES):
            raise WireError("shape", f"A frame has 1 to {MOST_ENTRIES} entries, as rows times width")
        if type(self.step) is not float or not LEAST_STEP <= self.step <= LARGEST_STEP:
            raise WireError("step", "The step of a frame lies in [2^-120, 2^100]")
        epsilon, delta = self.epsilon, self.delta
        if type(epsilon) is not float or not 0 < epsilon < math.inf:
            raise WireError("budget", "The epsilon of a frame is a finite number above 0")
        # -0.0 would be a second spelling of 0.
        if type(delta) is not float or not 0 <= delta < 1 or math.copysign(1.0, delta) < 0:
            raise WireError("budget", "The delta of a frame lies in [0, 1)")
        if (self.mechanism in _PURE) != (delta == 0):
            rule = f"The delta of a frame is 0 for {' and '.join(_PURE)} and above 0 for Gaussian noise"
            raise WireError("budget", rule)
        if not isinstance(self.cut, str) or _cut_read(_cut_written(self.cut)) != self.cut:
            raise WireError("cut", f"The cut of a frame is a cut that fits {_CUT_BYTES} bytes")
        if not isinstance(self.front, bytes) or len(self.front) != 32:
            raise WireError("front", "The digest of the front has 32 bytes")
        if not isinstance(self.request, bytes) or len(self.request) != 16:
            raise WireError("request", "The id of a request has 16 bytes")
        if type(self.time) is not int or not 0 <= self.time < LATEST:
            raise WireError("time", f"The time of a frame is in unix seconds, below {LATEST}")

    def pack(self) -> bytes:
        """The 128 bytes."""
        numbers = (self.rows, self.width, self.step, self.epsilon, self.delta)
        names = (_cut_written(self.cut), self.front, self.request, self.time)
        kind = (self.bits, MECHANISMS[self.mechanism], 0)
        return _LAYOUT.pack(MAGIC, VERSION, *kind, *numbers, *names, _NOTHING)

    @classmethod
    def unpack(cls, data: bytes) -> Self:
        """The header in exactly 128 bytes; anything else is a `WireError`."""
        if not isinstance(data, bytes):
            raise WireError("type", f"A header comes as bytes, not as {type(data).__name__}")
        if len(data) != HEADER_BYTES:
            raise WireError("length", f"A header has {HEADER_BYTES} bytes, not {len(data)}")
        magic, version, bits, number, reserved, *values, tail = _LAYOUT.unpack(data)
        if magic != MAGIC:
            raise WireError("magic", "These bytes are no dp-forward frame")
        if version != VERSION:
            raise WireError("version", f"Version {VERSION} of the format is spoken here, not {version}")
        if number not in _NAMES:
            raise WireError("mechanism", f"No mechanism has the number {number}")
        if reserved or tail != _NOTHING:
            raise WireError("reserved", "The reserved bytes of a header are 0")
        # The fields lie in the bytes in their own order.
        found = dict(zip(cls.__slots__, (bits, _NAMES[number], *values), strict=True))
        found["cut"] = _cut_read(found["cut"])
        if found["cut"] is None:
            raise WireError("cut", "The cut in the header is none that exists")
        return cls(**found)

    def __repr__(self) -> str:
        budget = f"epsilon={brief(shown_up(self.epsilon))}, delta={brief(shown_up(self.delta))}"
        return f"Header({self.rows} x {self.width} int{self.bits} at {self.cut}, {self.mechanism}, {budget})"


@dataclass(frozen=True, slots=True, eq=False)
class Frame:
    """A frame as it was received: the header, and the integers [rows, width], which cannot be written to."""

    header: Header
    values: Values = field(repr=False)


def frame_of(released: Released, *, cut: str | None, front: str | None, request: bytes, time: int) -> bytes:
    """The frame of one release (``released``) at a ``time``, in seconds since 1970 or 0 for none.

    ``front`` is the hex digest of the front, ``request`` 16 bytes.

    Guarantees:
        The bytes number ``128 + rows * width * bits / 8``, whatever the text was.
    Edges:
        `InvalidInput` for anything but a `Released`: arrays and tensors never leave. `WireError` for a cut,
        digest, id or time that the format cannot hold. It draws nothing: to send again, send the same bytes.
    """
    # The exact type, for a subclass could hand out other bytes.
    remedy = "Simulated noise stays here: use release()."
    refuse_if(type(released) is not Released, "released", "be a Released", type(released).__name__, remedy)
    if not isinstance(front, str) or HEX_DIGEST.fullmatch(front) is None:
        raise WireError("front", "The digest of the front is 64 hex digits in lower case")
    rows, width = released.shape
    promise = released.guarantee
    header = Header(
        bits=released.bits,
        mechanism=promise.mechanism.name,
        rows=rows,
        width=width,
        step=float(released.step),
        epsilon=float(promise.epsilon),
        delta=float(promise.delta),
        cut=str(cut),
        front=bytes.fromhex(front),
        request=request,
        time=time,
    )
    return header.pack() + serialise(released)


def parse_frame(data: bytes) -> Frame:
    """The frame in these bytes; every defect is a `WireError`."""
    if not isinstance(data, bytes):
        raise WireError("type", f"A frame comes as bytes, not as {type(data).__name__}")
    if len(data) < HEADER_BYTES:
        raise WireError("length", f"A frame has more than {HEADER_BYTES} bytes, not {len(data)}")
    header = Header.unpack(data[:HEADER_BYTES])
    whole = HEADER_BYTES + header.rows * header.width * header.bits // 8
    if len(data) != whole:
        raise WireError("length", f"A frame with this header has {whole} bytes, not {len(data)}")
    # On immutable bytes, so the array is read-only whatever its flags are set to.
    values: Values = np.frombuffer(data, dtype=f"<i{header.bits // 8}", offset=HEADER_BYTES)
    return Frame(header, values.reshape(header.rows, header.width))


def _cut_written(cut: str) -> bytes:
    """The field of a cut. `encoder.12.attention_norm` has 25 letters, so its last word is cut short."""
    return cut.replace("attention_norm", "attn_norm").encode("ascii", "replace").ljust(_CUT_BYTES, b"\0")


@lru_cache(maxsize=1024)
def _cut_read(data: bytes) -> str | None:
    """The cut that a field names, if it is one, written in the one way that counts."""
    word = data.rstrip(b"\0")
    if len(data) != _CUT_BYTES or re.fullmatch(rb"[a-z][a-z0-9._]*", word) is None:
        return None
    cut = word.decode("ascii").replace("attn_norm", "attention_norm")
    try:
        found = str(parse_cut(cut))
    except InvalidInput:
        return None
    return found if _cut_written(found) == data else None
