"""The client without torch: a real environment, its size, and the start of `dpf ask` beside the torch client.

python -m benchmarks.light_client [--environment FOLDER] [--json OUT] [--smoke] [--no-goals]

Installs ``.[client]`` of this tree into a new environment, from wherever pip installs. Byte code is left out
(``--no-compile``): Python writes what it runs. A start is a whole process: `dpf ask` of a new text, and of a
text whose answer is stored. The torch client is the same command on the same front without its ONNX, in this
environment; the two take turns.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.goals import Results, arguments, say
from benchmarks.report import ROOT
from benchmarks.service import make_run, served

MOST_MB, MOST_SECONDS = 300, 1.0


def install(folder: Path) -> Path:
    """A new environment with the client in it; its Python."""
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    python = folder / "bin" / "python"
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
    subprocess.run([*pip, "--constraint", "constraints.txt", ".[client]"], cwd=ROOT, check=True)
    return python


def size_mb(folder: Path) -> float:
    """What was installed, with its byte code; not what every environment begins with."""
    own = ("pip", "setuptools", "pkg_resources", "_distutils_hack")
    places = (path for path in folder.glob("lib/python*/site-packages/*") if not path.name.startswith(own))
    files = (file for path in places for file in ([path] if path.is_file() else path.rglob("*")))
    return sum(file.stat().st_size for file in files if file.is_file()) / 1e6


def seconds(python: Path, front: Path, server: str, ledger: Path, text: str) -> float:
    """One `dpf ask` as a process."""
    words = ["ask", str(front), text, "--server", server, "--ledger", str(ledger)]
    code = "from dp_forward.cli.main import run; run()"
    more = [] if ledger.exists() else ["--budget", "10000"]
    unset = ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE")
    environment = {name: value for name, value in os.environ.items() if name not in unset}
    if python.is_relative_to(Path(sys.prefix)):
        environment["PYTHONPATH"] = str(ROOT / "src")
    started = time.perf_counter()
    command = [python, "-c", code, *words, *more]
    subprocess.run(command, check=True, capture_output=True, env=environment, cwd=front)
    return time.perf_counter() - started


def main() -> int:
    """Measure, print, judge."""
    parser = arguments(__doc__ or "", "light-client")
    parser.add_argument("--environment", type=Path, help="where to install [a temporary folder]")
    given = parser.parse_args()
    rounds = 3 if given.smoke else 15
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary)
        say("installing .[client]")
        light = install(given.environment or place / "environment")
        results = Results(
            given.json, command="light_client", libraries=("onnxruntime", "tokenizers"), smoke=given.smoke
        )
        listed = subprocess.run(
            [light, "-m", "pip", "list", "--format=freeze", "--disable-pip-version-check"],
            check=True, capture_output=True, text=True,
        )  # fmt: skip
        results.put("packages", sorted(listed.stdout.split()))
        size = size_mb(light.parents[1])
        run = make_run(place / "run")
        os.environ["DPF_ONNX"] = "0"
        plain = make_run(place / "plain")
        clients = {"light": (light, run), "torch": (Path(sys.executable), plain)}
        times: dict[str, list[float]] = {
            f"{name} {kind}": [] for name in clients for kind in ("new", "stored")
        }
        with served(run, 0, run) as one, served(plain, 0, plain) as other:
            servers = {"light": f"http://{one.host}:{one.port}", "torch": f"http://{other.host}:{other.port}"}
            for number in range(rounds + 1):
                for name, (python, folder) in clients.items():
                    for kind in ("new", "stored"):
                        took = seconds(
                            python, folder / "front", servers[name], place / name, f"text {number}"
                        )
                        if number:  # the first one writes byte code
                            times[f"{name} {kind}"].append(took)
        middle = {name: statistics.median(found) for name, found in times.items()}
        results.put("start_seconds", middle)
        results.put(
            "size_mb", {"installed": size, "with the byte code of what ran": size_mb(light.parents[1])}
        )
        results.goal("installed MB, without the model", size, f"under {MOST_MB}", size < MOST_MB)
        for kind in ("new", "stored"):
            took, whole = middle[f"light {kind}"], middle[f"torch {kind}"]
            results.goal(f"{kind} text, seconds", took, f"under {MOST_SECONDS}", took < MOST_SECONDS)
            results.goal(f"{kind} text, times the torch client", took / whole, "under 0.5", took < whole / 2)
        torch_free = not any(line.startswith(("torch", "transformers")) for line in listed.stdout.split())
        results.goal("no torch, no transformers", torch_free, "true", torch_free)
        return results.close(judge=not given.no_goals)


if __name__ == "__main__":
    sys.exit(main())
