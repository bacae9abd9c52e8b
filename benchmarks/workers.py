"""Throughput of `dpf serve` with one worker and with two, against the bare back, in one run.

python -m benchmarks.workers [--run RUN] [--seconds 6] [--turns 3] [--workers 1 2] [--json OUT] [--smoke]

Users have tokens of their own; with --per-day their quotas are counted too. In every turn the bare back (one
thread, batches of 16) is measured beside each number of workers, and a ratio is taken within the turn. The
load runs on the same machine: with fewer cores than workers + 1 it takes from what the workers have, and
`cpu_ratio` (CPU time of a row of the bare back over CPU time of an answer) is the number to trust.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from benchmarks.goals import Results, arguments, say
from benchmarks.load import FRAME_TYPE, Ask, Line, NoAnswer, closed_loop, frames_for, request
from benchmarks.service import Bare, make_run
from dp_forward.cli.serve import front_digest_beside
from dp_forward.service.protocol.manifest import Manifest
from dp_forward.service.server.users import UserStore
from dp_forward.split.artifacts import load_provider_side

CLIENTS, BATCH = 32, 16


class UserLine(Line):
    """A connection of a user with a token."""

    def __init__(self, host: str, port: int, token: str) -> None:
        super().__init__(host, port)
        self._headers = [FRAME_TYPE, ("authorization", f"Bearer {token}")]

    async def post(self, frame: bytes) -> tuple[int, bytes]:
        """One frame to be answered."""
        return await self._again(request("POST", "/v1/answer", frame, self._headers))


@contextmanager
def served(run: Path, store: Path, workers: int) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """`dpf serve` with so many workers of one thread each; its line."""
    command = [sys.executable, "-m", "dp_forward.cli.main", "serve", str(run / "back"), "--port", "0"]
    command += ["--store", str(store), "--workers", str(workers), "--device", "cpu"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None
    try:
        yield process, json.loads(process.stdout.readline())
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def worker_cpu(supervisor: int) -> list[float]:
    """CPU seconds of each worker."""
    pids = Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text(encoding="ascii").split()
    stats = [Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split() for pid in pids]
    return [(int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") for fields in stats]


async def load(
    line: dict[str, Any], token: str, frames: list[bytes], seconds: float, pid: int
) -> dict[str, Any]:
    """Closed-loop clients for a while: answers, CPU time, and how evenly the workers shared them."""
    lines = [UserLine(line["host"], line["port"], token) for _ in range(CLIENTS)]

    def client(one: UserLine) -> Ask:
        async def ask(frame: bytes) -> str | None:
            try:
                status, _ = await one.post(frame)
            except NoAnswer:
                return "no answer"
            return None if status == 200 else str(status)

        return ask

    clients = [client(one) for one in lines]
    await closed_loop(clients, frames, seconds=seconds / 4)
    before = worker_cpu(pid)
    tally = await closed_loop(clients, frames, seconds=seconds)
    spent = [after - start for start, after in zip(before, worker_cpu(pid), strict=True)]
    for one in lines:
        await one.close()
    return {
        "answers_per_s": tally.per_second,
        "cpu_s_per_answer": sum(spent) / max(1, len(tally.latencies)),
        "cpu_s_of_workers": spent,
        "p50_ms": tally.quantile(0.5),
        "p99_ms": tally.quantile(0.99),
        "errors": dict(tally.errors),
    }


def measure(run: Path, folder: Path, given: argparse.Namespace) -> list[dict[str, Any]]:
    """One row for each number of workers in each turn."""
    manifest = Manifest.of(load_provider_side(run / "back"), front_digest_beside(run / "back"))
    frames = frames_for(manifest, 64)
    bare = Bare(run, manifest, frames, min(os.sched_getaffinity(0)))
    store = UserStore(folder / "store")
    token = store.add("alice", per_day=given.per_day)
    store.close()
    rows = []
    for turn in range(given.turns):
        for workers in given.workers:
            with served(run, folder / "store", workers) as (process, line):
                found = asyncio.run(load(line, token, frames, given.seconds, process.pid))
            rate, cpu = bare.per_second(Counter({BATCH: 1}), seconds=given.seconds / 2)
            ratios = {"ratio": found["answers_per_s"] / rate, "cpu_ratio": cpu / found["cpu_s_per_answer"]}
            rows.append({"turn": turn, "workers": workers, "bare_per_s": rate, **ratios, **found})
            say(json.dumps(rows[-1]))
    return rows


def main() -> int:
    """Measure; the medians by number of workers."""
    parser = arguments(__doc__ or "", "workers")
    parser.add_argument("--run", type=Path, help="a RUN of dpf finetune [one is made]")
    parser.add_argument("--seconds", type=float, help="length of each row [6, with --smoke 1]")
    parser.add_argument("--turns", type=int, help="[3, with --smoke 1]")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--per-day", type=int)
    given = parser.parse_args()
    given.seconds = given.seconds or (1.0 if given.smoke else 6.0)
    given.turns = given.turns or (1 if given.smoke else 3)
    torch.set_num_threads(1)
    libraries = ("torch", "transformers", "starlette", "uvicorn")
    command = "python -m benchmarks.workers"
    results = Results(given.json, command=command, libraries=libraries, smoke=given.smoke)
    with tempfile.TemporaryDirectory() as folder:
        rows = measure(given.run or make_run(Path(folder) / "run"), Path(folder), given)
    names = ("answers_per_s", "bare_per_s", "ratio", "cpu_ratio", "p50_ms", "p99_ms")
    for workers in given.workers:
        own = [row for row in rows if row["workers"] == workers]
        middle = {name: statistics.median(row[name] for row in own) for name in names}
        busiest = max(max(row["cpu_s_of_workers"]) / sum(row["cpu_s_of_workers"]) for row in own)
        results.add("medians", {"workers": workers, **middle, "busiest_share": busiest})
    results.put("setup", {"clients": CLIENTS, "per_day": given.per_day, "seconds": given.seconds})
    results.put("rows", rows)
    return results.close(judge=not given.no_goals)


if __name__ == "__main__":
    sys.exit(main())
