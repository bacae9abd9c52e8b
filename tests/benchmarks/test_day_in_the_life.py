"""The transcript of a day of the service runs to its end; a step that says something else ends it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.day_in_the_life import Unexpected, dpf, show

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_a_day_runs_to_its_end_and_prints_no_token() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "DPF_ONNX"}
    environment |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    words = [sys.executable, "-m", "benchmarks.day_in_the_life"]
    done = subprocess.run(
        words, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=1200, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert done.stdout.count("\n# ") == 9, "every step was taken"
    assert "Bearer" not in done.stdout


def test_a_step_that_says_something_else_ends_the_day(capsys: pytest.CaptureFixture[str]) -> None:
    assert show("charge 8, spent 8", r"charge 8") == "charge 8, spent 8"
    with pytest.raises(Unexpected, match="charge 0"):
        show("charge 8, spent 8", r"charge 0")
    with pytest.raises(Unexpected, match="instead of 0"):
        dpf("serve --no-such-option")
    assert "$ dpf serve --no-such-option" in capsys.readouterr().out
