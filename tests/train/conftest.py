"""One tiny checkpoint and task for all tests of this folder."""

from __future__ import annotations

import pytest

from tiny_task import TinyWorld


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> TinyWorld:
    """Made once; nothing changes it."""
    return TinyWorld.under(tmp_path_factory.mktemp("world"))
