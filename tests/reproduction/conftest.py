"""Running the real command in this process."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from command import Outcome, caller
from reproduction.__main__ import main


@pytest.fixture
def reproduce(capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """Run `python -m reproduction` with these words."""
    return caller(main, capsys)
