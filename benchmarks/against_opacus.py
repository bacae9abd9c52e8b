"""A training step of BERT-base shape: without noise, with ours, and under Opacus, in one run.

python -m benchmarks.against_opacus --json OUT.json --device cuda      (--smoke: tiny shapes, in seconds)

The contenders, and how fair the race is, are in `reproduction.runs.speed`; this command adds the cut at
`output`, int8 beside int16, what a front costs once, two precisions, and goals to reach.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.report import provenance
from dp_forward.noise import Sanitizer
from dp_forward.privacy import TEXT, Budget, MatrixGaussian, Mechanism, PrivUnit, calibrate, normalise
from dp_forward.split import split_model
from reproduction.runs.speed import SHAPES, Contenders, Shape

MATMUL = {"fp32": "highest", "tf32": "high"}
"""What a matrix product of float32 is computed in: as it is, or with ten bits of mantissa."""
END_TO_END = ("gaussian_encoder", "privunit_encoder", "gaussian_output", "privunit_output")
GOALS = {
    "end_to_end_over_non_private_time": ("at most", 1.03),
    "end_to_end_over_non_private_memory": ("at most", 1.03),
    "hooks_over_end_to_end_time": ("at least", 4.5),
    "ghost_over_end_to_end_time": ("at least", 5.0),
    "opacus_over_release_once_time": ("at least", 20.0),
}


SMOKE = Shape(batch=4, rows=8, rounds=2, block=1, model=SHAPES["tiny"])


class Bench(Contenders):
    """The contenders of `reproduction.runs.speed`, and one more; says what it builds."""

    def add(self, name: str, build: Callable[[], Callable[[], object]]) -> None:
        """Build one contender, warm it up, and note its peak memory in MiB."""
        print(f"against_opacus: {name} ...", file=sys.stderr, flush=True)
        super().add(name, build)

    def front_once(self, mechanism: Mechanism) -> Callable[[], object]:
        """What `release-once` pays a single time per text: the frozen front, and simulated noise."""
        front = split_model(self.model, self.cut).front.to(self.device).eval()
        sanitizer = Sanitizer(mechanism)
        given = {name: tensor for name, tensor in self.inputs.items() if name != "labels"}

        def step() -> Tensor:
            with torch.no_grad():
                return sanitizer(front(**given))

        return step


def measure(shape: Shape, device: str, precisions: list[str]) -> dict[str, Any]:
    """Times for each precision, memory, and the ratios that the goals are about."""
    gaussian = calibrate(MatrixGaussian, Budget(8.0, 1e-5), bound=normalise(1.0), unit=TEXT)
    privunit = calibrate(PrivUnit, Budget(8.0), bound=normalise(1.0), unit=TEXT)
    bench = Bench(shape, device)
    with matmul(precisions[0]):
        bench.add("non_private", bench.non_private)
        bench.add("gaussian_encoder", lambda: bench.end_to_end(gaussian, bench.cut))
        bench.add("privunit_encoder", lambda: bench.end_to_end(privunit, bench.cut))
        bench.add("gaussian_output", lambda: bench.end_to_end(gaussian, "output"))
        bench.add("privunit_output", lambda: bench.end_to_end(privunit, "output"))
        bench.add("opacus_hooks", lambda: bench.opacus("hooks"))
        bench.add("opacus_ghost", lambda: bench.opacus("ghost"))
        bench.add("release_once_int16", lambda: bench.from_releases(gaussian, torch.int16))
        bench.add("release_once_int8", lambda: bench.from_releases(gaussian, torch.int8))
        bench.add("front_once", lambda: bench.front_once(gaussian))
        bench.add("non_private_frozen_tables", lambda: bench.non_private(tables=False))
    result: dict[str, Any] = {"cut": bench.cut, "attention": bench.model.config._attn_implementation}
    result["peak_memory_mib"] = bench.memory
    for precision in precisions:
        print(f"against_opacus: rounds in {precision} ...", file=sys.stderr, flush=True)
        with matmul(precision):
            times = bench.rounds()
        result[precision] = {
            "matmul_precision": MATMUL[precision],
            "step_ms": {name: statistics.median(found) for name, found in times.items()},
            "ratios": ratios(times, bench.memory),
        }
    return result


def ratios(times: dict[str, list[float]], memory: dict[str, float]) -> dict[str, float]:
    """What the goals are about; of several contenders, the one that makes ours look worst."""

    def over(upper: str, lower: str) -> float:
        return statistics.median(a / b for a, b in zip(times[upper], times[lower], strict=True))

    found = {
        "end_to_end_over_non_private_time": max(over(name, "non_private") for name in END_TO_END),
        "hooks_over_end_to_end_time": min(over("opacus_hooks", name) for name in END_TO_END),
        "ghost_over_end_to_end_time": min(over("opacus_ghost", name) for name in END_TO_END),
        "opacus_over_release_once_time": min(
            over(name, "release_once_int16") for name in ("opacus_hooks", "opacus_ghost")
        ),
    }
    if memory:
        most = max(memory[name] for name in END_TO_END)
        found["end_to_end_over_non_private_memory"] = most / memory["non_private"]
    return found


@contextmanager
def matmul(precision: str) -> Iterator[None]:
    """Products of float32 in this precision, and the setting of before afterwards."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(MATMUL[precision])
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def missed(found: dict[str, float]) -> list[str]:
    """The goals that were not reached."""
    return [
        key
        for key, (kind, value) in GOALS.items()
        if key in found and not (found[key] <= value if kind == "at most" else found[key] >= value)
    ]


def main(arguments: list[str] | None = None) -> int:
    """Measure, print, write, judge by the first precision; the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument(
        "--device", choices=["cpu", "cuda"], default="cuda" if torch.cuda.is_available() else "cpu"
    )
    parser.add_argument("--precisions", nargs="+", choices=list(MATMUL), default=list(MATMUL))
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--smoke", action="store_true", help="tiny shapes; goals are not judged")
    given = parser.parse_args(arguments)
    shape = SMOKE if given.smoke else Shape(**({"rounds": given.rounds} if given.rounds else {}))
    default = torch.get_float32_matmul_precision()
    measured = measure(shape, given.device, given.precisions)
    failed = {} if given.smoke else {name: missed(measured[name]["ratios"]) for name in given.precisions}
    show(measured, given.precisions, failed)
    if given.json:
        record = {
            "shape": asdict(shape),
            "device": given.device,
            "torch_default_matmul_precision": default,
            "measured": measured,
            "goals": GOALS,
            "missed": failed,
            **provenance(("torch", "transformers", "opacus")),
        }
        given.json.parent.mkdir(parents=True, exist_ok=True)
        given.json.write_text(json.dumps(record, indent=2) + "\n")
    return 1 if failed.get(given.precisions[0]) else 0


def show(measured: dict[str, Any], precisions: list[str], failed: dict[str, list[str]]) -> None:
    """One table of steps, and the ratios beside their goals."""
    columns = "".join(f"{name + ' ms':>12}" for name in precisions)
    print(f"{'step':28}{columns}{'peak MiB':>12}")
    for name in measured[precisions[0]]["step_ms"]:
        times = "".join(f"{measured[precision]['step_ms'][name]:12.2f}" for precision in precisions)
        memory = measured["peak_memory_mib"].get(name)
        print(f"{name:28}{times}{memory:12.0f}" if memory is not None else f"{name:28}{times}{'-':>12}")
    for key, (kind, goal) in GOALS.items():
        for precision in precisions:
            value = measured[precision]["ratios"].get(key)
            if value is not None:
                verdict = "  MISSED" if key in failed.get(precision, []) else ""
                print(f"{precision}: {key:40} {value:8.3f}  ({kind} {goal:g}){verdict}")


if __name__ == "__main__":
    sys.exit(main())
