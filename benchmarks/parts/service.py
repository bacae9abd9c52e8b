"""The service: answers per second against the bare back, over bare connections and through the client."""

from __future__ import annotations

import asyncio
import os
import statistics
import tempfile
from pathlib import Path

from benchmarks.board import Board, Part, at_least, at_most
from benchmarks.goals import on_cores, say
from benchmarks.load import frames_for
from benchmarks.service import WAYS, Bare, Served, make_run, manifest_of, one_turn, served
from benchmarks.timing import threads

LIMITS = {
    "http_over_bare_back": at_least(0.5, "0.93 in the long run; work on the load's core takes from it"),
    "ask_many_over_bare_back": at_least(0.5, "as over HTTP"),
    "http_over_bare_back_in_cpu_time": at_least(0.6, "as above, and other work disturbs it less"),
    "ask_many_over_bare_back_in_cpu_time": at_least(0.6, "as over HTTP"),
    "mean_batch": at_least(4, "32 clients wait at a time; below 4 they are not answered together"),
    "errors": at_most(0, "every frame is honest"),
}


def run(board: Board) -> None:
    """`dpf serve` on the first core, the load on the last."""
    cores = sorted(os.sched_getaffinity(0))
    turns, seconds = (1, 1.0) if board.smoke else (3, 4.0)
    with tempfile.TemporaryDirectory() as folder, threads(1):
        say("service: starting ...")
        run_folder = make_run(Path(folder) / "run")
        with served(run_folder, cores[0], Path(folder)) as server, on_cores({cores[-1]}):
            asyncio.run(measure(board, server, run_folder, cores[0], turns=turns, seconds=seconds))


async def measure(
    board: Board, server: Served, run_folder: Path, core: int, *, turns: int, seconds: float
) -> None:
    """Turns over each way, and the bare back after each with the batches that the server had."""
    manifest = await manifest_of(server)
    frames = frames_for(manifest, 64)
    bare = Bare(run_folder, manifest, frames, core)
    rows = []
    for turn in range(turns):
        for way in WAYS:
            say(f"service: turn {turn + 1} of {turns}, {way} ...")
            rows.append(await one_turn(server, bare, frames, way=way, seconds=seconds))

    def median(way: str, key: str) -> float:
        return statistics.median(row[key] for row in rows if row["way"] == way)

    rates = {way: median(way, "answers_per_s") for way in WAYS}
    for way in WAYS:
        board.put(f"{way}_answers_per_second", rates[way])
        board.put(f"{way}_p50", median(way, "p50_ms"), "ms")
        board.put(f"{way}_over_bare_back", median(way, "ratio"))
        board.put(f"{way}_over_bare_back_in_cpu_time", median(way, "cpu_ratio"))
    bare_rate = statistics.median(row["bare_back_per_s"] for row in rows)
    board.put("bare_back_rows_per_second", bare_rate)
    board.put("mean_batch", statistics.median(row["mean_batch"] for row in rows))
    board.put("errors", sum(sum(row["errors"].values()) for row in rows))
    board.bars("the service", "per second", {"bare back": bare_rate, **rates})


PART = Part("service", "How much of the bare back's throughput does the service give?", LIMITS, run)
