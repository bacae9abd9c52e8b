"""The loop's own parts: the order of texts, and the checkpoint to go on from."""

from pathlib import Path

import torch

from dp_forward.train.training_loop import _LikeLengths, last_checkpoint


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
