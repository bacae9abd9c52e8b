"""A private model is an ordinary module: the Hugging Face Trainer trains it, on one process and on two."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

WORKER = Path(__file__).with_name("ddp_worker.py")


def _run(command: list[str], out: Path) -> list[dict]:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    result = subprocess.run(
        [*command, str(WORKER), str(out)],
        capture_output=True,
        text=True,
        env=environment,
        timeout=300,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-2000:]
    return [json.loads(path.read_text()) for path in sorted(out.glob("rank*.json"))]


@pytest.mark.slow
def test_twenty_steps_on_one_process(tmp_path: Path) -> None:
    (rank,) = _run([sys.executable], tmp_path)
    assert rank["steps"] == 20
    assert len(set(rank["noise"])) == 20
    assert rank["front_moved"]


@pytest.mark.slow
def test_twenty_steps_on_two_processes_with_different_noise_on_each(tmp_path: Path) -> None:
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "--master_port=0"]
    first, second = _run([*launch, "--rdzv_backend=c10d", "--rdzv_endpoint=localhost:0"], tmp_path)
    assert (first["world"], second["world"]) == (2, 2)
    assert first["steps"] == second["steps"] == 20
    assert not set(first["noise"]) & set(second["noise"])
    assert first["weights"] == second["weights"], "the ranks hold one model"
    print(f"noise of step 1: rank 0 {first['noise'][0]:.4f}, rank 1 {second['noise'][0]:.4f}")
