"""The quick loop tries two families, a post-norm encoder and a causal decoder; the whole suite all."""

from pathlib import Path

import pytest

QUICK = {"bert", "gpt2"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        family = getattr(getattr(item, "callspec", None), "params", {}).get("family", "bert")
        if Path(__file__).parent in item.path.parents and family not in QUICK:
            item.add_marker(pytest.mark.slow)
