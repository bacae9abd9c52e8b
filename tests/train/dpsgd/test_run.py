"""The baseline as a run: what its plan decides, and in which precision it trains."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModel

pytest.importorskip("opacus")

from dp_forward.train.dpsgd.run import BaselinePlan, run_baseline
from reproduction.runs.smoke import smoke_data, smoke_model


def test_a_checkpoint_in_half_precision_trains_in_float32(tmp_path: Path) -> None:
    folder = tmp_path / "half"
    smoke_model(folder)
    AutoModel.from_pretrained(folder, dtype=torch.float16).save_pretrained(folder)
    plan = BaselinePlan(
        task="sst2",
        model=str(folder),
        epsilon=8.0,
        epochs=1,
        batch=16,
        micro_batch=8,
        rows=16,
        train_limit=48,
        evaluation_limit=20,
        data=smoke_data(tmp_path / "data"),
    )
    report = run_baseline(plan, folder=tmp_path / "run")
    weights = load_file(tmp_path / "run" / "model" / "model.safetensors")
    assert {tensor.dtype for tensor in weights.values()} == {torch.float32}
    assert all(bool(tensor.isfinite().all()) for tensor in weights.values())
    assert report["guarantee"]["training"]["epsilon"] <= 8.0


def test_how_many_texts_are_in_memory_at_once_decides_nothing() -> None:
    plan = BaselinePlan(task="sst2", epsilon=1.0)
    assert BaselinePlan(task="sst2", epsilon=1.0, micro_batch=4).digest() == plan.digest()
    assert BaselinePlan(task="sst2", epsilon=1.0, batch=4).digest() != plan.digest()
