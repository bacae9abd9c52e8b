"""Terms of a ledger: what it promises, and how much it admits in all and on one day.

New ledgers promise exactly what they admit. Ledgers of schema version 2 had one cap on the converted sum of
unlike charges, which let the kind of noise be chosen on what was seen; `Terms.restate` says what they
promise in truth, and what they still admit.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Self

from dp_forward.errors import InvalidInput, refuse_if
from dp_forward.privacy import Budget, checks
from dp_forward.privacy.cap import Cap
from dp_forward.privacy.charge import LARGEST_UNITS, Charge
from dp_forward.privacy.rounding import shown_up

NO_LIMIT: Final = Charge(LARGEST_UNITS)
"""The shares of a pure ledger without a cap in all: more than its columns can hold."""


@dataclass(frozen=True, slots=True)
class Terms:
    """Promise and shares of one ledger.

    ``cap`` is the promise over all releases; None in a pure ledger with a budget per day only. ``limit`` and
    ``day_limit`` are the shares that may be charged. ``before`` is the cap that a restated ledger had stated.
    """

    cap: Cap | None
    limit: Charge
    day_limit: Charge
    per_day: float | None = None
    before: float | None = None

    @classmethod
    @lru_cache(maxsize=256, typed=True)  # a budget per day is a search, and one ledger is opened often
    def of(cls, cap: Cap | None, per_day: float | None) -> Self:
        """The terms of a new ledger. A budget per day alone makes a pure one without a total."""
        if cap is not None and not isinstance(cap, Cap):
            raise InvalidInput("cap", "be a Cap", type(cap).__name__, "Use Cap.pure or Cap.gaussian.")
        shares = NO_LIMIT if cap is None else cap.shares
        if per_day is None:
            refuse_if(cap is None, "cap", "be given, or per_day", None, "Say what may be charged.")
            return cls(cap, shares, shares)
        per_day = checks.epsilon(per_day, name="per_day")
        if cap is not None and per_day > cap.epsilon:
            rule = f"be at most the cap, {cap.epsilon}"
            raise InvalidInput("per_day", rule, per_day, "Use less, or leave it out.")
        day = Cap.like(shares, Budget(per_day, 0.0 if cap is None else cap.delta))
        return cls(cap, shares, day.shares, per_day)

    @classmethod
    @lru_cache(maxsize=256, typed=True)
    def restate(cls, epsilon: float, delta: float, per_day: float | None, total: Charge) -> Self:
        """The terms from now on of a ledger of schema version 2 that has charged ``total``.

        Guarantees:
            Its rule kept the pure epsilons within its cap and the mu^2 within B(cap, delta)^2, each by
            itself, on every transcript. So it ran inside the two filters with these two shares, and their
            curve is its promise whatever was chosen on what was seen. With delta 0 it held pure releases
            only, and with no release nothing was seen: then the old promise stands.

            From now on it admits the kind that it holds, up to the old cap; a mixed one admits nothing more.
            That stays inside the same two shares.
        Edges:
            An empty one with a delta above 0 becomes a Gaussian one. The restated epsilon is rounded up to
            six digits.
        """
        if delta == 0:
            return cls.of(Cap.pure(epsilon), per_day)
        pure, gaussian = Cap.pure(epsilon), Cap.gaussian(Budget(epsilon, delta))
        if not total:
            return cls.of(gaussian, per_day)
        shares = pure.shares + gaussian.shares
        cap = Cap(float(shown_up(shares.epsilon(delta))), delta, shares)
        kind = (pure if total.epsilon_units else gaussian).shares
        mixed = bool(total.epsilon_units and total.mu2_units)
        limit = Charge() if mixed else kind
        if not total <= limit and total.epsilon(delta) <= epsilon:  # as its rule admitted it
            limit = total
        day = limit if mixed or per_day is None else Cap.like(kind, Budget(per_day, delta)).shares
        return cls(cap, limit, day, per_day, epsilon)

    @property
    def delta(self) -> float:
        """The delta at which the promise is stated."""
        return 0.0 if self.cap is None else self.cap.delta

    @property
    def pure(self) -> bool:
        """Whether all that was and can be charged is pure: then the running sum is a valid epsilon."""
        return not self.delta

    def promise(self, unit: str = "") -> str:
        """The promise in words; ``unit`` is ' per text', or empty where it is not known."""
        if self.cap is None:
            return (
                f"The releases of each day of UTC are {self.per_day}-DP together{unit}. There is no cap in "
                f"all: whoever sees k days learns up to k times {self.per_day}, and within 24 hours around a "
                "midnight two days meet."
            )
        words = (
            f"All releases together are {self.cap}{unit}, in whatever order they come and however each was "
            "chosen on what was seen."
        )
        if self.before is not None:
            words += (
                f" This was restated: the ledger was made for epsilon {self.before} at that delta, by a "
                "version that let the kind of noise (pure or Gaussian) be chosen on what was seen. Where "
                f"that was fixed beforehand, {self.before} holds."
            )
        elif self.per_day is not None:
            words += f" Those of one day of UTC are within {self.per_day}."
        return words
