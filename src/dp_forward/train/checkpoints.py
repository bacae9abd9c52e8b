"""The checkpoints that Trainer writes: which of them a killed run can go on from."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

__all__ = ["last_checkpoint", "step_of"]


def last_checkpoint(folder: Path, *, needs: Sequence[str] = ()) -> Path | None:
    """The newest checkpoint that was written to its end; one that a kill cut short is passed over.

    Trainer writes its state last, and drops the checkpoint before only after that. So a readable state means
    that the rest is there; ``needs`` names files that are looked for besides.
    """
    found = [path for path in folder.glob("checkpoint-*") if path.name.rpartition("-")[2].isdigit()]
    for path in sorted(found, key=step_of, reverse=True):
        if all((path / name).is_file() for name in needs) and _has_state(path):
            return path
    return None


def step_of(checkpoint: Path | None) -> int:
    """The step after which a checkpoint was written; 0 for none."""
    return 0 if checkpoint is None else int(checkpoint.name.rpartition("-")[2])


def _has_state(checkpoint: Path) -> bool:
    try:
        return bool(json.loads((checkpoint / "trainer_state.json").read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return False
