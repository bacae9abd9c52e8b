"""`dpf finetune`: train a model that works on noisy matrices."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from dp_forward.cli import options, output
from dp_forward.cli.finetune_releases import finetune_releases
from dp_forward.cli.plan_options import (
    OWN_LEDGER,
    Data,
    LabelEpsilon,
    LabelPrior,
    Settings,
    data_paths,
    numbers,
    print_plan,
    settings_of,
    told_if_finished,
)
from dp_forward.cli.progress_bars import Bars

__all__ = ["finetune"]


def finetune(
    out: Annotated[Path, typer.Option("--out", help="The folder of the run.")],
    plan: Annotated[Path | None, typer.Argument(help="A plan as a TOML file; flags win over it.")] = None,
    from_releases: Annotated[
        Path | None,
        typer.Option(
            "--from-releases",
            help="As the provider: train the back of --model on a corpus of releases, or on a collection.",
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", help="A folder, a Hugging Face name, or minilm [minilm].")
    ] = None,
    task: Annotated[str | None, typer.Option("--task", help="sst2, imdb, qqp or rotten-tomatoes.")] = None,
    data: Data = None,
    cut: Annotated[
        str | None, typer.Option("--cut", help="Where to cut: see dpf cuts MODEL [output].")
    ] = None,
    mechanism: Annotated[
        str | None, typer.Option("--mechanism", "-m", help="Which noise, or none [privunit].")
    ] = None,
    epsilon: Annotated[
        float | None, typer.Option("--epsilon", "-e", help="The budget per text; there is no default.")
    ] = None,
    delta: options.Delta = None,
    regime: Annotated[
        str | None,
        typer.Option("--regime", help="release-once, public-front or end-to-end [release-once]."),
    ] = None,
    unit: Annotated[str | None, typer.Option("--unit", help="text, token or phrase:c [text].")] = None,
    norm: Annotated[float | None, typer.Option("--norm", help="C [by rule: 1, or 8 at embeddings].")] = None,
    threshold_share: Annotated[
        float | None, typer.Option("--threshold-share", help="PrivUnit's t as a share of t* [by rule].")
    ] = None,
    rows: Annotated[
        int | None,
        typer.Option("--rows", help="n, the tokens of every text [by rule, 64 at output]."),
    ] = None,
    width: Annotated[
        int | None, typer.Option("--width", help="d', the columns that cross; 0 for no maps [by rule].")
    ] = None,
    label_epsilon: LabelEpsilon = None,
    label_prior: LabelPrior = None,
    epochs: Annotated[float | None, typer.Option("--epochs", help="Epochs on the task [by rule].")] = None,
    batch: Annotated[int | None, typer.Option("--batch", help="Texts per step [by rule].")] = None,
    learning_rate: Annotated[float | None, typer.Option("--learning-rate", help="[by rule].")] = None,
    draws: Annotated[
        int | None, typer.Option("--draws", help="Noisy matrices per text and step, where the front trains.")
    ] = None,
    warm_up_epochs: Annotated[
        float | None, typer.Option("--warm-up-epochs", help="Epochs without noise, where the front trains.")
    ] = None,
    auxiliary_weight: Annotated[
        float | None,
        typer.Option("--auxiliary-weight", help="Label loss at the cut, where the front trains."),
    ] = None,
    public_task: Annotated[
        str | None, typer.Option("--public-task", help="Public data for public-front, such as imdb.")
    ] = None,
    public_epochs: Annotated[float | None, typer.Option("--public-epochs")] = None,
    public_limit: Annotated[int | None, typer.Option("--public-limit", help="A sample of it.")] = None,
    public_words: Annotated[
        int | None,
        typer.Option("--public-words", help="Cut public texts to pieces of so many words; 0: whole."),
    ] = None,
    lora_rank: Annotated[int | None, typer.Option("--lora-rank", help="LoRA on the back [0: none].")] = None,
    early_stopping: Annotated[
        int | None,
        typer.Option("--early-stopping", help="Patience in epochs, on the public split [0: never]."),
    ] = None,
    train_limit: Annotated[int | None, typer.Option("--train-limit", help="A sample of the texts.")] = None,
    evaluation_limit: Annotated[int | None, typer.Option("--evaluation-limit")] = None,
    evaluation_split: Annotated[str | None, typer.Option("--evaluation-split", help="[validation].")] = None,
    evaluation_draws: Annotated[
        int | None, typer.Option("--evaluation-draws", help="Draws of the noise per text [10].")
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed")] = None,
    precision: Annotated[str | None, typer.Option("--precision", help="auto, fp32 or bf16.")] = None,
    more: Settings = None,
    ledger: Annotated[
        Path | None,
        typer.Option("--ledger", help="Where the release of the texts is charged [one of its own]."),
    ] = None,
    budget: Annotated[
        float | None,
        typer.Option("--budget", help="What each record may spend in all, for a new ledger [this release]."),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue a run that was killed.")] = False,
    json: options.Json = False,
) -> None:
    """Train a model through the noise; what each regime protects is said in the report.

    With --from-releases the provider trains the back alone, without texts, on what users released.

    Example: dpf finetune --task rotten-tomatoes --epsilon 8 --train-limit 200 --out run
    """
    charged = {"ledger": ledger, "budget": budget}
    apart = (
        "out",
        "plan",
        "from_releases",
        "resume",
        "json",
        "data",
        "label_prior",
        "more",
        "charged",
        *charged,
    )
    flags = {name: value for name, value in locals().items() if name not in (*apart, "apart")}
    from dp_forward.corpus.writer import ledger_of
    from dp_forward.errors import InvalidInput
    from dp_forward.train.defaults import filled
    from dp_forward.train.finetune import finetune as run_plan
    from dp_forward.train.plan import load_plan, read_settings

    flags["label_prior"] = numbers("label-prior", label_prior)
    flags["data"] = data_paths(data)
    given = settings_of(more) | {name: value for name, value in flags.items() if value is not None}
    if from_releases is not None:
        for name, value in charged.items():
            if value is not None:
                raise InvalidInput(name, "go without from-releases", "both", "The users were charged.")
        finetune_releases(from_releases, read_settings(plan, given), out=out, resume=resume, json=json)
        return
    wanted = filled(load_plan(plan, given))
    print_plan(wanted.as_dict())
    with told_if_finished(out, "report.json"), Bars() as bars:
        run = run_plan(wanted, folder=out, resume=resume, progress=bars, ledger=ledger, budget=budget)
    if json:
        output.print_json({**run.report, "out": str(out)})
        return
    # By the file and not by the flag: a run that was finished before may have been charged in a shared one.
    print_report(run.report, out, more=[OWN_LEDGER] if ledger_of(out / "releases").exists() else [])


def print_report(report: dict[str, object], out: Path, *, more: Sequence[str] = ()) -> None:
    """The numbers and the promises of a run, for people."""
    from dp_forward.train.report import doubt, spoken

    shown = {name: report[name] for name in ("accuracy", "accuracy_low", "accuracy_high", "draws", "texts")}
    shown |= {
        name: report[name]
        for name in ("accuracy_without_noise", "accuracy_of_commonest_label", "seconds", "peak_memory_mib")
        if name in report
    }
    said: dict[str, str] = report["guarantee"]["statements"]  # type: ignore[index]
    sentences = [*spoken(said), *more]
    doubted = doubt(report)
    sentences += [] if doubted is None else [doubted]
    output.print_fields(
        f"{out}: regime {report['regime']}", {**shown, "report": out / "report.md"}, sentences
    )
