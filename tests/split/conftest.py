"""The quick loop tries two families, one post-norm encoder and one causal decoder; the whole suite tries all."""

from pathlib import Path

import pytest

QUICK = {"bert", "gpt2"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        family = getattr(getattr(item, "callspec", None), "params", {}).get("family", "bert")
        if Path(__file__).parent in item.path.parents and family not in QUICK:
            item.add_marker(pytest.mark.slow)
