"""How bound and noise grow with the rows n, the width d and the batch: simulated, and released."""

from __future__ import annotations

from collections.abc import Callable

import torch

from benchmarks.board import Board, Part, at_most
from benchmarks.goals import on_cores, say
from benchmarks.released_noise import gaussian, privunit
from benchmarks.timing import least_cpu_ms, slope, threads
from dp_forward.noise import Sanitizer, release, release_batch
from dp_forward.privacy import Mechanism

SIZES = (1, 2, 4, 8, 16)
BASE = {"simulated": (4, 64, 96), "released": (2, 32, 96)}
"""Batch, n and d, of which one at a time is multiplied; large enough that the call itself costs little."""
_WHY = "linear is 1, and caches that get too small add a little; quadratic would be 2"
AXES = ("batch", "n", "d")
LIMITS = {f"{kind}_slope_in_{axis}": at_most(1.4, _WHY) for kind in BASE for axis in AXES}


def simulated(mechanism: Mechanism, hidden: torch.Tensor) -> Callable[[], object]:
    """What a training step does at the cut."""
    sanitizer = Sanitizer(mechanism, seed=0)
    return lambda: sanitizer(hidden)


def released(mechanism: Mechanism, hidden: torch.Tensor) -> Callable[[], object]:
    """What leaves a user's machine."""
    if len(hidden) == 1:
        return lambda: release(hidden[0], mechanism, bits=8)
    return lambda: release_batch(hidden, mechanism, bits=8)


def run(board: Board) -> None:
    """CPU time in one thread, least of a few; the slope of the steeper mechanism is judged."""
    kinds = {"simulated": simulated, "released": released}
    sizes, repeat = (SIZES[::2], 3) if board.smoke else (SIZES, 9)
    with on_cores({0}), threads(1), torch.inference_mode():
        for kind, call in kinds.items():
            lines: dict[str, list[tuple[float, float]]] = {}
            for place, axis in enumerate(AXES):
                say(f"growth: {kind}, {axis} ...")
                steepest = float("-inf")
                for mechanism in (gaussian(8.0), privunit(8.0)):
                    points = []
                    for times in sizes:
                        shape = [size * (times if at == place else 2) for at, size in enumerate(BASE[kind])]
                        hidden = torch.randn(shape, generator=torch.Generator().manual_seed(0))
                        points.append((float(times), least_cpu_ms(call(mechanism, hidden), repeat=repeat)))
                    steepest = max(steepest, slope(points))
                    lines[f"{axis}, {mechanism.name}"] = points
                board.put(f"{kind}_slope_in_{axis}", steepest)
            board.lines(f"{kind} noise", "times the smallest", "CPU ms", lines)


PART = Part("growth", "How do bound and noise grow with n, d and the batch?", LIMITS, run)
