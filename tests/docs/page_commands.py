"""Run the commands of a page as a reader would: in order, in one empty folder, with a home of its own.

    python tests/docs/page_commands.py [--output] [--smoke] README.md docs/tutorial/*.md

A page is Markdown. Of its ``console`` blocks, lines that begin with ``$ `` are commands, the others are what
they print; in a block without such a line every line is a command. A block under ``<!-- file: NAME -->`` is
written to that file first. A block under ``<!-- not run: why -->`` is left out. Blocks of ``python`` run as
scripts.

* ``dpf serve``, ``dpf shuffle`` and ``dpf ui`` run until the page ends; the next command waits until they
  listen.
* The ports 8765 to 8769 are replaced by free ones, and with ``--smoke`` round numbers of records by a fifth.
* ``make`` is left out: it sets up the environment that this runs in.
* A command must end with 0, or with N where its comment says ``exit code N``.
* With ``--smoke``, ``dpf`` and scripts run in forks of a process that has imported everything: half of the
  time of a command is its start.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import pkgutil
import re
import select
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import NamedTuple

_BLOCK = re.compile(r"(?:^ *<!-- ([^>]*) -->\n+)?^( *)```(\w+)[^\n]*\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
_LISTENS = re.compile(r"dpf (serve (?!users\b)|shuffle\b|ui\b)")
_SMOKE = {str(number): str(number // 5) for number in (1000, 1500, 2000, 3000)}
_ROOT = Path(__file__).parents[2]
_START_SECONDS, _COMMAND_SECONDS = 120, 600


class Step(NamedTuple):
    """One thing to do: ``kind`` is file, python, command or server."""

    kind: str
    what: str
    name: str = ""
    code: int = 0


def steps_of(page: str) -> list[Step]:
    """What a reader of a page does, in its order."""
    found: list[Step] = []
    for said, indent, language, block in _BLOCK.findall(page):
        text = re.sub(f"^{indent}", "", block, flags=re.MULTILINE)
        if said.startswith("not run"):
            continue
        if said.startswith("file: "):
            found.append(Step("file", text, said.removeprefix("file: ")))
        elif language == "python":
            found.append(Step("python", text))
        elif language == "console":
            found += map(_command, _lines(text))
    return [step for step in found if not step.what.startswith("make ")]


def _lines(block: str) -> Iterator[str]:
    lines = [line for line in block.replace("\\\n", "").splitlines() if line.strip()]
    marked = [line for line in lines if line.startswith("$ ")]
    yield from (line.removeprefix("$ ") for line in marked or lines)


def _command(line: str) -> Step:
    expected = re.search(r"# exit code (\d)", line)
    kind = "server" if _LISTENS.match(line) else "command"
    return Step(kind, line, code=int(expected[1]) if expected else 0)


class Done(NamedTuple):
    """A step that was taken."""

    what: str
    seconds: float
    output: str


def run_page(page: str, folder: Path, *, smoke: bool = False) -> Iterator[Done]:
    """Do what a page says in ``folder``, step by step. AssertionError for what fails."""
    home = {"DPF_HOME": str(folder / ".home"), "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "2")}
    here = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    settings = {
        **os.environ,
        **home,
        "PATH": here,
        "PYTHONPATH": f"{_ROOT / 'src'}{os.pathsep}{_ROOT}",
        "COLUMNS": "160",
    }
    changed = {str(8765 + number): str(_free_port()) for number in range(5)} | (_SMOKE if smoke else {})
    with ExitStack() as servers:
        for step in steps_of(page):
            began, output = time.monotonic(), ""
            what = re.sub(rf"\b({'|'.join(changed)})\b", lambda found: changed[found[0]], step.what)
            if step.kind == "file":
                (folder / step.name).write_text(what, encoding="utf-8")
            elif step.kind == "server":
                servers.enter_context(closing(_Server(what, folder, settings)))
            else:
                code, output = (_run_fork if smoke else _run)(step.kind, what, folder, settings)
                assert code == step.code, f"exit code {code}: {step.what}\n{output[-4000:]}"
                assert "Traceback" not in output, f"{step.what}\n{output[-4000:]}"
            yield Done(step.what, time.monotonic() - began, output)


def _run(kind: str, what: str, folder: Path, settings: dict[str, str]) -> tuple[int, str]:
    """As a reader: a shell, or Python."""
    words = [sys.executable, "-c", what] if kind == "python" else ["bash", "-c", what]
    ended = subprocess.run(
        words, cwd=folder, env=settings, capture_output=True, text=True, timeout=_COMMAND_SECONDS, check=False
    )
    return ended.returncode, ended.stdout + ended.stderr


def _run_fork(kind: str, what: str, folder: Path, settings: dict[str, str]) -> tuple[int, str]:
    """The same for `dpf` and scripts, without their start."""
    if kind != "python" and (not what.startswith("dpf ") or re.search(r"[|;&<>$`]", what)):
        return _run(kind, what, folder, settings)
    started = multiprocessing.get_context("forkserver")
    started.set_forkserver_preload(_preloaded())
    output = folder / ".output"
    process = started.Process(target=_in_fork, args=(kind, what, folder, settings, output))
    process.start()
    process.join(_COMMAND_SECONDS)
    assert process.exitcode is not None, f"{what} does not end"
    return process.exitcode, output.read_text(encoding="utf-8")


def _in_fork(kind: str, what: str, folder: Path, settings: dict[str, str], output: Path) -> None:
    os.chdir(folder)
    os.environ.update(settings)
    with output.open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.stdout, sys.stderr = (open(number, "w", encoding="utf-8", buffering=1) for number in (1, 2))  # noqa: SIM115
    if kind == "python":
        exec(compile(what, "<page>", "exec"), {"__name__": "__main__"})
    else:
        importlib.import_module("dp_forward.cli.main").run(shlex.split(what, comments=True)[1:])


def _preloaded() -> list[str]:
    """All of dp_forward, and what it imports at first use."""
    own = [module.name for module in pkgutil.walk_packages([str(_ROOT / "src")])]
    late = ("trainer", "trainer_utils", "models.auto.modeling_auto", "models.bert.modeling_bert")
    return [*own, *(f"transformers.{name}" for name in late)]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class _Server:
    """A command that listens, until it is closed."""

    def __init__(self, line: str, folder: Path, settings: dict[str, str]) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        # exec: signals reach the command itself, not a shell around it
        self._process = subprocess.Popen(
            ["bash", "-c", f"exec {line}"],
            cwd=folder,
            env=settings,
            stdout=subprocess.PIPE,
            stderr=self._errors,
        )
        assert self._process.stdout is not None
        ready = select.select([self._process.stdout], [], [], _START_SECONDS)[0]
        if not ready or not self._process.stdout.readline().startswith(b"{"):
            self._process.kill()
            self._errors.seek(0)
            raise AssertionError(f"{line} does not listen: {self._errors.read().decode()[-2000:]}")

    def close(self) -> None:
        self._process.send_signal(signal.SIGINT)
        code = self._process.wait(60)
        self._errors.close()
        assert code == 0, f"a server ended with {code}"


def main(given: list[str]) -> None:
    pages = [name for name in given if not name.startswith("--")]
    for name in pages:
        with tempfile.TemporaryDirectory() as folder:
            text = Path(name).read_text(encoding="utf-8")
            for done in run_page(text, Path(folder), smoke="--smoke" in given):
                print(f"{name}: {done.seconds:6.1f} s  {done.what.splitlines()[0][:100]}", flush=True)
                if "--output" in given:
                    print(done.output, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
