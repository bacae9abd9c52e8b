"""The figures of docs/attacks.md, from the stored results."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.attack_tables import ATTACKS, draw


@pytest.mark.slow
def test_every_attack_has_its_figure_with_chance_and_ceiling(tmp_path: Path) -> None:
    drawn = draw(json.loads(ATTACKS.read_text(encoding="utf-8")), tmp_path)
    names = {
        f"attacks-{name}-{of}.svg"
        for name in ("membership", "inversion", "attribute")
        for of in ("light", "dark")
    }
    assert {path.name for path in drawn} == names == {path.name for path in tmp_path.iterdir()}
    for path in drawn:
        svg = path.read_text(encoding="utf-8")
        assert all(f">{word}</text>" in svg for word in ("chance", "ceiling", "promised", "nothing promised"))
