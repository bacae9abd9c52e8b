"""The small size has every kind of work in it, and never looks like the real one."""

from __future__ import annotations

from pathlib import Path

import pytest

from reproduction.jobs import Job, effective_settings, in_order
from reproduction.model_setup import ModelSetup
from reproduction.runs.smoke import few_jobs, shrink_tables, smoke_data, smoke_model
from reproduction.tables.catalogue import tables

TABLES = tables(ModelSetup("minilm", 3, 32))
SMALL = shrink_tables(TABLES)
each = pytest.mark.parametrize("name", TABLES)


def work(jobs: list[Job]) -> set[tuple[str, ...]]:
    """Kinds of jobs and what they build on, of these and of all that they need."""
    return {
        (
            job.kind,
            *(earlier.kind for earlier in job.after),
            *(str(job.settings.get(name)) for name in ("task", "regime", "mechanism", "unit")),
        )
        for job in in_order(jobs)
    }


@each
def test_a_few_cells_hold_every_kind_of_work_of_a_table(name: str) -> None:
    few = few_jobs(SMALL[name])
    assert work(few) == work(TABLES[name].jobs())
    assert len(few) < 25


@pytest.mark.slow
@each
def test_a_small_job_is_a_plan_and_another_job(name: str) -> None:
    for job, smaller in zip(TABLES[name].jobs(), SMALL[name].jobs(), strict=True):
        effective_settings(smaller.kind, smaller.settings)
        assert smaller != job, "a result of the small size must never fill a cell of the real one"
        assert smaller.kind == job.kind
        assert len(smaller.after) == len(job.after)
        for setting in ("regime", "mechanism", "epsilon", "unit", "cut"):
            assert smaller.settings.get(setting) == job.settings.get(setting)
    assert set(in_order(SMALL[name].jobs())).isdisjoint(in_order(TABLES[name].jobs()))


@pytest.mark.slow
def test_the_small_model_and_data_are_made_once_and_alike(tmp_path: Path) -> None:
    first = smoke_model(tmp_path / "model")
    weights = tmp_path / "model" / "model.safetensors"
    made = weights.stat().st_mtime_ns
    assert smoke_model(tmp_path / "model") == first == ModelSetup(str(tmp_path / "model"), 3, 32)
    assert weights.stat().st_mtime_ns == made
    assert ModelSetup.of(str(tmp_path / "model")) == first
    here, there = (smoke_data(tmp_path / name) for name in ("here", "there"))
    assert here.keys() == {"sst2", "imdb", "qqp", "imdb-reviews", "wikipedia"}
    files = sorted(path.relative_to(tmp_path / "here") for path in (tmp_path / "here").rglob("*.*"))
    assert len(files) == 7
    assert all((tmp_path / "here" / f).read_bytes() == (tmp_path / "there" / f).read_bytes() for f in files)
    assert Path(there["imdb-reviews"]).is_file()
