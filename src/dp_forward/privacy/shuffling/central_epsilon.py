"""Central epsilon of a deployment: proved upper bound, attack's lower bound, the authors' estimate.

Three numbers answer three questions. ``upper`` is proved: no attacker learns more. ``lower`` is an
attack: no proof can promise less. ``estimate`` is that of the paper's authors. Each carries its kind and
the trusted part without which it means nothing, and an object of one kind cannot stand in the
place of another.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal

from dp_forward.errors import InvalidInput
from dp_forward.privacy import checks
from dp_forward.privacy.mechanism import Mechanism
from dp_forward.privacy.rounding import shown_down, shown_up
from dp_forward.privacy.shuffling.clones import amplified_epsilon, shuffled_epsilon
from dp_forward.privacy.shuffling.local_curve import Curve, curve_epsilon, record_curve
from dp_forward.privacy.shuffling.lower_bound import (
    attack_epsilon,
    sampler_attack_epsilon,
    shuffled_pure_lower,
)
from dp_forward.privacy.shuffling.paper_estimate import paper_estimate
from dp_forward.privacy.shuffling.sampler import sampler_epsilon

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
        "the record was sent once, and through this shuffler alone",
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


@dataclass(frozen=True)
class CentralBound:
    """One number about the central epsilon, with what it rests on.

    ``epsilon`` is None where there is no such number; ``statement`` then says why.
    """

    kind: Kind
    epsilon: float | None
    delta: float
    trusted: str
    statement: str

    def __post_init__(self) -> None:
        if self.kind not in _KINDS:
            raise InvalidInput("kind", f"be one of {', '.join(_KINDS)}", self.kind, "Name it.")
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


@dataclass(frozen=True)
class CentralBounds:
    """The proved upper bound, the attack's lower bound and the authors' estimate, side by side.

    Guarantees:
        Each place holds its own kind, so an estimate can never be read as a proof.
    """

    upper: CentralBound
    lower: CentralBound
    estimate: CentralBound

    def __post_init__(self) -> None:
        places = (("upper", "proved"), ("lower", "attack"), ("estimate", "estimate"))
        for name, kind in places:
            found = getattr(self, name).kind
            if found != kind:
                raise InvalidInput(name, f"be of kind {kind}", found, "Do not swap the bounds.")


def _proved(epsilon: float, delta: float, trusted: str, remark: str = "") -> CentralBound:
    proved = f"epsilon {shown_up(epsilon, 4)} at delta {shown_up(delta, 4)} is proved"
    statement = f"Through {trusted}, {proved}.{remark}"
    return CentralBound("proved", epsilon, delta, trusted, statement)


def _attacked(epsilon: float, delta: float, trusted: str) -> CentralBound:
    statement = "The attack that was tried finds nothing here."
    if epsilon > 0:
        statement = f"An attack shows that no proof can promise an epsilon below {shown_down(epsilon, 4)}."
    return CentralBound("attack", epsilon, delta, trusted, statement)


def _estimated(
    delta: float, label_epsilon: float | None, *, wanted: bool, mu: float, users: int, epochs: int
) -> CentralBound:
    if not wanted:
        statement = "The authors' estimate was not asked for."
        return CentralBound("estimate", None, delta, NOBODY, statement)
    estimate = paper_estimate(delta, mu=mu, users=users, epochs=epochs)
    statement = f"The authors' estimate (subsampled Gaussian, at this S) is {estimate:.4g}, without a theorem"
    statement += "." if label_epsilon is None else ", and it leaves the labels out."
    return CentralBound("estimate", estimate, delta, NOBODY, statement)


def _amplified(delta: float, users: int, bundle: Curve) -> CentralBound:
    """The best proof for shuffled Gaussian bundles: the clones, or what holds without them."""
    epsilon = amplified_epsilon(delta, users=users, local_delta=bundle)
    if epsilon is not None:
        return _proved(epsilon, delta, SHUFFLER)
    epsilon = curve_epsilon(delta, bundle)
    statement = (
        f"No amplification is proved; the local epsilon {shown_up(epsilon, 4)} at delta {shown_up(delta, 4)} "
        "holds with or without a shuffler."
    )
    return CentralBound("proved", epsilon, delta, NOBODY, statement)


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

    With ``label_epsilon`` each release carries a label by randomized response: a fresh one each
    time, or with ``label_once`` the same one, drawn once.

    Guarantees:
        ``upper`` counts all releases of a user as one bundle of ``sqrt(releases) * mu``, and is
        never above the local epsilon of that bundle: whoever sees everything unshuffled knows
        more.
    """
    delta = checks.delta(delta, zero=False)
    mu = checks.positive("mu", mu, remedy="Pass sensitivity / sigma.")
    users = checks.count("users", users, remedy="Pass the number of people who are shuffled.")
    releases = checks.count("releases", releases, remedy="Pass the releases of each user.")
    lower = attack_epsilon(
        delta,
        mu=mu,
        users=users,
        releases=releases,
        label_epsilon=label_epsilon,
        labels=labels,
        label_once=label_once,
    )
    bundle = record_curve(
        mu=math.sqrt(releases) * mu,
        label_epsilon=label_epsilon,
        labels=labels,
        draws=1 if label_once else releases,
    )
    estimate = _estimated(delta, label_epsilon, wanted=with_estimate, mu=mu, users=users, epochs=releases)
    return CentralBounds(
        upper=_amplified(delta, users, bundle),
        lower=_attacked(lower, delta, SHUFFLER),
        estimate=estimate,
    )


def shuffled_pure(
    *, local_epsilon: float, users: int, delta: float, cap_mass: float | None = None
) -> CentralBounds:
    """Pure releases, one of each user, through a trusted shuffler.

    ``cap_mass`` is the cap probability of PrivUnit or the keep probability of randomized
    response; with it there is an attack as well. The estimate is for Gaussian noise alone.

    Guarantees:
        ``upper`` is never above ``local_epsilon``.
    """
    delta = checks.delta(delta, zero=True)
    upper = shuffled_epsilon(delta, local_epsilon=local_epsilon, users=users)
    same = shown_up(upper, 4) == shown_up(local_epsilon, 4)
    remark = " That is the local epsilon: the shuffler gains nothing here." if same else ""
    if cap_mass is None:
        unknown = "No attack was computed: that would need the cap mass of the mechanism."
        lower = CentralBound("attack", None, delta, SHUFFLER, unknown)
    else:
        found = shuffled_pure_lower(delta, local_epsilon=local_epsilon, cap_mass=cap_mass, users=users)
        lower = _attacked(found, delta, SHUFFLER)
    none = "The authors' estimate is for Gaussian noise alone."
    return CentralBounds(
        upper=_proved(upper, delta, SHUFFLER, remark),
        lower=lower,
        estimate=CentralBound("estimate", None, delta, NOBODY, none),
    )


def shuffled_mechanism(mechanism: Mechanism, *, users: int, delta: float) -> CentralBounds:
    """`shuffled_pure` of a pure mechanism; with an attack where its loss is that of one cap."""
    losses = mechanism.pure_losses
    cap_mass = losses[0].mass if len(losses) == 1 and losses[0].copies == 1 else None
    return shuffled_pure(local_epsilon=mechanism.epsilon(), users=users, delta=delta, cap_mass=cap_mass)


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

    Edges:
        ``upper.epsilon`` is None where ``delta`` is too small for any finite proof.
    """
    delta = checks.delta(delta, zero=False)
    mu = checks.positive("mu", mu, remedy="Pass sensitivity / sigma.")
    users = checks.count("users", users, remedy="Pass the number of people who may be drawn.")
    epochs = checks.count("epochs", epochs, remedy="Pass the passes over the data.")
    steps = epochs * users
    lower = sampler_attack_epsilon(
        delta, mu=mu, users=users, steps=steps, label_epsilon=label_epsilon, labels=labels
    )
    release = record_curve(mu=mu, label_epsilon=label_epsilon, labels=labels)
    epsilon = sampler_epsilon(delta, users=users, steps=steps, local_delta=release)
    if math.isfinite(epsilon):
        upper = _proved(epsilon, delta, SAMPLER)
    else:
        none = f"No finite epsilon is proved at delta {shown_up(delta, 4)}."
        upper = CentralBound("proved", None, delta, NOBODY, none)
    estimate = _estimated(delta, label_epsilon, wanted=with_estimate, mu=mu, users=users, epochs=epochs)
    return CentralBounds(
        upper=upper,
        lower=_attacked(lower, delta, SAMPLER),
        estimate=estimate,
    )
