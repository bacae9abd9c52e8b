"""One result file per benchmark: what was measured, what failed, and where the numbers come from."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

ROOT = Path(__file__).parents[1]


def report(
    name: str,
    parts: Sequence[Callable[[], dict[str, float]]],
    thresholds: Mapping[str, float],
    libraries: Sequence[str],
    folder: Path | None = None,
) -> int:
    """Run the parts, print as they come, write results/bench-NAME.json, judge; the exit code."""
    measured: dict[str, float] = {}
    for part in parts:
        print(f"{name}: {part.__name__} ...", file=sys.stderr, flush=True)
        measured |= part()
    failed = [key for key, most in thresholds.items() if key in measured and measured[key] > most]
    for key, value in measured.items():
        limit = f"  (at most {thresholds[key]:g})" if key in thresholds else ""
        print(f"{key:28} {value:12.4f}{limit}{'  FAILED' if key in failed else ''}")
    target = (folder or ROOT / "results") / f"bench-{name}.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    record = {"measured": measured, "failed": failed, **provenance(libraries)}
    target.write_text(json.dumps(record, indent=2) + "\n")
    return 1 if failed else 0


def provenance(libraries: Sequence[str]) -> dict[str, object]:
    """Where the numbers come from."""
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.strip()
    return {
        "commit": commit or None,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "gpu": _gpu(),
        "versions": {library: _version(library) for library in ("dp-forward", *libraries)},
    }


def _gpu() -> str | None:
    torch = sys.modules.get("torch")
    return torch.cuda.get_device_name() if torch is not None and torch.cuda.is_available() else None


def _version(library: str) -> str | None:
    try:
        return version(library)
    except PackageNotFoundError:
        return None
