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

    def small(epsilon: float, *, mechanism: str = "privunit", model: str | None = None) -> Plan:
        if model is not None:
            return world.plan(epsilon=epsilon, model=model, mechanism=mechanism, width=None)
        public = {
            "public_task": "imdb",
            "public_epochs": 2.0,
            "public_learning_rate": 2e-3,
            "public_batch": 16,
        }
        return world.plan(epsilon=epsilon, regime="public-front", warm_up_epochs=4.0, **public)

    monkeypatch.setattr(demo, "_plan", small)
    out = tmp_path / "demo"
    result = dpf("demo", "--out", str(out), "--epsilon", "6", "--json").json
    assert result["accuracy_privunit"] > result["accuracy_gaussian"]
    assert result["guarantee"]["training"]["epsilon"] == pytest.approx(6.0)
    assert result["ledger"] == {"spent_per_record": 6.0, "releases_of_the_corpus": 1}
    assert Path(result["figure"]).stat().st_size > 1000
    assert [answer["charge"] for answer in result["answers"]] == [6.0, 6.0, 6.0]
    again = dpf("demo", "--out", str(out), "--epsilon", "6")
    assert again.code == 0, again.err
    assert "PrivUnit" in again.out
    assert f"{result['accuracy_privunit']:.3f}" in again.out, "the stored result, not another run"
    assert again.out.count("charge 0, ") == 3, "asked before: resent for nothing"
