"""`dpf baseline dpsgd`: the Opacus baseline on the same task, with the same report."""

from pathlib import Path
from typing import Annotated, Any

import typer

from dp_forward.cli import options
from dp_forward.cli.finetune import print_report
from dp_forward.cli.plan_options import PlanCommand, Resume, carry_out, plan_options
from dp_forward.train.dpsgd.dpsgd_plan import DpSgdPlan

app = typer.Typer(help="What others do, on the same task.", no_args_is_help=True)


@app.callback()
def baseline() -> None:
    """What others do, on the same task."""


@app.command("dpsgd", cls=PlanCommand)
@plan_options(DpSgdPlan)
def dpsgd(
    settings: dict[str, Any],
    *,
    out: Annotated[Path, typer.Option(help="The folder of the run.")],
    resume: Resume = False,
    json: options.Json = False,
) -> None:
    """DP-SGD with Opacus: central DP of the trained weights; nothing for texts in training or queries.

    Example: dpf baseline dpsgd rotten-tomatoes -e 8 --train-limit 64 --batch 16 --epochs 1 --out base
    """
    from dp_forward.train.dpsgd.dpsgd_training import run_dpsgd

    plan = DpSgdPlan.from_dict(settings)
    with carry_out(plan, out) as bars:
        report = run_dpsgd(plan, folder=out, resume=resume, progress=bars)
    print_report(report, out, json=json)
