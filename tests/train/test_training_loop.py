"""The loop's own parts: the moving average of the weights, and the order of texts."""

from pathlib import Path
from types import SimpleNamespace

import torch
from torch import nn

from dp_forward.train.training_loop import _LikeLengths, _MovingAverage, last_checkpoint

DECAY, STEPS = 0.9, 12


def _trained(folder: Path, *, killed_at: int | None) -> tuple[torch.Tensor, torch.Tensor]:
    """The weights at the end, and the average by its formula; perhaps with a kill and a resume between."""
    torch.manual_seed(0)
    module = nn.Linear(3, 2)
    module.bias.requires_grad_(False)
    expected = module.weight.detach().clone()
    args = SimpleNamespace(output_dir=str(folder))
    callback = _MovingAverage(module, decay=DECAY)
    state = SimpleNamespace(global_step=0, is_world_process_zero=True)
    callback.on_train_begin(args, state, None)
    for step in range(1, STEPS + 1):
        with torch.no_grad():
            module.weight += torch.randn(2, 3)
        state.global_step = step
        callback.on_step_end(args, state, None)
        decay = min(DECAY, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * module.weight.detach()
        if step == killed_at:
            (folder / f"checkpoint-{step}").mkdir(parents=True)
            callback.on_save(args, state, None)
            callback = _MovingAverage(module, decay=DECAY)
            callback.on_train_begin(args, state, None)
    callback.on_train_end(args, state, None)
    return module.weight.detach(), expected


def test_the_kept_weights_are_the_moving_average_also_after_a_resume(tmp_path: Path) -> None:
    for killed_at in (None, 5):
        found, expected = _trained(tmp_path, killed_at=killed_at)
        torch.testing.assert_close(found, expected)


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
