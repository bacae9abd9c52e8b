"""The proof is light: no torch, and quick to import."""

import subprocess
import sys
import time


def test_importing_the_proof_loads_no_torch() -> None:
    code = (
        "import sys, dp_forward.privacy, dp_forward.privacy.shuffling, dp_forward.ledger;"
        "print([m for m in ('torch', 'transformers', 'dp_accounting', 'scipy.stats', 'scipy.optimize')"
        " if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_importing_the_proof_takes_little_longer_than_what_it_stands_on() -> None:
    """A ratio, measured side by side: a clock alone would fail on a machine that has other work.

    It takes 1.3 times as long as numpy and scipy.special, which it needs; with scipy.stats it would be 3.
    """

    def seconds(code: str) -> float:
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True)
        return time.perf_counter() - start

    codes = ("pass", "import numpy, scipy.special", "import dp_forward.privacy")
    for code in codes:
        seconds(code)  # the first one fills the caches
    bare, below, ours = (min(times) for times in zip(*(map(seconds, codes) for _ in range(6)), strict=True))
    assert ours - bare < 2 * (below - bare)
