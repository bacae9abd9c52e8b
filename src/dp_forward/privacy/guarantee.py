"""Guarantee: a proved promise with its unit, observer, assumptions and plain sentence."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Self

from dp_forward.errors import InvalidInput, Unproved
from dp_forward.privacy import checks
from dp_forward.privacy.mechanism import Mechanism
from dp_forward.privacy.rounding import nudge_up, percent_up
from dp_forward.privacy.units import Unit

if TYPE_CHECKING:
    from dp_forward.privacy.deployment import Deployment


class Notion(StrEnum):
    """Which inputs are neighbours; see `units` for the table."""

    neighbours: str
    """The two inputs that must look alike, in words."""

    LDP = "LDP", "any two texts"
    SEQ_LDP = "SeqLDP", "any two texts with the same label"
    RECORD_LDP = "LDP of a record", "any two records, text and label together"
    LABEL_LDP = "LDP of a label", "any two labels"
    TOKEN_SEQ_LDP = "token-level SeqLDP", "any two texts of one length that differ in one token"
    PHRASE_SEQ_LDP = "phrase-level SeqLDP", "any two texts of one length that differ in one phrase"
    CENTRAL_DP = "central DP", "any two collections that differ in one record, replaced"
    SEQ_DP = "SeqDP", "any two collections that differ in one text, replaced by one with the same label"
    DISTANCE = "DP between inputs at a bounded distance", "any two inputs within the stated distance"

    def __new__(cls, name: str, neighbours: str) -> Self:
        """The notion of this name."""
        notion = str.__new__(cls, name)
        notion._value_, notion.neighbours = name, neighbours
        return notion


_BY_UNIT = {
    "text": (Notion.LDP, Notion.SEQ_LDP),
    "token": (Notion.TOKEN_SEQ_LDP,),
    "phrase": (Notion.PHRASE_SEQ_LDP,),
    "label": (Notion.LABEL_LDP,),
    "record": (Notion.RECORD_LDP,),
}


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Guarantee:
    """A proved promise, made by a ``deployment`` (`Deployment.guarantee`): no epsilon can be passed in.

    ``notion`` says which inputs are neighbours, by default by the unit; ``more_assumptions`` are added to the
    deployment's own.

    >>> from dp_forward.privacy import Deployment, NoiseSpec
    >>> print(Deployment(NoiseSpec(epsilon=8.0).build()).guarantee().statement)
    8.0-LDP per text. Given any two texts, anyone who sees the releases, the provider included, tells which of
    the two it was with at most 99.97 % success (a coin has 50 %), and which of a hundred with at most 96.8 %
    (a blind guess has 1 %).

    Guarantees:
        ``mechanism`` is all that the observer sees of one unit, as the deployment says; ``epsilon`` is
        ``mechanism.epsilon(delta)``, computed here; the notion fits the mechanism's unit; `Unproved` is
        raised for a mechanism without a theorem.
    """

    deployment: Deployment
    delta: float = -1.0
    notion: Notion | None = None
    more_assumptions: tuple[str, ...] = ()
    mechanism: Mechanism = field(init=False)
    epsilon: float = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "mechanism", self.deployment.own_releases)
        if not self.mechanism.guaranteed:
            raise Unproved(
                f"`{self.mechanism.name}` carries no guarantee outside its theorem. Use the analytic "
                "Gaussian, whose sigma is proved."
            )
        if self.delta == -1.0:
            object.__setattr__(self, "delta", self.mechanism.shown_delta)
        checks.delta(self.delta, zero=True)
        object.__setattr__(self, "epsilon", self.mechanism.epsilon(self.delta))
        unit = self.mechanism.unit
        allowed = (Notion.DISTANCE,) if unit is None else _BY_UNIT[unit.kind]
        if self.notion is None:
            object.__setattr__(self, "notion", allowed[0])
        elif self.notion not in allowed:
            rule = f"fit the unit: {' or '.join(allowed)}"
            raise InvalidInput("notion", rule, self.notion, "Leave it out, or bound for another unit.")

    @property
    def unit(self) -> Unit | None:
        """What is protected."""
        return self.mechanism.unit

    @property
    def guess_rate(self) -> float:
        """The best two-candidate guess rate of any attacker."""
        return self.mechanism.guess_rate()

    def posterior(self, prior: float) -> tuple[float, float]:
        r"""The least and the most that anyone may believe in one candidate after any release, by Bayes.

        Before it, the candidate x had probability p; the rest may be any texts with any probabilities. Proof:
        for every outcome o, the law of o given "not x" is a mixture of releases of neighbours of x, so it
        lies between ``e^-epsilon`` and ``e^epsilon`` times the law of o given x. Hence the odds of x change
        by a factor between these two:

        .. math:: \frac{p}{p + (1 - p)\,e^{\varepsilon}} \;\le\; P[x \mid o] \;\le\;
                  \frac{p}{p + (1 - p)\,e^{-\varepsilon}}

        Raises:
            Unproved: where delta is above 0. Some releases may then tell much; only `guess_rate` is bounded.
        """
        checks.probability("prior", prior, remedy="It is what was believed before.")
        epsilon = self.mechanism.epsilon(0.0)
        if math.isinf(epsilon):
            raise Unproved("Gaussian noise bounds no belief after every release. Use guess_rate().")
        low, high = (prior / (prior + (1 - prior) * math.exp(e)) for e in (epsilon, -epsilon))
        return max(0.0, 2 * low - nudge_up(low)), min(1.0, nudge_up(high))

    def in_context(self, candidates: int) -> str:
        """What a release adds for somebody who knows that it was one of so many, all alike to them."""
        before, after = percent_up(1 / candidates), percent_up(self.mechanism.guess_rate(candidates))
        return f"Before: 1 of {candidates:,} candidates, {before}. After: at most {after}."

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What the promise rests on."""
        return (
            *self.mechanism.assumptions,
            "the noise is drawn as specified and is secret",
            *self.more_assumptions,
        )

    @property
    def against(self) -> str:
        """The observer: whoever sees one user's own releases."""
        if self.deployment.users is None:
            return "anyone who sees the releases, the provider included"
        return f"{self.deployment.receiver}, or anyone else who sees one user's own releases"

    @property
    def promise(self) -> str:
        """One short phrase: '(8.0, 1e-05)-LDP per text'."""
        return self.mechanism.promise(self.delta)

    @property
    def statement(self) -> str:
        """The plain sentence."""
        candidates = (self.notion or Notion.DISTANCE).neighbours
        of_hundred = percent_up(self.mechanism.guess_rate(100))
        return (
            f"{self.promise}. Given {candidates}, {self.against}, tells which of the two it was "
            f"with at most {percent_up(self.guess_rate)} success (a coin has 50 %), and which of a hundred "
            f"with at most {of_hundred} (a blind guess has 1 %)."
        )

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "notion": str(self.notion),
            "unit": None if self.unit is None else str(self.unit),
            "epsilon": self.epsilon,
            "delta": self.delta,
            "against": self.against,
            "assumptions": list(self.assumptions),
            "guess_rate": self.guess_rate,
            "statement": self.statement,
        }

    def __str__(self) -> str:
        return self.statement

    def __repr__(self) -> str:
        return f"Guarantee({self.promise})"
