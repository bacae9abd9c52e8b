"""Which unit the charges of a ledger protect, and how a row says so.

An epsilon per text and one per token are not the same kind of number: their sum promises nothing. So a ledger
has one unit. It is fixed when the ledger is made, or else by its first charge; another one is refused.

In the file the unit stands on the second line of the column ``mechanism``, under the name, and for a ledger
that was made for a unit in its first row, under an empty name. Names have one line, so that older rows have
no second one. For them the unit is read off the names under which this software wrote its own charges
("ask: privunit per text"), and is otherwise not known.

Guarantees:
    The digest of a row covers its unit. Rows from before units were kept are read as they are: no file is
    changed or refused for them.
"""

from __future__ import annotations

import re
from typing import Final

from dp_forward.privacy.units import RECORD, TEXT, Unit, parse_unit, phrase

__all__ = ["read_mechanism", "spelled", "write_mechanism"]

_BETWEEN: Final = "\n"
_OLD_NAME: Final = re.compile(r"(?:ask|corpus): \S+ per (text|token|phrase of (\d{1,9}) tokens)( \+ label)?")


def spelled(unit: Unit | None) -> str | None:
    """As it is written in plans and options: text, token, phrase:5, label, record."""
    if unit is None:
        return None
    return f"phrase:{unit.tokens}" if unit.kind == "phrase" else str(unit)


def write_mechanism(mechanism: str, unit: Unit | None) -> str:
    """What a row holds: the name and, where it is known, the unit."""
    return mechanism if unit is None else f"{mechanism}{_BETWEEN}{spelled(unit)}"


def read_mechanism(column: str) -> tuple[str, Unit | None]:
    """The name and the unit of a row.

    Edges:
        `InvalidInput` for a second line that is no unit.
    """
    name, between, unit = column.partition(_BETWEEN)
    if between:
        return name, parse_unit(unit)
    old = _OLD_NAME.fullmatch(name)
    return name, None if old is None else _old_unit(*old.groups())


def _old_unit(unit: str, tokens: str | None, label: str | None) -> Unit | None:
    found = parse_unit(unit) if tokens is None else phrase(int(tokens))
    if label is None:
        return found
    return RECORD if found == TEXT else None
