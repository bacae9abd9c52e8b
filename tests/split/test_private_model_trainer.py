"""A private model is an ordinary module: the Hugging Face Trainer trains it, on one process and on two."""

import json
from pathlib import Path

import pytest

from warm_process import run_ranks

WORKER = Path(__file__).with_name("ddp_worker.py")


def _ranks(out: Path) -> list[dict]:
    return [json.loads(path.read_text()) for path in sorted(out.glob("rank*.json"))]


@pytest.mark.slow
def test_twenty_steps_on_two_processes_with_different_noise_on_each(tmp_path: Path) -> None:
    run_ranks(2, WORKER, [str(tmp_path)], log=tmp_path / "log")
    first, second = _ranks(tmp_path)
    assert (first["world"], second["world"]) == (2, 2)
    for rank in (first, second):
        assert rank["steps"] == len(set(rank["noise"])) == 20
        assert rank["front_moved"]
    assert not set(first["noise"]) & set(second["noise"])
    assert first["weights"] == second["weights"], "the ranks hold one model"
    print(f"noise of step 1: rank 0 {first['noise'][0]:.4f}, rank 1 {second['noise'][0]:.4f}")
