"""A run folder belongs to one plan and one process, and a kill leaves what was finished."""

import multiprocessing
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from dp_forward.errors import InvalidInput
from dp_forward.train.plan import Plan
from dp_forward.train.run import RunFolder

PLAN = Plan(task="sst2", epsilon=8.0)


def _open(path: Path, seed: int = 0, *, resume: bool = False) -> None:
    with RunFolder.opened(path, replace(PLAN, seed=seed), resume=resume):
        pass


def test_an_unfinished_run_wants_resume(tmp_path: Path) -> None:
    _open(tmp_path / "run")
    with pytest.raises(InvalidInput, match="resume=True"):
        _open(tmp_path / "run")
    _open(tmp_path / "run", resume=True)


def test_another_plan_is_refused_and_nothing_changes(tmp_path: Path) -> None:
    _open(tmp_path / "run")
    before = (tmp_path / "run" / "plan.json").read_bytes()
    for resume in (False, True):
        with pytest.raises(InvalidInput, match="no other plan"):
            _open(tmp_path / "run", 1, resume=resume)
    assert (tmp_path / "run" / "plan.json").read_bytes() == before


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "a.txt").write_text("mine")
    with pytest.raises(InvalidInput, match="new folder"):
        _open(tmp_path / "letters")
    assert [path.name for path in (tmp_path / "letters").iterdir()] == ["a.txt"]
    with pytest.raises(InvalidInput, match="to resume"):
        _open(tmp_path / "nothing", resume=True)
    assert not (tmp_path / "nothing").exists()


def test_a_broken_plan_file_is_refused(tmp_path: Path) -> None:
    _open(tmp_path / "run")
    (tmp_path / "run" / "plan.json").write_text("{")
    with pytest.raises(InvalidInput, match="readable"):
        _open(tmp_path / "run", resume=True)


def _refused(path: Path, queue: "multiprocessing.Queue[str]") -> None:
    try:
        _open(path, resume=True)
        queue.put("opened")
    except InvalidInput as error:
        queue.put(str(error))


def test_a_second_process_is_refused_while_one_works(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    with RunFolder.opened(tmp_path / "run", PLAN, resume=False):
        other = context.Process(target=_refused, args=(tmp_path / "run", queue))
        other.start()
        assert "one process at a time" in queue.get(timeout=30)
        other.join()


def test_a_stage_is_finished_when_its_facts_are_there(tmp_path: Path) -> None:
    with RunFolder.opened(tmp_path / "run", PLAN, resume=False) as run:
        assert run.stage_result("task") is None
        run.checkpoints("task").mkdir(parents=True)
        run.finish_stage("task", {"w": torch.ones(2)}, {"steps": 3})
        found = run.stage_result("task")
        assert found is not None
        assert torch.equal(found[0]["w"], torch.ones(2))
        assert found[1] == {"steps": 3}
        assert not run.checkpoints("task").exists()
