"""The noise within a step, reading 1,000 texts, and a whole training beside DP-SGD; no part of `make bench`.

Both trainings read the same records of Rotten Tomatoes, on the device that there is: the closed form,
DP-SGD (Opacus, ghost clipping) by the best recipe that was found for it, ten epochs of large batches. The
closed form promises epsilon for text and label of each record against everyone; DP-SGD promises the same
number against who sees the weights, and needs a delta. A training counts from its plan to its report,
evaluation included.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

import torch

from benchmarks.against_opacus import SMOKE, Bench, matmul
from benchmarks.board import Board, Part, at_least, at_most
from benchmarks.goals import say
from benchmarks.parts import reading
from benchmarks.released_noise import gaussian, privunit
from dp_forward.train.dpsgd.dpsgd_plan import DpSgdPlan
from dp_forward.train.dpsgd.dpsgd_training import run_dpsgd
from dp_forward.train.finetune import finetune
from dp_forward.train.plan import Plan
from reproduction.runs.speed import SHAPES, Shape

ON_GPU = torch.cuda.is_available()
SIZES = ((32, 32), (128, 64))
"""Texts and tokens of a step."""
TEXTS, RECORDS, EPSILON = 1000, 2000, 4.0
LIMITS = {
    f"noise_over_none_{batch}_x_{rows}": at_most(
        1.03 if ON_GPU else 1.1,
        "1.04 on an H200 whose host only launches (15 ms a step); at BERT-base's shape 1.015 and 1.024",
    )
    for batch, rows in SIZES
}
LIMITS |= reading.LIMITS
LIMITS["dpsgd_over_closed_form_time"] = at_least(
    30,
    "each record is read once, without a gradient, by DP-SGD in ten epochs; 8.7 on an H200, where the set-up "
    "of a run is most of the closed form's 2.8 s",
)
LIMITS["closed_form_accuracy_over_dpsgd"] = at_least(0.95, "faster must not mean worse")


def run(board: Board) -> None:
    """Steps first: they take seconds on a GPU, and some minutes without."""
    for batch, rows in SIZES:
        steps(board, batch, rows)
    reading.measure(board, texts=64 if board.smoke else TEXTS)
    trainings(board, records=100 if board.smoke else RECORDS)


def steps(board: Board, batch: int, rows: int) -> None:
    """A step of MiniLM's shape: whole, cut at its last block, and with noise there; in turn, in TF32."""
    say(f"speed: steps of {batch} x {rows} ...")
    turns, block = (40, 4) if ON_GPU else (3, 1)
    shape = Shape(batch=batch, rows=rows, rounds=turns, block=block, model=SHAPES["minilm"])
    bench = Bench(SMOKE if board.smoke else shape, "cuda" if ON_GPU else "cpu")
    with matmul("tf32"):
        bench.add("whole", bench.non_private)
        bench.add("none", lambda: bench.end_to_end(None, bench.cut))
        bench.add("matrix_gaussian", lambda: bench.end_to_end(gaussian(8.0), bench.cut))
        bench.add("privunit", lambda: bench.end_to_end(privunit(8.0), bench.cut))
        times = bench.rounds()
    plain = times["none"]
    for name, found in times.items():
        board.put(f"step_{name}_{batch}_x_{rows}", statistics.median(found), "ms")
    over_whole = statistics.median(a / b for a, b in zip(plain, times["whole"], strict=True))
    board.put(f"halves_over_whole_{batch}_x_{rows}", over_whole)
    board.put(
        f"noise_over_none_{batch}_x_{rows}",
        max(
            statistics.median(a / b for a, b in zip(times[name], plain, strict=True))
            for name in ("matrix_gaussian", "privunit")
        ),
    )


def trainings(board: Board, *, records: int) -> None:
    """The same records, whole: from the plan to the report."""
    few = {"evaluation_limit": 50} if board.smoke else {}
    say("speed: the closed form ...")
    start = time.perf_counter()
    plan = Plan(task="rotten-tomatoes", epsilon=EPSILON, train_limit=records, **few)
    with tempfile.TemporaryDirectory() as folder:
        ours = finetune(plan, register=Path(folder) / "register").report
    closed = time.perf_counter() - start
    say("speed: DP-SGD ...")
    theirs = DpSgdPlan(
        task="rotten-tomatoes",
        epsilon=EPSILON,
        mode="ghost",
        train_limit=records,
        epochs=1 if board.smoke else 10,
        batch=min(2048, records // 4),
        micro_batch=256 if ON_GPU else 32,
        **few,
    )
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        baseline = run_dpsgd(theirs, folder=Path(folder) / "run", register=Path(folder) / "register")
        dpsgd = time.perf_counter() - start
    board.put("closed_form_seconds", closed, "s")
    board.put("dpsgd_seconds", dpsgd, "s")
    board.put("dpsgd_over_closed_form_time", dpsgd / closed)
    accuracies = {"closed_form": ours["accuracy"], "dpsgd": baseline["accuracy"]}
    for name, accuracy in accuracies.items():
        board.put(f"{name}_accuracy", accuracy)
    board.put("closed_form_accuracy_over_dpsgd", accuracies["closed_form"] / accuracies["dpsgd"])
    board.bars("a whole training", "s", {"closed_form": closed, "opacus_dpsgd": dpsgd})


PART = Part("speed", "What cost a step with noise, reading, and a training beside DP-SGD?", LIMITS, run)
