"""`dpf pretrain`: noisy masked-LM pre-training on public text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from dp_forward.cli import options, output
from dp_forward.cli.plan_options import plan_options, print_plan, warn_if_finished
from dp_forward.cli.progress_bars import Bars
from dp_forward.train.pretrain.pretrain_plan import PretrainPlan

__all__ = ["pretrain"]

_NOT_SHOWN = ("history", "statement", "plan", "plan_digest", "provenance")


@plan_options(PretrainPlan)
def pretrain(
    settings: dict[str, Any],
    *,
    out: Annotated[Path, typer.Option("--out", help="The folder for the checkpoint.")],
    resume: Annotated[bool, typer.Option("--resume", help="Continue a run that was killed.")] = False,
    json: options.Json = False,
) -> None:
    """Train a model on public text with the noise at the cut; the result is an ordinary checkpoint.

    Example: dpf pretrain --epsilon 16 --steps 2 --head-steps 2 --batch 4 --out noisy-minilm
    """
    from dp_forward.train.pretrain.pretraining import pretrain as run_plan

    plan = PretrainPlan.from_dict(settings)
    print_plan(plan.as_dict())
    with warn_if_finished(out, "report.json"), Bars() as bars:
        report = run_plan(plan, folder=out, resume=resume, progress=bars)
    if json:
        output.print_json({**report, "out": str(out)})
        return
    shown = {name: value for name, value in report.items() if name not in _NOT_SHOWN}
    output.print_fields(
        f"{out}: an ordinary checkpoint", {**shown, "out": str(out)}, [str(report["statement"])]
    )
