"""Processes of their own that start warm: a fork server imports torch and Transformers once for all of them.

A script runs as by ``python script.py``, a verb as by ``dpf verb``, in a process that can be killed like any
other.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import runpy
import sys
import tempfile
import time
from collections.abc import Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from torch.distributed import TCPStore

from dp_forward.cli.main import run

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    [
        "torch",
        "transformers",
        "dp_forward.train.finetune",
        "dp_forward.service.server.uvicorn_runner",
    ]
)


class Script:
    """A running script; its output goes to two files beside ``log``."""

    def __init__(
        self,
        path: Path | None,
        words: Sequence[str],
        *,
        log: Path,
        cwd: Path | None = None,
        **variables: str,
    ):
        self._output, self._errors = log.with_suffix(".out"), log.with_suffix(".err")
        variables = {"DPF_HOME": os.environ["DPF_HOME"], **variables}
        settings = (path, list(words), str(cwd or Path.cwd()), variables, (self._output, self._errors))
        self.process: BaseProcess = _CONTEXT.Process(target=_run, args=settings)
        self.process.start()

    @property
    def running(self) -> bool:
        return self.process.is_alive()

    def kill(self) -> None:
        """With SIGKILL: nothing is cleaned up."""
        self.process.kill()
        self.process.join()

    def signal(self, number: int) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, number)

    def finish(self, seconds: float = 300) -> int:
        """Its exit code; a script that takes longer is killed."""
        self.process.join(seconds)
        if self.process.is_alive():
            self.kill()
        return int(self.process.exitcode or 0)

    @property
    def output(self) -> str:
        return self._output.read_text(encoding="utf-8") if self._output.exists() else ""

    @property
    def errors(self) -> str:
        return self._errors.read_text(encoding="utf-8")


class Verb(Script):
    """A running `dpf`, one thread wide."""

    def __init__(self, *words: str, log: Path):
        super().__init__(None, words, log=log, OMP_NUM_THREADS="1")

    def first_line(self, seconds: float = 60) -> Any:
        """The JSON of the line that it prints when it is ready."""
        until = time.monotonic() + seconds
        while "\n" not in self.output:
            assert self.running, self.errors[-2000:]
            assert time.monotonic() < until, "it says nothing"
            time.sleep(0.01)
        return json.loads(self.output.split("\n", 1)[0])


def run_ranks(count: int, path: Path, words: Sequence[str], *, log: Path) -> None:
    """Run a script once for each rank, with the variables and the store that torchrun gives them."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    shared = {
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RUN_ID": "none",
    }
    ranks = [
        Script(path, words, log=log.with_name(f"{log.name}{n}"), RANK=str(n), LOCAL_RANK=str(n), **shared)
        for n in range(count)
    ]
    for rank in ranks:
        assert rank.finish() == 0, rank.errors[-3000:]


def _run(
    path: Path | None, words: list[str], cwd: str, variables: dict[str, str], places: tuple[Path, Path]
) -> None:
    for descriptor, place in enumerate(places, start=1):
        os.dup2(os.open(place, os.O_CREAT | os.O_WRONLY | os.O_TRUNC), descriptor)
    os.environ.update(variables)
    tempfile.tempdir = None  # TMPDIR may be another one now
    os.chdir(cwd)
    if path is None:
        run(words)
    else:
        sys.argv = [str(path), *words]
        sys.path[0] = str(path.parent)
        runpy.run_path(str(path), run_name="__main__")
    sys.stdout.flush()
