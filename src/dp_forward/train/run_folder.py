"""The folder of a run: its plan, its stages, its result. Nothing in it is ever overwritten by another plan.

    RUN/plan.json            the effective plan and its digest
    RUN/stages/NAME/         Trainer's checkpoints while a stage trains
    RUN/stages/NAME.json, NAME.safetensors   what a finished stage left
    RUN/releases/            the stored releases and their ledger (release-once, public-front)
    RUN/front/, RUN/back/    what is handed to each party
    RUN/report.json, report.md, curve.png

Guarantees:
    A stage counts as finished when its .json is there, which is written after its weights and by renaming a
    whole file. A kill at any point leaves the last finished stage and checkpoint.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from safetensors.torch import load_file, save_file
from torch import Tensor

from dp_forward.errors import InvalidInput
from dp_forward.train.ranks import is_first, wait_for_everyone

__all__ = ["RunFolder"]

_PLAN, _REPORT, _LOCK = "plan.json", "report.json", "lock"


class RunFolder:
    """One run on disk; see the module. Use `opened`. Of several processes only the first writes."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    @contextlib.contextmanager
    def opened(cls, path: Path, plan: Mapping[str, Any], digest: str, *, resume: bool) -> Iterator[RunFolder]:
        """The folder for this plan, new or continued, held so that no second process works in it.

        Edges:
            A folder that holds another plan, an unfinished run without ``resume``, or anything that is not a
            run, is refused and left as it is.
        """
        run = cls(path)
        if not is_first():
            wait_for_everyone()
            yield run
            return
        try:
            run._claim(plan, digest, resume)
            lock = (path / _LOCK).open("w")
            _hold(lock, path)
        finally:
            # The others come on also after a refusal: they then fail by themselves, and do not wait for ever.
            wait_for_everyone()
        with lock:
            yield run

    def _claim(self, plan: Mapping[str, Any], digest: str, resume: bool) -> None:
        known = self.path / _PLAN
        if known.is_file():
            self._check_same(known, digest, resume)
            return
        if self.path.exists() and (not self.path.is_dir() or any(self.path.iterdir())):
            raise InvalidInput("out", "be a new folder or a run of this plan", self.path, "Name another.")
        if resume:
            raise InvalidInput("out", "hold a run to resume", self.path, "Leave out --resume to start one.")
        self.path.mkdir(parents=True, exist_ok=True)
        self.write_json(_PLAN, {"digest": digest, "plan": dict(plan)})

    def _check_same(self, known: Path, digest: str, resume: bool) -> None:
        try:
            stored = json.loads(known.read_text(encoding="utf-8"))["digest"]
        except (ValueError, KeyError, TypeError):
            raise InvalidInput("out", f"hold a readable {_PLAN}", known, "Name another folder.") from None
        if stored != digest:
            raise InvalidInput("out", "hold no other plan", self.path, "Name another folder.")
        if not resume and not self.complete:
            raise InvalidInput("out", "hold no unfinished run", self.path, "Add --resume to continue it.")

    @property
    def complete(self) -> bool:
        """Whether the run has its report."""
        return (self.path / _REPORT).is_file()

    @property
    def report(self) -> dict[str, Any]:
        """The report of a complete run."""
        report: dict[str, Any] = json.loads((self.path / _REPORT).read_text(encoding="utf-8"))
        return report

    def checkpoints(self, stage: str) -> Path:
        """Where a stage keeps its checkpoints."""
        return self.path / "stages" / stage

    def stage_result(self, stage: str) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """Weights and facts of a finished stage; None while it is not finished."""
        facts = self.path / "stages" / f"{stage}.json"
        if not facts.is_file():
            return None
        weights = load_file(facts.with_suffix(".safetensors"))
        return weights, json.loads(facts.read_text(encoding="utf-8"))

    def finish_stage(self, stage: str, weights: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Store what a stage left, then drop its checkpoints."""
        if not is_first():
            return
        place = self.path / "stages"
        place.mkdir(parents=True, exist_ok=True)
        tensors = {name: value.detach().cpu().contiguous().clone() for name, value in weights.items()}
        draft = place / f"{stage}.safetensors.new"
        save_file(tensors, draft)
        draft.replace(place / f"{stage}.safetensors")
        self.write_json(f"stages/{stage}.json", facts)
        shutil.rmtree(self.checkpoints(stage), ignore_errors=True)

    def drop_stage(self, stage: str) -> None:
        """Drop what one stage left, if it is there."""
        for suffix in (".json", ".safetensors"):
            (self.path / "stages" / f"{stage}{suffix}").unlink(missing_ok=True)

    def drop_stages(self) -> None:
        """Drop what only an unfinished run needs."""
        if not is_first():
            return
        shutil.rmtree(self.path / "stages", ignore_errors=True)

    def write_json(self, name: str, content: Mapping[str, Any]) -> None:
        """All of the file or nothing."""
        self.write_text(name, json.dumps(content, indent=2, sort_keys=False) + "\n")

    def write_text(self, name: str, text: str) -> None:
        """All of the file or nothing."""
        if not is_first():
            return
        path = self.path / name
        draft = path.with_name(path.name + ".new")
        draft.write_text(text, encoding="utf-8")
        draft.replace(path)


def _hold(lock: IO[str], path: Path) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise InvalidInput(
            "out", "be used by one process at a time", path, "Wait for the other run."
        ) from None
