"""Where a number came from: versions, machine, commit. Every result file carries it."""

from __future__ import annotations

import platform
import subprocess
import sys
from datetime import UTC, datetime
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

__all__ = ["provenance"]


@lru_cache(maxsize=1)
def provenance() -> dict[str, Any]:
    """Versions, hardware, commit and time, for a result file."""
    import torch
    import transformers

    return {
        "dp_forward": _version(),
        "commit": _commit(),
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "hardware": torch.cuda.get_device_name() if torch.cuda.is_available() else platform.machine(),
        "threads": torch.get_num_threads(),
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _version() -> str | None:
    try:
        return version("dp-forward")
    except PackageNotFoundError:  # a source tree that was not installed
        return None


def _commit() -> str | None:
    """The commit of a source checkout; None for an installed package."""
    folder = Path(__file__).parent
    try:
        result = subprocess.run(  # noqa: S603
            ["git", "-C", str(folder), "rev-parse", "--short", "HEAD"],  # noqa: S607
            capture_output=True,
            text=True,
            timeout=5,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout.strip() or None
