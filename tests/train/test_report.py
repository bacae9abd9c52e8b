"""What a report says of a model that may have learnt nothing."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dp_forward.errors import InvalidInput
from dp_forward.train.evaluation import commonest_share
from dp_forward.train.report import draw_bars, markdown, weakness


def report(low: float, **changed: Any) -> dict[str, Any]:
    said = {"accuracy_low": low, "accuracy_of_commonest_label": 0.509, "texts": 872}
    return said | {"regime": "release-once"} | changed


def test_the_commonest_label_is_the_largest_share() -> None:
    assert commonest_share(np.array([1, 0, 1, 2, 1])) == pytest.approx(0.6)
    assert commonest_share(np.array([0, 0])) == 1.0
    for nothing in (None, np.array([], dtype=np.int64)):
        with pytest.raises(InvalidInput, match="labels"):
            commonest_share(nothing)


def test_a_model_is_doubted_until_its_interval_lies_above_the_commonest_label() -> None:
    assert weakness(report(0.51)) is None
    for low in (0.509, 0.476):
        said = weakness(report(low))
        assert said is not None
        assert "0.509" in said
        assert "872 texts" in said


def test_a_published_front_gets_another_remedy_than_one_that_trains() -> None:
    published, trained = weakness(report(0.4)), weakness(report(0.4, regime="end-to-end"))
    assert published is not None
    assert trained is not None
    assert "public-front" in published
    assert "public-front" not in trained


def test_a_report_of_before_is_not_doubted() -> None:
    old = report(0.4)
    del old["accuracy_of_commonest_label"]
    assert weakness(old) is None


@pytest.mark.parametrize(
    ("mechanism", "regime", "said"),
    [
        ("none", "end-to-end", "no noise in a query"),
        ("dp-sgd (ghost)", "dp-sgd", "no noise in a query"),
        ("mvg", "end-to-end", "1 draws of the noise each"),
    ],
)
def test_noise_without_a_promise_is_still_called_noise(mechanism: str, regime: str, said: str) -> None:
    plan = {"mechanism": mechanism, "epsilon": 4.0, "task": "sst2", "model": "m"}
    statements = dict.fromkeys(("queries", "training_texts", "labels"), "NOT protected.")
    numbers = dict.fromkeys(("accuracy", "accuracy_high", "accuracy_without_noise", "seconds"), 0.9)
    text = markdown(
        report(0.8, regime=regime, plan=plan, draws=1, peak_memory_mib=0.0, notes="", provenance={})
        | numbers
        | {"guarantee": {"statements": statements, "queries": None}}
    )
    assert f"872 texts, {said}" in text


@pytest.mark.slow
def test_bars_are_drawn_with_a_line_for_chance_and_without(tmp_path: Path) -> None:
    rows = [(f"label {number}", 0.0, 0.0, 0.2) for number in range(9)]
    for name, chance in (("with.png", 0.5), ("without.png", None)):
        assert draw_bars(rows, tmp_path / name, title="t", measure="share", chance=chance)
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "with.png").read_bytes() != (tmp_path / "without.png").read_bytes()
