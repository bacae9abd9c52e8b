"""The laws that must hold on every device and library version: run it where the tests cannot be installed.

PYTHONPATH=src:tests:. python -m benchmarks.device_check
"""

from __future__ import annotations

import sys

import torch
import transformers

from dp_forward.noise import Sanitizer
from dp_forward.noise.bounding import apply_bound
from dp_forward.privacy import (
    TEXT,
    Budget,
    MatrixGaussian,
    PrivUnit,
    calibrate,
    clip,
    clip_rows,
    normalise,
    normalise_rows,
)
from dp_forward.split import legal_cuts, split_model
from dp_forward.split.check import check_split
from tiny_models import SETTINGS, tiny

ODD = [0.0, 1e-45, 1e-39, 1e30, 3e38, -3e38, 65504.0, float("nan"), float("inf"), -float("inf")]


def bound_law(device: str) -> None:
    """No input leaves its bound, in any dtype."""
    largest, batches = 0.0, 0
    odd = torch.tensor(ODD)
    for bound in (normalise(1.0), clip(1.0), normalise_rows(2.0), clip_rows(0.5), clip(1e20)):
        over = (2,) if bound.over == "row" else (1, 2)
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            for power in range(-12, 13):
                hidden = torch.randn(8, 16, 96) * 10.0 ** (power / 2)
                strange = torch.rand(hidden.shape) < 0.1
                hidden[strange] = odd[torch.randint(0, len(odd), (int(strange.sum()),))]
                inside = apply_bound(hidden.to(device).to(dtype), bound).double()
                assert torch.isfinite(inside).all()
                largest = max(largest, float(inside.square().sum(over).sqrt().max()) / bound.norm)
                batches += 1
    print(f"{device}: bound law, {batches} batches, largest norm / C {largest:.9f}")
    assert largest <= 1


def noise_law(device: str) -> None:
    """The noise has its size, and the sanitizer compiles."""
    gaussian = calibrate(MatrixGaussian, Budget(8.0, 1e-5), bound=normalise(1.0), unit=TEXT)
    for mechanism in (gaussian, calibrate(PrivUnit, Budget(8.0))):
        hidden = torch.randn(1, 8, 48, device=device)
        noisy = Sanitizer(mechanism, seed=1)(hidden, draws=20_000).double()
        ratio = float(noisy.var(0).mean()) / mechanism.sigma**2
        compiled = torch.compile(Sanitizer(mechanism, seed=2))(hidden)
        print(f"{device}: {mechanism!r}: variance / sigma^2 {ratio:.4f}, compiled {tuple(compiled.shape)}")
        assert abs(ratio - 1) < 0.01


def split_law() -> None:
    """Every family, every cut: no leak, and exact where nothing is dropped."""
    for family in SETTINGS:
        model = tiny(family, blocks=2)
        reports = [check_split(split_model(model, info.cut), model) for info in legal_cuts(model)]
        for report in reports:
            report.refuse()
        difference = max(report.max_abs_difference or 0.0 for report in reports)
        print(f"{family}: {len(reports)} cuts, largest difference {difference}")


if __name__ == "__main__":
    versions = f"torch {torch.__version__}, transformers {transformers.__version__}"
    print(f"python {sys.version.split()[0]}, {versions}")
    torch.manual_seed(0)
    for place in ("cpu", *(["cuda"] if torch.cuda.is_available() else [])):
        bound_law(place)
        noise_law(place)
    split_law()
