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
