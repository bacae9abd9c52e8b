"""Admission to a ledger: checks of arguments, of the unit, of the shares in all and of the day.

No message repeats a key or a payload.
"""

from typing import Final

from dp_forward.errors import BudgetExhausted, InvalidInput, refuse_if
from dp_forward.ledger.terms import Terms
from dp_forward.ledger.verification import DAY_NS, KEY_BYTES, Release, VerifiedChain
from dp_forward.privacy import Unit
from dp_forward.privacy.charge import Charge

LARGEST_PAYLOAD: Final = 2**29
_LONGEST_MECHANISM: Final = 200


def check_key(key: bytes) -> bytes:
    """16 to 64 bytes."""
    rule, remedy = "have 16 to 64 bytes", "Use a keyed digest of the request, such as HMAC-SHA-256."
    refuse_if(not isinstance(key, bytes) or len(key) not in KEY_BYTES, "key", rule, _size(key), remedy)
    return key


def check_charge(charge: Charge) -> Charge:
    """A charge that costs something."""
    if not isinstance(charge, Charge) or not charge:
        found = "nothing" if isinstance(charge, Charge) else type(charge).__name__
        raise InvalidInput("charge", "be a Charge that costs something", found, "What leaves is never free.")
    return charge


def check_mechanism(mechanism: str) -> str:
    """A short printable name; empty is allowed."""
    if not isinstance(mechanism, str) or len(mechanism) > _LONGEST_MECHANISM or not mechanism.isprintable():
        remedy = f"Use a name of at most {_LONGEST_MECHANISM} printable characters."
        raise InvalidInput("mechanism", "be short and printable", _size(mechanism), remedy)
    return mechanism


def check_unit(unit: Unit | None) -> Unit | None:
    """A unit, or None where it is not stated."""
    if unit is not None and not isinstance(unit, Unit):
        raise InvalidInput("unit", "be a Unit", type(unit).__name__, "Use TEXT, TOKEN, phrase(c) or RECORD.")
    return unit


def check_payload(payload: bytes) -> bytes:
    if not isinstance(payload, bytes) or not 1 <= len(payload) <= LARGEST_PAYLOAD:
        rule = f"have 1 to {LARGEST_PAYLOAD} bytes"
        raise InvalidInput("payload", rule, _size(payload), "Encode it, or split it into several releases.")
    return payload


def refuse_another_unit(chain: VerifiedChain, unit: Unit | None) -> None:
    """Refuse a charge whose epsilon protects another unit than the others of the ledger.

    An epsilon per text and one per token are not the same kind of number: their sum promises nothing.
    """
    if chain.admits(unit):
        return
    here = "of no known unit, or of several" if chain.unit is None else f"per {chain.unit}"
    rule = f"be that of the ledger, whose charges are {here}"
    remedy = "Epsilons of two units do not add up: use a ledger for each. Nothing was charged."
    raise InvalidInput("unit", rule, "none" if unit is None else unit, remedy)


def refuse_another_charge(known: Release, charge: Charge, unit: Unit | None) -> None:
    """Refuse a key that was charged something else before."""
    units = {known.unit, unit} - {None}  # where one was never stated, the charge decides
    rule = f"be what this key was charged before, {known.charge}{_per(known.unit)}"
    remedy = "Another mechanism, noise or unit is another request; make its key differ."
    refuse_if(known.charge != charge or len(units) > 1, "charge", rule, f"{charge}{_per(unit)}", remedy)


def other_terms(asked: Terms, found: Terms) -> InvalidInput:
    """The error for a ledger that was created with another cap or budget per day."""
    rule = f"have the {_format(asked)} that was asked for"
    remedy = "A cap is never changed; ask with the ledger's own terms or use another file."
    return InvalidInput("ledger", rule, f"a ledger with {_format(found)}", remedy)


def refuse_another_kind(terms: Terms, charge: Charge) -> None:
    """Refuse a charge of a kind for which the ledger has no share."""
    if charge.mu2_units and not terms.limit.mu2_units:
        kind, option = "Gaussian", "--delta 1e-5"
    elif charge.epsilon_units and not terms.limit.epsilon_units:
        kind, option = "pure", "--delta 1e-5 --pure-share 2, or a pure one without both"
    else:
        return
    rule = f"be of a kind that the ledger has a share for, and it has no {kind} one"
    other = f"use another one, such as by dpf ledger create FILE --epsilon 8 {option}"
    remedy = f"Shares are fixed when a ledger is made: {other}. Nothing was charged."
    raise InvalidInput("charge", rule, charge, remedy)


def refuse_beyond_budget(chain: VerifiedChain, charge: Charge, now: int) -> None:
    """Refuse a charge that has no share, or would pass one, in all or of the day.

    What is charged under a later date counts as today's too. So the last charge under any date was admitted
    with all others of that date in the sum, and no date passes the budget, however the clock was set.
    """
    terms = chain.terms
    refuse_another_kind(terms, charge)
    today = chain.total_since(now // DAY_NS)
    refused = f"this release costs {charge}. Nothing was charged for it."
    if not charge <= terms.limit.left_by(chain.total):
        cap = "" if terms.cap is None else f" of epsilon {terms.cap.epsilon} (delta {terms.delta})"
        charged = f"{chain.total} of {terms.limit} is charged"
        raise BudgetExhausted(f"The cap{cap} would be passed: {charged}, {refused}")
    if not charge <= terms.day_limit.left_by(today):
        raise BudgetExhausted(
            f"The budget of epsilon {terms.per_day} per day (delta {terms.delta}) would be passed: {today} "
            f"of {terms.day_limit} is charged today, {refused} A day ends at 00:00 UTC."
        )


def _format(terms: Terms) -> str:
    cap = "no cap in all" if terms.cap is None else f"cap {terms.cap} ({terms.cap.shares})"
    return cap + ("" if terms.per_day is None else f" and {terms.per_day} per day")


def _per(unit: Unit | None) -> str:
    return "" if unit is None else f" per {unit}"


def _size(value: object) -> str:
    """The length of bytes and names, which are never repeated, or what else was given."""
    return f"length {len(value)}" if isinstance(value, bytes | str) else type(value).__name__
