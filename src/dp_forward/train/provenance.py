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
    """The commit of a source checkout, with a + where sources were changed; None if installed."""
    head = _git("rev-parse", "--short", "HEAD")
    return f"{head}+" if head and _git("status", "--porcelain", "--", ".") else head


def _git(*words: str) -> str | None:
    try:
        result = subprocess.run(  # noqa: S603
            ["git", "-C", str(Path(__file__).parents[1]), *words],  # noqa: S607
            capture_output=True,
            text=True,
            timeout=5,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout.strip() or None
