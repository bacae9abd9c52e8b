"""A run: its folder (plan, stages, result) and what a finished one holds.

Nothing in the folder is ever overwritten by another plan.

    RUN/plan.json            the effective plan and its digest
    RUN/stages/NAME/         Trainer's checkpoints while a stage trains
    RUN/stages/NAME.json, NAME.safetensors   what a finished stage left
    RUN/releases/            the stored releases and their ledger (release-once, public-front)
    RUN/front/, RUN/back/    what is handed to each party
    RUN/report.json, report.md

Guarantees:
    A stage counts as finished when its .json is there, which is written after its weights and by renaming a
    whole file. A kill at any point leaves the last finished stage and checkpoint.
"""

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor

from dp_forward.data import FixedLength
from dp_forward.errors import DpForwardError, InvalidInput, refuse_if
from dp_forward.privacy import Guarantee
from dp_forward.progress import is_first_process
from dp_forward.release_spec import ReleaseSpec
from dp_forward.split import Split
from dp_forward.split.artifacts import load_provider_side, load_user_side, save_sides
from dp_forward.storage.files import draft_of, write_file
from dp_forward.storage.json_files import read_json, write_json
from dp_forward.train.plan import Plan
from dp_forward.train.plan_base import PlanBase
from dp_forward.train.processes import wait_for_everyone
from dp_forward.train.regimes import Promises, promises_of

__all__ = ["Halves", "Run"]

_PLAN, _REPORT, _LOCK, _STAGES = "plan.json", "report.json", "lock", "stages"


class RunFolder:
    """One run on disk; see the module. Use `opened`. Of several processes only the first writes."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    @contextlib.contextmanager
    def opened(cls, path: Path, plan: PlanBase, *, resume: bool, digest: str | None = None) -> Iterator[Self]:
        """The folder for this plan, new or continued, held so that no second process works in it.

        ``digest`` is the plan's own, unless the plan names inputs only by place.

        Edges:
            A folder that holds another plan, an unfinished run without ``resume``, or anything that is not a
            run, is refused and left as it is. What is refused before it stored anything leaves no folder.
        """
        run = cls(path)
        if not is_first_process():
            wait_for_everyone()
            yield run
            return
        try:
            run._claim(plan, plan.digest() if digest is None else digest, resume)
            lock = (path / _LOCK).open("w")
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                rule = "be used by one process at a time"
                raise InvalidInput("out", rule, path, "Wait for the other run.") from None
        finally:
            # The others come on also after a refusal: they then fail by themselves, and do not wait for ever.
            wait_for_everyone()
        with lock:
            try:
                yield run
            except DpForwardError:
                if {found.name for found in path.iterdir()} <= {_PLAN, _LOCK}:
                    shutil.rmtree(path)
                raise

    def _claim(self, plan: PlanBase, digest: str, resume: bool) -> None:
        known = self.path / _PLAN
        if not known.is_file():
            if self.path.exists() and (not self.path.is_dir() or any(self.path.iterdir())):
                raise InvalidInput("out", "be a new folder or a run of this plan", self.path, "Name another.")
            refuse_if(resume, "out", "hold a run to resume", self.path, "Leave out resume=True to start one.")
            self.path.mkdir(parents=True, exist_ok=True)
            write_json(known, {"digest": digest, "plan": plan.as_dict()})
            return
        stored = read_json(known, name="out", remedy="Name another folder.").get("digest")
        refuse_if(stored != digest, "out", "hold no other plan", self.path, "Name another folder.")
        if not resume and not self.complete:
            raise InvalidInput("out", "hold no unfinished run", self.path, "Add resume=True to continue it.")

    @property
    def complete(self) -> bool:
        return (self.path / _REPORT).is_file()

    @property
    def report(self) -> dict[str, Any]:
        report: dict[str, Any] = json.loads((self.path / _REPORT).read_text(encoding="utf-8"))
        return report

    def write_report(self, report: Mapping[str, Any], readable: str) -> None:
        """The report for people, then the one that makes the run complete; stages are not needed any more."""
        if is_first_process():
            write_file(self.path / "report.md", readable)
            write_json(self.path / _REPORT, report)
            shutil.rmtree(self.path / _STAGES, ignore_errors=True)

    def checkpoints(self, stage: str) -> Path:
        return self.path / _STAGES / stage

    def stage_result(self, stage: str) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """Weights and facts of a finished stage; None while it is not finished."""
        facts = self.path / _STAGES / f"{stage}.json"
        if not facts.is_file():
            return None
        return load_file(facts.with_suffix(".safetensors")), json.loads(facts.read_text(encoding="utf-8"))

    def finish_stage(self, stage: str, weights: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        if not is_first_process():
            return
        place = self.path / _STAGES
        place.mkdir(parents=True, exist_ok=True)
        tensors = {name: value.detach().cpu().contiguous().clone() for name, value in weights.items()}
        with draft_of(place / f"{stage}.safetensors") as draft:
            save_file(tensors, draft)
        write_json(place / f"{stage}.json", facts)
        shutil.rmtree(self.checkpoints(stage), ignore_errors=True)

    def drop_stage(self, stage: str) -> None:
        for suffix in (".json", ".safetensors"):
            (self.path / _STAGES / f"{stage}{suffix}").unlink(missing_ok=True)

    def stored_array(self, name: str, make: Callable[[], NDArray[Any]]) -> NDArray[Any]:
        """An array of a stage or of the run, made once, by the first process, and read from here by all."""
        path = self.path / name
        if is_first_process() and not path.is_file():
            made = make()  # before there is a folder: what is refused leaves none
            path.parent.mkdir(parents=True, exist_ok=True)
            with draft_of(path) as draft, draft.open("wb") as file:
                np.save(file, made, allow_pickle=False)
        wait_for_everyone()
        stored: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
        return stored


@dataclass(frozen=True, eq=False)
class Halves:
    """What answers texts in a run folder, however it was trained; ``plan`` holds the settings that it had.

    Edges:
        A back that was trained from releases has a front only where its starting point had one.
    """

    pair: Split
    spec: ReleaseSpec
    tokens: FixedLength
    plan: dict[str, Any]

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Self:
        """Both halves of a finished run."""
        root = Path(folder)
        for name in (_PLAN, _REPORT):
            missing, remedy = not (root / name).is_file(), "Finish it with dpf finetune --resume."
            refuse_if(missing, "run", f"hold {name}", root, remedy)
        alone = not (root / "front").is_dir()
        refuse_if(alone, "run", "hold a front", "a back alone", "Bring the front: it reads texts.")
        user, provider = load_user_side(root / "front"), load_provider_side(root / "back")
        unlike = user.spec != replace(provider.spec, front=user.digest)
        refuse_if(unlike, "run", "have one kind of release", "two in its halves", "Get it again.")
        plan = json.loads((root / _PLAN).read_text(encoding="utf-8")).get("plan", {})
        return cls(Split(user.front, provider.back), user.spec, user.tokens, plan)


@dataclass(frozen=True, eq=False)
class Run:
    """What `finetune` returns and a run folder holds; ``report`` has the numbers of ``report.json``."""

    plan: Plan
    pair: Split
    spec: ReleaseSpec
    tokens: FixedLength
    report: dict[str, Any]

    @cached_property
    def promises(self) -> Promises:
        """What is promised: derived from the plan and the kind of release, never read."""
        return promises_of(self.plan, self.spec)

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
        refuse_if(root.exists() and any(root.iterdir()), "folder", "be new or empty", root, "Name another.")
        root.mkdir(parents=True, exist_ok=True)
        save_sides(self.pair, self.spec, self.tokens.tokenizer, root)
        write_json(root / _PLAN, {"digest": self.plan.digest(), "plan": self.plan.as_dict()})
        write_json(root / _REPORT, self.report)

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Self:
        """A complete run from its folder."""
        found, report = Halves.load(folder), RunFolder(Path(folder)).report
        plan = Plan.from_dict(found.plan)
        other = found.spec.noise != plan.noise
        refuse_if(other, "run", "have the noise of its plan", "other noise in its front", "Get it again.")
        return cls(plan, found.pair, found.spec, found.tokens, report)

    def __repr__(self) -> str:
        return f"Run({self.plan.task}, {self.plan.cut}, {self.plan.regime}) -> {self.guarantee!r}"
