"""`dpf pretrain`: noisy masked-LM pre-training on public text."""

from typing import Any

from dp_forward.cli import options, output
from dp_forward.cli.plan_options import Out, Resume, carry_out, plan_options
from dp_forward.train.pretrain.pretrain_plan import PretrainPlan


@plan_options(PretrainPlan)
def pretrain(
    settings: dict[str, Any], *, out: Out, resume: Resume = False, json: options.Json = False
) -> None:
    """Pre-train a model on public text with the noise in place.

    The result is an ordinary Hugging Face checkpoint, for dpf finetune --model.

    Example: dpf pretrain --epsilon 16 --steps 2 --head-steps 2 --batch 4 --out noisy-minilm
    """
    from dp_forward.train.pretrain.pretraining import pretrain as run_plan

    plan = PretrainPlan.from_dict(settings)
    with carry_out(plan, out) as bars:
        report = run_plan(plan, folder=out, resume=resume, progress=bars)
    title, said = f"{out}: an ordinary checkpoint", [str(report["statement"])]
    result = {**report, "out": str(out)}
    hidden = ("history", "statement", "plan", "plan_digest", "provenance")
    output.print_result(result, json=json, title=title, sentences=said, only_json=hidden)
