r"""Deployment: who draws how often, who stands between, and what each observer may learn.

The same releases mean different things to different parties. A `Deployment` says what one user sends (the
text, with its label where that goes along, each with the number of its fresh draws) and which trusted part,
if any, hides the senders. From that follows what every observer sees, and one promise for each:

============  =========================================  ==============================================
between       who sees one user's own releases           who sees only what was mixed
============  =========================================  ==============================================
nobody        provider, reader of the weights            nobody
a shuffler    the shuffler                               provider (collector), reader of the weights
a sampler     the sampler                                provider (collector), reader of the weights
============  =========================================  ==============================================

The network sees what the first receiver sees, unless the line is encrypted: then that something of a fixed
size was sent, and when.

Guarantees:
    A promise names its observer and holds for all that this observer sees of one unit, however often it
    is drawn. A central epsilon is never given for somebody who sees a user's own releases, and never
    without what it rests on.

Paper: Definitions 1 to 4 (central DP, LDP, SeqDP, SeqLDP); it translates between the two sides by shuffling
(Section 3.4) and does not say who shuffles.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, ClassVar, Final

import numpy as np

from dp_forward.errors import InvalidInput
from dp_forward.privacy import checks
from dp_forward.privacy.compose import compose
from dp_forward.privacy.guarantee import Guarantee, Notion
from dp_forward.privacy.mechanism import Mechanism
from dp_forward.privacy.pure_loss import ThreeLevelLoss
from dp_forward.privacy.response import RandomizedResponse
from dp_forward.privacy.rounding import shown_up
from dp_forward.privacy.shuffling import (
    CentralBounds,
    sampled_gaussian,
    shuffled_gaussian,
    shuffled_mechanism,
)
from dp_forward.privacy.shuffling.local_curve import Curve, Floats, curve_epsilon, record_curve
from dp_forward.privacy.units import LABEL, RECORD, TEXT, Unit, refuse_parts_of_texts

_TAIL: Final = 1e-18  # chance of more draws than are counted; added to delta


class Observer(StrEnum):
    """Who looks at the releases."""

    PROVIDER = "the provider"
    NETWORK = "the network"
    SHUFFLER = "the shuffler"
    SAMPLER = "the sampler"
    WEIGHTS = "a reader of the trained weights"


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class SampledReleases(Mechanism):
    r"""One user's own releases where a sampler draws users with replacement, a fresh release each time.

    Guarantees:
        The user is drawn ``J ~ Bin(steps, 1 / users)`` times, whatever the record is, and whoever sees
        these releases sees J. So the hockey-stick divergence is the mean over J,

        .. math:: \delta(\varepsilon) = \sum_j P[J = j]\, \delta_j(\varepsilon),

        with the exact curve of j fresh Gaussian releases and j fresh randomized labels (`record_curve`). What
        is cut off the sum is added to delta.
    """

    name: ClassVar[str] = "sampled releases"

    text: Mechanism
    label: RandomizedResponse | None
    users: int
    steps: int = field(init=False)
    """How often the sampler draws somebody, over all its passes."""
    mu: float = field(init=False)
    """Of one release of the text."""
    shown_delta: float = field(init=False)
    _chances: tuple[tuple[float, Curve], ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "steps", self.text.releases * self.users)
        object.__setattr__(self, "mu", self.text.gaussian_mu / math.sqrt(self.text.releases))
        object.__setattr__(self, "shown_delta", self.text.shown_delta)
        named = _label_options(self.label)
        curves = (
            (chance, record_curve(mu=math.sqrt(j) * self.mu, draws=j, **named))
            for j, chance in _draws_of_one(self.steps, self.users)
            if j
        )
        object.__setattr__(self, "_chances", tuple(curves))

    def _delta_curve(self, epsilon: Floats) -> Floats:
        return np.asarray(sum(chance * curve(epsilon) for chance, curve in self._chances) + _TAIL)

    def delta(self, epsilon: float) -> float:
        checks.nonnegative("epsilon", epsilon, remedy="Use 0 or more.")
        return min(1.0, float(self._delta_curve(np.array([epsilon]))[0]))

    def epsilon(self, delta: float = 0.0) -> float:
        checks.delta(delta, zero=True)
        return math.inf if delta <= 2 * _TAIL else curve_epsilon(delta, self._delta_curve)

    @property
    def unit(self) -> Unit:
        return TEXT if self.label is None else RECORD

    @property
    def assumptions(self) -> tuple[str, ...]:
        label = () if self.label is None else self.label.assumptions
        own = "the sampler draws without looking at what a record says"
        return tuple(dict.fromkeys((*self.text.assumptions, *label, own)))

    @property
    def scope(self) -> str:
        passes = self.text.releases
        return f"per {self.unit}, drawn {passes} time{'s' if passes > 1 else ''} on average"

    @property
    def gaussian_mu(self) -> float:
        """Of the most draws that are possible: all of them."""
        return math.sqrt(self.steps) * self.mu

    @property
    def pure_losses(self) -> tuple[ThreeLevelLoss, ...]:
        """Of the most draws that are possible: all of them."""
        if self.label is None:
            return ()
        return replace(self.label, releases=self.steps).pure_losses

    def __repr__(self) -> str:
        return f"SampledReleases(mu={shown_up(self.mu)}, users={self.users}) -> {self.promise()}"


def _draws_of_one(steps: int, users: int) -> Iterator[tuple[int, float]]:
    """``P[Bin(steps, 1 / users) = j]`` by rising j, rounded up, until at most `_TAIL` is left.

    By logarithms from j = 0 on, each from the one before: a few units in the last place a step. Once a ratio
    is below 1/2 the rest is at most the next term twice.
    """
    if users == 1:
        yield steps, 1.0
        return
    log_chance, log_odds = steps * math.log1p(-1 / users), -math.log(users - 1)
    for j in range(steps + 1):
        yield j, math.exp(log_chance) * (1 + 1e-9)
        ratio = math.log(max(steps - j, 1) / (j + 1)) + log_odds
        if ratio < math.log(0.5) and 2 * math.exp(log_chance + ratio) <= _TAIL:
            return
        log_chance += ratio


def _label_options(label: RandomizedResponse | None) -> dict[str, Any]:
    return {} if label is None else {"label_epsilon": label.label_epsilon, "labels": label.labels}


@dataclass(frozen=True, slots=True, eq=False)
class Deployment:
    """What one user sends, and who stands between the user and the provider; see the module.

    >>> from dp_forward.privacy import NoiseSpec
    >>> sent = Deployment(NoiseSpec(epsilon=2.0).build(), shuffled=10_000)
    >>> sent.guarantee()
    Guarantee(2.0-LDP per text)
    >>> print(sent.central(delta=1e-6).upper.statement)
    Through a shuffler ... epsilon 0.09878 at delta 1e-06 is proved by the privacy blanket.

    Args:
        text: the mechanism of the text (or of the whole record, folded), with all its fresh releases.
        label: a randomized label that goes along: drawn once (``releases`` 1), or with every release of the
            text. A sampler asks for a fresh one each time: only that is proved.
        shuffled: the number of users behind a trusted shuffler; where labels are public, of the same label.
        sampled: the number of users behind a trusted sampler; ``text.releases`` is the number of its passes.
        resends: a stored release may be sent again. That is no new release, yet its receiver learns that the
            text is the same.
        public_label: the label goes along as it is, and the text alone is protected: SeqLDP, and SeqDP behind
            a shuffler. A sampler's draws are not covered: strangers of another label hide nobody.
    """

    text: Mechanism
    label: RandomizedResponse | None = None
    shuffled: int | None = None
    sampled: int | None = None
    resends: bool = False
    public_label: bool = False

    def __post_init__(self) -> None:
        if self.shuffled is not None and self.sampled is not None:
            raise InvalidInput("sampler", "stand without a shuffler", self.sampled, "Pick one of them.")
        for name in ("shuffled", "sampled"):
            if getattr(self, name) is not None:
                checks.count(name, getattr(self, name), remedy="Count the people behind it.")
        unit = self.text.unit
        if self.users is not None:
            refuse_parts_of_texts(unit)
        if self.users is not None and self.text.gaussian_mu and self.text.pure_losses:
            # The theorems for Gaussian noise would leave the pure part out.
            rule = "be one mechanism with a shuffler or sampler"
            raise InvalidInput("text", rule, "Gaussian and pure together", "Pass the label by itself.")
        if self.label is not None and self.label.releases not in (1, self.text.releases):
            rule = f"be drawn once, or with each of the {self.text.releases} releases"
            raise InvalidInput("label", rule, self.label.releases, "Count its draws.")
        if self.label is not None and isinstance(self.text, RandomizedResponse):
            raise InvalidInput("label", "go with a text mechanism", "two labels", "Use more releases.")
        if self.public_label and (
            self.label is not None or self.sampled is not None or unit in (LABEL, RECORD)
        ):
            rule = "go with the noise of a text, without a sampler or a randomized label"
            raise InvalidInput("public_label", rule, self.public_label, "Leave one of them out.")
        if self.sampled is None:
            return
        if self.text.gaussian_mu == 0:
            raise InvalidInput("sampler", "go with Gaussian noise", self.sampled, "Use a shuffler.")
        if self.label is not None and self.label.releases != self.text.releases:
            remedy = "No proof here covers a label that is drawn once and sampled several times."
            raise InvalidInput("label", "be drawn with every release of a sampler", "once", remedy)

    @property
    def users(self) -> int | None:
        """How many people the shuffler or the sampler hides; None where there is neither."""
        return self.sampled if self.shuffled is None else self.shuffled

    @property
    def own_releases(self) -> Mechanism:
        """What is seen by whoever sees one user's own releases, all of them."""
        if self.sampled is not None:
            return SampledReleases(self.text, self.label, self.sampled)
        return self.text if self.label is None else compose(self.text, self.label)

    @property
    def receiver(self) -> Observer:
        """Who receives one user's own releases."""
        if self.sampled is not None:
            return Observer.SAMPLER
        return Observer.PROVIDER if self.shuffled is None else Observer.SHUFFLER

    def guarantee(
        self, *, delta: float = -1.0, notion: Notion | None = None, assumptions: tuple[str, ...] = ()
    ) -> Guarantee:
        """The promise against whoever sees one user's own releases, at the mechanism's delta or another."""
        if notion is None and self.public_label and self.text.unit == TEXT:
            notion = Notion.SEQ_LDP
        return Guarantee(self, delta, notion, assumptions)

    def central(self, delta: float, *, with_estimate: bool = True) -> CentralBounds | None:
        """What holds for whoever sees only what was mixed; None without a shuffler or a sampler."""
        if self.users is None:
            return None
        releases, mu = self.text.releases, self.text.gaussian_mu / math.sqrt(self.text.releases)
        if mu == 0:
            # A label that is drawn once goes with every release: one bundle, not several batches.
            fresh = self.label is None or self.label.releases == releases
            return shuffled_mechanism(
                self.own_releases, users=self.users, delta=delta, rounds=releases if fresh else 1
            )
        named = _label_options(self.label)
        named |= {"mu": mu, "users": self.users, "delta": delta, "with_estimate": with_estimate}
        if self.sampled is not None:
            return sampled_gaussian(epochs=releases, **named)
        once = self.label is not None and self.label.releases == 1
        return shuffled_gaussian(releases=releases, label_once=once, **named)

    @property
    def central_notion(self) -> Notion:
        """Which collections are neighbours for whoever sees only what was mixed."""
        return Notion.SEQ_DP if self.public_label else Notion.CENTRAL_DP

    def statements(self, delta: float, *, central: CentralBounds | None = None) -> dict[str, str]:
        """One sentence, or a few, for every observer; the central ones with what they rest on."""
        own = self.guarantee(delta=delta if self.text.gaussian_mu else 0.0)
        said = {self.receiver: own.statement}
        if self.users is not None:
            central = self.central(delta, with_estimate=False) if central is None else central
            assert central is not None
            parts = [central.upper.statement, central.upper.rests_on, central.lower.statement]
            if self.public_label:
                parts.insert(1, f"That is {self.central_notion}: for {self.central_notion.neighbours}.")
            said[Observer.PROVIDER] = " ".join(filter(None, parts))
        if self.resends:
            said[self.receiver] += (
                " A stored release that is sent again is no new one, yet it says: same text."
            )
        said[Observer.NETWORK] = (
            f"What {self.receiver} sees, unless the line is encrypted; then that something of a fixed size "
            "was sent, and when."
        )
        said[Observer.WEIGHTS] = f"A function of what {Observer.PROVIDER} sees: the same promise."
        return {str(observer): sentence for observer, sentence in said.items()}
