r"""Gaussian noise: the analytic mechanism, and the classical formula as a baseline.

Formal guarantee of everything here: let two neighbours' bounded matrices lie at distance at most S
and add independent N(0, sigma^2) to every entry. Projected on their difference (all else is equal
in distribution) the releases are N(0, sigma^2) against N(S, sigma^2), so with ``mu = S / sigma``
the exact curve is that of `curve`. k releases with fresh noise project to N(0, 1) against
N(sqrt(k) mu, 1): mu^2 adds, exactly, with no accountant.

Paper: Section 2.2 (GM), and the analytic Gaussian mechanism of Balle and Wang (2018).
"""

import math
from dataclasses import dataclass, field
from typing import ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtr

from dp_forward.errors import InvalidInput, Unproved
from dp_forward.privacy import checks, curve
from dp_forward.privacy.bounds import Sensitivity
from dp_forward.privacy.mechanism import Budget, Mechanism, least_ceiling
from dp_forward.privacy.rounding import brief, nudge_up, shown_down, shown_up
from dp_forward.privacy.units import Unit

__all__ = ["GaussianNoise"]

_RELEASES = "Count every fresh release of the same text."


class GaussianNoise(Mechanism):
    """Anything whose releases look like N(0, 1) against N(mu, 1): the whole map follows from mu."""

    sensitivity: Sensitivity
    releases: int
    at_delta: float
    sigma: float
    mu: float
    """The Gaussian-DP parameter of all releases together, rounded up; set when the object is made."""

    def epsilon(self, delta: float = 0.0) -> float:
        if delta == 0:
            return math.inf
        return curve.epsilon(checks.delta(delta, zero=False), self.mu)

    def delta(self, epsilon: float) -> float:
        return curve.delta(checks.nonnegative("epsilon", epsilon, remedy="Use 0 or more."), self.mu)

    def guess_rate(self, candidates: int = 2) -> float:
        """By the exact curve: for two candidates ``Phi(mu / 2)``."""
        return least_ceiling(lambda epsilon: curve.delta(epsilon, self.mu), candidates)

    def success_between(self, first: ArrayLike, second: ArrayLike) -> float:
        """How often the best test names the right one of two bounded neighbours, from all releases.

        Along their difference the two look like N(0, 1) and N(m, 1), and m is to mu at most as their distance
        is to the sensitivity. Exact for noise that is the same in every direction; for other noise, and for
        what is released, rounded to integers, it is an upper bound.
        """
        distance = float(np.linalg.norm(np.asarray(first) - np.asarray(second)))
        return float(ndtr(self.mu / 2 * distance / self.sensitivity.value))

    @property
    def unit(self) -> Unit | None:
        return self.sensitivity.unit

    @property
    def assumptions(self) -> tuple[str, ...]:
        bound = self.sensitivity.bound
        return () if bound is None else bound.assumptions

    @property
    def shown_delta(self) -> float:
        return self.at_delta

    @property
    def scope(self) -> str:
        if self.unit is not None:
            return super().scope
        return f"for inputs at distance {brief(shown_down(self.sensitivity.value))}{self._over}"

    @property
    def gaussian_mu(self) -> float:
        return self.mu

    def __repr__(self) -> str:
        return f"{type(self).__name__}(sigma={shown_up(self.sigma)}) -> {self.promise()}"


def settle(mechanism: GaussianNoise, *, sigma: float, gain: float = 1.0) -> None:
    """Validate the common fields of a Gaussian mechanism and set its mu."""
    checks.positive("sigma", sigma, remedy="Calibrate it for a budget, or try 4.")
    checks.count("releases", mechanism.releases, remedy=_RELEASES)
    checks.delta(mechanism.at_delta, zero=False, name="at_delta")
    mu = math.sqrt(mechanism.releases) * mechanism.sensitivity.value * gain / sigma
    object.__setattr__(mechanism, "mu", checks.positive("mu", nudge_up(mu), remedy="Lower sigma."))


@dataclass(frozen=True, slots=True, repr=False)
class AnalyticGaussian(GaussianNoise):
    """Gaussian noise of ``sigma`` on every entry (aGM), with its exact curve; the module has the proof."""

    name: ClassVar[str] = "gaussian"

    sigma: float
    sensitivity: Sensitivity
    releases: int = 1
    at_delta: float = 1e-5
    mu: float = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "sensitivity", Sensitivity.of(self.sensitivity))
        settle(self, sigma=self.sigma)

    @classmethod
    def for_budget(cls, budget: Budget, *, sensitivity: Sensitivity, releases: int = 1) -> Self:
        """The least noise that meets the budget over ``releases`` releases."""
        delta = budget.positive_delta("Gaussian noise")
        root = math.sqrt(checks.count("releases", releases, remedy=_RELEASES))
        sigma = nudge_up(root * sensitivity.value / curve.largest_mu(budget.epsilon, delta))
        return cls(sigma, sensitivity, releases, delta)


@dataclass(frozen=True, slots=True, repr=False)
class ClassicalGaussian(GaussianNoise):
    """The textbook formula ``sigma = sqrt(2 ln(1.25 / delta)) S / epsilon`` (GM), a baseline.

    Its theorem (Dwork and Roth, Theorem A.1) holds for epsilon < 1 only. Numerically the formula
    happens to be enough up to 8.42 at delta = 1e-5 and is too little above; nobody proved more.

    Guarantees:
        For ``wanted.epsilon < 1``: (epsilon, delta)-DP. `epsilon` and `delta` answer from the exact
        Gaussian curve, which is never worse.
    Edges:
        From epsilon = 1 on, `for_budget` refuses; `baseline` computes the same sigma, and the object
        then carries no guarantee (``unproved``): `guaranteed` is False, `Guarantee` raises `Unproved`.
        What it proves is stated by ``AnalyticGaussian(sigma, sensitivity)``.
    """

    name: ClassVar[str] = "classical-gaussian"

    wanted: Budget
    sensitivity: Sensitivity
    releases: int = 1
    unproved: bool = False
    sigma: float = field(init=False)
    at_delta: float = field(init=False)
    mu: float = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "sensitivity", Sensitivity.of(self.sensitivity))
        object.__setattr__(self, "at_delta", self.wanted.positive_delta("Gaussian noise"))
        factor = math.sqrt(2 * math.log(1.25 / self.wanted.delta))
        sigma = nudge_up(factor * self.sensitivity.value / self.wanted.epsilon)
        object.__setattr__(self, "sigma", sigma)
        settle(self, sigma=sigma)
        if self.releases != 1:
            raise InvalidInput("releases", "be 1 for the classical formula", self.releases, "Use gaussian.")
        if not self.unproved and self.wanted.epsilon >= 1:
            raise Unproved(
                "`epsilon` must lie below 1 for the classical Gaussian formula; got "
                f"{self.wanted.epsilon}. Use the analytic Gaussian, or ClassicalGaussian.baseline() "
                "for the number without a guarantee."
            )

    @classmethod
    def for_budget(cls, budget: Budget, *, sensitivity: Sensitivity, releases: int = 1) -> Self:
        """The textbook noise, where its theorem holds."""
        return cls(budget, sensitivity, releases)

    @classmethod
    def baseline(cls, budget: Budget, *, sensitivity: Sensitivity | float) -> Self:
        """The textbook noise at any epsilon, for comparison; without a guarantee from 1 on."""
        return cls(budget, Sensitivity.of(sensitivity), unproved=True)

    @property
    def guaranteed(self) -> bool:
        return self.wanted.epsilon < 1
