"""What a run reads is checked before anything trains."""

from pathlib import Path

import pytest

from dp_forward.errors import InvalidInput
from dp_forward.train.defaults import effective_plan
from dp_forward.train.inputs import load_inputs
from tiny_task import TinyWorld


@pytest.mark.slow
def test_private_texts_under_a_public_name_are_refused(world: TinyWorld, tmp_path: Path) -> None:
    lines = (world.task / "train.tsv").read_text().replace("sentence", "text", 1)
    (tmp_path / "train.tsv").write_text(lines)
    same = {"sst2": str(world.task), "imdb": str(tmp_path)}
    with pytest.raises(InvalidInput, match="private texts in it"):
        load_inputs(effective_plan(world.plan(regime="public-front", public_task="imdb", data=same)))


def test_a_public_task_with_other_labels_is_refused(world: TinyWorld) -> None:
    with pytest.raises(InvalidInput, match="labels of sst2"):
        load_inputs(effective_plan(world.plan(regime="public-front", public_task="qqp")))


@pytest.mark.slow
@pytest.mark.parametrize("regime", ["end-to-end", "release-once"])
def test_a_promise_per_token_is_refused_where_one_token_moves_every_row(
    world: TinyWorld, regime: str
) -> None:
    per_token = {"unit": "token", "mechanism": "matrix-gaussian", "regime": regime}
    with pytest.raises(InvalidInput, match="whole texts at the cut"):
        load_inputs(effective_plan(world.plan(cut="encoder.1", **per_token)))
    inputs = load_inputs(effective_plan(world.plan(cut="embeddings", **per_token)))
    assert str(inputs.spec.mechanism().unit) == "token"
