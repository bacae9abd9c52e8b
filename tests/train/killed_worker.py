"""A run of its own process, to be killed: model, task, out, epochs. Continues what it finds."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
import tiny_models  # noqa: F401 - one thread
from dp_forward.train.finetune import finetune
from dp_forward.train.plan import Plan


def main(model: str, task: str, out: str, epochs: str) -> None:
    plan = Plan.from_dict(
        {
            "task": "sst2",
            "model": model,
            "regime": "release-once",
            "epsilon": 8.0,
            "rows": 12,
            "width": 4,
            "batch": 16,
            "epochs": float(epochs),
            "evaluation_draws": 2,
            "data": {"sst2": task},
        }
    )
    finetune(plan, folder=Path(out), resume=Path(out, "plan.json").exists())


if __name__ == "__main__":
    main(*sys.argv[1:])
