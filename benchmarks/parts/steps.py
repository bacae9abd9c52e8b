"""A training step of MiniLM's shape: without noise, with ours, and under Opacus; time and memory."""

from __future__ import annotations

import statistics
import warnings
from collections.abc import Callable

import torch

from benchmarks.against_opacus import SMOKE, Bench
from benchmarks.board import Board, Part, at_least, at_most
from benchmarks.goals import say
from benchmarks.released_noise import gaussian, privunit
from benchmarks.timing import Peak, in_fresh_process, threads
from reproduction.runs.speed import SHAPES, Contenders, Shape

SHAPE = Shape(batch=8, rows=64, rounds=5, block=1, model=SHAPES["minilm"])
OURS = ("matrix_gaussian", "privunit")
CONTENDERS: dict[str, Callable[[Contenders], Callable[[], object]]] = {
    "non_private": lambda bench: bench.non_private(),
    "matrix_gaussian": lambda bench: bench.end_to_end(gaussian(8.0), bench.cut),
    "privunit": lambda bench: bench.end_to_end(privunit(8.0), bench.cut),
    "opacus_hooks": lambda bench: bench.opacus("hooks"),
    "opacus_ghost": lambda bench: bench.opacus("ghost"),
    "release_once": lambda bench: bench.from_releases(gaussian(8.0), torch.int8),
}
LIMITS = {
    "end_to_end_over_non_private_time": at_most(
        1.25, "the noise is some percent of a step; beyond that, something is drawn or copied twice"
    ),
    "end_to_end_over_non_private_memory": at_most(
        1.15, "one noisy matrix beside all activations; the rest is the allocator"
    ),
    "hooks_over_end_to_end_time": at_least(1.05, "about 1.4 on a CPU, which computes and does not wait"),
    "ghost_over_end_to_end_time": at_least(1.05, "about 1.5 on a CPU, as above"),
    "hooks_over_end_to_end_memory": at_least(1.15, "Opacus keeps a gradient for each text"),
    "opacus_over_release_once_time": at_least(
        5, "about 11: the back alone trains, one block of six, from stored releases"
    ),
    "opacus_over_release_once_memory": at_least(2, "weights, gradients and optimizer of one block of six"),
}


def run(board: Board) -> None:
    """Times in one process, in turn; memory in a process for each."""
    shape = SMOKE if board.smoke else SHAPE
    with threads(1):  # two that wait for each other on a busy machine measure the waiting
        times = step_times(shape)
    memory = {}
    for name in CONTENDERS:
        say(f"steps: memory of {name} ...")
        memory[name] = in_fresh_process(peak_mib, name, shape)
    medians = {name: statistics.median(found) for name, found in times.items()}
    for name in CONTENDERS:
        board.put(f"step_{name}", medians[name], "ms")
        board.put(f"memory_{name}", memory[name], "MiB")
    board.bars("a training step", "ms", medians)
    board.bars("peak memory of a step", "MiB", memory)

    def over(upper: str, lower: str) -> float:
        return statistics.median(a / b for a, b in zip(times[upper], times[lower], strict=True))

    heaviest = max(memory[name] for name in OURS)
    board.put("end_to_end_over_non_private_time", max(over(name, "non_private") for name in OURS))
    board.put("end_to_end_over_non_private_memory", heaviest / memory["non_private"])
    for mode in ("hooks", "ghost"):
        board.put(f"{mode}_over_end_to_end_time", min(over(f"opacus_{mode}", name) for name in OURS))
        board.put(f"{mode}_over_end_to_end_memory", memory[f"opacus_{mode}"] / heaviest)
    opacus = ("opacus_hooks", "opacus_ghost")
    board.put("opacus_over_release_once_time", min(over(name, "release_once") for name in opacus))
    lightest = min(memory[name] for name in opacus)
    board.put("opacus_over_release_once_memory", lightest / memory["release_once"])


def step_times(shape: Shape) -> dict[str, list[float]]:
    """Milliseconds of a step of each, one number a round."""
    bench = Bench(shape, "cpu")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Opacus says much, and nothing of it is about time
        for name, build in CONTENDERS.items():
            bench.add(name, lambda build=build: build(bench))
        say("steps: rounds ...")
        return bench.rounds()


def peak_mib(name: str, shape: Shape) -> float:
    """Weights, gradients, optimizer and activations of one contender; for a process of its own."""
    torch.set_num_threads(1)
    bench = Bench(shape, "cpu")
    peak = Peak()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        step = CONTENDERS[name](bench)
        for _ in range(2):
            step()
    return peak.mib()


PART = Part("steps", "What does a training step cost, beside no privacy and beside Opacus?", LIMITS, run)
