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
from dp_forward.privacy.rounding import decimal_up, root_up

__all__ = ["SMALLEST_DELTA", "Charge"]

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
    r"""What one or many releases cost together: pure epsilon and Gaussian mu^2.

    Guarantees:
        Releases whose charges add up to this one are ``(epsilon(delta), delta)``-DP together.
        Pure epsilons add (basic composition); Gaussian releases add mu^2, exactly, also when each
        is chosen after seeing the ones before (Smith and Thakurta 2022). For the mixture, let
        the pure part cost e in all and let d be the curve of the Gaussian part. On every
        transcript the pure steps satisfy ``Q_R >= exp(-e) P_R``, so

            P - exp(eps) Q  =  P_R P_G - exp(eps) Q_R Q_G  <=  P_R [P_G - exp(eps - e) Q_G].

        ``P_R P_G`` and ``P_R Q_G`` are two runs of the Gaussian releases in which the steps
        between them behave alike, so the positive part of the right side sums to at most
        ``d(eps - e)``: hence ``delta(eps) <= d(eps - e)``. With ``eps = e + d^-1(delta)`` this is
        what `epsilon` returns, with every rounding upwards.
    Edges:
        The proof takes e and mu as numbers that no transcript exceeds. They may be reached by any
        adaptive order of releases. What it does not cover is a user who, *because of what earlier
        releases showed*, decides to spend the rest of a cap on pure releases rather than on
        Gaussian ones, or the other way round. One kind only, or a fixed mixture, is covered.
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
                raise InvalidInput(
                    name,
                    "lie in 0 .. 2^63 - 1, to fit the ledger's 64-bit columns",
                    f"about {Decimal(units):.3e}",
                    "No guarantee of that size means anything; add more noise.",
                )

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

    def epsilon(self, delta: float) -> float:
        """The epsilon that is proved at this delta, rounded up; see the class for the proof.

        Edges:
            ``delta = 0`` is allowed for pure charges only. Results above 1000 lie outside the
            range in which `curve` states its error; a ledger never admits them.
        """
        delta = checks.delta(delta, zero=True)
        if self.mu2_units and delta < SMALLEST_DELTA:
            raise InvalidInput(
                "delta",
                f"be at least {SMALLEST_DELTA:g} for Gaussian releases",
                delta,
                "Gaussian noise has no pure guarantee; use something such as 1e-5.",
            )
        return _epsilon(self.epsilon_units, self.mu2_units, delta)

    def __repr__(self) -> str:
        epsilon = Decimal(self.epsilon_units) / EPSILON_UNITS_PER_ONE
        mu2 = Decimal(self.mu2_units) / MU2_UNITS_PER_ONE
        return f"Charge(epsilon={epsilon:f}, mu2={mu2:f})"


@lru_cache(maxsize=1024)
def _epsilon(epsilon_units: int, mu2_units: int, delta: float) -> float:
    exact = Fraction(epsilon_units, EPSILON_UNITS_PER_ONE)
    if mu2_units:
        mu = root_up(Fraction(mu2_units, MU2_UNITS_PER_ONE))
        exact += Fraction(curve.epsilon(delta, mu))
    return decimal_up(exact)
