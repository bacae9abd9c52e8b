"""Units of protection: a text, a token, a phrase of c tokens, a label, or text and label.

A unit says which inputs count as neighbours. Two neighbours may differ in everything inside one
unit and in nothing else, and are then indistinguishable up to (epsilon, delta).

==========  =====================================================  =============================
unit        neighbours                                             protects
==========  =====================================================  =============================
``text``    any two texts                                          a whole text
``token``   texts of one length that differ in one token           one token
``phrase``  ... that differ in c consecutive tokens                a phrase
``label``   any two labels                                         a label
``record``  any two (text, label) pairs                            text and label together
==========  =====================================================  =============================

Paper: Definitions 2 (LDP), 4 (SeqLDP) and 6 (token-level SeqLDP).
"""

from dataclasses import dataclass
from typing import Final, Literal

from dp_forward.errors import InvalidInput, refuse_if
from dp_forward.privacy import checks

__all__ = ["format_unit", "refuse_where_rows_mix"]

_REMEDY = "Use text, token, phrase:c (c tokens, such as phrase:5), label or record."


@dataclass(frozen=True, slots=True)
class Unit:
    """One unit of protection; use `TEXT`, `TOKEN`, `LABEL`, `RECORD` or `phrase`."""

    kind: Literal["text", "token", "phrase", "label", "record"]
    tokens: int | None = None

    def __post_init__(self) -> None:
        if self.kind not in ("text", "token", "phrase", "label", "record"):
            raise InvalidInput("unit", "be a known unit", self.kind, _REMEDY)
        if self.kind == "phrase":
            checks.count("tokens", self.tokens, remedy="Say how many tokens a phrase has.")
        elif self.tokens != (1 if self.kind == "token" else None):
            raise InvalidInput("tokens", f"be left out for a {self.kind}", self.tokens, _REMEDY)

    def __str__(self) -> str:
        return f"phrase of {self.tokens} tokens" if self.kind == "phrase" else self.kind


TEXT: Final = Unit("text")
"""A whole text: any two texts are neighbours."""
TOKEN: Final = Unit("token", 1)
"""One token, where each row is made from its own token."""
LABEL: Final = Unit("label")
"""The label of a record."""
RECORD: Final = Unit("record")
"""A text and its label together."""


def phrase(tokens: int) -> Unit:
    """A phrase of ``tokens`` consecutive tokens."""
    return Unit("phrase", tokens)


def parse_unit(text: str) -> Unit:
    """Read ``text``, ``token``, ``label``, ``record`` or ``phrase:c``."""
    kind, separator, size = text.partition(":")
    if kind == "phrase" and separator and size.isascii() and size.isdigit():
        return phrase(int(size))
    known = {str(unit): unit for unit in (TEXT, TOKEN, LABEL, RECORD)}
    refuse_if(text not in known, "unit", "be a known unit", repr(text), _REMEDY)
    return known[text]


def format_unit(unit: Unit) -> str:
    """The inverse of `parse_unit`: ``text``, ``token``, ``label``, ``record`` or ``phrase:c``."""
    return f"phrase:{unit.tokens}" if unit.kind == "phrase" else unit.kind


def refuse_parts_of_texts(unit: Unit | None) -> None:
    """A shuffler and a sampler hide whole texts, labels or records among others.

    The theorems need the local epsilon between any two people's texts, not between neighbours.
    """
    if unit is None or unit.tokens is not None:
        remedy = "Strangers' texts are not alike enough to hide each other by a promise per token."
        raise InvalidInput("unit", "be text with a shuffler or sampler", str(unit), remedy)


def refuse_where_rows_mix(name: str, unit: Unit | None, *, row_local: bool, cut: object) -> None:
    """No promise per token or phrase behind a front in which one token moves every row."""
    if unit is not None and unit.tokens is not None and not row_local:
        rule = f"protect whole texts at the cut {cut}"
        raise InvalidInput(name, rule, f"a promise per {unit}", "Cut at embeddings, or promise per text.")
