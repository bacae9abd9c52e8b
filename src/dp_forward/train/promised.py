"""What a plan promises: derived anew from the plan and the spec of a release, never read from a file."""

from __future__ import annotations

from dp_forward.release_spec import ReleaseSpec
from dp_forward.train.labels import label_mechanism_for
from dp_forward.train.plan import Plan
from dp_forward.train.regimes import Promises, promises

__all__ = ["promises_of"]


def promises_of(plan: Plan, spec: ReleaseSpec) -> Promises:
    """The promises of a run about queries, training texts and labels, with what they rest on."""
    return promises(
        plan.regime,
        None if spec.noise is None else spec.mechanism(),
        label_mechanism=label_mechanism_for(plan.label_epsilon, plan.label_prior, labels=len(spec.labels)),
        assumptions=tuple(_assumed(plan)),
    )


def _assumed(plan: Plan) -> list[str]:
    split = f"the {plan.evaluation_split} split, on which the report is measured"
    assumed = [f"{split}{' and which says when to stop,' if plan.early_stopping else ','} is public"]
    if plan.public_task is not None:
        assumed.append(f"the texts of {plan.public_task} are public")
    return assumed
