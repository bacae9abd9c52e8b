"""`dpf demo` on a tiny model: the same steps, table, figure and stored result."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dp_forward.cli import demo
from dp_forward.train.plan import Plan
from tiny_task import TinyWorld


@pytest.mark.slow
def test_the_demo_compares_no_noise_gaussian_and_privunit(
    dpf: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = TinyWorld.under(tmp_path / "world")

    def small(epsilon: float) -> Plan:
        return world.folded_plan(epsilon=epsilon)

    monkeypatch.setattr(demo, "_plan", small)
    out = tmp_path / "demo"
    result = dpf("demo", "--out", str(out), "--epsilon", "6", "--json").json
    assert result["accuracy_without_noise"] > 0.8
    assert result["accuracy_privunit"] > 0.6
    assert 0 < result["central_epsilon_upper"] <= 6
    assert result["guarantee"]["training"]["epsilon"] == pytest.approx(6.0)
    assert result["ledger"] == {"spent_per_record": 6.0, "releases_of_the_corpus": 1}
    assert Path(result["figure"]).stat().st_size > 1000
    assert [answer["charge"] for answer in result["answers"]] == [6.0, 6.0, 6.0]
    again = dpf("demo", "--out", str(out), "--epsilon", "6")
    assert again.code == 0, again.err
    assert "PrivUnit" in again.out
    assert f"{result['accuracy_privunit']:.3f}" in again.out, "the stored result, not another run"
    assert again.out.count("charge 0, ") == 3, "asked before: resent for nothing"
