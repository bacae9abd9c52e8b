"""Laws of the rendered pages, on made-up results for the real tables."""

from __future__ import annotations

import builtins
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from dp_forward.errors import InvalidInput
from reproduction.jobs import Job, in_order
from reproduction.render import render
from reproduction.render.ceilings import our_columns
from reproduction.render.findings import findings_section
from reproduction.render.markdown import pivot
from reproduction.render.paper_values import read_paper_values
from reproduction.runs.result_file import ResultFile
from reproduction.tables.catalogue import tables
from reproduction.tables.paper_sensitivity import gaussian_ceiling, pure_ceiling

pytestmark = pytest.mark.slow

TABLES = tables()
ORIGIN = {
    "dp_forward": "9.9",
    "commit": "abc1234",
    "python": "3.12.0",
    "torch": "2.13.0",
    "transformers": "5.10.0",
    "hardware": "a made-up GPU",
    "when": "2031-01-01T00:00:00+00:00",
}


def jobs_of(table: str, row: str, column: str) -> tuple[Job, ...]:
    cell = TABLES[table].at(row, column)
    assert cell is not None
    assert cell.jobs
    return cell.jobs


def put(path: Path, job: Job, result: Mapping[str, Any]) -> None:
    after = [earlier.digest for earlier in job.after]
    line = {"digest": job.digest, "kind": job.kind, "settings": dict(job.settings), "after": after}
    line |= {"seconds": 10.0}
    ResultFile(path).append({**line, "result": dict(result), "provenance": ORIGIN})


def accuracy(value: float) -> dict[str, float]:
    return {"accuracy": value, "accuracy_low": value - 0.01, "accuracy_high": value + 0.02}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("made-up") / "results.jsonl"
    for place, column in enumerate(our_columns(TABLES["mechanisms"])):
        for name, base in (("aMGM, S = C, our recipe", 0.6), ("aMGM, S = 2C, our recipe", 0.55)):
            (job,) = jobs_of("mechanisms", f"SST-2: {name}", column)
            put(path, job, accuracy(base + 0.05 * place))
    (clean,) = jobs_of("mechanisms", "SST-2: without noise, our recipe", "1")
    put(path, clean, accuracy(0.9))
    forward, private = (
        jobs_of("positions", row, "8")[0]
        for row in ("SST-2: encoder.3, S = C, our recipe", "SST-2: DP-SGD, our recipe")
    )
    put(path, forward, accuracy(0.843))
    put(path, private, accuracy(0.81))
    (speed,) = jobs_of("efficiency", "non-private", "ms a step")
    costs = {"gaussian": 10.0, "hooks": 42.0, "ghost": 21.0}
    put(path, speed, {name: {"milliseconds": cost, "time_ratio": 1.0} for name, cost in costs.items()})
    for row, success in (("without noise, our recipe", 0.998), ("PrivUnit 8, our recipe", 0.002)):
        (job,) = jobs_of("attacks", row, "inversion, embeddings")
        put(path, job, {"success": success})
    for job, value in zip(
        jobs_of("pretraining", "encoder.3: as published, our recipe", "8"), (0.810, 0.814), strict=True
    ):
        put(path, job, accuracy(value))
    put(path, jobs_of("pretraining", "encoder.3: as published, our recipe", "16")[0], accuracy(0.85))
    return path


@pytest.fixture(scope="module")
def docs(results: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("docs")
    render(results, folder)
    return folder


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Path]]:
    folder = tmp_path_factory.mktemp("empty")
    return folder, render(folder / "none.jsonl", folder)


def page(docs: Path, name: str) -> str:
    return (docs / "paper" / f"{name}.md").read_text(encoding="utf-8")


def line_of(text: str, row: str) -> str:
    return next(line for line in text.splitlines() if line.startswith(f"| {row} |"))


def section(text: str, title: str) -> str:
    return text.split(f"## {title}\n", 1)[1].split("\n## ", 1)[0]


def test_every_table_has_a_page_and_the_index_links_to_it(docs: Path) -> None:
    for name in TABLES:
        assert f"]({name}.md)" in page(docs, "index")
        assert page(docs, name).startswith(f"# {TABLES[name].title}\n")


def test_without_results_every_page_says_so_and_nothing_is_drawn(empty: tuple[Path, list[Path]]) -> None:
    folder, written = empty
    assert {path.name for path in written} == {"index.md", *(f"{name}.md" for name in TABLES)}
    assert not (folder / "figures").exists()
    for name in TABLES:
        text = page(folder, name)
        assert "**Not run.**" in text
        assert "Where the numbers come from" not in text
        assert "![" not in text


def test_a_cell_without_a_result_is_not_run(docs: Path) -> None:
    text = page(docs, "mechanisms")
    assert line_of(text, "SST-2: aMGM, S = 2C, our recipe").endswith(
        "| 0.550 | 0.600 | 0.650 | 0.700 | 0.750 |"
    )
    assert line_of(text, "IMDb: MVG").endswith("| not run | not run | not run | not run | not run |  |")
    assert "**Not run.**" not in text
    assert "11 of 165" not in text  # the model without noise fills five cells
    assert "15 of 165 measured cells" in text


def test_what_is_not_run_is_named_and_the_papers_rows_apart(docs: Path) -> None:
    text = page(docs, "mechanisms")
    assert "Not run: 75 with the paper's recipe, for lack of time on a GPU (rows: SST-2: aMGM; " in text
    assert "75 of other rows (rows: " in text
    assert "measured cells are run, 0 of 12 of our tables in full; what" in page(docs, "index")


def test_what_was_run_but_could_not_be_measured_is_not_called_not_run(docs: Path) -> None:
    assert line_of(page(docs, "efficiency"), "DP-SGD (Opacus, hooks)").endswith(
        "| 42.0 | 1.00 | not measured |"
    )


def test_seeds_stand_in_brackets(docs: Path) -> None:
    assert "| 0.812 (0.810, 0.814) |" in line_of(
        page(docs, "pretraining"), "encoder.3: as published, our recipe"
    )


def test_a_seed_that_is_missing_is_said_and_the_cell_does_not_count(docs: Path) -> None:
    assert "| 0.850 (1 of 2 seeds) |" in line_of(
        page(docs, "pretraining"), "encoder.3: as published, our recipe"
    )
    assert "1 of 44 measured cells" in page(docs, "pretraining")


def test_a_central_epsilon_is_proved_for_the_records_that_the_runs_had(tmp_path: Path) -> None:
    row, column = "PrivUnit 4 + label 2.197", "proved central epsilon, delta 1e-05"
    shown = {}
    for name, records in (("many", 67_349), ("few", 1_000), ("unknown", None)):
        path = tmp_path / f"{name}.jsonl"
        for job in jobs_of("proved-training", row, column):
            said = {} if records is None else {"records": records, "plan": {"threshold_share": 0.2}}
            put(path, job, accuracy(0.84) | said)
        table = TABLES["proved-training"]
        shown[name] = line_of(pivot(table, ResultFile(path).by_digest()), row)
    assert "| 67,349 | 0.3956 (blanket; attack 0.2448) |" in shown["many"]
    assert "0.3956" not in shown["few"]
    assert "| not measured | not measured |" in shown["unknown"]


def test_the_widest_interval_is_said(docs: Path) -> None:
    assert "plus or minus 0.015." in page(docs, "mechanisms")


def test_a_proved_epsilon_is_never_rounded_down(docs: Path) -> None:
    rows = [row for row in TABLES["positions"].rows if "local epsilon" in row]
    for row in rows:
        shown = [float(word) for word in line_of(page(docs, "positions"), row).split("|")[2:-1]]
        for number, column in zip(shown, TABLES["positions"].columns, strict=True):
            cell = TABLES["positions"].at(row, column)
            assert cell is not None
            real = cell.value({}).value
            assert isinstance(real, float)
            assert real <= number < real + 0.1


def test_the_ceilings_are_those_of_the_two_sensitivities(docs: Path) -> None:
    text = section(page(docs, "mechanisms"), "Measured, and the ceiling")
    for row, sensitivity, got in (
        ("S = C, our recipe: r = Phi(B)", 1.0, 0.75),
        ("S = 2C, our recipe: r = Phi(B / 2)", 2.0, 0.70),
    ):
        ceiling = gaussian_ceiling(0.9, 8.0, sensitivity=sensitivity)
        shown = f"{got:.3f} of {ceiling:.3f} ({100 * (got - ceiling):+.1f})"
        assert f"| {shown} |" in line_of(text, f"aMGM, {row}")
    assert f"| not run, of {pure_ceiling(0.9, 1.0):.3f} |" in text


def test_a_command_names_the_data_that_its_jobs_read(docs: Path) -> None:
    for name, data in {
        "rows": ["sst2"],
        "mechanisms": ["sst2", "imdb", "qqp"],
        "proved-training": ["sst2", "imdb"],
        "pretraining": ["sst2"],
        "attacks": ["sst2", "imdb", "qqp"],
        "efficiency": [],
    }.items():
        command = next(line for line in page(docs, name).splitlines() if line.startswith("$ "))
        assert [word.split("=")[0] for word in command.split() if word.endswith("=PATH")] == data
        assert command.startswith(f"$ python -m reproduction {name}")
        for option in ("--corpus PATH", "--wikipedia PATH"):
            assert (option in command) == (name == "pretraining")


def test_the_origin_of_the_numbers_is_told_without_a_date(docs: Path) -> None:
    text = section(page(docs, "mechanisms"), "Where the numbers come from")
    jobs = len(in_order(TABLES["mechanisms"].jobs()))
    for fact in (f"11 of {jobs} ", "110 s", "`abc1234`", "a made-up GPU (11 steps)", "torch 2.13.0"):
        assert fact in text
    assert "2031" not in text


def test_the_claims_of_the_abstract_stand_beside_our_cells(docs: Path) -> None:
    text = section(page(docs, "index"), "What the abstract claims, and what we find")
    assert (
        "S = C: +3.3 pp for the best cell (SST-2, encoder.3, 8; not all cells run); S = 2C: not run" in text
    )
    assert "S = C: -5.7 pp for the best cell" in text
    assert "| Opacus hooks 4.2 times, ghost 2.1 times |" in text
    assert "| Opacus hooks not measured, ghost not measured |" in text
    assert "PrivUnit 8: 99.6 pp less (embeddings)" in text
    assert "aMGM 8, S = 2C: not run" in text
    assert "local epsilon" not in text, "no accuracy"


PAPERS = "{}, S = C (the authors' experiments)"


def said(table: str, numbers: Mapping[tuple[str, str], float]) -> str:
    """What came out, where just these cells were run."""
    found: dict[str, dict[str, float]] = {}
    for (row, column), value in numbers.items():
        (job,), cell = jobs_of(table, row, column), TABLES[table].at(row, column)
        assert cell is not None
        found.setdefault(job.digest, {})[cell.metric] = value
    return findings_section(TABLES[table], read_paper_values(None, TABLES), found)


def test_findings_are_computed_from_the_cells_and_the_printed_ones() -> None:
    amgm, gm = (PAPERS.format(f"IMDb: {name}") for name in ("aMGM", "GM"))
    near = said("mechanisms", {(amgm, "4"): 0.7193, (amgm, "8"): 0.8009, (gm, "8"): 0.8152})
    assert "IMDb, aMGM and GM at S = C: 3 of 3 cells lie within 3 points" in near
    assert "ours minus theirs is -1.0 to +1.5 points" in near
    assert "GM lies below aMGM in 0 of 1 cells" in near
    assert "IMDb at 8 (+1.4 points)" in near
    assert "cells that miss" not in near
    assert "At 8 the noise of GM is 0.9 % larger" in near
    far = said("mechanisms", {(amgm, "4"): 0.6, (amgm, "8"): 0.5, ("SST-2: MVG", "8"): 0.512})
    assert "0 of 2 cells lie within 3 points" in far
    assert "What may explain the cells that miss (IMDb)" in far
    assert "Accuracy rises with epsilon in 0 of 1 rows" in far
    assert "no cell lies more than 1.2 points off" in far


def test_the_order_of_positions_is_counted_against_print() -> None:
    cuts = ("encoder.3", "encoder.4", "output")
    rows = [PAPERS.format(f"QQP: {cut}") for cut in cuts]
    upward, turned = (
        said("positions", {(row, "1"): value for row, value in zip(rows, values, strict=True)})
        for values in ((0.6, 0.7, 0.8), (0.8, 0.7, 0.75))
    )
    assert "3 of 3 pairs of positions stand in the printed order" in upward
    assert "1 of 3 pairs of positions stand in the printed order" in turned
    assert "better in 1 of 2 steps, in print in 2" in turned


def test_the_mask_is_credited_with_the_cells_that_it_brings_near_print() -> None:
    bare = {(PAPERS.format(f"SST-2: encoder.{k}"), "8"): 0.75 for k in (1, 2)}
    masked = {(f"SST-2: encoder.{k}, S = C, mask handed to the back", "8"): 0.81 for k in (1, 2)}
    assert "The mask" not in said("positions", bare)
    text = said("positions", {**bare, **masked})
    assert "without: 0 of 2 cells lie within 3 points" in text
    assert "With: 1 of 2 cells lie within 3 points" in text, "printed: 0.8073 and 0.8463"


def test_clean_queries_are_set_against_noisy_ones_of_the_same_model() -> None:
    row = PAPERS.format("encoder.3")
    text = said("clean-queries", {(row, "8, noisy"): 0.80, (row, "8, clean"): 0.85})
    assert "By its recipe noisy queries are better in 0 of 1 cells; clean minus noisy is +5.0 points" in text
    assert "By ours" not in text


def test_without_a_row_of_the_paper_nothing_is_said_to_be_confirmed() -> None:
    text = said("rows", {("output, our recipe", "64"): 0.8})
    assert "No row with the paper's recipe is run yet" in text
    assert said("rows", {}) == ""


def test_rows_without_a_common_column_stand_in_tables_of_their_own(docs: Path) -> None:
    text = section(page(docs, "attacks"), "The table")
    heads = [line for line in text.splitlines() if line.startswith(f"| {TABLES['attacks'].corner} |")]
    assert len(heads) == 4
    assert heads[0].endswith("| entropy | confidence |")


def test_the_settings_of_the_paper_stand_beside_ours(docs: Path) -> None:
    text = section(page(docs, "index"), "Settings: the paper's, and these")
    assert line_of(text, "model").endswith("6 blocks, d = 384 |")
    assert line_of(text, "training").startswith("| training | 3 epochs, batches of 32, rate 2e-05")


def test_the_papers_model_is_said_to_be_not_run(docs: Path) -> None:
    assert "--model bert-base-uncased" in section(page(docs, "index"), "What is not run")


def test_figures_are_drawn_for_what_was_run_only(docs: Path) -> None:
    drawn = {path.name for path in (docs / "figures").iterdir()}
    names = {name.removesuffix("-light.svg").removesuffix("-dark.svg") for name in drawn}
    run = {"mechanisms", "positions", "pretraining"}
    assert names >= {"accuracy-against-epsilon", *(f"paper-{name}" for name in run)}
    assert not names & {"paper-sublayers", "paper-columns", "paper-tokens"}
    assert drawn == {f"{name}-{scheme}.svg" for name in names for scheme in ("light", "dark")}
    assert 'src="../figures/paper-mechanisms-light.svg"' in page(docs, "mechanisms")


def test_the_same_results_give_the_same_bytes(results: Path, docs: Path, tmp_path: Path) -> None:
    again = render(results, tmp_path, only=["mechanisms", "attacks"])
    assert {path.suffix for path in again} == {".md", ".svg"}
    for path in again:
        assert path.read_bytes() == (docs / path.relative_to(tmp_path)).read_bytes()


def test_only_leaves_other_pages_alone(results: Path, tmp_path: Path) -> None:
    written = render(results, tmp_path, only=["efficiency"])
    assert [path.name for path in written] == ["index.md", "efficiency.md"]
    with pytest.raises(InvalidInput, match="only"):
        render(results, tmp_path, only=["efficency"])


def test_typed_cells_of_the_paper_stand_with_the_difference(results: Path, tmp_path: Path) -> None:
    row = "SST-2: aMGM, S = 2C, our recipe"
    gm = "QQP: GM, S = C (the authors' experiments)"
    typed = {"mechanisms": {row: {"1": 0.56, "8": 0.7}, gm: {"1": 0.4}}}
    (tmp_path / "printed.json").write_text(json.dumps(typed))
    render(results, tmp_path, printed=tmp_path / "printed.json", only=["mechanisms"])
    text = section(page(tmp_path, "mechanisms"), "What the paper printed")
    assert line_of(text, row) == f"| {row} |  | 0.550, *0.56* (-1.0) |  |  | 0.700, *0.7* (+0.0) |"
    beside = "not run, *0.6304* | not run, *0.4* | not run, *0.6571*"
    assert line_of(text, gm).startswith(f"| {gm} | {beside} |")


@pytest.mark.parametrize(
    ("typed", "rule"),
    [
        ({"mechanism": {}}, "name one of"),
        ({"mechanisms": {"SST-2: aMGM": {"1": 0.5}}}, "name a row of mechanisms"),
        ({"mechanisms": {"QQP: MVG": {"3": 0.5}}}, "name a column of mechanisms"),
        ({"mechanisms": {"QQP: MVG": {"1": 92.1}}}, "shares between 0 and 1"),
        ({"mechanisms": {"QQP: MVG": {"1": "0.5"}}}, "hold numbers"),
        ({"mechanisms": {"QQP: MVG": {"1": True}}}, "hold numbers"),
        ({"mechanisms": {"QQP: MVG": [0.5]}}, "columns of mechanisms by name"),
        ([], "tables by name"),
    ],
)
def test_a_typed_cell_that_is_not_of_the_tables_is_refused(typed: Any, rule: str, tmp_path: Path) -> None:
    (tmp_path / "printed.json").write_text(json.dumps(typed))
    with pytest.raises(InvalidInput, match=rule):
        render(tmp_path / "none.jsonl", tmp_path, printed=tmp_path / "printed.json")
    assert not (tmp_path / "paper").exists()


def test_a_missing_matplotlib_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = builtins.__import__

    def without(name: str, *rest: Any, **more: Any) -> Any:
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return found(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(InvalidInput, match=r"dp-forward\[train\]"):
        render(tmp_path / "none.jsonl", tmp_path)
