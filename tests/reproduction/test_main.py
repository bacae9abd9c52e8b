"""`python -m reproduction` at the small size: run, list, go on, render."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reproduction.jobs import Job
from reproduction.runs.result_file import ResultFile
from reproduction.tables.catalogue import tables

ROW = "SST-2: aMGM, S = 2C, our recipe"
CELL = ("--cell", f"{ROW}, 8")


def smoke(reproduce: Callable[..., Any], work: Path, *words: str) -> Any:
    return reproduce("mechanisms", "--smoke", "--work", str(work), "--json", *words)


def line_of(job: Job) -> dict[str, Any]:
    """A line of a results file, but for what was found."""
    after = [earlier.digest for earlier in job.after]
    return {
        "digest": job.digest,
        "kind": job.kind,
        "settings": dict(job.settings),
        "after": after,
        "seconds": 1.0,
    }


@pytest.mark.slow
def test_a_cell_is_run_once_listed_and_found_again(reproduce: Callable[..., Any], tmp_path: Path) -> None:
    first = smoke(reproduce, tmp_path, *CELL)
    assert first.code == 0, first.err
    assert (first.json["done"], first.json["known before"], first.json["failed"]) == (1, 0, 0)
    assert first.json["results"] == str(tmp_path / "smoke" / "results.jsonl")
    run = {(cell["row"], cell["column"]): cell for cell in first.json["cells"] if cell["value"] is not None}
    assert run.keys() == {(ROW, "8")}
    shown = run[ROW, "8"]
    assert 0 <= shown["low"] <= shown["value"] <= shown["high"] <= 1

    again = smoke(reproduce, tmp_path, *CELL)
    assert (again.json["done"], again.json["known before"], again.json["left"]) == (0, 1, 0)
    assert again.json["cells"] == first.json["cells"]

    (listed,) = smoke(reproduce, tmp_path, "--list").json["tables"]
    assert (listed["table"], listed["run"]) == ("mechanisms", 1)
    words = reproduce("mechanisms", "--smoke", "--work", str(tmp_path), *CELL)
    assert words.code == 0
    assert "known before" in words.out


@pytest.mark.slow
def test_without_time_all_is_left_for_later(reproduce: Callable[..., Any], tmp_path: Path) -> None:
    found = smoke(reproduce, tmp_path, *CELL, "--seconds", "0")
    assert found.code == 0, found.err
    assert (found.json["done"], found.json["left"]) == (0, 1)


@pytest.mark.slow
def test_a_job_that_fails_is_told_and_ends_with_one(reproduce: Callable[..., Any], tmp_path: Path) -> None:
    words = (
        "attacks",
        "--smoke",
        "--work",
        str(tmp_path),
        "--json",
        "--cell",
        "without noise, our recipe, attribute, output",
    )
    few = tmp_path / "few"
    few.mkdir()
    (few / "train.jsonl").write_text('{"text": "a comedy", "label": 1}\n', encoding="utf-8")
    found = reproduce(*words, "--data", f"imdb={few}")
    assert found.code == 1
    assert found.json["failed"] == 1
    assert "be 40 or more with a genre" in " ".join(found.err.split())
    assert "comedy" not in found.err


@pytest.mark.slow
def test_all_tables_are_listed_with_nothing_run(reproduce: Callable[..., Any], tmp_path: Path) -> None:
    found = reproduce("--list", "--json", "--work", str(tmp_path))
    assert found.code == 0, found.err
    rows = found.json["tables"]
    assert [row["table"] for row in rows] == list(tables())
    assert all(row["run"] == 0 and row["cells"] > 0 for row in rows)
    assert list(tmp_path.iterdir()) == [], "a list makes nothing"
    assert "mechanisms" in reproduce("--list", "--work", str(tmp_path)).out


@pytest.mark.slow
@pytest.mark.parametrize("words", [("no-such-table", "--list"), ("mechanisms", "--cell", "no such cell")])
def test_what_is_not_there_is_a_usage_error(
    reproduce: Callable[..., Any], tmp_path: Path, words: tuple[str, ...]
) -> None:
    found = reproduce(*words, "--work", str(tmp_path))
    assert found.code == 2
    assert "--list" in found.err


@pytest.mark.slow
def test_results_are_rendered_without_running(reproduce: Callable[..., Any], tmp_path: Path) -> None:
    cell = tables()["proved-training"].at("PrivUnit 4 + label 2.197", "accuracy")
    assert cell is not None
    results = ResultFile(tmp_path / "paper.jsonl")
    for place, job in enumerate(cell.jobs):
        line = line_of(job)
        origin = {"commit": "abc1234", "hardware": "a made-up GPU", "when": "2031-01-01T00:00:00+00:00"}
        results.append({**line, "result": {"accuracy": 0.75 + 0.125 * place}, "provenance": origin})
    before = results.path.read_bytes()
    docs = tmp_path / "docs"
    words = ("--results", str(results.path), "--render", str(docs), "--work", str(tmp_path / "work"))
    found = reproduce("proved-training", *words, "--json")
    assert found.code == 0, found.err
    written = [Path(path) for path in found.json["written"]]
    assert written
    assert all(path.is_relative_to(docs) and path.is_file() for path in written)
    pages = "".join(path.read_text(encoding="utf-8") for path in written if path.suffix == ".md")
    assert f"{0.8125:.3f}" in pages, "the mean of the two seeds"
    assert "not run" in pages
    assert results.path.read_bytes() == before
    assert not (tmp_path / "work").exists()


@pytest.mark.slow
def test_a_results_file_that_is_not_there_is_not_called_empty(
    reproduce: Callable[..., Any], tmp_path: Path
) -> None:
    missing = reproduce("--list", "--results", str(tmp_path / "no.jsonl"))
    assert (missing.code, "`results` must be a file of results" in missing.err) == (2, True)
    assert reproduce("mechanisms", "--list", "--work", str(tmp_path)).code == 0, "none was named"


@pytest.mark.slow
def test_a_cut_short_results_file_still_counts(reproduce: Callable[..., Any], tmp_path: Path) -> None:
    job = tables()["mechanisms"].jobs()[0]
    line = json.dumps({**line_of(job), "result": {"accuracy": 0.5}})
    (tmp_path / "r.jsonl").write_text(line + "\n" + line[:20], encoding="utf-8")
    found = reproduce("mechanisms", "--list", "--json", "--results", str(tmp_path / "r.jsonl"))
    assert found.json["tables"][0]["run"] == 1
