"""The loop's own parts: the order of texts, the learning rate, and the checkpoint to go on from."""

from pathlib import Path

import pytest
import torch
from transformers import get_scheduler

from dp_forward.errors import InvalidInput
from dp_forward.train.plan import Plan
from dp_forward.train.training_loop import FitSettings, _arguments, _LikeLengths, last_checkpoint


def rates(plan: Plan, place: Path) -> list[float]:
    """The learning rate of each of the forty steps that a plan would take."""
    settings = FitSettings.of(plan, epochs=2.0, batch=8, precision="fp32")
    made = _arguments(settings, place, 20, saves=False, evaluates=False)
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=made.learning_rate)
    schedule = get_scheduler(
        made.lr_scheduler_type, optimizer, num_warmup_steps=made.get_warmup_steps(40), num_training_steps=40
    )
    found = []
    for _ in range(40):
        found.append(schedule.get_last_lr()[0])
        optimizer.step()
        schedule.step()
    return found


def test_a_constant_schedule_keeps_the_rate_from_the_first_step_to_the_last(tmp_path: Path) -> None:
    plan = {"task": "sst2", "regime": "end-to-end", "epsilon": 8.0, "learning_rate": 2e-5}
    assert set(rates(Plan(**plan, schedule="constant"), tmp_path)) == {2e-5}
    linear = rates(Plan(**plan), tmp_path)
    assert linear[0] == 0.0
    assert max(linear) == 2e-5
    assert linear[-1] < 2e-6


def test_another_schedule_is_refused() -> None:
    with pytest.raises(InvalidInput, match="schedule"):
        Plan(task="sst2", epsilon=8.0, schedule="cosine")


def test_the_same_epoch_has_the_same_order_and_neighbours_have_like_lengths() -> None:
    lengths = torch.randint(1, 60, (1000,), generator=torch.Generator().manual_seed(1)).numpy()
    first, second = (_LikeLengths(lengths, batch=10, seed=3) for _ in range(2))
    first.set_epoch(4)
    second.set_epoch(4)
    order = list(first)
    assert order == list(second)
    assert sorted(order) == list(range(1000))
    second.set_epoch(5)
    assert order != list(second)
    spread = [lengths[order[i : i + 10]].max() - lengths[order[i : i + 10]].min() for i in range(0, 1000, 10)]
    assert sum(spread) / len(spread) < 10


def test_a_checkpoint_that_a_kill_cut_short_is_passed_over(tmp_path: Path) -> None:
    for step, state in ((2, "{}"), (4, '{"global_step": 4}'), (6, "{")):
        (tmp_path / f"checkpoint-{step}").mkdir()
        (tmp_path / f"checkpoint-{step}" / "trainer_state.json").write_text(state)
    assert last_checkpoint(tmp_path) == tmp_path / "checkpoint-4"
