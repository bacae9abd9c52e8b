"""Running the real command in this process."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from command import Outcome, caller
from dp_forward.cli.main import run


@pytest.fixture
def dpf(capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """Run `dpf` with these words."""
    return caller(run, capsys)


@pytest.fixture(autouse=True)
def _no_power_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test of this folder is about a power cut, so no file waits for the disk."""
    monkeypatch.setattr("dp_forward.storage.files._sync", lambda path: None)
