r"""Amplification by shuffling: hiding among the clones, for pure and for Gaussian releases.

The theorem for pure releases (Feldman, McMillan and Talwar 2021, Theorem 3.1). ``users`` people each send one
release of a pure ``local_epsilon``-LDP mechanism; a trusted shuffler forgets who sent what.
Replacing one record changes the shuffled output by no more than the pair

.. math:: P = (A + D,\; K - A + 1 - D), \qquad Q = (A + 1 - D,\; K - A + D),

with ``K ~ Bin(users - 1, e^-local_epsilon)``, ``A ~ Bin(K, 1/2)``, ``D ~ Bern(theta)`` and
``theta = e^local_epsilon / (1 + e^local_epsilon)``.

Why this is an upper bound. Under a pure ``e0``-LDP mechanism the release of any other user can be
drawn in two stages: with probability ``e^-e0 / 2`` as if she held the first user's old record,
with the same probability as if she held his new one, and else from what is left over. The first
two kinds are *clones* of the user whose record is replaced. Hand the attacker more than the
shuffled output shows: everything left over, and how many clones there are. What remains is only
how the clones and the one real release split between "old" and "new", which is ``P`` or ``Q``;
the output is post-processing of it, and post-processing never raises a hockey-stick divergence.

Gaussian releases. Gaussian noise is no pure mechanism, but at every ``e0`` it is ``(e0, delta0)``-LDP with
the exact ``delta0 = delta_local(e0)``. Feldman, McMillan and Talwar (2021, Theorem 3.8) carry the clones
over at a price:

.. math:: \delta_{total}(\varepsilon) = \delta_{clones}(\varepsilon; e_0)
          + (e^{\varepsilon} + 1)(1 + e^{-e_0} / 2)\, N\, \delta_0(e_0).

Every ``e0`` is allowed, so the least total counts. The price holds ``N delta0``: ``e0`` must be so large that
the noise of one release is broken with probability far below ``delta / N``, and at that ``e0`` hardly anybody
is a clone. At the sigmas of the paper's central epsilons nothing is gained; with much more noise something
is. A user's releases count as one bundle here (`blanket` says why).

The 2023 "stronger" analysis of the same authors is not used: its preprint carries an erratum, and
a bound that was once withdrawn is no ground for a promise.

Paper: Section 3.4 assumes a shuffler and estimates; this is what is proved.
"""

import math
from dataclasses import dataclass
from typing import Final, Self

import numpy as np

from dp_forward.privacy import checks
from dp_forward.privacy.shuffling.local_curve import Curve, Floats, binomial_tail, curve_epsilon
from dp_forward.privacy.solve import last_safe, log_gap

_TAIL_SLACK: Final = 1e-14
"""Float error of a binomial tail per square root of its trials, ten times what was measured."""
_ABSOLUTE_SLACK: Final = 1e-300  # covers tails that underflow to zero
_LOG_SMALLEST_TAIL: Final = -690.0
_LOG_LEFT_OUT: Final = -18.0  # the logarithm of the share of delta that may be spent on the tail of `K`
_MOST_LOCAL: Final = 600.0
"""Beyond it e^-local_epsilon underflows; nothing is promised below such a local epsilon."""
_SHARES: Final = tuple(10.0 ** (-step / 4) for step in range(25))
"""How much of delta may go into the price of ``e0``: quarter decades, flat enough around the best one."""
_SMALLEST: Final = 1e-290
_MOST_USERS: Final = 10**9
_MOST_POINTS: Final = 4096


def _clone_counts(trials: int, chance: float, log_tail: float) -> tuple[Floats, Floats]:
    """The values of ``K`` that matter and weights that are never below their probabilities.

    Bernstein's inequality places the window, so at most ``e^log_tail`` lies outside. Inside, the
    weights follow from ratios of neighbours (no large logarithms cancel) and are scaled to sum to
    one: dividing by a window's sum, which is below one, only raises them.
    """
    mean = trials * chance
    need = math.log(2) - log_tail
    reach = need / 3 + math.sqrt(need * need / 9 + 2 * need * mean * (1 - chance))
    low, high = max(0, math.floor(mean - reach)), min(trials, math.ceil(mean + reach))
    counts = np.arange(low, high + 1, dtype=np.float64)
    odds = chance / -math.expm1(math.log(chance))
    steps = np.log((trials - counts[:-1]) / (counts[:-1] + 1) * odds)
    logs = np.concatenate(([0.0], np.cumsum(steps)))
    weights = np.exp(logs - logs.max())
    # A clone more is a coin flip added to the pair, so delta falls with K: a block of many values
    # may be taken at its smallest.
    starts = np.arange(0, counts.size, -(-counts.size // _MOST_POINTS))
    return counts[starts], np.add.reduceat(weights, starts) / weights.sum()


@dataclass(frozen=True)
class Clones:
    """The dominating pair of one shuffled population, ready to be asked for many epsilons."""

    local_epsilon: float
    counts: Floats
    weights: Floats
    left_out: float
    slack: float

    @classmethod
    def of(cls, *, local_epsilon: float, users: int, log_tail: float) -> Self:
        """Lay out the mixture over the number of clones.

        ``log_tail`` is the logarithm of the probability that may be left out; whatever is left
        out is added to every delta.
        """
        # Fewer users only means fewer clones, so a cap on their number is on the safe side.
        trials = min(users, _MOST_USERS) - 1
        log_tail = max(log_tail, _LOG_SMALLEST_TAIL)
        if trials == 0 or local_epsilon > _MOST_LOCAL:
            # Nobody to hide among: K is 0, or is taken as 0, the worst case.
            return cls(local_epsilon, np.zeros(1), np.ones(1), 0.0, _TAIL_SLACK)
        counts, weights = _clone_counts(trials, math.exp(-local_epsilon), log_tail)
        whole = counts[0] == 0 and trials < _MOST_POINTS and counts.size == trials + 1
        slack = _TAIL_SLACK * (100 + math.sqrt(trials))
        return cls(local_epsilon, counts, weights, 0.0 if whole else math.exp(log_tail), slack)

    def delta(self, epsilon: float) -> float:
        """The divergence at ``epsilon``, rounded up; 0 from ``local_epsilon`` on."""
        local = self.local_epsilon
        if epsilon >= local or local > _MOST_LOCAL:
            return 0.0 if epsilon >= local else 1.0
        # Given K = c the likelihood ratio passes e^epsilon where the second coordinate falls
        # below this share of the c + 1 reports. (The first coordinate's share rounds to 1.)
        share = math.exp(-epsilon) * math.expm1(epsilon - local) / math.expm1(-local)
        first = self.counts + 2 - np.ceil((self.counts + 1) * share / (1 + math.exp(-epsilon)))
        more = binomial_tail(first - 1, self.counts, 0.5)
        fewer = binomial_tail(first, self.counts, 0.5)
        theta = 1 / (1 + math.exp(-local))
        under_p = theta * (more + math.exp(-local) * fewer)
        under_q = theta * (math.exp(epsilon - local) * more + math.exp(epsilon) * fewer)
        given = np.maximum(under_p - under_q, 0.0) + self.slack * under_p
        return min(1.0, float(self.weights @ given) + self.left_out + _ABSOLUTE_SLACK)


def shuffled_epsilon(delta: float, *, local_epsilon: float, users: int) -> float:
    """The least central epsilon proved at ``delta`` for shuffled pure releases, rounded up.

    Guarantees:
        The divergence, rounded up, was evaluated at the result and is at most ``delta``, or the
        result is ``local_epsilon``, which always holds. Never above ``local_epsilon``.
    Edges:
        ``delta = 0`` and a single user give ``local_epsilon``; above 10^9 users the extra ones
        are not counted.
    """
    delta = checks.delta(delta, zero=True)
    local_epsilon = checks.epsilon(local_epsilon, name="local_epsilon")
    users = checks.count(
        "users", users, remedy="Pass the number of people whose releases are shuffled together."
    )
    if delta == 0:
        return local_epsilon
    pair = Clones.of(local_epsilon=local_epsilon, users=users, log_tail=math.log(delta) + _LOG_LEFT_OUT)
    return last_safe(lambda e: log_gap(delta, pair.delta(e)), safe=local_epsilon, unsafe=0.0, tolerance=1e-11)


def amplified_epsilon(delta: float, *, users: int, local_delta: Curve) -> float | None:
    """The least central epsilon proved at ``delta`` for shuffled releases with this local curve, rounded up.

    Guarantees:
        The total delta was evaluated at the returned epsilon and is at most ``delta``.
    Edges:
        None where no ``e0`` beats the epsilon that already holds without a shuffler.
    """
    unshuffled = curve_epsilon(delta, local_delta)
    best = unshuffled
    for target in (share * delta / (2 * users) for share in _SHARES):
        local = curve_epsilon(target, local_delta) if target >= _SMALLEST else 0.0
        if local == 0:
            continue
        price = (1 + math.exp(-local) / 2) * users * float(local_delta(np.array([local]))[0])
        pair = Clones.of(local_epsilon=local, users=users, log_tail=math.log(delta) + _LOG_LEFT_OUT)

        def slack(epsilon: float, price: float = price, pair: Clones = pair) -> float:
            total = pair.delta(epsilon) + (math.exp(min(epsilon, 700.0)) + 1) * price
            return math.log(delta / total)

        # The total is convex in epsilon, so below a point that holds it breaks only once. It may
        # fail at a large epsilon and hold at a smaller one, for the price grows with e^epsilon.
        first = 0.999 * best
        starts = [first * 0.5**halving for halving in range(8 if best == unshuffled else 1)]
        start = next((point for point in starts if slack(point) >= 0), None)
        if start is not None:
            best = last_safe(slack, safe=start, unsafe=0.0, tolerance=1e-7)
    return best if best < unshuffled else None
