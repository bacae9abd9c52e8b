r"""Charge of a release: its cost in integer units that only round up.

Sums of floats lose what they round away, and a ledger that adds a million charges must not. A
charge is therefore two integers: the epsilon of its pure releases and the mu^2 of its Gaussian
releases, each rounded up once, when the charge is made. From there on everything is exact.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from typing import Final

from dp_forward.errors import InvalidInput
from dp_forward.privacy import checks, curve
from dp_forward.privacy.bounds import Sensitivity
from dp_forward.privacy.compose import Composition, compose
from dp_forward.privacy.gaussian import AnalyticGaussian
from dp_forward.privacy.response import RandomizedResponse
from dp_forward.privacy.rounding import decimal_up, root_up, shown_up
from dp_forward.privacy.solve import last_safe

__all__ = ["LARGEST_UNITS", "Charge"]

EPSILON_UNITS_PER_ONE: Final = 10**9
"""Epsilon is counted in steps of 1e-9."""

MU2_UNITS_PER_ONE: Final = 10**15
"""mu^2 is counted in steps of 1e-15: fine enough that one release calibrated to the cap fits under it,
wide enough for 64 bits (mu^2 to 9,223). Part of the file format: a change needs a new schema."""

LARGEST_UNITS: Final = 2**63 - 1
"""What a signed 64-bit column of SQLite can hold."""

SMALLEST_DELTA: Final = 1e-300
"""Below this the error of `curve` is not proved, so no Gaussian promise is made there."""


@dataclass(frozen=True, slots=True, repr=False)
class Charge:
    r"""What one or many releases cost together: pure epsilon and Gaussian mu^2, in whole units of each.

    Use `pure`, `gaussian` or `of`; ``epsilon_units`` and ``mu2_units`` are what a ledger stores.

    Guarantees:
        Releases that were fixed beforehand and whose charges add up to this one are
        ``(epsilon(delta), delta)``-DP together: pure epsilons add (basic composition), Gaussian
        releases add mu^2, exactly, and both together are dominated by randomized response with the
        sum of the epsilons beside one Gaussian with the sum of the mu^2 (`compose`). Everything is
        rounded up.
    Edges:
        Where releases are chosen, or stopped, on what earlier ones showed, a running sum is no
        promise: only what was fixed before the first one is. That is a `Cap`, whose docstring has
        the proof. Pure charges alone are the exception: their sum is valid at any time.
        Both counts fit a signed 64-bit integer; anything beyond is refused.
    """

    epsilon_units: int = 0
    mu2_units: int = 0

    def __post_init__(self) -> None:
        for name in ("epsilon_units", "mu2_units"):
            units = getattr(self, name)
            if type(units) is not int:
                remedy = "Use Charge.pure or Charge.gaussian."
                units = checks.count(name, units, at_least=0, remedy=remedy)
                object.__setattr__(self, name, units)
            if not 0 <= units <= LARGEST_UNITS:
                rule = "lie in 0 .. 2^63 - 1, to fit the ledger's 64-bit columns"
                remedy = "No guarantee of that size means anything; add more noise."
                raise InvalidInput(name, rule, f"about {Decimal(units):.3e}", remedy)

    @classmethod
    def pure(cls, epsilon: float | Fraction | Decimal) -> Charge:
        """One release that is (epsilon, 0)-DP.

        Edges:
            A float stands for its shortest decimal: 0.1 is charged 0.1, although the float lies a
            little above it.
        """
        checks.epsilon(epsilon)
        exact = Fraction(epsilon if isinstance(epsilon, Fraction | Decimal) else repr(float(epsilon)))
        return cls(epsilon_units=math.ceil(exact * EPSILON_UNITS_PER_ONE))

    @classmethod
    def gaussian(cls, mu: float | Fraction | Decimal) -> Charge:
        """One release of Gaussian noise with ``mu = sensitivity / sigma``."""
        checks.positive("mu", mu, remedy="mu is sensitivity / sigma, such as 0.5.")
        return cls(mu2_units=math.ceil(Fraction(mu) ** 2 * MU2_UNITS_PER_ONE))

    def __add__(self, other: object) -> Charge:
        if not isinstance(other, Charge):
            return NotImplemented
        return Charge(self.epsilon_units + other.epsilon_units, self.mu2_units + other.mu2_units)

    def times(self, releases: int) -> Charge:
        """The charge of so many equal releases; none cost nothing."""
        k = checks.count("releases", releases, at_least=0, remedy="Count the releases.")
        return Charge(self.epsilon_units * k, self.mu2_units * k)

    def __bool__(self) -> bool:
        return bool(self.epsilon_units or self.mu2_units)

    def __le__(self, other: Charge) -> bool:
        """Whether this fits into the shares ``other``: into each of the two by itself."""
        return self.epsilon_units <= other.epsilon_units and self.mu2_units <= other.mu2_units

    def left_by(self, charged: Charge) -> Charge:
        """What ``charged`` leaves of each of these two shares; never below nothing."""
        return Charge(
            max(0, self.epsilon_units - charged.epsilon_units), max(0, self.mu2_units - charged.mu2_units)
        )

    @property
    def pure_epsilon(self) -> float:
        """The epsilon of the pure part, exact: the float stands for its shortest decimal."""
        return decimal_up(Fraction(self.epsilon_units, EPSILON_UNITS_PER_ONE))

    @property
    def mu(self) -> float:
        """The mu of the Gaussian part, rounded up."""
        return root_up(Fraction(self.mu2_units, MU2_UNITS_PER_ONE))

    def delta(self, epsilon: float) -> float:
        """The delta that is proved at this epsilon, rounded up; see the class for the proof."""
        epsilon = checks.nonnegative("epsilon", epsilon, remedy="Use 0 or more.")
        if self.pure_epsilon == 0:
            return curve.delta(epsilon, self.mu)
        if self.mu == 0 and epsilon >= self.pure_epsilon:
            return 0.0
        # The curve is evaluated a little below epsilon: that covers the rounding of "epsilon - loss".
        below = epsilon - 4 * math.ulp(epsilon + self.pure_epsilon)
        return _mixture(self).delta(max(0.0, below))

    def epsilon(self, delta: float) -> float:
        """The epsilon that is proved at this delta, rounded up; see the class for the proof.

        Edges:
            ``delta = 0`` is allowed for pure charges only; their epsilon is the sum at any delta. Gaussian
            results above 1000 lie outside the range in which `curve` states its error; no `Cap` has them.
        """
        delta = checks.delta(delta, zero=True)
        if self.mu2_units and delta < SMALLEST_DELTA:
            rule = f"be at least {SMALLEST_DELTA:g} for Gaussian releases"
            remedy = "Gaussian noise has no pure guarantee; use something such as 1e-5."
            raise InvalidInput("delta", rule, delta, remedy)
        return _epsilon(self, delta)

    def as_dict(self) -> dict[str, float]:
        """For JSON: the pure epsilon, and the mu of the Gaussian part, rounded up."""
        return {"epsilon": self.pure_epsilon, "mu": self.mu}

    def __str__(self) -> str:
        """'epsilon 2.0 and mu 0.5': a mu is never called epsilon."""
        parts = [f"epsilon {self.pure_epsilon}"] if self.epsilon_units or not self.mu2_units else []
        return " and ".join([*parts, *([f"mu {shown_up(self.mu)}"] if self.mu2_units else [])])

    def __repr__(self) -> str:
        epsilon = Decimal(self.epsilon_units) / EPSILON_UNITS_PER_ONE
        mu2 = Decimal(self.mu2_units) / MU2_UNITS_PER_ONE
        return f"Charge(epsilon={epsilon:f}, mu2={mu2:f})"


@lru_cache(maxsize=1024)
def _epsilon(charge: Charge, delta: float) -> float:
    exact = Fraction(charge.epsilon_units, EPSILON_UNITS_PER_ONE)
    if charge.mu2_units:
        exact += Fraction(curve.epsilon(delta, charge.mu))
    found = decimal_up(exact)  # delta(e + d^-1(delta)) <= delta: a safe start for the mixture
    if not charge.mu2_units:
        return found
    if charge.epsilon_units:
        found = last_safe(lambda epsilon: delta - charge.delta(epsilon), safe=found, unsafe=0.0)
    # Two ways to compute one point of the curve may differ in the last digit: both must agree that it holds.
    step = 1e-14 * max(found, 1e-9)
    while charge.delta(found) > delta:
        found, step = found + step, 2 * step
    return found


@lru_cache(maxsize=64)
def _mixture(charge: Charge) -> Composition:
    """Randomized response with the pure epsilon and, beside it, one Gaussian with the mu."""
    response = RandomizedResponse(math.nextafter(charge.pure_epsilon, math.inf), labels=2)
    return compose(response, *([AnalyticGaussian(1.0, Sensitivity.of(charge.mu))] if charge.mu else []))
