"""A step: one piece of work behind a cell, named by what decides its result.

Two cells that need the same run share it, in one table or in two: a step is known by the digest of its
settings and of the steps that it builds on, and what is finished under a digest is not done again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

from dp_forward.errors import InvalidInput

__all__ = ["FIRST", "KINDS", "Step", "digest_of", "effective", "in_order"]

FIRST: Final = "{0}"
"""Stands for the folder of the first step that a step builds on: a path is no part of a result."""

KINDS: Final = (
    "finetune",
    "baseline",
    "pretrain",
    "queries",
    "membership",
    "inversion",
    "attribute",
    "speed",
)
"""What a step can be; `kinds` carries them out."""


@dataclass(frozen=True, eq=False)
class Step:
    """What to do (`kind`), with which settings, after which other steps.

    Guarantees:
        The digest covers the *effective* settings: what a plan leaves open is filled in by the rules of
        `train.defaults` first, so a changed rule is another step.
    Edges:
        Where data lies is not covered. ``weight`` guesses how long it takes, beside others, and only orders
        the work.
    """

    kind: str
    settings: Mapping[str, Any]
    after: tuple[Step, ...] = ()
    weight: float = field(default=1.0, compare=False)

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InvalidInput("kind", f"be one of {', '.join(KINDS)}", repr(self.kind), "Check the table.")

    @cached_property
    def digest(self) -> str:
        """SHA-256 of what decides the result."""
        return digest_of(self.kind, self.settings, [step.digest for step in self.after])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Step) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"Step({self.kind}, {self.digest[:12]})"


def digest_of(kind: str, settings: Mapping[str, Any], after: Sequence[str]) -> str:
    """The digest of a step with these settings, that builds on steps with those digests."""
    deciding = {"kind": kind, "settings": effective(kind, settings), "after": list(after)}
    return hashlib.sha256(json.dumps(deciding, sort_keys=True).encode()).hexdigest()


def effective(kind: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with nothing left open; refused where a plan would refuse them."""
    if kind == "finetune":
        from dp_forward.train.defaults import effective_plan
        from dp_forward.train.plan import Plan

        return effective_plan(Plan.from_dict(settings)).deciding()
    if kind == "baseline":
        from dp_forward.train.dpsgd.dpsgd_plan import DpSgdPlan

        return DpSgdPlan.from_dict(settings).deciding()
    if kind == "pretrain":
        from dp_forward.train.pretrain.pretrain_plan import PretrainPlan

        # All of it: stored results are known by digests that cover how often was saved, too.
        return PretrainPlan.from_dict(settings).as_dict()
    return dict(settings)


def in_order(steps: Iterable[Step]) -> list[Step]:
    """These steps and all that they build on, each once, what is built on first."""
    found: dict[str, Step] = {}

    def add(step: Step) -> None:
        if step.digest in found:
            return
        for earlier in step.after:
            add(earlier)
        found[step.digest] = step

    for step in steps:
        add(step)
    return list(found.values())
