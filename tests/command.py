"""Running a real command line in this process."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest


@dataclass(frozen=True)
class Outcome:
    """What a command printed and how it ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def caller(run: Callable[[list[str]], None], capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """Calls ``run`` with words and collects what it prints."""

    def call(*words: str) -> Outcome:
        code = 0
        try:
            run(list(words))
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else 1
        captured = capsys.readouterr()
        return Outcome(code, captured.out, captured.err)

    return call
