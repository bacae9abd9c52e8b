"""`dpf evaluate`: accuracy of a run over repeated draws of the noise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from dp_forward.cli import options, output
from dp_forward.cli.plan_options import Data, data_paths
from dp_forward.errors import InvalidInput, refuse_if
from dp_forward.storage.json_files import read_json, write_json

if TYPE_CHECKING:
    from dp_forward.data import Task


def evaluate(
    run: Annotated[Path, Argument(help="The folder of a run.")],
    task: Annotated[str | None, Option(help="The task to measure on [that of the run].")] = None,
    data: Data = None,
    split: Annotated[str | None, Option(help="Which split [the one that the run was measured on].")] = None,
    epsilon: Annotated[float | None, Option("--epsilon", "-e", help="Of the noise [the run's].")] = None,
    draws: Annotated[int, Option(help="Draws of the noise per text.")] = 10,
    limit: Annotated[int | None, Option(help="Measure on a sample of so many texts.")] = None,
    seed: Annotated[int | None, Option(help="Seed of the noise, to draw it again [none].")] = None,
    json: options.Json = False,
) -> None:
    """Measure the accuracy of a run over many draws of the noise.

    The accuracy has a 95 % interval. A run that measured none keeps it, for dpf explain and dpf ui.

    Example: dpf evaluate run --split test --draws 20
    """
    from dp_forward.data import read_texts
    from dp_forward.noise import Sanitizer
    from dp_forward.progress import counter
    from dp_forward.train.evaluation import accuracy_over_draws, commonest_share
    from dp_forward.train.noisy_model import NoisyModel
    from dp_forward.train.report import weakness
    from dp_forward.train.run import Halves

    done = Halves.load(run)
    chosen, noise = task_of_run(done.plan, task, data_paths(data) or {}), done.spec.noise
    rule = f"have the labels of the run: {', '.join(done.spec.labels)}"
    refuse_if(chosen.labels != done.spec.labels, "task", rule, chosen.name, "Name another.")
    split = split or done.plan.get("evaluation_split") or "validation"
    if epsilon is not None:
        if noise is None:
            raise InvalidInput("epsilon", "go with a run that has noise", epsilon, "Leave it out.")
        noise = replace(noise, epsilon=epsilon)
    mechanism = None if noise is None else noise.build()
    sanitizer = None if mechanism is None else Sanitizer(mechanism, seed=seed)
    module = NoisyModel(done.pair, sanitizer, rows=done.spec.rows, labels=len(done.spec.labels))
    with output.Bars() as bars:
        progress = counter(bars, "reading")
        texts = read_texts(chosen, split, done.tokens, limit=limit, progress=progress)
        progress = counter(bars, "evaluating", len(texts))
        found = accuracy_over_draws(module, texts, draws=draws, progress=progress)
        module.clean = True
        clean = accuracy_over_draws(module, texts, progress=counter(bars, "without noise", len(texts)))
    result: dict[str, Any] = {"accuracy": found.mean, "accuracy_low": found.low, "accuracy_high": found.high}
    result["accuracy_without_noise"] = clean.mean
    result["accuracy_of_commonest_label"] = commonest_share(texts.labels)
    result |= {"draws": found.draws, "texts": found.texts, "task": chosen.name, "split": split}
    result["mechanism"] = "none" if mechanism is None else mechanism.name
    result["promise"] = "none" if mechanism is None else mechanism.promise()
    notes = [note for note in (weakness(result), chosen.notes) if note]
    output.print_result(result, json=json, title=f"{run} on {chosen.name}", sentences=notes)
    path, kept = run / "report.json", ("accuracy", "accuracy_without_noise", "draws", "texts")
    if epsilon is None and path.exists():
        report = read_json(path, name="run", remedy="Train it again.")
        if report.get("accuracy") is None or "evaluated" in report:  # for `dpf explain --run` and `dpf ui`
            report |= {name: result[name] for name in kept}
            write_json(path, report | {"evaluated": f"{chosen.name}, {split}"})


def task_of_run(plan: Mapping[str, Any], name: str | None, data: Mapping[str, str]) -> Task:
    """The task with this name, or that of the run with this plan; ``data`` says where files lie now.

    Edges:
        Other data than the run's has nothing of it split off.
    """
    from dp_forward.data import TASKS
    from dp_forward.data.own_data import task_of
    from dp_forward.data.tasks import task_name

    known = plan.get("task") if name is None else task_name(name)
    refuse_if(known is None, "task", "be given for a run that has none", "nothing", "Such as --task sst2.")
    for other in data:
        if other not in TASKS and other != known:
            raise InvalidInput("data", "name the task", repr(other[:40]), f"Write --data {known}=PATH.")
    stored = plan if known == plan.get("task") else {}
    places = {**dict(plan.get("data") or {}), **data}
    moved = {"validation_share": 0.0} if known in data else {}
    return task_of({**stored, "task": known, "data": places, **moved})
