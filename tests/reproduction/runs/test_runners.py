"""Every kind of job, carried out once at the small size: its results fill the cells that ask for them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from reproduction.jobs import FIRST, KINDS, Job
from reproduction.runs.dataset_cache import DatasetCache
from reproduction.runs.result_file import ResultFile
from reproduction.runs.runners import tokenizer_model
from reproduction.runs.smoke import shrink_tables, smoke_data, smoke_model
from reproduction.runs.workers import Outcome, run_jobs
from reproduction.tables.catalogue import tables
from reproduction.tables.table import Cell, Table

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Done:
    """One job of each sort, run; and all tables with small jobs in their cells."""

    outcome: Outcome
    jobs: tuple[Job, ...]
    lines: Mapping[str, Mapping[str, Any]]
    cells: tuple[Cell, ...]
    folder: Path

    def of(self, kind: str, **settings: Any) -> list[Mapping[str, Any]]:
        """Results of the jobs of this kind with these settings."""
        return [
            self.lines[job.digest]["result"]
            for job in self.jobs
            if job.kind == kind and settings.items() <= job.settings.items()
        ]


def sort(job: Job) -> tuple[object, ...]:
    """What makes a job run other lines of its runner than another."""
    given = job.settings
    if job.kind == "inversion":
        return (job.kind, given.get("attack"))
    clean = given.get("mechanism") == "none"
    if job.kind == "attribute":
        return (job.kind, clean, "test_task" in given)
    after = [earlier.kind for earlier in job.after]
    return (job.kind, *after, given.get("regime"), clean and job.kind == "finetune", "scores" in given)


def one_of_each(found: Mapping[str, Table]) -> dict[object, Job]:
    """The first job of every sort in all tables, each built on such a one."""
    chosen: dict[object, Job] = {}

    def add(job: Job) -> None:
        if sort(job) not in chosen:
            for earlier in job.after:
                add(earlier)
            after = tuple(chosen[sort(earlier)] for earlier in job.after)
            chosen[sort(job)] = Job(job.kind, job.settings, after)

    for table in found.values():
        for job in table.jobs():
            add(job)
    return chosen


def standing_in(cell: Cell, chosen: Mapping[object, Job]) -> Cell:
    """The cell, filled by the jobs of its sort that were run."""
    return replace(cell, jobs=tuple(chosen[sort(job)] for job in cell.jobs[:1]))


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Done:
    folder = tmp_path_factory.mktemp("reproduced")
    found = shrink_tables(tables(smoke_model(folder / "model")))
    chosen = one_of_each(found)
    jobs = list(chosen.values())
    results = ResultFile(folder / "results.jsonl")
    outcome = run_jobs(
        jobs, results=results, work=folder / "work", cache=DatasetCache(smoke_data(folder / "data"))
    )
    cells = tuple(standing_in(cell, chosen) for table in found.values() for cell in table.cells if cell.jobs)
    return Done(outcome, tuple(jobs), results.lines(), cells, folder)


def test_every_kind_was_done(done: Done) -> None:
    assert done.outcome == Outcome(done=len(done.jobs))
    assert {job.kind for job in done.jobs} == set(KINDS)
    regimes = {job.settings.get("regime") for job in done.jobs if job.kind == "finetune"}
    assert regimes == {"end-to-end", "public-front", "release-once"}


def test_every_metric_that_a_cell_asks_for_is_there(done: Done) -> None:
    results = {digest: line["result"] for digest, line in done.lines.items()}
    asked = {(cell.jobs[0].kind, cell.metric) for cell in done.cells}
    filled = {(cell.jobs[0].kind, cell.metric) for cell in done.cells if cell.value(results).parts}
    missing = {metric for _, metric in asked - filled}
    on_a_gpu = {metric for _, metric in asked if metric.endswith(".memory_mib")}
    assert missing <= on_a_gpu, "memory is measured on a GPU only"
    assert len(filled) > 10


def test_a_metric_has_its_interval(done: Done) -> None:
    results = {digest: line["result"] for digest, line in done.lines.items()}
    shown = [(cell, cell.value(results)) for cell in done.cells if cell.metric in ("accuracy", "success")]
    alone = [(cell, value) for cell, value in shown if value.parts and len(cell.jobs) == 1]
    assert {cell.metric for cell, _ in alone} == {"accuracy", "success"}
    for _, value in alone:
        assert value.low is not None
        assert value.high is not None
        assert 0 <= value.low <= value.value <= value.high <= 1


def test_an_end_to_end_run_says_that_it_protects_no_training_text(done: Done) -> None:
    found = done.of("finetune", regime="end-to-end")
    assert len(found) >= 3
    for result in found:
        assert "Training texts: NOT protected" in result["promise"]
        assert "proved" not in result
        assert "central" not in json.dumps(result).lower()


def test_a_released_run_says_what_covers_text_and_label(done: Done) -> None:
    found = done.of("finetune", regime="release-once")
    for result, epsilon in zip(found, ("2.0", "6.197"), strict=True):
        assert f"Training texts: {epsilon}-LDP per record" in result["promise"]
        assert "NOT protected" not in result["promise"]


def test_queries_promise_the_epsilon_that_was_asked_for(done: Done) -> None:
    for job in done.jobs:
        if job.kind == "queries":
            promise = done.lines[job.digest]["result"]["promise"]
            assert promise == f"Queries: ({job.settings['epsilon']}, 1e-05)-LDP per text."


def test_the_baseline_tells_the_central_epsilon_of_its_accountant(done: Done) -> None:
    (result,) = done.of("baseline")
    assert 0 < result["proved"]["epsilon"] <= 1.0
    assert "added or removed" in result["proved"]["notion"]


def test_a_result_holds_no_text_and_no_path_of_the_data(done: Done) -> None:
    stored = (done.folder / "results.jsonl").read_text()
    sentences = (done.folder / "data" / "sst2" / "train.tsv").read_text().splitlines()[1:]
    assert len(sentences) > 50
    for sentence in sentences:
        assert json.dumps(sentence.split("\t")[0].strip('"'))[1:-1] not in stored
    assert str(done.folder / "data") not in stored
    assert str(done.folder / "work") not in stored


def test_every_line_says_where_it_comes_from(done: Done) -> None:
    for job in done.jobs:
        line = done.lines[job.digest]
        assert line["after"] == [earlier.digest for earlier in job.after]
        assert line["settings"] == json.loads(json.dumps(dict(job.settings)))
        assert {"torch", "transformers", "hardware"} <= line["provenance"].keys()


def test_the_tokenizer_is_that_of_the_model_at_the_root() -> None:
    base = Job("finetune", {"model": "minilm"})
    later = Job("finetune", {"model": FIRST}, (base,))
    assert tokenizer_model(later) == tokenizer_model(Job("queries", {}, (later,))) == "minilm"
