"""What a ledger refuses besides a charge beyond its cap, in one line each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dp_forward.errors import InvalidInput

if TYPE_CHECKING:
    from dp_forward.ledger.replay import Release, Replay
    from dp_forward.privacy.charge import Charge
    from dp_forward.privacy.units import Unit

__all__ = ["another_charge", "another_unit", "other_terms"]

Terms = tuple[float, float, float | None]
"""Cap, delta, and the budget of a day."""


def another_unit(replay: Replay, unit: Unit | None) -> None:
    """Refuse a charge whose epsilon speaks of something else than the others of the ledger."""
    if replay.admits(unit):
        return
    here = "of no known unit, or of several" if replay.unit is None else f"per {replay.unit}"
    raise InvalidInput(
        "unit",
        f"be that of the ledger, whose charges are {here}",
        "none" if unit is None else unit,
        "Epsilons of two units do not add up: use a ledger for each. Nothing was charged.",
    )


def another_charge(known: Release, charge: Charge, unit: Unit | None) -> Release:
    """The known release, if it was charged what is asked now."""
    units = {known.unit, unit} - {None}  # where one was never said, the charge decides
    if known.charge != charge or len(units) > 1:
        raise InvalidInput(
            "charge",
            f"be what this key was charged before, {known.charge}{_per(known.unit)}",
            f"{charge}{_per(unit)}",
            "Another mechanism, noise or unit is another request; make its key differ.",
        )
    return known


def other_terms(asked: Terms, found: Terms) -> InvalidInput:
    """A ledger that was made with another cap, delta or budget per day."""
    return InvalidInput(
        "ledger",
        f"have the {_terms(*asked)} that were asked for",
        f"a ledger with {_terms(*found)}",
        "A cap is never changed; ask with the ledger's own terms or use another file.",
    )


def _terms(cap: float, delta: float, per_day: float | None) -> str:
    return f"cap {cap} and delta {delta}" + ("" if per_day is None else f" and {per_day} per day")


def _per(unit: Unit | None) -> str:
    return "" if unit is None else f" per {unit}"
