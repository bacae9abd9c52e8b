"""What the noise costs: a training step of BERT-base shape with and without it, in one run.

python -m benchmarks.sanitizer --device cuda --out FOLDER
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path

import torch
from transformers import BertConfig, BertForSequenceClassification

from benchmarks.report import report
from dp_forward.noise import Sanitizer
from dp_forward.privacy import TEXT, Budget, MatrixGaussian, PrivUnit, calibrate, normalise
from dp_forward.split import split_model
from dp_forward.split.private_model import PrivateModel, join

THRESHOLDS = {
    "cuda_matrix_gaussian_ratio": 1.03,
    "cuda_privunit_ratio": 1.03,
    "cpu_matrix_gaussian_ratio": 1.05,
    "cpu_privunit_ratio": 1.05,
    "cuda_draws_8_ratio": 1.3,
    "cpu_draws_8_ratio": 1.3,
}


class Steps:
    """Training steps of several joined models, measured in turn so that drift hits all alike."""

    def __init__(self, device: str, cut: str) -> None:
        self.device = torch.device(device)
        self.batch, self.rows, self.repeat = (32, 128, 30) if device == "cuda" else (8, 64, 7)
        torch.manual_seed(0)
        self.pair = split_model(BertForSequenceClassification(BertConfig(num_labels=2)), cut)
        self.inputs = {
            "input_ids": torch.randint(5, 30_000, (self.batch, self.rows), device=self.device),
            "attention_mask": torch.ones(self.batch, self.rows, dtype=torch.long, device=self.device),
            "labels": torch.randint(0, 2, (self.batch,), device=self.device),
        }

    def joined(self, sanitizer: Sanitizer | None, draws: int = 1) -> PrivateModel:
        """The pair with this noise, ready to train."""
        return join(self.pair, sanitizer, draws=draws).to(self.device).train()

    def seconds(self, model: PrivateModel) -> float:
        """One forward and backward pass."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        model.zero_grad(set_to_none=True)
        model(**self.inputs).loss.backward()
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - start

    def medians(self, models: dict[str, PrivateModel]) -> dict[str, float]:
        """The median step time of each model."""
        times: dict[str, list[float]] = {name: [] for name in models}
        for turn in range(self.repeat + 2):
            for name, model in models.items():
                taken = self.seconds(model)
                if turn >= 2:
                    times[name].append(taken)
        return {name: statistics.median(found) for name, found in times.items()}


def measure(device: str) -> dict[str, float]:
    """All ratios on one device."""
    gaussian = calibrate(MatrixGaussian, Budget(8.0, 1e-5), bound=normalise(1.0), unit=TEXT)
    privunit = calibrate(PrivUnit, Budget(8.0), bound=normalise(1.0), unit=TEXT)
    steps = Steps(device, "encoder.6")
    found = steps.medians(
        {
            "bare": steps.joined(None),
            "matrix_gaussian": steps.joined(Sanitizer(gaussian)),
            "privunit": steps.joined(Sanitizer(privunit)),
        }
    )
    result = {f"{device}_step_s": found["bare"]}
    for name in ("matrix_gaussian", "privunit"):
        result[f"{device}_{name}_ratio"] = found[name] / found["bare"]
    del steps
    steps = Steps(device, "output")
    sanitizer = Sanitizer(privunit)
    found = steps.medians({"one": steps.joined(sanitizer), "eight": steps.joined(sanitizer, draws=8)})
    result[f"{device}_draws_8_ratio"] = found["eight"] / found["one"]
    return result


def main() -> int:
    """Measure on one device, or on every device there is."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=["cpu", "cuda"])
    parser.add_argument("--out", type=Path)
    given, _ = parser.parse_known_args()
    devices = [given.device] if given.device else ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]

    def step_time() -> dict[str, float]:
        return {key: value for device in devices for key, value in measure(device).items()}

    name = f"sanitizer-{'-'.join(devices)}"
    return report(name, (step_time,), THRESHOLDS, ("torch", "transformers"), given.out)


if __name__ == "__main__":
    sys.exit(main())
