"""What the plan of a pre-training run refuses, and what of it decides a result."""

from dataclasses import replace

import pytest

from dp_forward.errors import InvalidInput
from dp_forward.train.pretrain.pretrain_plan import PretrainPlan

PLAN = PretrainPlan(epsilon=8.0, steps=6)


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"steps": -1}, "steps"),
        ({"length": 2}, "length"),
        ({"batch": 0}, "batch"),
        ({"learning_rate": 0.0}, "learning_rate"),
        ({"least_noise": 0.0}, "least_noise"),
        ({"least_noise": 2.0}, "least_noise"),
        ({"epsilon": None}, "epsilon"),
    ],
)
def test_settings_that_make_no_sense_are_named(changes, name: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        replace(PLAN, **changes)
    assert caught.value.name == name


def test_the_noise_protects_whole_texts_of_the_length_of_a_block() -> None:
    noise = PLAN.noise
    assert noise is not None
    assert (noise.unit, noise.rows, noise.epsilon) == ("text", PLAN.length, 8.0)
    assert replace(PLAN, mechanism="none", epsilon=None).noise is None


def test_how_often_is_saved_decides_nothing() -> None:
    assert replace(PLAN, save_every=3).digest() == PLAN.digest()
    assert replace(PLAN, seed=3).digest() != PLAN.digest()
