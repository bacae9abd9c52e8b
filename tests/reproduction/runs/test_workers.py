"""Jobs side by side, with made-up work: what is finished stays, and a failure costs its own."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dp_forward.errors import InvalidInput
from reproduction.jobs import Job
from reproduction.runs import workers as module
from reproduction.runs.dataset_cache import DatasetCache
from reproduction.runs.result_file import ResultFile
from reproduction.runs.workers import Outcome, run_jobs
from warm_process import Script

Run = Callable[..., Outcome]
both = pytest.mark.parametrize("workers", [1, 2])


def job(name: str, *after: Job, kind: str = "attribute", **settings: Any) -> Job:
    """Work that the made-up `run_job` understands."""
    return Job(kind, {"name": name, **settings}, after)


def made_up(job: Job, *, folder: Path, after: list[Path], cache: DatasetCache) -> dict[str, Any]:
    """Notes the call in a file that processes share; needs what it builds on; may take long, or fail."""
    begun = time.monotonic()
    with Path(cache.data["calls"]).open("a") as calls:
        calls.write(job.settings["name"] + "\n")
    folder.mkdir()
    (folder / "weights").write_text("large")
    assert all((earlier / "weights").is_file() for earlier in after)
    time.sleep(job.settings.get("seconds", 0.0))
    if job.settings.get("fails"):
        raise ValueError("a text of somebody")
    return {"name": job.settings["name"], "began": begun, "ended": time.monotonic()}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setattr(module, "run_job", made_up)
    monkeypatch.setattr(module, "provenance", dict)
    monkeypatch.setattr(module, "_weights", lambda job, cache: {})

    def call(*jobs: Job, **settings: Any) -> Outcome:
        cache = DatasetCache({"calls": str(tmp_path / "calls")})
        return run_jobs(jobs, results=store(tmp_path), work=tmp_path / "work", cache=cache, **settings)

    return call


def store(folder: Path) -> ResultFile:
    return ResultFile(folder / "results.jsonl")


def calls(folder: Path) -> list[str]:
    path = folder / "calls"
    return path.read_text().split() if path.exists() else []


def folders(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "work").iterdir())


@pytest.mark.slow
@both
def test_what_is_finished_is_not_done_again(run: Run, tmp_path: Path, workers: int) -> None:
    first, second = job("a"), job("b")
    assert run(first, first, second, workers=workers) == Outcome(done=2)
    assert sorted(calls(tmp_path)) == ["a", "b"]
    assert run(second, job("a"), job("c"), workers=workers) == Outcome(done=1, known=2)
    assert sorted(calls(tmp_path)) == ["a", "b", "c"]


@both
def test_a_failure_costs_itself_and_what_builds_on_it(run: Run, tmp_path: Path, workers: int) -> None:
    broken = job("broken", fails=True)
    later = job("later", broken)
    last = job("last", later)
    shown: list[tuple[str, int, int]] = []
    warnings: list[str] = []
    outcome = run(
        last,
        job("a"),
        broken,
        later,
        job("b", job("a")),
        workers=workers,
        progress=lambda stage, done, total, numbers: shown.append((stage, done, total)),
        warn=warnings.append,
    )
    assert (outcome.done, outcome.left) == (2, 0)
    assert outcome.failed.keys() == {broken.digest, later.digest, last.digest}
    assert outcome.failed[broken.digest].startswith("ValueError (test_workers.py:")
    for stopped in (later, last):
        assert outcome.failed[stopped.digest] == f"what it builds on failed ({broken.digest[:12]})"
    assert sorted(calls(tmp_path)) == ["a", "b", "broken"]
    assert store(tmp_path).by_digest().keys() == {job("a").digest, job("b", job("a")).digest}
    assert shown == [("steps", number, 5) for number in range(1, 6)]
    assert [line.split(": ")[1] for line in warnings] == list(outcome.failed.values())
    assert folders(tmp_path) == [], "a failure leaves nothing behind"


@both
def test_only_our_own_errors_are_told_in_words(
    run: Run, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    """A message of another library may quote a text."""

    def refuses(job: Job, **_: Any) -> dict[str, Any]:
        if job.settings["name"] == "ours":
            raise InvalidInput("rows", "be whole", 0.5, "Use 64.")
        raise KeyError("a text of somebody")

    monkeypatch.setattr(module, "run_job", refuses)
    ours, other = job("ours"), job("other")
    failed = run(ours, other, workers=workers).failed
    assert "`rows` must be whole" in failed[ours.digest]
    assert failed[other.digest].startswith("KeyError (")
    assert "somebody" not in failed[other.digest]


def test_a_failed_job_is_tried_again_next_time(run: Run, tmp_path: Path) -> None:
    for _ in range(2):
        assert len(run(job("broken", fails=True)).failed) == 1
    assert calls(tmp_path) == ["broken", "broken"]


@both
def test_what_a_job_builds_on_is_made_first_and_tidied_last(run: Run, tmp_path: Path, workers: int) -> None:
    base = job("base")
    middle = job("middle", base)
    assert run(job("top", middle), job("other", base), workers=workers) == Outcome(done=4)
    done = calls(tmp_path)
    assert done.index("base") == 0
    assert done.index("middle") < done.index("top")
    assert folders(tmp_path) == [], "weights are large"


def test_a_base_whose_folder_is_gone_is_remade(run: Run, tmp_path: Path) -> None:
    base = job("base")
    assert run(base, job("one", base)) == Outcome(done=2)
    assert run(base, job("two", base)) == Outcome(done=2, known=1)
    assert calls(tmp_path) == ["base", "one", "base", "two"]
    assert len(store(tmp_path).by_digest()) == 3


@pytest.mark.slow
def test_a_base_whose_folder_is_there_is_not_remade(run: Run, tmp_path: Path) -> None:
    base = job("base", seconds=0.25)
    top = job("top", base)
    assert run(top, seconds=0.2) == Outcome(done=1, left=1)
    assert run(top) == Outcome(done=1)
    assert calls(tmp_path) == ["base", "top"]


def test_a_folder_without_its_mark_is_not_trusted(run: Run, tmp_path: Path) -> None:
    """It is what a crash leaves in the middle of a job."""
    base = job("base")
    half = module._folder(tmp_path / "work", base)
    half.mkdir(parents=True)
    (half / "weights").write_text("half of them")
    run(job("top", base))
    assert calls(tmp_path) == ["base", "top"]


@both
def test_without_time_nothing_starts_and_all_is_left(run: Run, tmp_path: Path, workers: int) -> None:
    assert run(job("a"), job("b", job("c")), workers=workers, seconds=0) == Outcome(left=3)
    assert calls(tmp_path) == []


@pytest.mark.slow
def test_what_was_running_when_time_ran_out_is_not_left(run: Run, tmp_path: Path) -> None:
    jobs = [job(str(number), seconds=0.2 + 0.1 * number) for number in range(4)]
    assert run(*jobs, workers=2, seconds=0.1) == Outcome(done=2, left=2)
    assert len(calls(tmp_path)) == 2


def test_what_still_runs_at_the_stop_is_ended_and_left(run: Run, tmp_path: Path) -> None:
    """A job whose weight, in minutes, says that it ends later is not begun."""
    quick, slow, heavy = (
        Job("attribute", {"name": name, "seconds": seconds}, weight=weight)
        for name, seconds, weight in (("quick", 0.0, 0.0), ("slow", 30.0, 0.0), ("heavy", 0.0, 1.0))
    )
    began = time.monotonic()
    assert run(quick, slow, heavy, workers=2, stop=1.0) == Outcome(done=1, left=2)
    assert time.monotonic() - began < 20
    assert sorted(calls(tmp_path)) == ["quick", "slow"]
    assert store(tmp_path).by_digest().keys() == {quick.digest}
    assert not module._complete(module._folder(tmp_path / "work", slow)), "it is made anew later"


@both
def test_kept_folders_serve_later_commands(run: Run, tmp_path: Path, workers: int) -> None:
    base = job("base")
    assert run(base, job("one", base), workers=workers, keep=True) == Outcome(done=2)
    assert len(folders(tmp_path)) == 2
    assert run(job("two", base), workers=workers) == Outcome(done=1)
    assert sorted(calls(tmp_path)) == ["base", "one", "two"]


def test_a_failure_is_not_kept(run: Run, tmp_path: Path) -> None:
    assert len(run(job("broken", fails=True), keep=True).failed) == 1
    assert folders(tmp_path) == []


@pytest.mark.slow
def test_a_job_that_measures_time_runs_alone(run: Run, tmp_path: Path) -> None:
    others = [job(str(number), seconds=0.1) for number in range(4)]
    speeds = [job(f"speed {number}", kind="speed", seconds=0.1) for number in range(2)]
    run(*speeds, *others, workers=2)
    found = store(tmp_path).by_digest()
    times = {digest: (result["began"], result["ended"]) for digest, result in found.items()}

    def beside(one: Job) -> int:
        began, ended = times[one.digest]
        return sum(begun < ended and began < end for begun, end in times.values()) - 1

    assert [beside(one) for one in speeds] == [0, 0]
    assert any(beside(one) for one in others), "the rest does run side by side"


def test_a_killed_worker_fails_its_job_and_the_rest_is_left(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(job: Job, **_: Any) -> dict[str, Any]:
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError

    monkeypatch.setattr(module, "run_job", dies)
    outcome = run(*(job(str(number)) for number in range(5)), workers=2)
    assert outcome.done == 0
    assert set(outcome.failed.values()) == {"its process was killed"}
    assert len(outcome.failed) + outcome.left == 5
    assert outcome.left > 0


@pytest.mark.slow
def test_a_kill_loses_only_what_was_running(run: Run, tmp_path: Path) -> None:
    """The whole group at once, as when a machine is taken away."""
    jobs = [job(str(number), seconds=0.15) for number in range(12)]

    def doomed() -> None:
        os.setsid()
        run(*jobs, workers=2)

    process = multiprocessing.get_context("fork").Process(target=doomed)
    process.start()
    until = time.monotonic() + 30
    while len(store(tmp_path).lines()) < 2 and time.monotonic() < until:
        time.sleep(0.01)
    assert process.pid is not None
    os.killpg(process.pid, signal.SIGKILL)
    process.join(30)
    assert process.exitcode == -signal.SIGKILL
    kept = {entry["settings"]["name"] for entry in store(tmp_path).lines().values()}
    assert 2 <= len(kept) < 12
    before = len(calls(tmp_path))
    assert run(*jobs, workers=2) == Outcome(done=12 - len(kept), known=len(kept))
    assert kept.isdisjoint(calls(tmp_path)[before:])
    assert len(store(tmp_path).lines()) == 12


HANGS_IF_THREADS_ARE_FORKED = """
import os
import sys
from pathlib import Path
import torch
from reproduction.runs import workers
from reproduction.runs.dataset_cache import DatasetCache
from reproduction.jobs import Job
from reproduction.runs.result_file import ResultFile

def work(job, **_):
    return {"sum": float(torch.randn(2000, 400).exp().sum())}

workers.run_job, workers.provenance, os.cpu_count = work, dict, lambda: 8
workers._weights = lambda job, cache: {}
os.setsid()
folder = Path(sys.argv[1])
(folder / "group").write_text(str(os.getpid()))
torch.set_num_threads(4)
torch.randn(2000, 400).exp().sum()
jobs = [Job("attribute", {"n": n}) for n in range(2)]
done = workers.run_jobs(
    jobs, results=ResultFile(folder / "r"), work=folder, cache=DatasetCache({}), workers=2
)
print(done.done)
"""


@pytest.mark.slow
def test_a_parent_that_computed_with_threads_can_still_fork(tmp_path: Path) -> None:
    script = tmp_path / "forks.py"
    script.write_text(HANGS_IF_THREADS_ARE_FORKED, encoding="utf-8")
    child = Script(script, [str(tmp_path)], log=tmp_path / "log")
    until = time.monotonic() + 60
    while child.running and time.monotonic() < until:
        time.sleep(0.02)
    if child.running:
        os.killpg(int((tmp_path / "group").read_text()), signal.SIGKILL)
        pytest.fail("a worker waits for threads that it does not have")
    assert child.output.strip() == "2", child.errors[-2000:]
