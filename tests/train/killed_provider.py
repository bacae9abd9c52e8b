"""A provider's training in a process of its own, killed at step 20: plan (JSON), out."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
import tiny_models  # noqa: F401 - one thread
from dp_forward.train.plan import ReleasesPlan
from dp_forward.train.provider_training import finetune_from_releases


def killed(stage: str, done: int, total: int, numbers: dict[str, float]) -> None:
    if stage == "task" and done == 20:
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    plan, out = sys.argv[1:]
    finetune_from_releases(ReleasesPlan.from_dict(json.loads(plan)), folder=Path(out), progress=killed)
