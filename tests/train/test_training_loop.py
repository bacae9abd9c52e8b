"""The loop's own parts: the order of texts, the learning rate, and the checkpoint to go on from."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import get_scheduler

import tiny_models
from dp_forward.data import EncodedTexts
from dp_forward.errors import InvalidInput
from dp_forward.split import split_model
from dp_forward.train.noisy_model import NoisyModel
from dp_forward.train.plan import Plan
from dp_forward.train.training_loop import (
    FitSettings,
    _arguments,
    _dataset,
    _LikeLengths,
    fit,
    last_checkpoint,
)


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


class _Line(nn.Module):
    """One weight; its loss is no number from some step on. It notes which kinds of attention may run."""

    def __init__(self, lost_at: int | None = None) -> None:
        super().__init__()
        self.weight, self.steps, self.lost_at = nn.Parameter(torch.ones(1)), 0, lost_at
        self.cudnn: set[bool] = set()

    def forward(self, x: Tensor | None = None, labels: Tensor | None = None) -> dict[str, Tensor]:
        assert x is not None
        self.cudnn.add(torch.backends.cuda.cudnn_sdp_enabled())
        lost = float("nan") if self.steps == self.lost_at else 1.0
        self.steps += 1
        return {"loss": (self.weight * x).square().mean() * lost, "logits": x}


_RECORDS = [{"x": torch.ones(2), "labels": torch.tensor(0)} for _ in range(64)]
_SHORT = FitSettings(epochs=1.0, batch=8, learning_rate=1e-3, precision="fp32")


def test_a_loss_that_is_no_number_ends_the_training() -> None:
    with pytest.raises(InvalidInput, match=r"`loss` must stay finite; got nan at step 4\. Try half"):
        fit(_Line(lost_at=3), _RECORDS, None, _SHORT, stage="task")
    assert fit(_Line(), _RECORDS, None, _SHORT, stage="task")["steps"] == 8, "the control"


def test_no_model_trains_with_the_attention_that_loses_gradients() -> None:
    before, line = torch.backends.cuda.cudnn_sdp_enabled(), _Line()
    fit(line, _RECORDS, None, _SHORT, stage="task")
    assert before, "else nothing was switched off"
    assert line.cudnn == {False}
    assert torch.backends.cuda.cudnn_sdp_enabled() is before


def _left_padded() -> EncodedTexts:
    lengths = np.array([2, 5, 3], dtype=np.int32)
    ids = np.full((3, 12), tiny_models.PAD, dtype=np.int32)
    for row, length in zip(ids, lengths, strict=True):
        row[12 - length :] = np.arange(length) + 5
    return EncodedTexts({"ids": ids, "lengths": lengths, "labels": np.array([0, 1, 2])}, pads_left=True)


@pytest.mark.parametrize("family", ["llama", "gpt2", "opt"])
def test_texts_of_a_decoder_are_trimmed_where_one_row_crosses_and_give_the_same(family: str) -> None:
    texts, pair = _left_padded(), split_model(tiny_models.tiny(family), "output")
    module = NoisyModel(pair, None, rows=12, labels=3).eval()
    full, trimmed = texts.batch(range(3)), _dataset(texts, module).__getitems__([0, 1, 2])
    assert (full["input_ids"].shape[1], trimmed["input_ids"].shape[1]) == (12, 5)
    torch.testing.assert_close(module(**trimmed)["logits"], module(**full)["logits"], atol=1e-5, rtol=1e-4)


def test_inside_a_decoder_no_text_is_trimmed() -> None:
    """There its rows are counted from the left, and the back reads all of them."""
    module = NoisyModel(split_model(tiny_models.tiny("gpt2"), "encoder.1"), None, rows=12, labels=3)
    assert _dataset(_left_padded(), module).__getitems__([0, 1, 2])["input_ids"].shape[1] == 12
