"""Jobs: the pieces of work behind the cells, each known by the digest of what decides its result.

Two cells that need the same run share it, in one table or in two: a job is known by the digest of its
settings and of the jobs that it builds on, and what is finished under a digest is not done again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from dp_forward.errors import InvalidInput
from dp_forward.storage.digests import settings_digest

if TYPE_CHECKING:
    from dp_forward.train.plan import Plan

__all__ = ["FIRST", "KINDS", "Job", "digest_of", "effective_settings", "in_order", "plan_of"]

FIRST: Final = "{0}"
"""Stands for the folder of the first job that a job builds on: a path is no part of a result."""

KINDS: Final = (
    "finetune",
    "masked",
    "baseline",
    "pretrain",
    "queries",
    "membership",
    "inversion",
    "attribute",
    "speed",
)
"""What a job can be; `runs.runners` has a function for each. A masked one fine-tunes a back with a mask."""


_LATER: Final[Mapping[str, Any]] = {
    **dict.fromkeys(("text_column", "label_column", "labels", "validation_share", "public"), None),
    **dict.fromkeys(("label_privacy", "pooling"), None),
    "header": True,
    "describe": {},
    "back": "gradient",
    "schedule": "linear",
}
"""Settings that a plan had not yet when the stored results were made -> what was done then."""


@dataclass(frozen=True, eq=False)
class Job:
    """What to do (`kind`), with which settings, after which other jobs.

    Guarantees:
        The digest covers the *effective* settings: what a plan leaves open is filled in by the rules of
        `train.defaults` first, so a changed rule is another job.
    Edges:
        Where data lies is not covered. ``weight`` guesses how long it takes, beside others, and only orders
        the work.
    """

    kind: str
    settings: Mapping[str, Any]
    after: tuple[Job, ...] = ()
    weight: float = field(default=1.0, compare=False)

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InvalidInput("kind", f"be one of {', '.join(KINDS)}", repr(self.kind), "Check the table.")

    @cached_property
    def digest(self) -> str:
        """SHA-256 of what decides the result."""
        return digest_of(self.kind, self.settings, [job.digest for job in self.after])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Job) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"Job({self.kind}, {self.digest[:12]})"


def digest_of(kind: str, settings: Mapping[str, Any], after: Sequence[str]) -> str:
    """The digest of a job with these settings, that builds on jobs with those digests."""
    return settings_digest(
        {"kind": kind, "settings": effective_settings(kind, settings), "after": list(after)}
    )


def effective_settings(kind: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with nothing left open; refused where a plan would refuse them."""
    if kind in ("finetune", "masked"):
        return _as_stored(plan_of(settings).deciding())
    if kind == "baseline":
        from dp_forward.train.dpsgd.dpsgd_plan import DpSgdPlan

        return _as_stored(DpSgdPlan.from_dict(settings).deciding())
    if kind == "pretrain":
        from dp_forward.train.pretrain.pretrain_plan import PretrainPlan

        # All of it: stored results are known by digests that cover how often was saved, too.
        return {**PretrainPlan.retired, **PretrainPlan.from_dict(settings).as_dict()}
    return dict(settings)


def _as_stored(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Without what came later and has the value that changes nothing: results keep their digests."""
    return {name: value for name, value in settings.items() if name not in _LATER or value != _LATER[name]}


def plan_of(settings: Mapping[str, Any]) -> Plan:
    """The effective plan of a fine-tuning: in the paper every back is trained by gradients, of encoders."""
    from dp_forward.train.defaults import effective_plan
    from dp_forward.train.plan import Plan

    return effective_plan(Plan.from_dict({"back": "gradient", **settings}), encoder=True)


def in_order(jobs: Iterable[Job]) -> list[Job]:
    """These jobs and all that they build on, each once, what is built on first."""
    found: dict[Job, None] = {}

    def add(job: Job) -> None:
        if job not in found:
            for earlier in job.after:
                add(earlier)
            found[job] = None

    for job in jobs:
        add(job)
    return list(found)
