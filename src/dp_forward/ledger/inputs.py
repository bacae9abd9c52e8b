"""What callers hand to a ledger, checked at the door. No message repeats a key or a payload."""

from __future__ import annotations

from typing import Final

from dp_forward.errors import InvalidInput
from dp_forward.ledger.replay import KEY_BYTES, LARGEST_CAP
from dp_forward.privacy import checks
from dp_forward.privacy.charge import SMALLEST_DELTA, Charge
from dp_forward.privacy.units import Unit

__all__ = [
    "LARGEST_PAYLOAD",
    "a_charge",
    "a_key",
    "a_mechanism",
    "a_payload",
    "a_unit",
    "per_day_within",
    "terms",
]

LARGEST_PAYLOAD: Final = 2**29
_LONGEST_MECHANISM: Final = 200


def terms(cap_epsilon: float, delta: float) -> tuple[float, float]:
    """The cap and delta of a ledger, within the range where the Gaussian curve is proved."""
    cap = checks.epsilon(cap_epsilon, name="cap_epsilon")
    if cap > LARGEST_CAP:
        raise InvalidInput("cap_epsilon", f"be at most {LARGEST_CAP:g}", cap, "A larger cap protects nobody.")
    delta = checks.delta(delta, zero=True)
    if 0 < delta < SMALLEST_DELTA:
        raise InvalidInput("delta", f"be 0 or at least {SMALLEST_DELTA:g}", delta, "Use 0, or 1e-5.")
    return cap, delta


def per_day_within(cap: float, per_day: float | None) -> float:
    """The budget of a day as it is stored, 0 for none; more than the cap would promise nothing."""
    if per_day is None:
        return 0.0
    budget = checks.epsilon(per_day, name="per_day")
    if budget > cap:
        raise InvalidInput("per_day", f"be at most the cap, {cap:g}", budget, "Use less, or leave it out.")
    return budget


def a_key(key: object) -> bytes:
    """16 to 64 bytes."""
    remedy = "Use a keyed digest of the request, such as HMAC-SHA-256."
    if not isinstance(key, bytes):
        raise InvalidInput("key", "be bytes", type(key).__name__, remedy)
    if len(key) not in KEY_BYTES:
        raise InvalidInput("key", "have 16 to 64 bytes", f"{len(key)} bytes", remedy)
    return key


def a_charge(charge: object) -> Charge:
    """A charge that costs something."""
    if not isinstance(charge, Charge):
        raise InvalidInput(
            "charge", "be a Charge", type(charge).__name__, "Use Charge.pure or Charge.gaussian."
        )
    if not charge:
        raise InvalidInput("charge", "cost something", "nothing", "What leaves is never free.")
    return charge


def a_mechanism(mechanism: object) -> str:
    """A short printable name; empty is allowed."""
    remedy = f"Use a name of at most {_LONGEST_MECHANISM} printable characters."
    if not isinstance(mechanism, str):
        raise InvalidInput("mechanism", "be a string", type(mechanism).__name__, remedy)
    if len(mechanism) > _LONGEST_MECHANISM or not mechanism.isprintable():
        raise InvalidInput("mechanism", "be short and printable", f"{len(mechanism)} characters", remedy)
    return mechanism


def a_unit(unit: object) -> Unit | None:
    """A unit, or None where it is not said."""
    if unit is not None and not isinstance(unit, Unit):
        raise InvalidInput("unit", "be a Unit", type(unit).__name__, "Use TEXT, TOKEN, phrase(c) or RECORD.")
    return unit


def a_payload(payload: object) -> bytes:
    """A private copy of the bytes to send."""
    if not isinstance(payload, bytes | bytearray | memoryview):
        raise InvalidInput("payload", "be bytes", type(payload).__name__, "Encode it first.")
    data = bytes(payload)
    if not 1 <= len(data) <= LARGEST_PAYLOAD:
        raise InvalidInput(
            "payload",
            f"have 1 to {LARGEST_PAYLOAD} bytes",
            f"{len(data)} bytes",
            "Split it into several releases.",
        )
    return data
