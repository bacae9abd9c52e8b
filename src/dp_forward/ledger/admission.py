"""Admission to a ledger: checks of arguments, of the unit, of the cap and of the daily budget.

No message repeats a key or a payload.
"""

from __future__ import annotations

from typing import Final

from dp_forward.errors import BudgetExhausted, InvalidInput
from dp_forward.ledger.verification import DAY_NS, KEY_BYTES, LARGEST_CAP, Release, VerifiedChain
from dp_forward.privacy import checks
from dp_forward.privacy.charge import SMALLEST_DELTA, Charge
from dp_forward.privacy.units import Unit

LARGEST_PAYLOAD: Final = 2**29
_LONGEST_MECHANISM: Final = 200

Terms = tuple[float, float, float | None]
"""Cap, delta, and the budget of a day."""


def check_terms(cap_epsilon: float, delta: float, per_day: float | None) -> Terms:
    """The terms of a ledger, within the range where the Gaussian curve is proved.

    A budget per day above the cap would promise nothing, so it is refused.
    """
    cap = checks.epsilon(cap_epsilon, name="cap_epsilon")
    if cap > LARGEST_CAP:
        raise InvalidInput("cap_epsilon", f"be at most {LARGEST_CAP:g}", cap, "A larger cap protects nobody.")
    delta = checks.delta(delta, zero=True)
    if 0 < delta < SMALLEST_DELTA:
        raise InvalidInput("delta", f"be 0 or at least {SMALLEST_DELTA:g}", delta, "Use 0, or 1e-5.")
    if per_day is not None and (per_day := checks.epsilon(per_day, name="per_day")) > cap:
        raise InvalidInput("per_day", f"be at most the cap, {cap:g}", per_day, "Use less, or leave it out.")
    return cap, delta, per_day


def check_key(key: object) -> bytes:
    """16 to 64 bytes."""
    remedy = "Use a keyed digest of the request, such as HMAC-SHA-256."
    if not isinstance(key, bytes):
        raise InvalidInput("key", "be bytes", type(key).__name__, remedy)
    if len(key) not in KEY_BYTES:
        raise InvalidInput("key", "have 16 to 64 bytes", f"{len(key)} bytes", remedy)
    return key


def check_charge(charge: object) -> Charge:
    """A charge that costs something."""
    if not isinstance(charge, Charge):
        raise InvalidInput(
            "charge", "be a Charge", type(charge).__name__, "Use Charge.pure or Charge.gaussian."
        )
    if not charge:
        raise InvalidInput("charge", "cost something", "nothing", "What leaves is never free.")
    return charge


def check_mechanism(mechanism: object) -> str:
    """A short printable name; empty is allowed."""
    remedy = f"Use a name of at most {_LONGEST_MECHANISM} printable characters."
    if not isinstance(mechanism, str):
        raise InvalidInput("mechanism", "be a string", type(mechanism).__name__, remedy)
    if len(mechanism) > _LONGEST_MECHANISM or not mechanism.isprintable():
        raise InvalidInput("mechanism", "be short and printable", f"{len(mechanism)} characters", remedy)
    return mechanism


def check_unit(unit: object) -> Unit | None:
    """A unit, or None where it is not stated."""
    if unit is not None and not isinstance(unit, Unit):
        raise InvalidInput("unit", "be a Unit", type(unit).__name__, "Use TEXT, TOKEN, phrase(c) or RECORD.")
    return unit


def check_payload(payload: object) -> bytes:
    """A private copy of the bytes to send."""
    if not isinstance(payload, bytes | bytearray | memoryview):
        raise InvalidInput("payload", "be bytes", type(payload).__name__, "Encode it first.")
    data = bytes(payload)
    if not 1 <= len(data) <= LARGEST_PAYLOAD:
        rule = f"have 1 to {LARGEST_PAYLOAD} bytes"
        raise InvalidInput("payload", rule, f"{len(data)} bytes", "Split it into several releases.")
    return data


def refuse_another_unit(chain: VerifiedChain, unit: Unit | None) -> None:
    """Refuse a charge whose epsilon protects another unit than the others of the ledger.

    An epsilon per text and one per token are not the same kind of number: their sum promises nothing.
    """
    if chain.admits(unit):
        return
    here = "of no known unit, or of several" if chain.unit is None else f"per {chain.unit}"
    raise InvalidInput(
        "unit",
        f"be that of the ledger, whose charges are {here}",
        "none" if unit is None else unit,
        "Epsilons of two units do not add up: use a ledger for each. Nothing was charged.",
    )


def refuse_another_charge(known: Release, charge: Charge, unit: Unit | None) -> None:
    """Refuse a key that was charged something else before."""
    units = {known.unit, unit} - {None}  # where one was never stated, the charge decides
    if known.charge != charge or len(units) > 1:
        raise InvalidInput(
            "charge",
            f"be what this key was charged before, {known.charge}{_per(known.unit)}",
            f"{charge}{_per(unit)}",
            "Another mechanism, noise or unit is another request; make its key differ.",
        )


def other_terms(asked: Terms, found: Terms) -> InvalidInput:
    """The error for a ledger that was created with another cap, delta or budget per day."""
    return InvalidInput(
        "ledger",
        f"have the {_terms(*asked)} that were asked for",
        f"a ledger with {_terms(*found)}",
        "A cap is never changed; ask with the ledger's own terms or use another file.",
    )


def refuse_beyond_budget(chain: VerifiedChain, charge: Charge, now: int) -> None:
    """Refuse a charge that would pass the cap, or the budget of the day.

    The charge is tried alone first, so that the sum cannot leave 64 bits.

    What is charged under a later date counts as today's too. So the last charge under any date was admitted
    with all others of that date in the sum, and no date passes the budget, however the clock was set.
    """
    alone = together = charge.epsilon(chain.delta)
    if alone <= chain.cap:
        together = (chain.total + charge).epsilon(chain.delta)
    if together > chain.cap:
        raise BudgetExhausted(
            f"The cap of epsilon {chain.cap} (delta {chain.delta}) would be passed: spent "
            f"{chain.spent()}, this release costs {alone} by itself. Nothing was charged for it."
        )
    if not chain.per_day:
        return
    if (chain.total_since(now // DAY_NS) + charge).epsilon(chain.delta) > chain.per_day:
        raise BudgetExhausted(
            f"The budget of epsilon {chain.per_day} per day (delta {chain.delta}) would be passed: spent "
            f"{chain.spent_today(now)} today, this release costs {alone} by itself. "
            "Nothing was charged for it. A day ends at 00:00 UTC."
        )


def _terms(cap: float, delta: float, per_day: float | None) -> str:
    return f"cap {cap} and delta {delta}" + ("" if per_day is None else f" and {per_day} per day")


def _per(unit: Unit | None) -> str:
    return "" if unit is None else f" per {unit}"
