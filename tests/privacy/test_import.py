"""The proof is light: no torch (`make bench` measures the time of the import)."""

import subprocess
import sys

import pytest


@pytest.mark.slow
def test_importing_the_proof_loads_no_torch() -> None:
    code = (
        "import sys, dp_forward.privacy, dp_forward.privacy.shuffling, dp_forward.ledger;"
        "print([m for m in ('torch', 'transformers', 'dp_accounting', 'scipy.stats', 'scipy.optimize')"
        " if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
