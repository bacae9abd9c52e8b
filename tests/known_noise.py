"""The noise multiplier of a small DP-SGD run, whose search takes seconds."""

from __future__ import annotations

from typing import Any

import pytest

SETTINGS = {"target_epsilon": 8.0, "target_delta": 1e-5, "sample_rate": 0.25, "steps": 8}
FOUND = 0.80291748046875
"""What Opacus finds for these; whoever takes it asks the accountant whether it is enough."""


@pytest.fixture
def known_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the search where its result is known."""
    utils = pytest.importorskip("opacus.accountants.utils")
    search = utils.get_noise_multiplier

    def known(**settings: Any) -> float:
        return FOUND if SETTINGS.items() <= settings.items() else float(search(**settings))

    monkeypatch.setattr(utils, "get_noise_multiplier", known)
