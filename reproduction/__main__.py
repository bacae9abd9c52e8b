"""`python -m reproduction`: run, list and render the tables and figures of the paper.

Results go to stdout, progress and warnings to stderr. Exit codes: 0 ok, 1 a step failed, 2 usage.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dp_forward.cli import options, output
from dp_forward.errors import InvalidInput

if TYPE_CHECKING:
    from reproduction.jobs import Job
    from reproduction.model_setup import ModelSetup
    from reproduction.runs.dataset_cache import DatasetCache
    from reproduction.runs.result_file import ResultFile
    from reproduction.runs.workers import Outcome
    from reproduction.tables.table import Found, Table

__all__ = ["app", "main"]

_NAME = "python -m reproduction"
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)

Tables = Annotated[
    list[str] | None, typer.Argument(metavar="TABLE", help="Tables by name; all of them without one.")
]
List = Annotated[bool, typer.Option("--list", help="List the tables, and how far each is.")]
Cells = Annotated[
    list[str] | None,
    typer.Option("--cell", help="Only cells whose row and column hold this word; may be repeated."),
]
Smoke = Annotated[
    bool, typer.Option("--smoke", help="A few cells of each table with a tiny model, to see that it runs.")
]
Model = Annotated[str, typer.Option("--model", help="A name or folder of Hugging Face.")]
Weights = Annotated[
    Path | None, typer.Option("--weights", help="The model's folder, where it is not found by its name.")
]
Data = Annotated[
    list[str] | None,
    typer.Option("--data", help="Where a task's files lie, TASK=PATH; can be given several times."),
]
Corpus = Annotated[
    Path | None, typer.Option("--corpus", help="Public text for `pretraining`: a file, plain or .gz.")
]
Wikipedia = Annotated[
    Path | None,
    typer.Option("--wikipedia", help="The same for the paper's rows of `pretraining`, which had Wikipedia."),
]
Priority = Annotated[
    int | None,
    typer.Option("--priority", min=1, help="Only the paper's rows of this priority, 1 to 5."),
]
Workers = Annotated[int, typer.Option("--workers", "-j", min=1, help="Steps side by side.")]
Seconds = Annotated[float | None, typer.Option("--seconds", help="Start no step after so long; go on later.")]
Stop = Annotated[
    float | None, typer.Option("--stop", help="End what still runs after so long; needs several workers.")
]
Keep = Annotated[bool, typer.Option("--keep", help="Keep all trained models for later commands.")]
Results = Annotated[
    Path | None, typer.Option("--results", help="The file of finished steps [WORK/results.jsonl].")
]
Work = Annotated[
    Path, typer.Option("--work", help="Where runs are made; what nothing needs any more is removed.")
]
Render = Annotated[
    Path | None, typer.Option("--render", help="Write pages and figures into this docs folder; run nothing.")
]
Printed = Annotated[
    Path | None,
    typer.Option("--printed", help="With --render: cells that the paper printed, as JSON, to set beside."),
]


@app.command()
def reproduce(
    table: Tables = None,
    show_list: List = False,
    cell: Cells = None,
    smoke: Smoke = False,
    model: Model = "minilm",
    weights: Weights = None,
    data: Data = None,
    corpus: Corpus = None,
    wikipedia: Wikipedia = None,
    priority: Priority = None,
    workers: Workers = 1,
    seconds: Seconds = None,
    stop: Stop = None,
    keep: Keep = False,
    results: Results = None,
    work: Work = Path("reproduced"),
    render: Render = None,
    printed: Printed = None,
    json: options.Json = False,
) -> None:
    """A table or figure of the paper, and the honest numbers beside it.

    What is finished is not done again, so a stopped command goes on where it was. Exit code 1 if a step
    failed.

    Example: python -m reproduction mechanisms --smoke
    """
    from reproduction.model_setup import ModelSetup
    from reproduction.runs import smoke as small
    from reproduction.runs.dataset_cache import DatasetCache
    from reproduction.runs.result_file import ResultFile
    from reproduction.tables.catalogue import tables

    work = work / "smoke" if smoke else work
    store = ResultFile(results or work / "results.jsonl")
    with output.working("laying out the tables"):
        setup = small.smoke_model(work / "model") if smoke else ModelSetup.of(model, folder=weights)
        chosen = _chosen(small.shrink_tables(tables(setup)) if smoke else tables(setup), table or [])
    if render is not None:
        _render(store.path, render, setup, printed, table or [], json=json)
        return
    if show_list:
        if results is not None and not results.is_file():
            raise InvalidInput("results", "be a file of results", results, "Check the path.")
        _print_list(chosen, store.by_digest(), json=json)
        return
    jobs = _jobs(chosen, cell or [], priority, smoke=smoke)
    places = (small.smoke_data(work / "data") if smoke else {}) | _data_paths(data or [], corpus, wikipedia)
    cache = DatasetCache(places, models={} if weights is None else {model: str(weights)})
    outcome = _run(jobs, store, work, cache, workers=workers, seconds=seconds, stop=stop, keep=keep)
    _print_outcome(chosen, store, outcome, smoke=smoke, json=json)
    if outcome.failed:
        raise typer.Exit(1)


def _chosen(known: Mapping[str, Table], names: list[str]) -> dict[str, Table]:
    for name in names:
        if name not in known:
            raise InvalidInput("table", f"be one of {', '.join(known)}", repr(name), "Try --list.")
    return {name: known[name] for name in names or known}


def _jobs(chosen: Mapping[str, Table], words: list[str], priority: int | None, *, smoke: bool) -> list[Job]:
    from reproduction.runs.smoke import few_jobs

    found: list[Job] = []
    for table in chosen.values():
        all_cells = smoke and not words and priority is None
        found += few_jobs(table) if all_cells else table.jobs(words, priority=priority)
    if not found:
        raise InvalidInput("cell", "be a cell of the table", words, "Try --list, or fewer words.")
    return list(dict.fromkeys(found))


def _data_paths(data: list[str], corpus: Path | None, wikipedia: Path | None) -> dict[str, str]:
    from dp_forward.data import parse_data_option
    from reproduction.tables.paper_rows import WIKIPEDIA
    from reproduction.tables.training import CORPUS

    places = {task: str(path) for task, path in map(parse_data_option, data)}
    public = {CORPUS: corpus, WIKIPEDIA: wikipedia}
    return places | {name: str(path) for name, path in public.items() if path is not None}


def _run(
    jobs: list[Job],
    store: ResultFile,
    work: Path,
    cache: DatasetCache,
    **how: Any,
) -> Outcome:
    from reproduction.runs.workers import run_jobs

    def warn(message: str) -> None:
        output.warn(message, name=_NAME)

    with output.Bars() as bars:
        return run_jobs(jobs, results=store, work=work, cache=cache, progress=bars, warn=warn, **how)


def _render(
    results: Path, docs: Path, setup: ModelSetup, printed: Path | None, only: list[str], *, json: bool
) -> None:
    from reproduction.render import render

    with output.working("rendering"):
        written = render(results, docs, setup=setup, printed=printed, only=only)
    if json:
        output.print_json({"written": [str(path) for path in written]})
        return
    output.print_fields(f"{len(written)} files", {str(path): "" for path in written})


def _print_list(chosen: Mapping[str, Table], found: Found, *, json: bool) -> None:
    rows = []
    for table in chosen.values():
        cells, run = table.counts(found)
        facts = {"table": table.name, "title": table.title, "item": table.item, "cells": cells, "run": run}
        rows.append(facts)
    if json:
        output.print_json({"tables": rows})
        return
    head = ("table", "title", "cells", "run")
    output.print_table("The paper's tables", head, [[str(row[name]) for name in head] for row in rows])


def _print_outcome(
    chosen: Mapping[str, Table], store: ResultFile, outcome: Outcome, *, smoke: bool, json: bool
) -> None:
    found = store.by_digest()
    facts: dict[str, Any] = {
        "done": outcome.done,
        "known before": outcome.known,
        "failed": len(outcome.failed),
        "left": outcome.left,
        "results": str(store.path),
    }
    if json:
        output.print_json({**facts, "cells": _cells(chosen, found)})
        return
    if not smoke:
        for table in chosen.values():
            rows = [
                (row, *(_shown(table, row, column, found) for column in table.columns)) for row in table.rows
            ]
            output.print_table(table.title, (table.corner, *table.columns), rows)
    output.print_fields("smoke" if smoke else "steps", facts)


def _cells(chosen: Mapping[str, Table], found: Found) -> list[dict[str, Any]]:
    cells = []
    for table in chosen.values():
        for cell in table.cells:
            value = cell.value(found)
            where = {"table": table.name, "row": cell.row, "column": cell.column}
            numbers = {"value": value.value, "low": value.low, "high": value.high}
            cells.append({**where, **numbers, "seeds": list(value.parts)})
    return cells


def _shown(table: Table, row: str, column: str, found: Found) -> str:
    cell = table.at(row, column)
    if cell is None:
        return ""
    value = cell.value(found).value
    if value is None:
        return "not run"
    return value if isinstance(value, str) else f"{value:.{cell.digits}f}"


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; a refusal of ours is one line on stderr and its exit code."""
    output.run_app(app, arguments, name=_NAME)


if __name__ == "__main__":
    main()
