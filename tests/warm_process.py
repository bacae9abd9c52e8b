"""Processes of their own that start warm: a fork server imports torch and Transformers once for all of them.

A script runs as by ``python script.py``, in a process that can be killed like any other.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import sys
import tempfile
from collections.abc import Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["torch", "transformers", "dp_forward.train.finetune"])


class Script:
    """A running script; its output goes to two files beside ``log``."""

    def __init__(
        self, path: Path, words: Sequence[str], *, log: Path, cwd: Path | None = None, **variables: str
    ):
        self._output, self._errors = log.with_suffix(".out"), log.with_suffix(".err")
        settings = (str(path), list(words), str(cwd or Path.cwd()), variables, (self._output, self._errors))
        self.process: BaseProcess = _CONTEXT.Process(target=_run, args=settings)
        self.process.start()

    @property
    def running(self) -> bool:
        return self.process.is_alive()

    def kill(self) -> None:
        """With SIGKILL: nothing is cleaned up."""
        self.process.kill()
        self.process.join()

    def finish(self, seconds: float = 300) -> int:
        """Its exit code; a script that takes longer is killed."""
        self.process.join(seconds)
        if self.process.is_alive():
            self.kill()
        return int(self.process.exitcode or 0)

    @property
    def output(self) -> str:
        return self._output.read_text(encoding="utf-8")

    @property
    def errors(self) -> str:
        return self._errors.read_text(encoding="utf-8")


def _run(path: str, words: list[str], cwd: str, variables: dict[str, str], places: tuple[Path, Path]) -> None:
    for descriptor, place in enumerate(places, start=1):
        os.dup2(os.open(place, os.O_CREAT | os.O_WRONLY | os.O_TRUNC), descriptor)
    os.environ.update(variables)
    tempfile.tempdir = None  # TMPDIR may be another one now
    os.chdir(cwd)
    sys.argv = [path, *words]
    sys.path[0] = str(Path(path).parent)
    runpy.run_path(path, run_name="__main__")
    sys.stdout.flush()
