"""The folder of a pre-training run: begun under one plan, finished once, never overwritten.

plan.json                     what was asked for; written first
work/                         packed blocks and the Trainer's checkpoints, gone when the run is finished
model.safetensors, config.json, tokenizer files    the ordinary checkpoint
outcome.json                  what came out; written last, so it marks a finished run
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dp_forward.errors import InvalidInput

__all__ = ["PretrainFolder"]

_PLAN, _OUTCOME, _WORK = "plan.json", "outcome.json", "work"


class PretrainFolder:
    """One run's folder.

    Guarantees:
        Each file is there in full or not at all. Among several processes only the first writes.
    Edges:
        A folder with anything in it is refused unless ``resume`` is asked for, and then unless it holds the
        same plan.
    """

    def __init__(self, folder: str | os.PathLike[str], plan: dict[str, Any], *, resume: bool) -> None:
        self.root = Path(folder)
        self.work = self.root / _WORK
        self._plan: dict[str, Any] = json.loads(json.dumps(plan))
        self._writes = os.environ.get("RANK", "0") == "0"
        if not self._writes:
            return
        if self.root.exists() and not self.root.is_dir():
            raise InvalidInput("folder", "be a folder", self.root, "Name a new one.")
        stored = _read(self.root / _PLAN)
        if stored is not None and resume:
            new = self._plan
            other = sorted(key for key in new.keys() | stored.keys() if new.get(key) != stored.get(key))
            if other:
                rule = f"hold a run with the same {', '.join(other)}"
                raise InvalidInput(
                    "folder", rule, self.root, "Name a new folder, or resume with the old plan."
                )
        elif self.root.is_dir() and any(self.root.iterdir()):
            remedy = "Name a new folder." if stored is None else "Resume it, or name a new folder."
            raise InvalidInput("folder", "be new or empty", self.root, remedy)

    def outcome(self) -> dict[str, Any] | None:
        """What a finished run left; None while it is not finished."""
        stored = _read(self.root / _OUTCOME)
        if stored is not None and self._writes:
            shutil.rmtree(self.work, ignore_errors=True)  # a kill may have come between the two
        return stored

    def blocks(self, pack: Callable[[], NDArray[np.int32]]) -> NDArray[np.int32]:
        """The packed corpus: made once, and read from here when the run is resumed.

        The first thing that is written: a corpus that is refused leaves no folder behind.
        """
        path = self.work / "blocks.npy"
        if path.is_file():
            stored: NDArray[np.int32] = np.load(path, mmap_mode="r", allow_pickle=False)
            return stored
        blocks = pack()
        if self._writes:
            self.work.mkdir(parents=True, exist_ok=True)
            _write(self.root / _PLAN, self._plan)
            draft = self.work / "new-blocks.npy"
            np.save(draft, blocks, allow_pickle=False)
            draft.replace(path)
        return blocks

    def finish(self, save: Callable[[Path], None], outcome: dict[str, Any]) -> None:
        """Put the final checkpoint into the folder, then the outcome; then the work is done with."""
        if self._writes:
            draft = _emptied(self.work / "new-result")
            save(draft)
            for file in sorted(draft.iterdir()):
                file.replace(self.root / file.name)
            _write(self.root / _OUTCOME, outcome)
            shutil.rmtree(self.work)


def _emptied(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def _read(path: Path) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        stored = None
    if not isinstance(stored, dict):
        raise InvalidInput("folder", f"hold a readable {path.name}", path, "Name a new folder.")
    return stored


def _write(path: Path, content: dict[str, Any]) -> None:
    draft = path.with_name(path.name + ".new")
    draft.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    draft.replace(path)
