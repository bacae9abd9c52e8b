"""Central epsilon of a deployment: proved upper bound, attack's lower bound, the authors' estimate.

Three numbers answer three questions. ``upper`` is proved: no attacker learns more. ``lower`` is an
attack: no proof that knows the noise alone can promise less. ``estimate`` is that of the paper's
authors. Each carries its kind and the trusted part without which it means nothing, and an object of one
kind cannot stand in the place of another.

``upper`` is the least of what is proved, and ``bound`` names the proof: the `blanket` (of PrivUnit and of
randomized response, alone or together), the `clones` (any pure mechanism, and Gaussian noise), the sampler's
composition, or the local epsilon, which holds whoever mixes.

Rules for what differs between users and batches:

* *Several mechanisms or epsilons in one batch*: N counts those who use the same. The others may be handed to
  the attacker one by one; a mixture of all is post-processing of that.
* *Several records of one user in one batch, all replaced*: one bundle where every user sends as many; else by
  group privacy, k epsilon at delta ``(1 + e^eps + ... + e^((k-1) eps)) delta``.
* *Several batches, each user in one of them* (batches, phases with other users): nothing adds up. What the
  batch of a record proves holds for it; what the worst batch proves holds for all.
* *A fresh release of each user in each of k batches*: the batches are composed exactly from their curves. A
  label that is drawn once and sent k times makes one bundle of the k releases.
"""

import math
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from dp_forward.errors import InvalidInput, refuse_if
from dp_forward.privacy import checks
from dp_forward.privacy.bounds import NormBound
from dp_forward.privacy.mechanism import Budget, Mechanism, guess_ceiling
from dp_forward.privacy.privunit import PrivUnit
from dp_forward.privacy.rounding import shown_down, shown_up
from dp_forward.privacy.shuffling.blanket import ROUNDS, Blanket, blanket_epsilon
from dp_forward.privacy.shuffling.clones import amplified_epsilon, shuffled_epsilon
from dp_forward.privacy.shuffling.local_curve import Curve, curve_epsilon, record_curve
from dp_forward.privacy.shuffling.lower_bound import (
    attack_epsilon,
    sampler_attack_epsilon,
    shuffled_pure_lower,
)
from dp_forward.privacy.shuffling.paper_estimate import paper_estimate
from dp_forward.privacy.shuffling.sampler import sampler_epsilon
from dp_forward.privacy.solve import last_safe, log_gap
from dp_forward.privacy.units import TEXT, Unit, refuse_parts_of_texts

__all__ = ["ASSUMPTIONS", "SHUFFLER"]

Kind = Literal["proved", "attack", "estimate"]

SHUFFLER: Final = "a shuffler that strips identity and order"
SAMPLER: Final = "a sampler that draws users uniformly and anonymously"
NOBODY: Final = "none"

_OTHERS: Final = (
    "the other users' releases are honest, with secret noise: whoever sends all the others (the n - 1 "
    "attack) sees this one alone"
)
ASSUMPTIONS: Final = {
    SHUFFLER: (
        "the shuffler is honest: it mixes each batch, forgets who sent what, and does not collude with "
        "whoever sees the releases",
        _OTHERS,
        "which records share a batch depends on when they came, and not on what they say",
        "each release was sent once, and through this shuffler alone",
    ),
    SAMPLER: (
        "the sampler is honest: it draws uniformly, tells nobody whom, and does not collude with whoever "
        "sees the releases",
        _OTHERS,
    ),
    NOBODY: (),
}
"""Trusted part -> what a central promise rests on besides the local one; never printed without it."""

_KINDS: Final = ("proved", "attack", "estimate")
PROOFS: Final = {
    "local": "",
    "clones": " by hiding among the clones",
    "blanket": " by the privacy blanket",
    "composed blanket": " by the privacy blanket, batch by batch",
    "sampler": " by composing the draws",
}
"""The names of the proofs, and how a sentence names them."""


@dataclass(frozen=True)
class CentralBound:
    """One number about the central epsilon: of which ``kind`` it is, and who is ``trusted`` for it.

    ``epsilon`` is None where there is no such number; ``statement`` then says why.
    """

    kind: Kind
    epsilon: float | None
    delta: float
    trusted: str
    statement: str
    bound: str = ""
    """The proof behind an upper bound, one of `PROOFS`; else empty."""

    def __post_init__(self) -> None:
        refuse_if(self.kind not in _KINDS, "kind", f"be one of {', '.join(_KINDS)}", self.kind, "Name it.")
        if self.trusted not in ASSUMPTIONS:
            raise InvalidInput("trusted", "name the trusted part", self.trusted, "Or use NOBODY.")
        checks.delta(self.delta, zero=True)
        if self.epsilon is not None:
            checks.nonnegative("epsilon", self.epsilon, remedy="Use None where there is none.")

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What it rests on besides the local promise; nothing where nobody is trusted."""
        return ASSUMPTIONS[self.trusted]

    @property
    def rests_on(self) -> str:
        """The assumptions as a sentence; empty where there are none."""
        return f"This holds if {'; and if '.join(self.assumptions)}." if self.assumptions else ""

    def guess_rate(self, candidates: int = 2) -> float | None:
        """The best guess at which of so many one record was, all others being given; None where unproved.

        By `guess_ceiling`: delta is in it, and adds less than delta.
        """
        proved = self.kind == "proved" and self.epsilon is not None
        return guess_ceiling(self.epsilon or 0.0, self.delta, candidates) if proved else None


@dataclass(frozen=True)
class CentralBounds:
    """The proved bound (``upper``), the attack's (``lower``) and the authors' ``estimate``, side by side.

    Guarantees:
        Each place holds its own kind, so an estimate can never be read as a proof.
    """

    upper: CentralBound
    lower: CentralBound
    estimate: CentralBound

    def __post_init__(self) -> None:
        for name, kind in (("upper", "proved"), ("lower", "attack"), ("estimate", "estimate")):
            found = getattr(self, name).kind
            refuse_if(found != kind, name, f"be of kind {kind}", found, "Do not swap the bounds.")


def _proved(epsilon: float, delta: float, trusted: str, bound: str, remark: str = "") -> CentralBound:
    proved = f"epsilon {shown_up(epsilon, 4)} at delta {shown_up(delta, 4)} is proved{PROOFS[bound]}"
    statement = f"Through {trusted}, {proved}.{remark}"
    return CentralBound("proved", epsilon, delta, trusted, statement, bound)


def _attacked(epsilon: float, trusted: str, upper: CentralBound) -> CentralBound:
    """With the gap to what is proved: the truth lies between."""
    statement = "The attack that was tried finds nothing here."
    if epsilon > 0:
        statement = (
            f"An attack shows that no proof for this noise can promise less than {shown_down(epsilon, 4)}"
        )
        if upper.epsilon is not None:
            statement += f"; what is proved is {shown_up(upper.epsilon / epsilon, 3)} times that"
        statement += "."
    return CentralBound("attack", epsilon, upper.delta, trusted, statement)


def _estimated(
    delta: float, label_epsilon: float | None, *, wanted: bool, mu: float, users: int, epochs: int
) -> CentralBound:
    if not wanted:
        statement = "The authors' estimate was not asked for."
        return CentralBound("estimate", None, delta, NOBODY, statement)
    estimate = paper_estimate(delta, mu=mu, users=users, epochs=epochs)
    statement = (
        f"The authors' formula (subsampled Gaussian), at this S, gives {estimate:.4g}, without a theorem"
    )
    statement += "." if label_epsilon is None else ", and it leaves the labels out."
    return CentralBound("estimate", estimate, delta, NOBODY, statement)


def _amplified(delta: float, users: int, bundle: Curve) -> CentralBound:
    """The best proof for shuffled Gaussian bundles: the clones, or what holds without them."""
    epsilon = amplified_epsilon(delta, users=users, local_delta=bundle)
    if epsilon is not None:
        return _proved(epsilon, delta, SHUFFLER, "clones")
    epsilon = curve_epsilon(delta, bundle)
    statement = (
        f"No amplification is proved; the local epsilon {shown_up(epsilon, 4)} at delta {shown_up(delta, 4)} "
        "holds with or without a shuffler."
    )
    return CentralBound("proved", epsilon, delta, NOBODY, statement, "local")


def shuffled_gaussian(
    *,
    mu: float,
    users: int,
    delta: float,
    releases: int = 1,
    label_epsilon: float | None = None,
    labels: int = 2,
    label_once: bool = False,
    with_estimate: bool = True,
) -> CentralBounds:
    """Gaussian releases, ``releases`` of each user, every round through a trusted shuffler.

    With ``label_epsilon`` each release carries one of ``labels`` by randomized response: a fresh one each
    time, or with ``label_once`` the same one, drawn once.

    Guarantees:
        ``upper`` counts all releases of a user as one bundle of ``sqrt(releases) * mu``, and is
        never above the local epsilon of that bundle: whoever sees everything unshuffled knows
        more.
    """
    delta = checks.delta(delta, zero=False)
    label: dict[str, Any] = {"label_epsilon": label_epsilon, "labels": labels}
    lower = attack_epsilon(delta, mu=mu, users=users, releases=releases, label_once=label_once, **label)
    bundle = record_curve(mu=math.sqrt(releases) * mu, draws=1 if label_once else releases, **label)
    estimate = _estimated(delta, label_epsilon, wanted=with_estimate, mu=mu, users=users, epochs=releases)
    upper = _amplified(delta, users, bundle)
    return CentralBounds(upper=upper, lower=_attacked(lower, SHUFFLER, upper), estimate=estimate)


def shuffled_mechanism(mechanism: Mechanism, *, users: int, delta: float, rounds: int = 1) -> CentralBounds:
    """Pure releases, one of each user, through a trusted shuffler: the least of what is proved.

    ``mechanism`` is all that one user sends. With ``rounds`` it goes in so many parts that are alike, each
    with fresh noise and in a batch of its own. The authors' estimate is for Gaussian noise alone.

    >>> from dp_forward.privacy import NoiseSpec
    >>> print(shuffled_mechanism(NoiseSpec(epsilon=2.0).build(), users=10_000, delta=1e-6).lower.statement)
    An attack ... no proof for this noise can promise less than 0.07021; what is proved is 1.41 times that.

    Guarantees:
        ``upper`` is never above the local epsilon, and names the proof that gave it.
    """
    refuse_parts_of_texts(mechanism.unit)
    if mechanism.gaussian_mu:
        raise InvalidInput("mechanism", "be pure", mechanism, "Use shuffled_gaussian for Gaussian noise.")
    rounds = checks.count("rounds", rounds, remedy=ROUNDS)
    local = mechanism.epsilon()
    if any(loss.copies % rounds for loss in mechanism.pure_losses):
        raise InvalidInput("rounds", "share the releases out evenly", rounds, "Use 1: a single bundle.")
    once = tuple(replace(loss, copies=loss.copies // rounds) for loss in mechanism.pure_losses)
    clones = shuffled_epsilon(delta, local_epsilon=local, users=users) if local else 0.0
    blanket = blanket_epsilon(delta, losses=once, users=users, rounds=rounds)
    found = [(local, "local"), (clones, "clones")]
    if blanket is not None:
        found.append((blanket, "blanket" if rounds == 1 else "composed blanket"))
    epsilon, bound = min(found, key=lambda proof: proof[0])
    same = shown_up(epsilon, 4) == shown_up(local, 4)
    remark = " That is the local epsilon: the shuffler gains nothing here." if same else ""
    if bound == "composed blanket":
        remark += f" Each of a user's {rounds} releases goes through a batch of its own."
    upper = _proved(epsilon, delta, SHUFFLER, bound, remark)
    attack = shuffled_pure_lower(delta, losses=once, users=users, rounds=rounds)
    none = CentralBound("estimate", None, delta, NOBODY, "The authors' estimate is for Gaussian noise alone.")
    return CentralBounds(upper=upper, lower=_attacked(attack, SHUFFLER, upper), estimate=none)


def privunit_for_central(
    epsilon: float, *, users: int, delta: float, bound: NormBound | None = None, unit: Unit = TEXT
) -> PrivUnit:
    """The PrivUnit of least noise that costs this central epsilon among ``users`` behind a shuffler.

    The local epsilon and t are searched. At one local epsilon t* has the least noise, but a larger t is
    amplified better, so the best one lies a little above t*.

    Guarantees:
        The blanket's delta was evaluated and is at most ``delta``, or the local epsilon is ``epsilon``. That
        t is the best one is a search, and no promise hangs on it.
    """
    refuse_parts_of_texts(unit)
    epsilon = checks.epsilon(epsilon, name="central_epsilon")
    delta = checks.delta(delta, zero=False)
    users = checks.count("users", users, remedy="Pass the number of people who are shuffled together.")

    def at(threshold: float, spread: float) -> PrivUnit:
        def made(local: float) -> PrivUnit:
            return PrivUnit.for_budget(Budget(local), bound=bound, unit=unit, threshold=threshold)

        def slack(local: float) -> float:
            blanket = Blanket.of(made(local).pure_losses, users=users)
            # A hair below, so that the search from the other side does not end above what was wanted.
            reached = 1.0 if blanket is None else blanket.delta(epsilon * (1 - 4e-4), spread=spread)
            return log_gap(delta, reached)

        low, high = epsilon, 1.5 * epsilon
        while slack(high) >= 0:
            low, high = high, 1.5 * high
        return made(last_safe(slack, safe=low, unsafe=high, tolerance=spread / 10))

    low, high = 0.0, 6.0
    for _ in range(12):  # golden section
        left, right = high - 0.618 * (high - low), low + 0.618 * (high - low)
        low, high = (left, high) if at(left, 1e-2).scale < at(right, 1e-2).scale else (low, right)
    return at((low + high) / 2, 5e-4)


def sampled_gaussian(
    *,
    mu: float,
    users: int,
    delta: float,
    epochs: int,
    label_epsilon: float | None = None,
    labels: int = 2,
    with_estimate: bool = True,
) -> CentralBounds:
    """Fresh Gaussian releases of users drawn one by one, ``epochs * users`` times, by a sampler.

    With ``label_epsilon`` each carries a fresh label of ``labels`` by randomized response.

    Edges:
        ``upper.epsilon`` is None where ``delta`` is too small for any finite proof.
    """
    delta = checks.delta(delta, zero=False)
    epochs = checks.count("epochs", epochs, remedy="Pass the passes over the data.")
    steps = epochs * users
    label: dict[str, Any] = {"label_epsilon": label_epsilon, "labels": labels}
    lower = sampler_attack_epsilon(delta, mu=mu, users=users, steps=steps, **label)
    release = record_curve(mu=mu, **label)
    epsilon = sampler_epsilon(delta, users=users, steps=steps, local_delta=release)
    none = f"No finite epsilon is proved at delta {shown_up(delta, 4)}."
    upper = CentralBound("proved", None, delta, NOBODY, none)
    if math.isfinite(epsilon):
        upper = _proved(epsilon, delta, SAMPLER, "sampler")
    estimate = _estimated(delta, label_epsilon, wanted=with_estimate, mu=mu, users=users, epochs=epochs)
    return CentralBounds(upper=upper, lower=_attacked(lower, SAMPLER, upper), estimate=estimate)
