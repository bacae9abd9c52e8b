"""One question to a server: its text, the bytes that ask, and its answer; each of them checked."""

import secrets
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from email.utils import parsedate_to_datetime
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dp_forward.errors import InvalidInput, refuse_if
from dp_forward.ledger import Release
from dp_forward.privacy.charge import Charge
from dp_forward.release_spec import ReleaseSpec
from dp_forward.service.client.transport import Call, ServerRefused
from dp_forward.service.protocol.frame import HEADER_BYTES, MOST_AHEAD_S, MOST_BEHIND_S, parse_frame

__all__ = ["Preview"]

KEPT: Final = "The release is kept, and is resent free."  # said where a charged text has no answer

Text = str | tuple[str, str]
"""What is asked about: one text, or a pair of them in one release."""
Tokens = Mapping[str, NDArray[np.int64]]

_FRESH_SECONDS: Final = 6 * 3600  # a stored release gets a new header after this: servers refuse old times


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What the server answered, and what it cost.

    ``charge`` is the epsilon that was charged for it now, alone: 0 where the text was paid for before.
    ``resent`` says that no new release was made, ``stored`` that the answer was stored here, and nothing was
    sent. ``probabilities`` are the provider's; of K-ary response they say how often the noise keeps a
    decision, and not how sure the model is. ``truncated`` says that the text was longer than the front
    reads. ``reply`` is what the provider says to this label, where it serves a route. ``charged`` and
    ``spent`` are those of the ledger's `Summary`, ``remaining`` its `Summary.usable`.
    """

    label: str
    probabilities: dict[str, float]
    charge: float
    charged: dict[str, float]
    spent: float | None
    remaining: float
    resent: bool
    stored: bool
    truncated: bool
    reply: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Preview:
    """What the two parties see of a text, for its owner only; nothing of it is sent.

    ``tokens`` are what the front reads, ``hidden`` [rows, width] what it computes, ``values`` the integers
    that were sent and ``noisy`` what the provider reads in them (None for a text never released so).
    """

    tokens: Tokens
    hidden: NDArray[Any]
    values: NDArray[Any] | None
    noisy: NDArray[np.float32] | None


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Question:
    """A text that is paid for: the call that asks about it, and its ``entry`` from before the draw."""

    call: Call
    request: bytes
    key: bytes
    entry: Release
    charge: Charge | None
    truncated: bool


def check_text(text: object, name: str) -> None:
    parts = text if isinstance(text, tuple) else (text,)
    pair = not isinstance(text, tuple) or len(text) == 2
    refuse_if(not pair, name, "be a string or a pair of them", f"{len(parts)} parts", "Give two texts.")
    for part in parts:
        refuse_if(not isinstance(part, str), name, "be a string", type(part).__name__, "Decode it first.")
        refuse_if(not part.strip(), name, "hold something to read", "nothing", "Leave it out.")


def refresh_frame(frame: bytes, now: int) -> tuple[bytes, bytes]:
    """The request id and the bytes to send: the stored ones, or, where their time is hours ago or (by a wrong
    clock) ahead, the same integers, and so the same release, under a new id and time.
    """
    header = parse_frame(frame).header
    if 0 <= now - header.time <= _FRESH_SECONDS:
        return header.request, frame
    header = replace(header, request=secrets.token_bytes(16), time=now)
    return header.request, header.pack() + frame[HEADER_BYTES:]


def check_clock(date: str | None) -> None:
    """Refuse a clock by which a server that says this ``Date`` would refuse every frame."""
    try:
        there = parsedate_to_datetime(date or "").timestamp()
    except (ValueError, OverflowError):  # it says none
        return
    here = time.time()
    if not -MOST_BEHIND_S <= here - there <= MOST_AHEAD_S:
        shown = [time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now)) for now in (there, here)]
        rule = f"be at most {MOST_AHEAD_S} s ahead of the server's and {MOST_BEHIND_S // 3600} h behind it"
        remedy = "Set it. Nothing was charged or sent."
        raise InvalidInput("clock", f"{rule}: {shown[0]}", shown[1], remedy)


@dataclass(frozen=True, slots=True)
class Said:
    """What a server said to one question: the part of an `Answer` that is its own."""

    label: str
    probabilities: dict[str, float]
    reply: str | None = None


def check_answer(found: Any, labels: tuple[str, ...], request: bytes) -> Said:
    """What the server says, if this is an answer to this request at all."""
    match found:
        case {"label": str(label), "probabilities": dict(given), "request": str(echoed)} if (
            label in labels and echoed == request.hex() and given.keys() == set(labels)
        ):
            values = [given[name] for name in labels]
            sound = all(type(value) in (int, float) and 0 <= value <= 1 for value in values)
            reply = found.get("reply")
            sound = sound and (reply is None or ReleaseSpec.is_reply(reply))
            if sound and abs(sum(values) - 1) <= 1e-3 and given[label] == max(values):
                return Said(label, {name: float(given[name]) for name in labels}, reply)
    raise ServerRefused(f"The server's answer does not fit the request. {KEPT}")
