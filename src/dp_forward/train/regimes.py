"""The regimes: who may learn what from training, said in words in every report.

* `release-once`: the front is frozen, as it was published. Training texts are proved to be protected.
* `public-front`: the front is trained first on public data, with noise in place, then frozen. Proved alike.
* `end-to-end` (the paper's experiments): the front is trained on the raw texts, which are **not protected**.

Queries are protected in all of them.

Why the first two are proved: the front does not depend on a private text, a record is released once, and
everything afterwards (epochs, early stopping, the back's weights) is a function of the releases.
Why the third is not: the gradient of the front depends on the raw text outside the noise, so the trained
front, and what was sent while training, may hold anything about it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from dp_forward import privacy
from dp_forward.errors import refuse_if
from dp_forward.privacy import checks

if TYPE_CHECKING:  # a plan names its regime; and a release's description may load torch
    from dp_forward.release_spec import ReleaseSpec
    from dp_forward.train.plan import Plan

__all__ = ["label_mechanism_for", "promises_of", "with_subjects"]


def with_subjects(statements: Mapping[str, str]) -> list[str]:
    """The ``statements`` as sentences that say what each is about: "Training texts: ..."."""
    return [f"{name.replace('_', ' ').capitalize()}: {said}" for name, said in statements.items()]


def as_guarantee(regime: str, statements: Mapping[str, str], **proved: Any) -> dict[str, Any]:
    """The ``guarantee`` of a report; ``statement`` is all of it, in one paragraph."""
    parts = {name: proved.get(name) for name in ("queries", "training", "labels")}
    paragraph = " ".join(with_subjects(statements))
    return {"regime": regime, **parts, "statements": dict(statements), "statement": paragraph}


class Regime(StrEnum):
    """How a run treats the training texts."""

    RELEASE_ONCE = "release-once"
    PUBLIC_FRONT = "public-front"
    END_TO_END = "end-to-end"

    @property
    def trains_front(self) -> bool:
        """Whether any step trains the front."""
        return self is not Regime.RELEASE_ONCE

    @property
    def protects_training(self) -> bool:
        """Whether the training texts cross only as releases."""
        return self is not Regime.END_TO_END


@dataclass(frozen=True)
class Promises:
    """What a run promises about queries, training records and labels; None where it promises nothing.

    Guarantees:
        There is none that promises anything for the training texts of `end-to-end`.
    """

    queries: privacy.Guarantee | None
    training: privacy.Guarantee | None
    labels: privacy.Guarantee | None
    regime: Regime
    why_none: str = ""

    def __post_init__(self) -> None:
        unproved, rule = self.training and not self.regime.protects_training, f"be None in {self.regime}"
        refuse_if(unproved, "training", rule, "a guarantee", "The front saw the raw texts.")

    @property
    def statements(self) -> dict[str, str]:
        """One plain sentence for each of them."""
        unprotected, labels = f"NOT protected: {self.why_none}.", "public, by assumption."
        if self.regime is Regime.END_TO_END:
            unprotected = (
                "NOT protected. The front was trained on the raw texts: its weights and its gradients may "
                "reveal them, whatever noise was in the forward pass."
            )
        together = self.training is not None and self.training.notion is privacy.Notion.RECORD_LDP
        if together:
            how = "randomized" if self.labels is not None else "folded into the release"
            labels = f"{how}, and covered together with their texts."
        elif self.labels is not None:
            labels = self.labels.statement
        queries = f"Queries are NOT protected: {self.why_none}."
        queries = queries if self.queries is None else self.queries.statement
        texts = unprotected if self.training is None else self.training.statement
        return {"queries": queries, "training_texts": texts, "labels": labels}

    def as_dict(self) -> dict[str, Any]:
        parts = {"queries": self.queries, "training": self.training, "labels": self.labels}
        proved = {name: part.as_dict() for name, part in parts.items() if part is not None}
        return as_guarantee(str(self.regime), self.statements, **proved)


def promises_of(plan: Plan, spec: ReleaseSpec) -> Promises:
    """What follows from the plan of a run and its kind of release; never read from a file.

    Nothing else can put an epsilon into a report.
    """
    from dp_forward.data.sources import IN_MEMORY  # loads torch, which `--help` does without

    regime, mechanism = plan.regime, None if spec.noise is None else spec.mechanism()
    label_mechanism = label_mechanism_for(plan.label_epsilon, plan.label_prior, labels=len(spec.labels))
    labels = None if label_mechanism is None else privacy.Deployment(label_mechanism).guarantee()
    if mechanism is None or not mechanism.guaranteed:
        why = "there is no noise" if mechanism is None else f"no theorem covers {mechanism.name} here"
        return Promises(None, None, labels, regime, why)
    assumed = []
    if plan.evaluation_split:
        assumed = [f"the {plan.evaluation_split} split, on which the report is measured, is public"]
    if plan.validation_share:
        share = f"{plan.validation_share:g} of the records"
        assumed.append(f"that split is {share}, taken from them: it is public which they are")
    if plan.labels is not None:
        assumed.append("the names of the labels, as found in the data, are public")
    if plan.public_task is not None:
        assumed.append(f"the texts of {plan.public_task} are public")
    if plan.public is not None:
        given = plan.public.startswith(IN_MEMORY)
        named = "given as public" if given else f"of {PurePath(plan.public).name}"
        assumed.append(f"the texts {named} are public")
    queries = privacy.Deployment(mechanism).guarantee(assumptions=tuple(assumed))
    if not regime.protects_training:
        return Promises(queries, None, labels, regime)
    once = (
        *assumed,
        "each training record is released once and the release is stored",
        "a text that is in several records spends in each, and another release of it adds to this one",
        "the model that the front comes from was not trained on these texts",
    )
    if plan.back == "closed-form":
        assert plan.release_noise is not None
        training = privacy.Deployment(plan.release_noise.build()).guarantee(assumptions=once)
        return Promises(queries, training, labels, regime)
    text_level = mechanism.unit is not None and mechanism.unit.kind == "text"
    if label_mechanism is not None and text_level:
        record = privacy.compose(mechanism, label_mechanism)
        training = privacy.Deployment(record).guarantee(delta=mechanism.shown_delta, assumptions=once)
    else:
        assumed = [*once, "the labels are public"]
        training = privacy.Deployment(mechanism, public_label=True).guarantee(assumptions=tuple(assumed))
    return Promises(queries, training, labels, regime)


def label_mechanism_for(
    epsilon: float | None, prior: Sequence[float] | None, *, labels: int
) -> privacy.RandomizedResponse | privacy.ResponseWithPrior | None:
    """Randomized response of ``labels`` labels (with a ``prior``); None, for public ones, without epsilon."""
    if epsilon is None:
        refuse_if(prior is not None, "label_prior", "go with label_epsilon", "alone", "Give label_epsilon=2.")
        return None
    budget = privacy.Budget(checks.epsilon(epsilon, name="label_epsilon"))
    if prior is None:
        return privacy.calibrate(privacy.RandomizedResponse, budget, labels=labels)
    refuse_if(len(prior) != labels, "label_prior", f"have {labels} numbers", len(prior), "One per label.")
    declared = privacy.Prior.public(prior, where="the plan, which declares it public")
    return privacy.calibrate(privacy.ResponseWithPrior, budget, prior=declared)
