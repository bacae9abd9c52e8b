"""One tiny masked LM for all tests of this folder."""

from __future__ import annotations

import pytest

from tiny_corpus import make_checkpoint


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Made once; nothing changes it."""
    return make_checkpoint(tmp_path_factory.mktemp("tiny") / "model")
