"""Many steps side by side: what is finished is not done again, and what a crash cut short is done anew.

Steps run in forked processes, so texts that were read before are shared. Fine-tuning a small model is bound
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
from typing import Any

from dp_forward.errors import DpForwardError
from dp_forward.train.provenance import provenance
from reproduction.jobs import Step, in_order
from reproduction.runs.dataset_cache import Shelf
from reproduction.runs.result_file import Results
from reproduction.runs.runners import carry_out, reader_of

__all__ = ["Outcome", "Told", "run_steps"]


@dataclass(frozen=True)
class Told:
    """What is known after a step: for a progress bar."""

    done: int
    total: int
    seconds_left: float
    step: Step
    seconds: float
    error: str | None = None


@dataclass
class Outcome:
    """Steps that were done now, were known before, failed, or were left: out of time, or a lost worker."""

    done: int = 0
    known: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    left: int = 0


def run_steps(
    steps: Iterable[Step],
    *,
    results: Results,
    work: Path,
    shelf: Shelf,
    workers: int = 1,
    seconds: float | None = None,
    tell: Callable[[Told], None] | None = None,
    reading: Callable[[int, int], None] | None = None,
) -> Outcome:
    """Carry out what is not in ``results`` yet, and what that builds on; append each result as it comes.

    ``seconds`` starts no step after so long. ``reading`` is told how many plans have their texts. A step that
    fails costs itself and what builds on it.
    """
    wanted = list(dict.fromkeys(steps))
    known = results.by_digest()
    outcome = Outcome(known=sum(step.digest in known for step in wanted))
    todo = _needed([step for step in wanted if step.digest not in known], work)
    if not todo:
        return outcome
    _read_texts(todo, shelf, reading)
    job = _Job(todo, results, work, outcome, tell, time.monotonic(), seconds)
    if workers == 1:
        job.run_here(shelf)
    else:
        job.run_beside(shelf, workers)
    outcome.left = len(todo) - outcome.done - len(outcome.failed)
    return outcome


def _needed(missing: list[Step], work: Path) -> list[Step]:
    """Missing steps, and those they build on whose folder is gone; what is built on first."""
    chosen: list[Step] = []

    def add(step: Step, *, built_on: bool) -> None:
        if step in chosen or (built_on and _complete(_folder(work, step))):
            return
        for earlier in step.after:
            add(earlier, built_on=True)
        chosen.append(step)

    for step in missing:
        add(step, built_on=False)
    return chosen


def _read_texts(steps: list[Step], shelf: Shelf, reading: Callable[[int, int], None] | None) -> None:
    """Before the fork, the longest rows first: shorter ones are cut from them."""
    from dp_forward.train.defaults import effective_plan
    from dp_forward.train.plan import Plan

    plans = [
        (effective_plan(Plan.from_dict(step.settings)), reader_of(step))
        for step in steps
        if step.kind == "finetune"
    ]
    for number, (plan, model) in enumerate(sorted(plans, key=lambda item: -(item[0].rows or 0))):
        shelf.prepare(plan, model)
        if reading is not None:
            reading(number + 1, len(plans))


def _folder(work: Path, step: Step) -> Path:
    return work / f"{step.kind}-{step.digest[:16]}"


def _complete(folder: Path) -> bool:
    return (folder / _DONE).is_file()


_DONE = ".complete"
_ALONE = ("speed",)


@dataclass
class _Job:
    todo: list[Step]
    results: Results
    work: Path
    outcome: Outcome
    tell: Callable[[Told], None] | None
    started: float
    seconds: float | None

    def __post_init__(self) -> None:
        self.total = len(self.todo)
        self.whole_weight = sum(step.weight for step in self.todo)
        self.weight_done = 0.0
        self.finished: set[Step] = set()

    def run_here(self, shelf: Shelf) -> None:
        """One after the other, in this process."""
        for step in list(self.todo):
            if self._skipped(step) or self._out_of_time():
                continue
            self._ended(step, *_one(step, self.work, shelf))

    def run_beside(self, shelf: Shelf, workers: int) -> None:
        """Several at once: first what builds on finished work, then what has the longest chain behind it.

        Finished weights take room, and are lost with a machine that is taken away: use them soon.
        """
        context = multiprocessing.get_context("fork")
        waiting = sorted(self.todo, key=lambda step: (not step.after, -self._chain(step)))
        with ProcessPoolExecutor(workers, mp_context=context, initializer=_begin, initargs=(shelf,)) as pool:
            running: dict[Future[tuple[dict[str, Any] | None, float, str | None]], Step] = {}
            while waiting or running:
                waiting = [step for step in waiting if not self._skipped(step)]
                if self._out_of_time():
                    waiting = []
                for step in self._startable(waiting, set(running.values()))[: workers - len(running)]:
                    waiting.remove(step)
                    running[pool.submit(_in_worker, step, self.work)] = step
                if not running:
                    break
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    step = running.pop(future)
                    try:
                        self._ended(step, *future.result())
                    except BrokenProcessPool:
                        self._ended(step, None, 0.0, "its process was killed")
                        waiting = []

    def _startable(self, waiting: list[Step], running: set[Step]) -> list[Step]:
        """What can start now. A step that measures time runs alone, after the others."""
        ready = [step for step in waiting if self._can_start(step)]
        beside = [step for step in ready if step.kind not in _ALONE]
        if beside or running:
            return [] if any(step.kind in _ALONE for step in running) else beside
        return ready[:1]

    def _chain(self, step: Step) -> float:
        """A step with all that waits for it: a long chain should start first."""
        after = [self._chain(later) for later in self.todo if step in later.after]
        return step.weight + max(after, default=0.0)

    def _can_start(self, step: Step) -> bool:
        mine = set(self.todo)
        return all(earlier in self.finished or earlier not in mine for earlier in step.after)

    def _skipped(self, step: Step) -> bool:
        broken = [earlier for earlier in in_order(step.after) if earlier.digest in self.outcome.failed]
        if broken and step.digest not in self.outcome.failed:
            self._ended(step, None, 0.0, f"what it builds on failed ({broken[0].digest[:12]})")
        return bool(broken)

    def _out_of_time(self) -> bool:
        return self.seconds is not None and time.monotonic() - self.started >= self.seconds

    def _ended(self, step: Step, made: dict[str, Any] | None, seconds: float, error: str | None) -> None:
        if made is None:
            self.outcome.failed[step.digest] = error or "failed"
        else:
            self._store(step, made, seconds)
            self.finished.add(step)
            self.outcome.done += 1
        self.weight_done += step.weight
        for earlier in (step, *step.after):
            self._tidy(earlier)
        if self.tell is not None:
            passed = time.monotonic() - self.started
            left = passed * (self.whole_weight / self.weight_done - 1)
            done = len(self.finished) + len(self.outcome.failed)
            self.tell(Told(done, self.total, left, step, seconds, error))

    def _store(self, step: Step, made: dict[str, Any], seconds: float) -> None:
        self.results.append(
            {
                "digest": step.digest,
                "kind": step.kind,
                "settings": dict(step.settings),
                "after": [earlier.digest for earlier in step.after],
                "seconds": round(seconds, 1),
                **made,
            }
        )

    def _tidy(self, step: Step) -> None:
        """Drop a folder that nothing waits for any more; weights are large."""
        ended = self.finished | {s for s in self.todo if s.digest in self.outcome.failed}
        if not any(step in later.after and later not in ended for later in self.todo):
            shutil.rmtree(_folder(self.work, step), ignore_errors=True)


_SHELF: Shelf | None = None


def _begin(shelf: Shelf) -> None:
    """In a new worker: the shelf is inherited by the fork, and a worker has one thread.

    Threads are not inherited, but OpenMP in the child believes that it has those of its parent, and would
    wait for them without end.
    """
    import torch
    import transformers

    global _SHELF  # noqa: PLW0603
    _SHELF = shelf
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    transformers.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    torch.set_num_threads(1)
    torch.set_float32_matmul_precision("high")


def _in_worker(step: Step, work: Path) -> tuple[dict[str, Any] | None, float, str | None]:
    assert _SHELF is not None
    try:
        return _one(step, work, _SHELF)
    finally:
        _give_memory_back()


def _give_memory_back() -> None:
    """What a finished step held on the GPU, which others use: PyTorch would keep it for this process."""
    import gc

    import torch

    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        gc.collect()
        torch.cuda.empty_cache()


def _one(step: Step, work: Path, shelf: Shelf) -> tuple[dict[str, Any] | None, float, str | None]:
    """Carry out one step in a clean folder; an error is told, not raised."""
    started, folder = time.monotonic(), _folder(work, step)
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        after = [_folder(work, earlier) for earlier in step.after]
        result = carry_out(step, folder=folder, after=after, shelf=shelf)
        folder.mkdir(exist_ok=True)
        (folder / _DONE).touch()
        # Asked here, in the worker: the parent never touches the GPU.
        made = {"result": result, "provenance": provenance() | _weights(step, shelf)}
        return made, time.monotonic() - started, None
    except Exception as error:
        shutil.rmtree(folder, ignore_errors=True)
        last = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{Path(last.filename).name}:{last.lineno}"
        # Only our own errors are known to hold no text.
        said = str(error) if isinstance(error, DpForwardError) else type(error).__name__
        return None, time.monotonic() - started, f"{said} ({place})"


def _weights(step: Step, shelf: Shelf) -> dict[str, str]:
    """Which weights a step began with; a step that makes its own has none."""
    return {} if step.kind in _ALONE else {"weights": shelf.weights_of(reader_of(step))}
