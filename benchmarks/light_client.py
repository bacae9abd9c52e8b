"""The client without torch: a real environment, its size, and the start of `dpf ask` beside the torch client.

python -m benchmarks.light_client [--environment FOLDER] [--json OUT] [--smoke] [--no-goals]

Installs ``.[client]`` of this tree into a new environment, from wherever pip installs. Byte code is a fifth
of its size and half of its start, so there are four states, each with both numbers:

* pip install: byte code of everything, as pip leaves it by default;
* pip install --no-compile, in which the first start writes byte code of what it runs;
* the same, read only: byte code is never written (PYTHONDONTWRITEBYTECODE);
* deploy/Dockerfile.client: --no-compile, and then the steps of the image. This one is held to the goals.

A start is a whole process: `dpf ask` of a new text, and of a text whose answer is stored. The torch client is
the same command on the same front without its ONNX, in this environment; all of them take turns.
"""

from __future__ import annotations

import os
import re
import shlex
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
WHOLE, LATER = "pip install", "pip install --no-compile"
READ_ONLY, IMAGE = "pip install --no-compile, read only", "deploy/Dockerfile.client"
_UNSET = ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE")


def install(folder: Path) -> None:
    """A new environment with the client in it, without byte code."""
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    pip = [python_of(folder), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    command = [*pip, "--no-compile", "--constraint", "constraints.txt", ".[client]"]
    subprocess.run(command, cwd=ROOT, check=True)


def python_of(environment: Path) -> Path:
    return environment / "bin" / "python"


def trim(environment: Path) -> None:
    """What the image does after its installation."""
    text = re.sub(r"\\\n\s*", "", (ROOT / "deploy" / "Dockerfile.client").read_text(encoding="utf-8"))
    (step,) = re.findall(r"^RUN (find /opt/dp-forward .*)$", text, flags=re.MULTILINE)
    step = step.replace("/opt/dp-forward", shlex.quote(str(environment)))
    subprocess.run(["sh", "-c", step], check=True, env=clean_environment())


def clean_environment() -> dict[str, str]:
    """Variables that change neither what is imported nor whether byte code is written."""
    return {name: value for name, value in os.environ.items() if name not in _UNSET}


def size_mb(environment: Path) -> float:
    """What was installed, with its byte code; not what every environment begins with."""
    own = ("pip", "setuptools", "pkg_resources", "_distutils_hack")
    folders = environment.glob("lib/python*/site-packages/*")
    places = (path for path in folders if not path.name.startswith(own))
    files = (file for path in places for file in ([path] if path.is_file() else path.rglob("*")))
    return sum(file.stat().st_size for file in files if file.is_file()) / 1e6


def seconds(python: Path, front: Path, server: str, ledger: Path, text: str, *, writes: bool = True) -> float:
    """One `dpf ask` as a process; ``writes`` byte code where there is none."""
    words = ["ask", str(front), text, "--server", server, "--ledger", str(ledger)]
    code = "from dp_forward.cli.main import run; run()"
    more = [] if ledger.exists() else ["--budget", "10000"]
    environment = clean_environment() | ({} if writes else {"PYTHONDONTWRITEBYTECODE": "1"})
    if python.is_relative_to(Path(sys.prefix)):
        environment["PYTHONPATH"] = str(ROOT / "src")
    started = time.perf_counter()
    command = [python, "-c", code, *words, *more]
    subprocess.run(command, check=True, capture_output=True, env=environment, cwd=front)
    return time.perf_counter() - started


def make_states(first: Path) -> dict[str, Path]:
    """An environment for each state."""
    names = {WHOLE: "whole", LATER: "later", READ_ONLY: "read-only", IMAGE: "image"}
    states = {state: first.with_name(f"{first.name}-{name}") for state, name in names.items()}
    for folder in states.values():
        shutil.copytree(first, folder, symlinks=True)
    compiling = [python_of(first), "-m", "compileall", "-qq", states[WHOLE] / "lib"]
    subprocess.run(compiling, check=False, env=clean_environment())  # some templates are no Python
    trim(states[IMAGE])
    return states


def starts(states: dict[str, Path], place: Path, rounds: int) -> dict[str, dict[str, list[float]]]:
    """Seconds of every start, of the states and of the torch client in turn; the first one of each apart."""
    run = make_run(place / "run")
    os.environ["DPF_ONNX"] = "0"
    plain = make_run(place / "plain")
    clients = {state: (python_of(environment), run) for state, environment in states.items()}
    clients["torch"] = (Path(sys.executable), plain)
    found: dict[str, dict[str, list[float]]] = {
        name: {"first": [], "new": [], "stored": []} for name in clients
    }
    with served(run, 0, run) as one, served(plain, 0, plain) as other:
        servers = {run: f"http://{one.host}:{one.port}", plain: f"http://{other.host}:{other.port}"}
        for number in range(rounds + 1):
            for own, (name, (python, folder)) in enumerate(clients.items()):
                question = (folder / "front", servers[folder], place / f"{own}.ledger", f"text {number}")
                for kind in ("new", "stored"):
                    took = seconds(python, *question, writes=name not in (READ_ONLY, IMAGE))
                    if number or kind == "new":
                        found[name][kind if number else "first"].append(took)
    return found


def middle(times: dict[str, list[float]]) -> dict[str, float]:
    return {kind: statistics.median(each) for kind, each in times.items()}


def main() -> int:
    """Measure, print, judge."""
    parser = arguments(__doc__ or "", "light-client")
    parser.add_argument("--environment", type=Path, help="where to install [a temporary folder]")
    given = parser.parse_args()
    libraries = ("onnxruntime", "tokenizers")
    results = Results(given.json, command="light_client", libraries=libraries, smoke=given.smoke)
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary)
        environment = given.environment or place / "environment"
        say("installing .[client]")
        install(environment)
        pip = [python_of(environment), "-m", "pip", "list", "--format=freeze", "--disable-pip-version-check"]
        listed = sorted(subprocess.run(pip, check=True, capture_output=True, text=True).stdout.split())
        results.put("packages", listed)
        results.put("installed_mb", size_mb(environment))
        states = make_states(environment)
        times = starts(states, place, 3 if given.smoke else 9)
        sizes = {state: size_mb(folder) for state, folder in states.items()}
    for state, size in sizes.items():
        results.add("states", {"state": state, "mb": size, **middle(times[state])})
    torch, image, size = middle(times["torch"]), middle(times[IMAGE]), sizes[IMAGE]
    results.put("torch", torch)
    results.goal("MB, without the model", size, f"under {MOST_MB}", size < MOST_MB)
    for kind in ("new", "stored"):
        took, share = image[kind], image[kind] / torch[kind]
        results.goal(f"{kind} text, seconds", took, f"under {MOST_SECONDS}", took < MOST_SECONDS)
        results.goal(f"{kind} text, times the torch client", share, "under 0.5", share < 0.5)
    torch_free = not any(line.startswith(("torch", "transformers")) for line in listed)
    results.goal("no torch, no transformers", torch_free, "true", torch_free)
    return results.close(judge=not given.no_goals)


if __name__ == "__main__":
    sys.exit(main())
