"""`dpf baseline dpsgd`: the Opacus baseline on the same task, with the same report."""

from typing import Any

from dp_forward.cli import options
from dp_forward.cli.finetune import print_report
from dp_forward.cli.plan_options import Out, Resume, carry_out, plan_options
from dp_forward.train.dpsgd.dpsgd_plan import DpSgdPlan

app = options.App(name="baseline")


@app.callback()
def baseline() -> None:
    """Train with DP-SGD (Opacus), for comparison."""


@app.command("dpsgd")
@plan_options(DpSgdPlan)
def dpsgd(settings: dict[str, Any], *, out: Out, resume: Resume = False, json: options.Json = False) -> None:
    """Train with DP-SGD (Opacus), on the same task and report.

    It gives central DP of the trained weights. Whoever trains sees the texts, and so does whoever answers.

    Example: dpf baseline dpsgd rotten-tomatoes -e 8 --train-limit 64 --batch 16 --epochs 1 --out base
    """
    from dp_forward.train.dpsgd.dpsgd_training import run_dpsgd

    plan = DpSgdPlan.from_dict(settings)
    with carry_out(plan, out) as bars:
        report = run_dpsgd(plan, folder=out, resume=resume, progress=bars)
    print_report(report, out, json=json)
