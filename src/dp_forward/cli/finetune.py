"""`dpf finetune`: train a model that works on noisy matrices."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from dp_forward.cli import options, output
from dp_forward.cli.finetune_releases import finetune_releases
from dp_forward.cli.plan_options import OWN_LEDGER, plan_options, print_plan, warn_if_finished
from dp_forward.cli.progress_bars import Bars
from dp_forward.errors import InvalidInput
from dp_forward.train.plan import Plan

__all__ = ["finetune"]


@plan_options(Plan)
def finetune(
    settings: dict[str, Any],
    *,
    out: Annotated[Path, typer.Option("--out", help="The folder of the run.")],
    from_releases: Annotated[
        Path | None,
        typer.Option(
            "--from-releases",
            help="As the provider: train the back of --model on a corpus of releases, or on a collection.",
        ),
    ] = None,
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
    from dp_forward.corpus.writer import ledger_of
    from dp_forward.train.defaults import effective_plan
    from dp_forward.train.finetune import finetune as run_plan

    if from_releases is not None:
        for name, value in {"ledger": ledger, "budget": budget}.items():
            if value is not None:
                raise InvalidInput(name, "go without from-releases", "both", "The users were charged.")
        finetune_releases(from_releases, settings, out=out, resume=resume, json=json)
        return
    plan = effective_plan(Plan.from_dict(settings))
    print_plan(plan.as_dict())
    with warn_if_finished(out, "report.json"), Bars() as bars:
        run = run_plan(plan, folder=out, resume=resume, progress=bars, ledger=ledger, budget=budget)
    if json:
        output.print_json({**run.report, "out": str(out)})
        return
    # By the file and not by the flag: a run that was finished before may have been charged in a shared one.
    print_report(run.report, out, more=[OWN_LEDGER] if ledger_of(out / "releases").exists() else [])


def print_report(report: dict[str, object], out: Path, *, more: Sequence[str] = ()) -> None:
    """The numbers and the promises of a run, for people."""
    from dp_forward.train.report import weakness, with_subjects

    shown = {name: report[name] for name in ("accuracy", "accuracy_low", "accuracy_high", "draws", "texts")}
    shown |= {
        name: report[name]
        for name in ("accuracy_without_noise", "accuracy_of_commonest_label", "seconds", "peak_memory_mib")
        if name in report
    }
    said: dict[str, str] = report["guarantee"]["statements"]  # type: ignore[index]
    sentences = [*with_subjects(said), *more]
    weak = weakness(report)
    sentences += [] if weak is None else [weak]
    output.print_fields(
        f"{out}: regime {report['regime']}", {**shown, "report": out / "report.md"}, sentences
    )
