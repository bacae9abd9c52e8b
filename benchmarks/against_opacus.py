"""A training step of BERT-base shape: without noise, with ours, and under Opacus, in one run.

python -m benchmarks.against_opacus --json OUT.json --device cuda      (--smoke: tiny shapes, in seconds)

All of them train with the same AdamW (fused on a GPU), dropout on, weights random, batch and length fixed.
Opacus trains without the token and position tables, which it cannot clip; everything else trains them too, so
the comparison is in its favour. Its batch has no Poisson draw here: every step sees the same 32 texts.
`release-once` is the back alone, fed from stored int16 (or int8) values in pinned host memory: copy, scale,
forward, backward, update. Rounds are interleaved, so that drift hits all alike; a ratio is the median over
rounds of the ratio within one round. Memory is what the allocator gave at most, less what the others held.
"""

from __future__ import annotations

import argparse
import copy
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import BertConfig, BertForSequenceClassification

from benchmarks.report import provenance
from dp_forward.joined import join
from dp_forward.noise import Sanitizer
from dp_forward.noise.grid import Grid
from dp_forward.privacy import TEXT, Budget, MatrixGaussian, Mechanism, PrivUnit, calibrate, normalise
from dp_forward.split.pair import split_model
from dp_forward.train.dpsgd.private import Mode, make_private, set_trainable

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


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What is measured, and how often."""

    batch: int = 32
    rows: int = 128
    rounds: int = 12
    block: int = 4
    model: dict[str, int] = field(default_factory=dict)


SMOKE = Shape(
    batch=4,
    rows=8,
    rounds=2,
    block=1,
    model={"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
    | {"vocab_size": 100},
)


class Bench:
    """Builds the contenders on one device and measures them in turn."""

    def __init__(self, shape: Shape, device: str) -> None:
        self.shape, self.device = shape, torch.device(device)
        self.cuda = self.device.type == "cuda"
        torch.manual_seed(0)
        self.model = BertForSequenceClassification(BertConfig(num_labels=2, **shape.model))
        self.cut = f"encoder.{self.model.config.num_hidden_layers - 1}"
        size = (shape.batch, shape.rows)
        vocabulary = self.model.config.vocab_size
        self.inputs = {
            "input_ids": torch.randint(5, vocabulary, size, device=self.device),
            "attention_mask": torch.ones(size, dtype=torch.long, device=self.device),
            "labels": torch.randint(0, 2, (shape.batch,), device=self.device),
        }
        self.steps: dict[str, Callable[[], object]] = {}
        self.memory: dict[str, float] = {}

    def add(self, name: str, build: Callable[[], Callable[[], object]]) -> None:
        """Build one contender, warm it up, and note its peak memory in MiB."""
        print(f"against_opacus: {name} ...", file=sys.stderr, flush=True)
        before = self._allocated()
        step = build()
        for _ in range(3):
            step()
        if self.cuda:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            step()
            torch.cuda.synchronize()
            self.memory[name] = (torch.cuda.max_memory_allocated() - before) / 2**20
        self.steps[name] = step

    def rounds(self) -> dict[str, list[float]]:
        """Milliseconds per step of each contender, one number a round."""
        times: dict[str, list[float]] = {name: [] for name in self.steps}
        order = random.Random(0)
        for turn in range(self.shape.rounds + 1):
            # In another order every round: a step after a heavy one meets a hotter and slower chip.
            names = list(self.steps)
            order.shuffle(names)
            for name in names:
                taken = self._milliseconds(self.steps[name])
                if turn > 0:
                    times[name].append(taken)
        return times

    def _milliseconds(self, step: Callable[[], object]) -> float:
        if not self.cuda:
            start = time.perf_counter()
            for _ in range(self.shape.block):
                step()
            return 1e3 * (time.perf_counter() - start) / self.shape.block
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        begin.record()
        for _ in range(self.shape.block):
            step()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / self.shape.block

    def _allocated(self) -> int:
        return torch.cuda.memory_allocated() if self.cuda else 0

    def optimizer(self, module: nn.Module) -> torch.optim.AdamW:
        """The same for every contender, over what trains."""
        weights = [parameter for parameter in module.parameters() if parameter.requires_grad]
        return torch.optim.AdamW(weights, lr=1e-5, fused=self.cuda)

    def fresh(self) -> Any:
        """A model of its own for one contender."""
        return copy.deepcopy(self.model).to(self.device).train()

    def trained(self, module: nn.Module, inputs: Callable[[], dict[str, Tensor]]) -> Callable[[], object]:
        """An ordinary training step."""
        optimizer = self.optimizer(module)

        def step() -> None:
            optimizer.zero_grad(set_to_none=True)
            module(**inputs()).loss.backward()
            optimizer.step()

        return step

    def non_private(self, *, tables: bool = True) -> Callable[[], object]:
        """The whole model; without ``tables``, with the weights that Opacus trains."""
        model = self.fresh()
        if not tables:
            model = set_trainable(model, "frozen-embeddings", lora_rank=1)
        return self.trained(model, lambda: self.inputs)

    def end_to_end(self, mechanism: Mechanism, cut: str) -> Callable[[], object]:
        """Front, noise and back, trained together."""
        joined = join(split_model(self.model, cut), Sanitizer(mechanism)).to(self.device).train()
        return self.trained(joined, lambda: self.inputs)

    def opacus(self, mode: Mode) -> Callable[[], object]:
        """DP-SGD as the baseline of this package runs it."""
        model = set_trainable(self.fresh(), "frozen-embeddings", lora_rank=1)
        record = {name: tensor[0].cpu() for name, tensor in self.inputs.items()}
        private = make_private(
            model,
            records=[record] * (4 * self.shape.batch),
            optimizer=self.optimizer(model),
            mode=mode,
            batch=self.shape.batch,
            noise_multiplier=1.0,
            clip_norm=1.0,
        )
        part = [self.inputs[name] for name in private.names]
        return lambda: private.step(part)

    def release_once(self, mechanism: MatrixGaussian, kind: torch.dtype) -> Callable[[], object]:
        """The back alone, from stored values; simulated noise here, in the form of stored releases."""
        pair = split_model(self.model, self.cut)
        back = pair.back.to(self.device).train()
        grid = Grid.for_noise(mechanism.sigma, norm=1.0).step
        shape = (self.shape.batch, self.shape.rows, self.model.config.hidden_size)
        most = torch.iinfo(kind).max
        stored = [
            (torch.randn(shape) * mechanism.sigma / grid).round().clamp(-most, most).to(kind)
            for _ in range(4)
        ]
        if self.cuda:
            stored = [values.pin_memory() for values in stored]
        turn = iter(range(10**9))

        def inputs() -> dict[str, Tensor]:
            values = stored[next(turn) % len(stored)].to(self.device, non_blocking=True)
            return {"hidden": values.to(torch.float32) * grid, "labels": self.inputs["labels"]}

        return self.trained(back, inputs)

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
        bench.add("release_once_int16", lambda: bench.release_once(gaussian, torch.int16))
        bench.add("release_once_int8", lambda: bench.release_once(gaussian, torch.int8))
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
