"""How labels are randomized: from a budget and, perhaps, a public prior."""

from __future__ import annotations

from collections.abc import Sequence

from dp_forward.errors import InvalidInput
from dp_forward.privacy import Budget, Prior, RandomizedResponse, ResponseWithPrior, calibrate

__all__ = ["label_mechanism_for"]


def label_mechanism_for(
    epsilon: float | None, prior: Sequence[float] | None, *, labels: int
) -> RandomizedResponse | ResponseWithPrior | None:
    """Randomized response for this budget; None, for public labels, without one."""
    if epsilon is None:
        if prior is not None:
            raise InvalidInput("label_prior", "go with label_epsilon", "alone", "Give --label-epsilon.")
        return None
    budget = Budget(epsilon)
    if prior is None:
        return calibrate(RandomizedResponse, budget, labels=labels)
    if len(prior) != labels:
        raise InvalidInput("label_prior", f"have {labels} numbers", len(prior), "One per label.")
    declared = Prior.public(prior, where="the plan, which declares it public")
    return calibrate(ResponseWithPrior, budget, prior=declared)
