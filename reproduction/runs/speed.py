"""Time and memory of one training step: without noise, with ours, and under Opacus, in one process.

All of them train with the same AdamW (fused on a GPU), dropout on, weights random, batch and length fixed.
Opacus trains without the token and position tables, which it cannot clip; everything else trains them too, so
the comparison is in its favour. Its batch has no Poisson draw here: every step sees the same texts. "From
releases" is the back alone, fed from stored int16 values: copy, scale, forward, backward, update.

Rounds are interleaved in a new order each time, so that drift hits all alike; a ratio is the median over
rounds of the ratio within one round. Memory is what the allocator gave at most, less what the others held.
"""

from __future__ import annotations

import copy
import random
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn

from dp_forward.data import EncodedTexts
from dp_forward.errors import InvalidInput
from dp_forward.noise import Sanitizer
from dp_forward.noise.released.grid import Grid
from dp_forward.privacy import TEXT, Budget, MatrixGaussian, Mechanism, PrivUnit, calibrate, normalise
from dp_forward.split import split_model
from dp_forward.split.private_model import join

__all__ = ["SHAPES", "Contenders", "Shape", "measure"]

Run = Callable[[], object]

SHAPES: Final[Mapping[str, Mapping[str, int]]] = MappingProxyType(
    {
        "bert-base": {},
        "minilm": {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12}
        | {"intermediate_size": 1536},
        "tiny": {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
        | {"intermediate_size": 48, "vocab_size": 100},
    }
)
"""Name -> what differs from a BERT-base; no weights are needed."""
_WARM_UP: Final = 3


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What is measured, and how often."""

    batch: int = 32
    rows: int = 128
    rounds: int = 12
    block: int = 4
    model: Mapping[str, int] = field(default_factory=dict)


class Contenders:
    """Builds the contenders on one device and measures them in turn."""

    def __init__(self, shape: Shape, device: str) -> None:
        from transformers import BertConfig, BertForSequenceClassification

        self.shape, self.device = shape, torch.device(device)
        self.cuda = self.device.type == "cuda"
        torch.manual_seed(0)
        made: Any = BertForSequenceClassification
        settings: Any = BertConfig
        self.model = made(settings(num_labels=2, **shape.model))
        self.cut = f"encoder.{self.model.config.num_hidden_layers - 1}"
        size = (shape.batch, shape.rows)
        self.inputs = {
            "input_ids": torch.randint(5, self.model.config.vocab_size, size, device=self.device),
            "attention_mask": torch.ones(size, dtype=torch.long, device=self.device),
            "labels": torch.randint(0, 2, (shape.batch,), device=self.device),
        }
        self.steps: dict[str, Run] = {}
        self.memory: dict[str, float] = {}

    def add(self, name: str, build: Callable[[], Run]) -> None:
        """Build one contender, warm it up, and note its peak memory in MiB."""
        before = torch.cuda.memory_allocated() if self.cuda else 0
        step = build()
        for _ in range(_WARM_UP):
            step()
        if self.cuda:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            step()
            torch.cuda.synchronize()
            self.memory[name] = (torch.cuda.max_memory_allocated() - before) / 2**20
        self.steps[name] = step

    def rounds(self) -> dict[str, list[float]]:
        """Milliseconds per step of each contender, one number a round; the first round is not counted."""
        times: dict[str, list[float]] = {name: [] for name in self.steps}
        order = random.Random(0)  # noqa: S311
        for turn in range(self.shape.rounds + 1):
            # In another order every round: a step after a heavy one meets a hotter and slower chip.
            names = list(self.steps)
            order.shuffle(names)
            for name in names:
                taken = self._milliseconds(self.steps[name])
                if turn > 0:
                    times[name].append(taken)
        return times

    def _milliseconds(self, step: Run) -> float:
        if self.cuda:
            torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(self.shape.block):
            step()
        if self.cuda:
            torch.cuda.synchronize()
        return 1e3 * (time.perf_counter() - start) / self.shape.block

    def optimizer(self, module: nn.Module) -> torch.optim.AdamW:
        """The same for every contender, over what trains."""
        weights = [parameter for parameter in module.parameters() if parameter.requires_grad]
        return torch.optim.AdamW(weights, lr=1e-5, fused=self.cuda)

    def fresh(self) -> Any:
        """A model of its own for one contender."""
        return copy.deepcopy(self.model).to(self.device).train()

    def trained(self, module: nn.Module, inputs: Callable[[], dict[str, Tensor]]) -> Run:
        """An ordinary training step."""
        optimizer = self.optimizer(module)

        def step() -> None:
            optimizer.zero_grad(set_to_none=True)
            module(**inputs()).loss.backward()
            optimizer.step()

        return step

    def non_private(self, *, tables: bool = True) -> Run:
        """The whole model; without ``tables``, with the weights that Opacus trains."""
        model = self.fresh()
        if not tables:
            from dp_forward.train.dpsgd.private_optimizer import freeze_embeddings

            freeze_embeddings(model)
        return self.trained(model, lambda: self.inputs)

    def end_to_end(self, mechanism: Mechanism | None, cut: str | None = None) -> Run:
        """Front, noise (or none) and back, trained together."""
        pair = split_model(self.model, cut or self.cut)
        joined = join(pair, None if mechanism is None else Sanitizer(mechanism)).to(self.device).train()
        return self.trained(joined, lambda: self.inputs)

    def opacus(self, mode: Any) -> Run:
        """DP-SGD as the baseline of this package runs it."""
        from dp_forward.train.dpsgd.private_optimizer import PrivateTraining, freeze_embeddings

        model = self.fresh()
        freeze_embeddings(model)
        private = PrivateTraining(
            model,
            self._texts(4 * self.shape.batch),
            optimizer=self.optimizer(model),
            mode=mode,
            batch=self.shape.batch,
            noise_multiplier=1.0,
            clip_norm=1.0,
        )
        return lambda: private.step(self.inputs)

    def _texts(self, count: int) -> EncodedTexts:
        """So many texts of the measured length."""
        ids = np.full((count, self.shape.rows), 5, dtype=np.int32)
        lengths, labels = np.full(count, self.shape.rows, np.int32), np.zeros(count, np.int64)
        return EncodedTexts({"ids": ids, "lengths": lengths, "labels": labels}, pads_left=False)

    def from_releases(self, mechanism: MatrixGaussian, kind: torch.dtype = torch.int16) -> Run:
        """The back alone, from stored values; simulated noise here, in the form of stored releases."""
        back = split_model(self.model, self.cut).back.to(self.device).train()
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


def measure(*, shape: str, batch: int, rows: int, rounds: int, device: str | None = None) -> dict[str, Any]:
    """Milliseconds, ratio to the non-private step, and memory (None on a CPU) of each contender."""
    if shape not in SHAPES:
        raise InvalidInput("shape", f"be one of {', '.join(SHAPES)}", repr(shape), "Use bert-base.")
    place = device or ("cuda" if torch.cuda.is_available() else "cpu")
    gaussian = calibrate(MatrixGaussian, Budget(8.0, 1e-5), bound=normalise(1.0), unit=TEXT)
    privunit = calibrate(PrivUnit, Budget(8.0), bound=normalise(1.0), unit=TEXT)
    bench = Contenders(Shape(batch=batch, rows=rows, rounds=rounds, model=SHAPES[shape]), place)
    bench.add("non_private", bench.non_private)
    bench.add("gaussian", lambda: bench.end_to_end(gaussian))
    bench.add("privunit", lambda: bench.end_to_end(privunit))
    bench.add("from_releases", lambda: bench.from_releases(gaussian))
    bench.add("hooks", lambda: bench.opacus("hooks"))
    bench.add("ghost", lambda: bench.opacus("ghost"))
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")  # TF32 where the chip has it, as training runs use it
    try:
        times = bench.rounds()
    finally:
        torch.set_float32_matmul_precision(before)
    plain = times["non_private"]
    return {
        name: {
            "milliseconds": statistics.median(found),
            "time_ratio": statistics.median(a / b for a, b in zip(found, plain, strict=True)),
            "memory_mib": bench.memory.get(name),
        }
        for name, found in times.items()
    }
