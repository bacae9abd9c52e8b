"""The table about cost: time and memory of a training step against Opacus."""

from __future__ import annotations

from typing import Final

from reproduction.jobs import Job
from reproduction.model_setup import ModelSetup
from reproduction.tables.table import Cell, Table

__all__ = ["efficiency"]

_CONTENDERS: Final = {
    "non-private": "non_private",
    "DP-Forward, end-to-end (matrix Gaussian)": "gaussian",
    "DP-Forward, end-to-end (PrivUnit)": "privunit",
    "DP-Forward, from stored releases": "from_releases",
    "DP-SGD (Opacus, hooks)": "hooks",
    "DP-SGD (Opacus, ghost)": "ghost",
}


def efficiency(setup: ModelSetup) -> Table:
    """Milliseconds and memory of one step, all contenders in one run."""
    job = Job("speed", {"shape": "bert-base", "batch": 32, "rows": 128, "rounds": 12}, weight=3.0)
    cells = tuple(
        cell
        for name, key in _CONTENDERS.items()
        for cell in (
            Cell(name, "ms a step", (job,), f"{key}.milliseconds", digits=1),
            Cell(name, "against non-private", (job,), f"{key}.time_ratio", digits=2),
            Cell(name, "memory, MiB", (job,), f"{key}.memory_mib", digits=0),
        )
    )
    return Table(
        "efficiency",
        "What a training step costs",
        "efficiency against DP-SGD",
        "contender \\",
        cells,
        (
            "Matrix products in TF32 where the chip has it. In full float32 on the same H200 Opacus is "
            "1.7 times (hooks) and 1.9 times (ghost) as slow as ours ([recipes](../recipes.md#speed)).",
            "BERT-base shape with random weights, batch 32, 128 rows, rounds interleaved; a ratio is the "
            "median over rounds, or the quotient of two medians in numbers that were taken over. "
            "Opacus trains without the token and position tables, which it cannot clip. Memory is "
            "what the step needs beyond the weights of the others; on a CPU it is not measured.",
            "The paper prints about three times the time and three times the memory for DP-SGD; what came of "
            "that is among its claims on the [first page](index.md).",
        ),
    )
