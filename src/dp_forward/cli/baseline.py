"""`dpf baseline dpsgd`: the Opacus baseline on the same task, with the same report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dp_forward.cli import options, output
from dp_forward.cli.finetune import print_report
from dp_forward.cli.plan_options import Data, data_paths, print_plan, warn_if_finished
from dp_forward.cli.progress_bars import Bars

__all__ = ["app"]

app = typer.Typer(help="What others do, on the same task.", no_args_is_help=True)


@app.callback()
def baseline() -> None:
    """What others do, on the same task."""


@app.command("dpsgd")
def dpsgd(
    out: Annotated[Path, typer.Option("--out", help="The folder of the run.")],
    plan: Annotated[Path | None, typer.Argument(help="A plan as a TOML file; flags win over it.")] = None,
    model: Annotated[str | None, typer.Option("--model", help="[minilm].")] = None,
    task: Annotated[str | None, typer.Option("--task", help="sst2, imdb, qqp or rotten-tomatoes.")] = None,
    data: Data = None,
    epsilon: Annotated[
        float | None, typer.Option("--epsilon", "-e", help="Central epsilon; no default.")
    ] = None,
    delta: Annotated[float | None, typer.Option("--delta", "-d", help="[1e-5].")] = None,
    mode: Annotated[str | None, typer.Option("--mode", help="hooks or ghost [hooks].")] = None,
    trainable: Annotated[
        str | None, typer.Option("--trainable", help="frozen-embeddings or lora [frozen-embeddings].")
    ] = None,
    lora_rank: Annotated[int | None, typer.Option("--lora-rank", help="[8].")] = None,
    epochs: Annotated[int | None, typer.Option("--epochs", help="[3].")] = None,
    batch: Annotated[int | None, typer.Option("--batch", help="Expected texts per step [256].")] = None,
    micro_batch: Annotated[
        int | None, typer.Option("--micro-batch", help="Most texts in memory at once [32].")
    ] = None,
    learning_rate: Annotated[float | None, typer.Option("--learning-rate", help="[5e-4].")] = None,
    clip_norm: Annotated[float | None, typer.Option("--clip-norm", help="[1].")] = None,
    rows: Annotated[int | None, typer.Option("--rows", help="Tokens of every text [64].")] = None,
    train_limit: Annotated[int | None, typer.Option("--train-limit", help="A sample of the texts.")] = None,
    evaluation_limit: Annotated[int | None, typer.Option("--evaluation-limit")] = None,
    evaluation_split: Annotated[str | None, typer.Option("--evaluation-split", help="[validation].")] = None,
    seed: Annotated[int | None, typer.Option("--seed")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue a run that was killed.")] = False,
    json: options.Json = False,
) -> None:
    """DP-SGD with Opacus: central DP of the trained weights; nothing for texts in training or queries.

    Example: dpf baseline dpsgd --task rotten-tomatoes -e 8 --train-limit 64 --batch 16 --epochs 1 --out base
    """
    flags = {k: v for k, v in locals().items() if k not in ("out", "plan", "resume", "json", "data")}
    from dp_forward.train.dpsgd.run import BaselinePlan, run_baseline
    from dp_forward.train.plan_base import read_settings

    wanted = BaselinePlan.from_dict(read_settings(plan, {**flags, "data": data_paths(data)}))
    print_plan(wanted.as_dict())
    with warn_if_finished(out, "report.json"), Bars() as bars:
        report = run_baseline(wanted, folder=out, resume=resume, progress=bars)
    if json:
        output.print_json({**report, "out": str(out)})
        return
    print_report(report, out)
