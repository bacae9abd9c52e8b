"""A finished run: both halves, what they promise and what they reach."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dp_forward.data import FixedLength
from dp_forward.errors import InvalidInput
from dp_forward.privacy import Guarantee
from dp_forward.release_spec import ReleaseSpec
from dp_forward.split import Split
from dp_forward.split.artifacts import load_provider_side, load_user_side, save_sides
from dp_forward.storage.json_files import write_json
from dp_forward.train.plan import Plan
from dp_forward.train.regimes import Promises, promises_of

__all__ = ["Halves", "Run"]


@dataclass(frozen=True, eq=False)
class Halves:
    """What answers texts in a run folder, however it was trained; ``task`` and ``data`` where it says them.

    Edges:
        A back that was trained from releases has a front only where its starting point had one.
    """

    pair: Split
    spec: ReleaseSpec
    tokens: FixedLength
    task: str | None
    data: dict[str, str]

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Halves:
        """Both halves of a finished run."""
        root = Path(folder)
        if not (root / "report.json").is_file():
            raise InvalidInput("run", "hold report.json", root, "Finish it with dpf finetune --resume.")
        if not (root / "front").is_dir():
            raise InvalidInput("run", "hold a front", "a back alone", "Bring the front: it reads texts.")
        user, provider = load_user_side(root / "front"), load_provider_side(root / "back")
        if user.spec != replace(provider.spec, front=user.digest):
            raise InvalidInput("run", "have one kind of release", "two in its halves", "Get it again.")
        plan = json.loads((root / "plan.json").read_text(encoding="utf-8")).get("plan", {})
        pair = Split(user.front, provider.back)
        return cls(pair, user.spec, user.tokens, plan.get("task"), dict(plan.get("data") or {}))


@dataclass(frozen=True, eq=False)
class Run:
    """What `finetune` returns and a run folder holds."""

    plan: Plan
    pair: Split
    spec: ReleaseSpec
    tokens: FixedLength
    promises: Promises
    report: dict[str, Any]

    @property
    def guarantee(self) -> Guarantee | None:
        """What one query promises; None for an undefended model."""
        return self.promises.queries

    @property
    def metrics(self) -> dict[str, float]:
        """The numbers of the report."""
        return {name: value for name, value in self.report.items() if isinstance(value, int | float)}

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write front, back and report into a new folder."""
        root = Path(folder)
        if root.exists() and any(root.iterdir()):
            raise InvalidInput("folder", "be new or empty", root, "Name another.")
        root.mkdir(parents=True, exist_ok=True)
        save_sides(self.pair, self.spec, self.tokens.tokenizer, root)
        write_json(root / "plan.json", {"digest": self.plan.digest(), "plan": self.plan.as_dict()})
        write_json(root / "report.json", self.report)

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Run:
        """A complete run from its folder; the promises are derived anew, not read."""
        root = Path(folder)
        for name in ("plan.json", "report.json"):
            if not (root / name).is_file():
                raise InvalidInput("run", f"hold {name}", root, "Finish it with dpf finetune --resume.")
        plan = Plan.from_dict(json.loads((root / "plan.json").read_text(encoding="utf-8"))["plan"])
        report = json.loads((root / "report.json").read_text(encoding="utf-8"))
        user = load_user_side(root / "front")
        pair = Split(user.front, load_provider_side(root / "back").back)
        if user.spec.noise != plan.noise:
            raise InvalidInput(
                "run", "have the noise of its plan", "other noise in its front", "Get it again."
            )
        said = promises_of(plan, user.spec)
        return cls(plan, pair, user.spec, user.tokens, said, report)

    def __repr__(self) -> str:
        return f"Run({self.plan.task}, {self.plan.cut}, {self.plan.regime}) -> {self.guarantee!r}"
