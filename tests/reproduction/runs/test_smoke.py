"""The small size has every kind of work in it, and never looks like the real one."""

from __future__ import annotations

from pathlib import Path

import pytest

from reproduction.jobs import Step, effective, in_order
from reproduction.model_setup import Subject
from reproduction.runs.smoke import few_cells, small, smoke_data, smoke_model
from reproduction.tables.catalogue import tables
from reproduction.tables.table import Table

TABLES = tables(Subject("minilm", 3, 32))
each = pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)


def work(steps: list[Step]) -> set[tuple[str, ...]]:
    """Kinds of steps and what they build on, of these and of all that they need."""
    return {
        (
            step.kind,
            *(earlier.kind for earlier in step.after),
            *(str(step.settings.get(name)) for name in ("task", "regime", "mechanism", "unit")),
        )
        for step in in_order(steps)
    }


@each
def test_a_few_cells_hold_every_kind_of_work_of_a_table(table: Table) -> None:
    few = few_cells(table)
    assert work(few) == work(table.steps())
    assert len(few) < 20


@each
def test_a_small_step_is_a_plan_and_another_step(table: Table) -> None:
    for step in in_order(table.steps()):
        smaller = small(step)
        effective(smaller.kind, smaller.settings)
        assert smaller != step, "a result of the small size must never fill a cell of the real one"
        assert smaller.kind == step.kind
        assert len(smaller.after) == len(step.after)
        for name in ("regime", "mechanism", "epsilon", "unit", "cut"):
            assert smaller.settings.get(name) == step.settings.get(name)


def test_the_small_model_and_data_are_made_once_and_alike(tmp_path: Path) -> None:
    first = smoke_model(tmp_path / "model")
    weights = tmp_path / "model" / "model.safetensors"
    made = weights.stat().st_mtime_ns
    assert smoke_model(tmp_path / "model") == first == Subject(str(tmp_path / "model"), 3, 32)
    assert weights.stat().st_mtime_ns == made
    assert Subject.of(str(tmp_path / "model")) == first
    here, there = (smoke_data(tmp_path / name) for name in ("here", "there"))
    assert here.keys() == {"sst2", "imdb", "qqp", "imdb-reviews"}
    files = sorted(path.relative_to(tmp_path / "here") for path in (tmp_path / "here").rglob("*.*"))
    assert len(files) == 7
    assert all((tmp_path / "here" / f).read_bytes() == (tmp_path / "there" / f).read_bytes() for f in files)
    assert Path(there["imdb-reviews"]).is_file()
