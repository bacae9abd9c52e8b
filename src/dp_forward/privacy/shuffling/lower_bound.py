r"""Lower bounds on the central epsilon, by explicit attacks.

The rule. If releases are ``(epsilon, delta)``-DP then every event ``E`` has
``P(E) <= e^epsilon Q(E) + delta``, with ``P`` and ``Q`` the distributions of all that is seen
under two neighbouring data sets. So one event whose two probabilities are known proves

.. math:: \varepsilon \ge \ln \frac{P(E) - \delta}{Q(E)}.

The data sets: user 1 holds record ``a`` (under ``P``) or ``-a`` (under ``Q``); everybody else
holds ``-a``. The event: at least one release speaks for ``a`` over ``-a`` with a log-likelihood
ratio above ``t``. A shuffler does not touch it, for it asks nothing about who sent what. With
``P_t`` and ``Q_t`` the chances that a release from ``a`` and one from ``-a`` pass ``t``,

* shuffler, one round of ``N`` users: ``P(E) = 1 - (1-Q_t)^(N-1) (1-P_t)`` and
  ``Q(E) = 1 - (1-Q_t)^N``;
* ``k`` such rounds, independent: "at least ``j`` of them show it", two binomial tails
  (``j = 1`` is best against strong noise, ``j = k`` against weak);
* sampler with replacement, ``T`` draws:
  ``P(E) = 1 - ((1-1/N)(1-Q_t) + P'/N)^T`` with ``P' = 1-P_t``, and ``Q(E) = 1 - (1-Q_t)^T``.

The ratio of a Gaussian text is normal, ``mu^2/2`` on average from ``a`` and ``-mu^2/2`` from
``-a``, with standard deviation ``mu``; a randomized-response label adds ``+label_epsilon``,
``-label_epsilon`` or 0. Every ``t`` gives a valid bound; the best of many is returned.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import numpy as np
from scipy.special import betainc, gammaln, log_ndtr, logsumexp

from dp_forward.privacy import checks
from dp_forward.privacy.pure_loss import ThreeLevelLoss
from dp_forward.privacy.response import RandomizedResponse
from dp_forward.privacy.shuffling.local_curve import Floats, binomial_tail

_GRID: Final = 2001
_REFINEMENTS: Final = 4
_ROUNDING: Final = 1e-11  # taken off every bound: more than the float error of the logarithms behind it
_TINY: Final = -1e-12  # above this logarithm of "none" the union bound on "one of them" is right to 1e-12
_USERS: Final = "Pass the number of people in the data set."


def _log1mexp(log_value: Floats) -> Floats:
    """``ln(1 - e^x)`` for ``x <= 0``; what rounding has put above 0 counts as 0."""
    value = np.minimum(log_value, 0.0)
    with np.errstate(divide="ignore"):
        return np.where(value > -0.7, np.log(-np.expm1(value)), np.log1p(-np.exp(value)))


def _log_caught(log_none: Floats, log_union: Floats) -> Floats:
    """``ln(1 - none)``; the union bound, never smaller, serves where "none" rounds to 1."""
    return np.where(log_none > _TINY, log_union, _log1mexp(log_none))


def _log_ratio(log_p: Floats, log_q: Floats, delta: float, *, at_least: int, of: int) -> Floats:
    """``ln((P(E) - delta) / Q(E))`` for "at least so many of so many independent rounds".

    Where the tail under ``Q`` underflows, the union bound over all choices of rounds stands in.
    """
    gained = betainc(at_least, of - at_least + 1, np.exp(log_p)) - delta
    caught = betainc(at_least, of - at_least + 1, np.exp(log_q))
    log_choices = gammaln(of + 1) - gammaln(at_least + 1) - gammaln(of - at_least + 1)
    with np.errstate(divide="ignore"):
        log_rare = log_choices + at_least * log_q
        log_caught = np.where(caught > 1e-250, np.log(caught), log_rare)
        return np.where(gained > 0, np.log(np.maximum(gained, 1e-300)) - log_caught, -np.inf)


def _best(bound: Callable[[Floats], Floats], low: float, high: float) -> float:
    """The largest value of a bound between two thresholds: a grid, then finer grids inside."""
    best = 0.0
    for _ in range(_REFINEMENTS):
        points = np.linspace(low, high, _GRID)
        values = bound(points)
        at = int(np.argmax(values))
        best = max(best, float(values[at]))
        low, high = points[max(at - 2, 0)], points[min(at + 2, _GRID - 1)]
    return max(0.0, best * (1 - _ROUNDING) - _ROUNDING)


class _Report:
    """The log-likelihood ratio of one release: a normal, shifted by its label."""

    def __init__(self, mu: float, label_epsilon: float | None, labels: int) -> None:
        self.mu = checks.positive("mu", mu, remedy="Pass sensitivity / sigma.")
        self.shifts, self.log_weights = np.zeros((1, 1)), np.zeros((1, 1))
        if label_epsilon is not None:
            levels, weights = RandomizedResponse(label_epsilon, labels).loss.atoms()
            with np.errstate(divide="ignore"):
                self.shifts, self.log_weights = levels[:, None], np.log(weights)[:, None]

    def range(self) -> tuple[float, float]:
        """Thresholds outside which no bound is ever best."""
        top = float(np.max(self.shifts))
        return -(self.mu**2) / 2 - top, self.mu**2 / 2 + 12 * self.mu + top

    def _scores(self, threshold: Floats, side: int) -> Floats:
        return (threshold - side * (self.shifts + self.mu**2 / 2)) / self.mu

    def log_caught(self, threshold: Floats, side: int, times: int = 1) -> Floats:
        """``ln`` of the chance that one of ``times`` releases with one label passes.

        The releases come from ``a`` (side 1) or from ``-a`` (side -1).
        """
        scores = self._scores(threshold, side)
        none = times * log_ndtr(scores)
        caught = _log_caught(none, math.log(times) + log_ndtr(-scores))
        return np.asarray(logsumexp(self.log_weights + caught, axis=0))

    def log_none(self, threshold: Floats, side: int, times: int = 1) -> Floats:
        """``ln`` of the chance that none of them passes, exact for rare and for common events."""
        caught = self.log_caught(threshold, side, times)
        scores = self._scores(threshold, side)
        common = logsumexp(self.log_weights + times * log_ndtr(scores), axis=0)
        return np.where(caught < -0.7, _log1mexp(caught), common)


def attack_epsilon(
    delta: float,
    *,
    mu: float,
    users: int,
    releases: int = 1,
    label_epsilon: float | None = None,
    labels: int = 2,
    label_once: bool = False,
) -> float:
    """No proof can promise less than this for shuffled Gaussian releases, with or without labels.

    ``label_once`` says that a user's label is drawn once and sent with each of her releases; else
    every release carries a fresh one. Each round is shuffled by itself.

    Guarantees:
        A lower bound on every valid central epsilon at ``delta`` (the module says why).
    Edges:
        0 where the attack finds nothing.
    """
    delta = checks.delta(delta, zero=True)
    users = checks.count("users", users, remedy=_USERS)
    releases = checks.count("releases", releases, remedy="Pass the releases of each user.")
    report = _Report(mu, label_epsilon, labels)

    if label_once and label_epsilon is not None:
        # The rounds share a label, so only "in any round" is easy; or else ignore the labels.
        without = attack_epsilon(delta, mu=mu, users=users, releases=releases)
        return max(without, _shuffled(report, delta, users, times=releases, rounds=1))
    return _shuffled(report, delta, users, times=1, rounds=releases)


def _shuffled(report: _Report, delta: float, users: int, *, times: int, rounds: int) -> float:
    """The best bound for ``rounds`` rounds in which every user sends ``times`` releases."""

    def bound(threshold: Floats, at_least: int) -> Floats:
        others = report.log_none(threshold, -1, times)
        first = report.log_none(threshold, 1, times)
        union = math.log(users) + report.log_caught(threshold, -1, times)
        return _log_ratio(
            _log1mexp((users - 1) * others + first),
            _log_caught(users * others, union),
            delta,
            at_least=at_least,
            of=rounds,
        )

    # Every number for a handful of rounds, a spread of them for many.
    tried = sorted({round(j) for j in np.geomspace(1, rounds, 16)})
    return max(_best(partial(bound, at_least=j), *report.range()) for j in tried)


def sampler_attack_epsilon(
    delta: float, *, mu: float, users: int, steps: int, label_epsilon: float | None = None, labels: int = 2
) -> float:
    """The same for an anonymous sampler that draws one of ``users`` people ``steps`` times."""
    delta = checks.delta(delta, zero=True)
    users = checks.count("users", users, remedy=_USERS)
    steps = checks.count("steps", steps, remedy="Pass epochs * users.")
    report = _Report(mu, label_epsilon, labels)

    def bound(threshold: Floats) -> Floats:
        others = report.log_none(threshold, -1)
        # (1 - 1/N) (1 - Q_t) + (1 - P_t) / N is 1 - Q_t times 1 + change / N.
        change = np.expm1(report.log_none(threshold, 1) - others)
        union = math.log(steps) + report.log_caught(threshold, -1)
        with np.errstate(divide="ignore"):  # a single user who is always caught
            first = others + np.log1p(change / users)
        return _log_ratio(
            _log1mexp(steps * first), _log_caught(steps * others, union), delta, at_least=1, of=1
        )

    return _best(bound, *report.range())


def shuffled_pure_lower(
    delta: float, *, losses: Sequence[ThreeLevelLoss], users: int, rounds: int = 1
) -> float:
    """No proof can promise less than this for shuffled releases of pure mechanisms, or of several together.

    The attacker counts the releases in the set where the privacy loss between the worst two records is at
    least some level: user 1 lands there with a chance ``a`` or ``b``, everybody else with ``b``. The event is
    "the count is at least j"; the best level and the best j are taken. Of several ``rounds``, each with such
    a release in a batch of its own, "at least so many of them show it".

    Guarantees:
        A lower bound on every valid central epsilon at ``delta``, never above the local one.
    Edges:
        ``delta = 0`` gives the local epsilon: that all land in the set is so much likelier. The worst two
        inputs of the noise are opposite; a front that reaches no such pair may leave an attacker less.
    """
    delta = checks.delta(delta, zero=True)
    users = checks.count("users", users, remedy=_USERS)
    local = rounds * math.fsum(loss.total for loss in losses)
    if delta == 0 or local == 0:
        return local
    levels, weights = np.zeros(1), np.ones(1)
    for loss in losses:
        more, masses = loss.atoms()
        levels, weights = np.add.outer(levels, more).ravel(), np.outer(weights, masses).ravel()
    thresholds, best = np.unique(np.round(levels[levels > 1e-9], 9)), 0.0
    for threshold in thresholds[:: max(1, -(-thresholds.size // 24))]:  # not all of very many
        above = levels >= threshold - 1e-8
        mine = min(1.0, float(weights[above].sum()))
        chance = min(1.0, float(weights[above] @ np.exp(-levels[above])))
        best = max(best, _counted(delta, mine, chance, users, rounds))
    return min(local, max(0.0, best * (1 - _ROUNDING) - _ROUNDING))


def _counted(delta: float, mine: float, chance: float, users: int, rounds: int) -> float:
    """The best bound from the number of releases in a set; ``mine`` and ``chance`` to land there."""
    # Past Bernstein's reach the event is rarer than delta and proves nothing.
    need, mean = -math.log(delta), (users - 1) * chance
    reach = need / 3 + math.sqrt(need * need / 9 + 2 * need * mean)
    top = min(users, math.ceil(mean + reach) + 2)
    counts = np.arange(max(1, math.floor(mean - reach)), top + 1, dtype=np.float64)
    more = binomial_tail(counts - 1, users - 1, chance)
    fewer = binomial_tail(counts, users - 1, chance)
    with np.errstate(divide="ignore"):
        log_p = np.log(np.minimum(1.0, mine * more + (1 - mine) * fewer))
        log_q = np.log(np.minimum(1.0, chance * more + (1 - chance) * fewer))
    useful = np.isfinite(log_p) & np.isfinite(log_q)
    tried = sorted({round(j) for j in np.geomspace(1, rounds, 16)})
    found = (_log_ratio(log_p[useful], log_q[useful], delta, at_least=j, of=rounds) for j in tried)
    return max((float(ratios.max()) for ratios in found if ratios.size), default=0.0)
