"""`dpf reproduce`: the tables and figures of the paper, on your model and data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dp_forward.cli import options, output
from dp_forward.cli.plan_options import Data, data_paths
from dp_forward.cli.progress_bars import Bars
from dp_forward.errors import InvalidInput

if TYPE_CHECKING:
    from reproduction.jobs import Step
    from reproduction.model_setup import Subject
    from reproduction.runs.dataset_cache import Shelf
    from reproduction.runs.result_file import Results
    from reproduction.runs.workers import Outcome, Told
    from reproduction.tables.table import Cell, Table

__all__ = ["reproduce"]


def reproduce(
    table: Annotated[
        list[str] | None, typer.Argument(help="Tables by name; all of them without one.")
    ] = None,
    show_list: Annotated[bool, typer.Option("--list", help="List the tables, and how far each is.")] = False,
    cell: Annotated[
        list[str] | None,
        typer.Option("--cell", help="Only cells whose row and column hold this word; may be repeated."),
    ] = None,
    smoke: Annotated[
        bool,
        typer.Option("--smoke", help="A few cells of each table with a tiny model, to see that it runs."),
    ] = False,
    model: Annotated[str, typer.Option("--model", help="A name or folder of Hugging Face.")] = "minilm",
    weights: Annotated[
        Path | None, typer.Option("--weights", help="The model's folder, where it is not found by its name.")
    ] = None,
    data: Data = None,
    corpus: Annotated[
        Path | None, typer.Option("--corpus", help="Public text for `pretraining`: a file, plain or .gz.")
    ] = None,
    workers: Annotated[int, typer.Option("--workers", "-j", min=1, help="Steps side by side.")] = 1,
    seconds: Annotated[
        float | None, typer.Option("--seconds", help="Start no step after so long; go on later.")
    ] = None,
    results: Annotated[
        Path | None, typer.Option("--results", help="The file of finished steps [WORK/results.jsonl].")
    ] = None,
    work: Annotated[
        Path, typer.Option("--work", help="Where runs are made; what nothing needs any more is removed.")
    ] = Path("reproduced"),
    render: Annotated[
        Path | None,
        typer.Option("--render", help="Write pages and figures into this docs folder; run nothing."),
    ] = None,
    printed: Annotated[
        Path | None,
        typer.Option(
            "--printed", help="With --render: cells that the paper printed, as JSON, to set beside."
        ),
    ] = None,
    json: options.Json = False,
) -> None:
    """A table or figure of the paper, and the honest numbers beside it.

    What is finished is not done again, so a stopped command goes on where it was. Exit code 1 if a step
    failed.

    Example: dpf reproduce mechanisms --smoke
    """
    from reproduction.model_setup import Subject
    from reproduction.runs.dataset_cache import Shelf
    from reproduction.runs.result_file import Results
    from reproduction.tables.catalogue import tables
    from reproduction.tables.training import CORPUS

    if smoke:
        work = work / "smoke"
    store = Results(results or work / "results.jsonl")
    with output.working("laying out the tables"):
        subject = _smoke_subject(work) if smoke else Subject.of(model, folder=weights)
        known = tables(subject)
    chosen = _chosen(known, table or [])
    if render is not None:
        _render(store.path, render, subject, printed, table or [], json=json)
        return
    if show_list:
        if results is not None and not results.is_file():
            raise InvalidInput("results", "be a file of results", results, "Check the path.")
        _list(chosen, store.by_digest(), smoke=smoke, json=json)
        return
    steps = _steps(chosen, cell or [], smoke=smoke)
    where = (_smoke_data(work) if smoke else {}) | (data_paths(data) or {})
    if corpus is not None:
        where[CORPUS] = str(corpus)
    shelf = Shelf(where, models={} if weights is None else {model: str(weights)})
    outcome = _run(steps, store, work, shelf, workers, seconds)
    _tell(chosen, store, outcome, smoke=smoke, json=json)
    if outcome.failed:
        raise typer.Exit(1)


def _chosen(known: Mapping[str, Table], names: list[str]) -> dict[str, Table]:
    for name in names:
        if name not in known:
            raise InvalidInput("table", f"be one of {', '.join(known)}", repr(name), "Try --list.")
    return {name: known[name] for name in names or known}


def _smoke_subject(work: Path) -> Subject:
    from reproduction.runs.smoke import smoke_model

    return smoke_model(work / "model")


def _smoke_data(work: Path) -> dict[str, str]:
    from reproduction.runs.smoke import smoke_data

    return smoke_data(work / "data")


def _steps(chosen: Mapping[str, Table], words: list[str], *, smoke: bool) -> list[Step]:
    from reproduction.runs.smoke import few_cells, small

    found: list[Step] = []
    for table in chosen.values():
        mine = table.steps(words) if words else (few_cells(table) if smoke else table.steps())
        found += [small(step) for step in mine] if smoke else mine
    if not found:
        raise InvalidInput("cell", "be a cell of the table", words, "Try --list, or fewer words.")
    return list(dict.fromkeys(found))


def _run(
    steps: list[Step], store: Results, work: Path, shelf: Shelf, workers: int, seconds: float | None
) -> Outcome:
    from reproduction.runs.workers import run_steps

    with Bars() as bars:

        def tell(told: Told) -> None:
            if told.error is not None:
                output.warn(f"{told.step.kind} {told.step.digest[:12]}: {told.error}")
            bars("steps", told.done, told.total, {"minutes left": told.seconds_left / 60})

        return run_steps(
            steps,
            results=store,
            work=work,
            shelf=shelf,
            workers=workers,
            seconds=seconds,
            tell=tell,
            reading=lambda done, total: bars("reading texts", done, total, {}),
        )


def _render(
    results: Path, docs: Path, subject: Subject, printed: Path | None, only: list[str], *, json: bool
) -> None:
    from reproduction.render import render

    with output.working("rendering"):
        written = render(results, docs, subject=subject, printed=printed, only=only)
    if json:
        output.print_json({"written": [str(path) for path in written]})
        return
    output.print_fields(f"{len(written)} files", {str(path): "" for path in written})


def _list(
    chosen: Mapping[str, Table], results: Mapping[str, Mapping[str, Any]], *, smoke: bool, json: bool
) -> None:
    rows = []
    for table in chosen.values():
        run = sum(_asked(cell, smoke=smoke).value(results).run for cell in table.cells if cell.steps)
        cells = sum(bool(cell.steps) for cell in table.cells)
        rows.append(
            {"table": table.name, "title": table.title, "item": table.item, "cells": cells, "run": run}
        )
    if json:
        output.print_json({"tables": rows})
        return
    output.print_table(
        "The paper's tables",
        ("table", "title", "cells", "run"),
        [(str(row["table"]), str(row["title"]), str(row["cells"]), str(row["run"])) for row in rows],
    )


def _tell(chosen: Mapping[str, Table], store: Results, outcome: Outcome, *, smoke: bool, json: bool) -> None:
    found = store.by_digest()
    facts: dict[str, Any] = {
        "done": outcome.done,
        "known before": outcome.known,
        "failed": len(outcome.failed),
        "left": outcome.left,
        "results": str(store.path),
    }
    if json:
        output.print_json({**facts, "cells": _cells(chosen, found, smoke=smoke)})
        return
    if not smoke:
        for table in chosen.values():
            output.print_table(
                table.title,
                (table.corner, *table.columns),
                [
                    (row, *(_shown(table, row, column, found) for column in table.columns))
                    for row in table.rows
                ],
            )
    output.print_fields("smoke" if smoke else "steps", facts)


def _cells(
    chosen: Mapping[str, Table], results: Mapping[str, Mapping[str, Any]], *, smoke: bool
) -> list[dict[str, Any]]:
    cells = []
    for table in chosen.values():
        for cell in table.cells:
            value = _asked(cell, smoke=smoke).value(results)
            cells.append(
                {
                    "table": table.name,
                    "row": cell.row,
                    "column": cell.column,
                    "value": value.value,
                    "low": value.low,
                    "high": value.high,
                    "seeds": list(value.parts),
                }
            )
    return cells


def _asked(cell: Cell, *, smoke: bool) -> Cell:
    """The cell, or the same of small steps."""
    from reproduction.runs.smoke import small

    return replace(cell, steps=tuple(small(step) for step in cell.steps)) if smoke else cell


def _shown(table: Table, row: str, column: str, results: Mapping[str, Mapping[str, Any]]) -> str:
    cell = table.at(row, column)
    if cell is None:
        return ""
    value = cell.value(results).value
    if value is None:
        return "not run"
    return value if isinstance(value, str) else f"{value:.{cell.digits}f}"
