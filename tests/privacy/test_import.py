"""The proof is light: no torch, half a second."""

import subprocess
import sys
import time


def test_importing_the_proof_loads_no_torch() -> None:
    code = (
        "import sys, dp_forward.privacy, dp_forward.privacy.central, dp_forward.privacy.ledger;"
        "print([m for m in ('torch', 'transformers', 'dp_accounting', 'scipy.stats', 'scipy.optimize')"
        " if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_importing_the_proof_takes_less_than_half_a_second() -> None:
    def seconds(code: str) -> float:
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True)
        return time.perf_counter() - start

    seconds("import dp_forward.privacy")  # the first one fills the caches
    bare = min(seconds("pass") for _ in range(3))
    best = min(seconds("import dp_forward.privacy") for _ in range(5))
    assert best - bare < 0.5
