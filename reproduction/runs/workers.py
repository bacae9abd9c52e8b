"""Workers: many jobs side by side, each finished one stored, what a crash cut short done anew.

Jobs run in forked processes, so texts that were read before are shared. Fine-tuning a small model is bound
by kernel launches: one GPU takes a dozen runs at once (start ``nvidia-cuda-mps-control -d`` first).
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import time
import traceback
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from dp_forward.errors import DpForwardError
from dp_forward.progress import Progress
from dp_forward.train.report import provenance
from reproduction.jobs import Job, in_order, plan_of
from reproduction.runs.dataset_cache import DatasetCache
from reproduction.runs.result_file import ResultFile
from reproduction.runs.runners import run_job, tokenizer_model

__all__ = ["Outcome", "run_jobs"]

_DONE: Final = ".complete"
_ALONE: Final = ("speed",)
"""Kinds of job that measure time, or begin with weights of their own."""


@dataclass
class Outcome:
    """Jobs that were done now, were known before, failed, or were left: out of time, or a lost worker."""

    done: int = 0
    known: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    left: int = 0


class _Ended(NamedTuple):
    """What came of one job: its result and provenance, or None and the reason."""

    made: dict[str, Any] | None
    seconds: float = 0.0
    error: str = "failed"


def run_jobs(
    jobs: Iterable[Job],
    *,
    results: ResultFile,
    work: Path,
    cache: DatasetCache,
    workers: int = 1,
    seconds: float | None = None,
    stop: float | None = None,
    keep: bool = False,
    progress: Progress | None = None,
    warn: Callable[[str], None] | None = None,
) -> Outcome:
    """Carry out what is not in ``results`` yet, and what that builds on; append each result as it comes.

    ``seconds`` starts no job after so long. ``stop`` ends those that still run then, with several workers,
    and starts none whose weight, in minutes, says that it would not be done by then. ``keep`` leaves every
    finished folder for later commands. A job that fails costs itself and what builds on it; ``warn`` is
    called with the reason.
    """
    wanted, started = list(dict.fromkeys(jobs)), time.monotonic()
    known = results.by_digest()
    outcome = Outcome(known=sum(job.digest in known for job in wanted))
    todo = _needed([job for job in wanted if job.digest not in known], work)
    if not todo:
        return outcome
    _read_texts(todo, cache, progress)
    schedule = _Schedule(todo, results, work, outcome, progress, warn, started, seconds, stop, keep)
    if workers == 1:
        schedule.run_here(cache)
    else:
        schedule.run_beside(cache, workers)
    outcome.left = len(todo) - outcome.done - len(outcome.failed)
    return outcome


def _needed(missing: list[Job], work: Path) -> list[Job]:
    """Missing jobs, and those they build on whose folder is gone; what is built on first."""
    chosen: list[Job] = []

    def add(job: Job, *, built_on: bool) -> None:
        if job in chosen or (built_on and _complete(_folder(work, job))):
            return
        for earlier in job.after:
            add(earlier, built_on=True)
        chosen.append(job)

    for job in missing:
        add(job, built_on=False)
    return chosen


def _read_texts(jobs: list[Job], cache: DatasetCache, progress: Progress | None) -> None:
    """Before the fork, the longest rows first: shorter ones are cut from them. Finished runs count, too."""
    runs = [job for job in in_order(jobs) if job.kind in ("finetune", "masked")]
    plans = [(plan_of(job.settings), tokenizer_model(job)) for job in runs]
    for number, (plan, model) in enumerate(sorted(plans, key=lambda item: -(item[0].rows or 0))):
        cache.prepare(plan, model)
        if progress is not None:
            progress("reading texts", number + 1, len(plans), {})


def _folder(work: Path, job: Job) -> Path:
    return work / f"{job.kind}-{job.digest[:16]}"


def _complete(folder: Path) -> bool:
    return (folder / _DONE).is_file()


@dataclass
class _Schedule:
    todo: list[Job]
    results: ResultFile
    work: Path
    outcome: Outcome
    progress: Progress | None
    warn: Callable[[str], None] | None
    started: float
    seconds: float | None
    stop: float | None
    keep: bool

    def __post_init__(self) -> None:
        self.whole_weight = sum(job.weight for job in self.todo)
        self.weight_done = 0.0
        self.finished: set[Job] = set()

    def run_here(self, cache: DatasetCache) -> None:
        """One after the other, in this process."""
        for job in list(self.todo):
            if self._skipped(job) or self._out_of_time():
                continue
            self._ended(job, _one(job, self.work, cache))

    def run_beside(self, cache: DatasetCache, workers: int) -> None:
        """Several at once: first what builds on finished work, then what has the longest chain behind it.

        Finished weights take room, and are lost with a machine that is taken away: use them soon.
        """
        context = multiprocessing.get_context("fork")
        waiting = sorted(self.todo, key=lambda job: (not job.after, -self._chain(job)))
        with ProcessPoolExecutor(workers, mp_context=context, initializer=_begin, initargs=(cache,)) as pool:
            running: dict[Future[_Ended], Job] = {}
            while waiting or running:
                waiting = [job for job in waiting if not self._skipped(job)]
                if self._out_of_time():
                    waiting = []
                for job in self._startable(waiting, set(running.values()))[: workers - len(running)]:
                    waiting.remove(job)
                    running[pool.submit(_in_worker, job, self.work)] = job
                if not running:
                    break
                done = wait(running, timeout=self._time_left(), return_when=FIRST_COMPLETED).done
                if not done:
                    _end(pool)
                    break
                for future in done:
                    job = running.pop(future)
                    try:
                        self._ended(job, future.result())
                    except BrokenProcessPool:
                        self._ended(job, _Ended(None, error="its process was killed"))
                        waiting = []

    def _startable(self, waiting: list[Job], running: set[Job]) -> list[Job]:
        """What can start now. A job that measures time runs alone, after the others."""
        ready = [job for job in waiting if self._can_start(job) and self._in_time(job)]
        beside = [job for job in ready if job.kind not in _ALONE]
        if beside or running:
            return [] if any(job.kind in _ALONE for job in running) else beside
        return ready[:1]

    def _chain(self, job: Job) -> float:
        """A job with all that waits for it: a long chain should start first."""
        after = [self._chain(later) for later in self.todo if job in later.after]
        return job.weight + max(after, default=0.0)

    def _can_start(self, job: Job) -> bool:
        mine = set(self.todo)
        return all(earlier in self.finished or earlier not in mine for earlier in job.after)

    def _skipped(self, job: Job) -> bool:
        broken = [earlier for earlier in in_order(job.after) if earlier.digest in self.outcome.failed]
        if broken and job.digest not in self.outcome.failed:
            self._ended(job, _Ended(None, error=f"what it builds on failed ({broken[0].digest[:12]})"))
        return bool(broken)

    def _in_time(self, job: Job) -> bool:
        left = self._time_left()
        return left is None or 60 * job.weight <= left

    def _time_left(self) -> float | None:
        """Until running jobs are ended."""
        return None if self.stop is None else max(0.0, self.stop - (time.monotonic() - self.started))

    def _out_of_time(self) -> bool:
        return self.seconds is not None and time.monotonic() - self.started >= self.seconds

    def _ended(self, job: Job, ended: _Ended) -> None:
        if ended.made is None:
            self.outcome.failed[job.digest] = ended.error
            if self.warn is not None:
                self.warn(f"{job.kind} {job.digest[:12]}: {ended.error}")
        else:
            self._store(job, ended.made, ended.seconds)
            self.finished.add(job)
            self.outcome.done += 1
        self.weight_done += job.weight
        for earlier in (job, *job.after):
            self._tidy(earlier)
        if self.progress is not None:
            passed = time.monotonic() - self.started
            minutes = passed * (self.whole_weight / self.weight_done - 1) / 60
            done = len(self.finished) + len(self.outcome.failed)
            self.progress("steps", done, len(self.todo), {"minutes left": minutes})

    def _store(self, job: Job, made: dict[str, Any], seconds: float) -> None:
        self.results.append(
            {
                "digest": job.digest,
                "kind": job.kind,
                "settings": dict(job.settings),
                "after": [earlier.digest for earlier in job.after],
                "seconds": round(seconds, 1),
                **made,
            }
        )

    def _tidy(self, job: Job) -> None:
        """Drop a folder that nothing waits for any more; weights are large."""
        if self.keep and job in self.finished:
            return
        ended = self.finished | {s for s in self.todo if s.digest in self.outcome.failed}
        if not any(job in later.after and later not in ended for later in self.todo):
            shutil.rmtree(_folder(self.work, job), ignore_errors=True)


_CACHE: DatasetCache | None = None


def _begin(cache: DatasetCache) -> None:
    """In a new worker: the cache is inherited by the fork, and a worker has one thread.

    Threads are not inherited, but OpenMP in the child believes that it has those of its parent, and would
    wait for them without end.
    """
    import torch
    import transformers

    global _CACHE  # noqa: PLW0603
    _CACHE = cache
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    transformers.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    torch.set_num_threads(1)
    torch.set_float32_matmul_precision("high")


def _end(pool: ProcessPoolExecutor) -> None:
    """End the jobs of a pool where they are; a folder without its mark is made anew later."""
    for process in list((pool._processes or {}).values()):
        process.kill()


def _in_worker(job: Job, work: Path) -> _Ended:
    assert _CACHE is not None
    try:
        return _one(job, work, _CACHE)
    finally:
        _give_memory_back()


def _give_memory_back() -> None:
    """What a finished job held on the GPU, which others use: PyTorch would keep it for this process."""
    import gc

    import torch

    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        gc.collect()
        torch.cuda.empty_cache()


def _one(job: Job, work: Path, cache: DatasetCache) -> _Ended:
    """Carry out one job in a clean folder; an error is told, not raised."""
    started, folder = time.monotonic(), _folder(work, job)
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        after = [_folder(work, earlier) for earlier in job.after]
        result = run_job(job, folder=folder, after=after, cache=cache)
        folder.mkdir(exist_ok=True)
        (folder / _DONE).touch()
        # Asked here, in the worker: the parent never touches the GPU.
        made = {"result": result, "provenance": provenance() | _weights(job, cache)}
        return _Ended(made, time.monotonic() - started)
    except Exception as error:
        shutil.rmtree(folder, ignore_errors=True)
        last = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{Path(last.filename).name}:{last.lineno}"
        # Only our own errors are known to hold no text.
        said = str(error) if isinstance(error, DpForwardError) else type(error).__name__
        return _Ended(None, time.monotonic() - started, f"{said} ({place})")


def _weights(job: Job, cache: DatasetCache) -> dict[str, str]:
    """Which weights a job began with; a job that makes its own has none."""
    return {} if job.kind in _ALONE else {"weights": cache.weights_of(tokenizer_model(job))}
