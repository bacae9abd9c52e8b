"""How long, how much memory, and how it grows."""

from __future__ import annotations

import multiprocessing
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

PRELOAD = [
    "torch",
    "transformers",
    "opacus",
    "dp_forward.corpus.writer",
    "dp_forward.train.dpsgd.private_optimizer",
]
"""Imported once for all fresh processes. Not this package: Opacus installs one of the same name."""


def seconds(call: Callable[[], object]) -> float:
    """The time of one call."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def cpu_seconds(call: Callable[[], object]) -> float:
    """CPU time: on one core and in one thread it is the time that the work takes, whatever else runs."""
    start = time.process_time()
    call()
    return time.process_time() - start


def median_cpu_ms(call: Callable[[], object], *, repeat: int) -> float:
    """The median CPU time of one call, in milliseconds, after a first one."""
    call()
    return 1e3 * statistics.median(cpu_seconds(call) for _ in range(repeat))


def least_cpu_ms(call: Callable[[], object], *, repeat: int) -> float:
    """The least CPU time of one call: other work can only add to it."""
    call()
    return 1e3 * min(cpu_seconds(call) for _ in range(repeat))


def python_cpu_seconds(code: str) -> float:
    """The CPU time of a new interpreter that runs this."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", code], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def slope(points: Sequence[tuple[float, float]]) -> float:
    """By which power of x the y grows: the slope of the line through the points in logarithms."""
    x, y = np.log(np.asarray(points, dtype=np.float64)).T
    return float(np.polyfit(x, y, 1)[0])


@contextmanager
def threads(many: int) -> Iterator[None]:
    """torch on this many threads, and as before afterwards."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(many)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Peak:
    """The most resident memory of this process since it was made, beyond what it held then (Linux)."""

    def __init__(self) -> None:
        # 5 sets the high-water mark back to what is resident now.
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
        self._before = _status("VmRSS")

    def mib(self) -> float:
        """In MiB."""
        return (_status("VmHWM") - self._before) / 1024


def _status(name: str) -> int:
    text = Path("/proc/self/status").read_text(encoding="ascii")
    return int(text.split(f"{name}:")[1].split()[0])


def in_fresh_process(call: Callable[..., Any], *given: Any) -> Any:
    """What ``call`` gives in a process of its own, which no earlier work has left memory in."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    with context.Pool(1) as pool:
        return pool.apply(call, given)
