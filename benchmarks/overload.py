"""Answers per second at 1 to 600 connections, against the peak and against the bare back.

python -m benchmarks.overload [--run RUN] [--cut CUT] [--seconds 5] [--json OUT] [--smoke] [--no-goals]

The server is `dpf serve` on the first core, as in `benchmarks.service`; the load comes from the second core.
Every connection asks again at once, also after a refusal (`hasty`), or waits as Retry-After says (`patient`).
An answer has the status 200; whatever else came back was shed. A health check runs beside the load.
"""

from __future__ import annotations

import asyncio
import gc
import os
import statistics
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from benchmarks.goals import Results, arguments, on_cores, say
from benchmarks.load import Line, NoAnswer, closed_loop, frames_for, http_clients
from benchmarks.service import Bare, Served, batches, make_run, manifest_of, served

CONNECTIONS = (1, 8, 32, 128, 600)


async def probe_health(server: Served, slowest: list[float]) -> None:
    """Ask for health ten times a second over one connection each; its latency, or inf where none came."""
    while True:
        line, start = Line(server.host, server.port), time.perf_counter()
        try:
            async with asyncio.timeout(5):
                status, _ = await line.get("/healthz")
            slowest.append(time.perf_counter() - start if status == 200 else float("inf"))
        except (NoAnswer, OSError, TimeoutError):
            slowest.append(float("inf"))
        await line.close()
        await asyncio.sleep(0.1)


async def one_row(
    server: Served, bare: Bare, frames: list[bytes], many: int, *, patient: bool, seconds: float
) -> dict[str, Any]:
    """So many closed-loop connections, then the bare back with the batches that the server had."""
    line, health = Line(server.host, server.port), list[float]()
    clients, close = await http_clients(server.host, server.port, many, patient=patient)
    await closed_loop(clients, frames, seconds=min(2.0, seconds / 2))
    before = await batches(line)
    probe = asyncio.create_task(probe_health(server, health))
    busy = server.cpu_s()
    tally = await closed_loop(clients, frames, seconds=seconds)
    busy = (server.cpu_s() - busy) / (tally.ended - tally.began)
    probe.cancel()
    await close()
    counted = (await batches(line)).since(before)
    await line.close()
    direct, _ = bare.per_second(counted.sizes(), seconds=min(seconds, 3.0))
    return {
        "clients": "patient" if patient else "hasty",
        "connections": many,
        "answers_per_s": tally.per_second,
        "of_bare_back": tally.per_second / direct,
        "shed_per_s": sum(tally.errors.values()) / (tally.ended - tally.began),
        "p50_ms": tally.quantile(0.5),
        "p99_ms": tally.quantile(0.99),
        "server_cpu_share": busy,
        "mean_batch": counted.requests / max(1, counted.count),
        "health_slowest_ms": 1e3 * max(health, default=float("nan")),
        "shed": dict(tally.errors),
    }


async def measure(
    results: Results, server: Served, run: Path, core: int, *, turns: int, seconds: float
) -> None:
    """All numbers of connections in turn, hasty and patient; the medians against the peak of their kind."""
    manifest = await manifest_of(server)
    frames = frames_for(manifest, 64)
    bare = Bare(run, manifest, frames, core)
    gc.freeze()  # a collection over all that torch has loaded stops the load for half a second
    for patient in (False, True):
        kind, rows = "patient" if patient else "hasty", list[dict[str, Any]]()
        for turn in range(turns):
            for many in CONNECTIONS:
                say(f"overload: turn {turn + 1} of {turns}, {many} {kind} connections ...")
                rows.append(await one_row(server, bare, frames, many, patient=patient, seconds=seconds))
        found = []
        for many in CONNECTIONS:
            same = [row for row in rows if row["connections"] == many]
            numbers = [key for key, value in same[0].items() if isinstance(value, float)]
            middle = {key: statistics.median(row[key] for row in same) for key in numbers}
            shed = sum((Counter(row["shed"]) for row in same), Counter[str]())
            found.append({"clients": kind, "connections": many, **middle, "shed": dict(shed)})
        peak = max(row["answers_per_s"] for row in found)
        for row in found:
            results.add("connections", {**row, "of_peak": row["answers_per_s"] / peak})
        share = found[-1]["answers_per_s"] / peak
        name = f"{kind}: answers at {CONNECTIONS[-1]} connections, of the peak"
        results.goal(name, share, "at least 0.8", share >= 0.8)
        slowest = max(row["health_slowest_ms"] for row in rows)
        results.goal(f"{kind}: slowest health check, ms", slowest, "below 5000", slowest < 5000)


def main() -> int:
    """Serve, measure, judge."""
    parser = arguments(__doc__ or "", "overload")
    parser.add_argument("--run", type=Path, help="a RUN of dpf finetune [one is made]")
    parser.add_argument("--cut", default="encoder.3", help="where the run that is made is cut")
    parser.add_argument("--seconds", type=float, help="length of each row [5, with --smoke 1]")
    given = parser.parse_args()
    torch.set_num_threads(1)
    results = Results(
        given.json,
        command="python -m benchmarks.overload",
        libraries=("torch", "transformers", "starlette", "uvicorn"),
        smoke=given.smoke,
    )
    cores, turns = sorted(os.sched_getaffinity(0)), 1 if given.smoke else 3
    seconds = given.seconds or (1.0 if given.smoke else 5.0)
    with tempfile.TemporaryDirectory() as folder:
        run = given.run or make_run(Path(folder) / "run", cut=given.cut)
        with served(run, cores[0], Path(folder)) as server, on_cores({cores[-1]}):
            asyncio.run(measure(results, server, run, cores[0], turns=turns, seconds=seconds))
    return results.close(judge=not given.no_goals)


if __name__ == "__main__":
    sys.exit(main())
