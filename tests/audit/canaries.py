r"""The one-run audit of a trained back: which canaries were in the training set, told from one training.

Of m canaries each is included by a fair coin of its own (else a stand-in takes its place, so that the number
of records says nothing). The back is trained once. A guesser, who sees the back and the canaries, says for
some of them "in" or "out" and abstains for the others. From Steinke, Nasr and Jagielski, "Privacy auditing
with one (1) training run" (NeurIPS 2023).

Proof for pure epsilon-DP. Let S be the coins, t the guesses that came out, and look at the canaries in order.
Given the coins before i, both values of S_i are equally likely beforehand, and by epsilon-DP (averaged over
the later coins) the likelihoods of t differ by a factor of at most e^epsilon. By Bayes, given t and the
earlier coins, a guess is right with probability at most ``q = e^epsilon / (1 + e^epsilon)``, whatever those
coins were. So the number of right ones among r guesses is stochastically below Binomial(r, q), and

.. math:: P[\text{right} \ge v] \le P[\mathrm{Binomial}(r, q) \ge v] =: f(v) .

For (epsilon, delta)-DP their main theorem adds ``2 m delta max_{i >= 1} (f(v - i) - f(v)) / i``: the guesses
may be better with the small probability that delta allows, each failure at most once per canary.

Guarantees:
    `canary_bound` is above the true epsilon with probability at most ``1 - level``, if the number of guesses
    was fixed before the training and the coins were fair and secret.
Edges:
    r guesses that are all right show at most about ``ln(r / 3)`` at 95 %. A modest floor is no proof of
    privacy: it is the promise that proves, and this that tries to refute it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

from dp_forward.errors import InvalidInput
from dp_forward.privacy import checks
from dp_forward.privacy.checks import count

__all__ = ["CanaryAudit", "canary_bound", "one_run_audit"]

REFUTING: Final = 0.9999
_LARGEST = 50.0
_STEPS = 60

Trained = Callable[[NDArray[np.bool_]], NDArray[np.float64]]
"""Trains with the canaries that are marked, and scores all of them: higher for "it was in"."""


@dataclass(frozen=True, kw_only=True)
class CanaryAudit:
    """What the guesses show about the training. ``epsilon_lower_bound`` has 95 % confidence.

    ``epsilon_refuting_bound`` has 99.99 %; only that one refutes a claim. Without a claim nothing is refuted.
    """

    canaries: int
    guesses: int
    right: int
    delta: float
    epsilon_lower_bound: float
    epsilon_refuting_bound: float
    claimed_epsilon: float | None

    @property
    def refuted(self) -> bool:
        """Whether the training gave away more than was claimed."""
        return self.claimed_epsilon is not None and self.epsilon_refuting_bound > self.claimed_epsilon

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**{name: getattr(self, name) for name in self.__dataclass_fields__}, "refuted": self.refuted}


def canary_bound(right: int, guesses: int, *, delta: float = 0.0, m: int, level: float = 0.95) -> float:
    """The epsilon below which ``right`` of ``guesses`` on ``m`` canaries is refuted; see the module."""
    m = count("m", m, remedy="It is the number of canaries.")
    if not 0 <= right <= guesses <= m:
        raise InvalidInput("right", f"lie in 0 .. guesses .. {m}", f"{right} of {guesses}", "Count them.")
    if not 0 < level < 1:
        raise InvalidInput("level", "lie in (0, 1)", level, "Use 0.95.")
    delta = checks.delta(delta, zero=True)

    def refuted(epsilon: float) -> bool:
        return _chance(right, guesses, epsilon, delta, m) < 1 - level

    if not refuted(0.0):
        return 0.0
    low, high = 0.0, _LARGEST
    if refuted(high):
        return high
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low


def _chance(right: int, guesses: int, epsilon: float, delta: float, m: int) -> float:
    """How likely so many right guesses are at most, under (epsilon, delta)-DP."""
    q = 1 / (1 + math.exp(-epsilon))
    tail = float(binom.sf(right - 1, guesses, q))
    if delta == 0 or right == 0:
        return tail
    below = np.cumsum(binom.pmf(np.arange(right - 1, -1, -1), guesses, q))
    steepest = float(np.max(below / np.arange(1, right + 1)))
    return min(1.0, tail + 2 * m * delta * steepest)


def one_run_audit(
    train_with: Trained,
    canaries: int,
    *,
    guesses: int | None = None,
    claimed_epsilon: float | None = None,
    delta: float = 0.0,
    level: float = 0.95,
    seed: int | None = None,
) -> CanaryAudit:
    """Flip the coins, train once, guess for the clearest canaries, and bound epsilon.

    ``train_with`` gets one boolean per canary and returns one score per canary (such as minus the loss of the
    trained back). "In" is guessed for the highest ``guesses / 2`` scores, "out" for the lowest; by default
    for half of the canaries in all. ``seed`` is that of the coins, for tests.
    """
    canaries = count("canaries", canaries, at_least=20, remedy="Fewer say nothing; use 100.")
    asked = canaries // 2 if guesses is None else count("guesses", guesses, at_least=2, remedy="Use half.")
    if asked > canaries:
        raise InvalidInput("guesses", f"be at most {canaries}", asked, "One guess per canary.")
    each = asked // 2
    included = np.random.default_rng(seed).integers(2, size=canaries).astype(bool)
    scores = np.asarray(train_with(included.copy()), dtype=np.float64)
    if scores.shape != (canaries,) or not np.isfinite(scores).all():
        raise InvalidInput("train_with", f"give {canaries} finite scores", scores.shape, "One per canary.")
    order = np.argsort(scores, kind="stable")
    right = int(included[order[canaries - each :]].sum()) + int((~included[order[:each]]).sum())
    return CanaryAudit(
        canaries=canaries,
        guesses=2 * each,
        right=right,
        delta=delta,
        epsilon_lower_bound=canary_bound(right, 2 * each, delta=delta, m=canaries, level=level),
        epsilon_refuting_bound=canary_bound(right, 2 * each, delta=delta, m=canaries, level=REFUTING),
        claimed_epsilon=claimed_epsilon,
    )
