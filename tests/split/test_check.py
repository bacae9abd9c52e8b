"""The leak check: honest pairs pass, hostile models are refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from transformers import BertForSequenceClassification

from dp_forward.errors import InvalidInput
from dp_forward.split import Split, legal_cuts, split_model
from dp_forward.split.check import check_split
from tiny_models import RELATIVES, SETTINGS, WHOLE_BLOCKS, tiny


@pytest.mark.slow
@pytest.mark.parametrize("family", [family for family in SETTINGS if family not in RELATIVES])
def test_every_kind_of_cut_of_every_family_passes(family: str) -> None:
    model = tiny(family, blocks=2)
    # Inside the second block the same modules stand as inside the first; `ffn_norm` is another name.
    kinds = [
        i for i in legal_cuts(model) if not (i.cut.point and (i.cut.block == 2 or i.cut.point == "ffn_norm"))
    ]
    assert len(kinds) == (4 if family in WHOLE_BLOCKS else 8)
    for info in kinds:
        report = check_split(split_model(model, info.cut), model)
        report.refuse()
        assert report.back_inputs == 1
        if info.cut.drops_residual:
            assert report.max_abs_difference is None
        else:
            assert report.max_abs_difference <= (0.0 if info.exact else 1e-5)


@pytest.mark.slow
def test_modes_are_left_as_they_were() -> None:
    model = tiny("bert")
    model.train()
    pair = split_model(model, "encoder.1")
    check_split(pair, model)
    assert model.training
    assert pair.back.training


@pytest.mark.slow
def test_a_masked_lm_head_passes_where_it_was_allowed() -> None:
    model = tiny("bert", "masked_lm")
    allowed = split_model(model, "encoder.1", allow_vocabulary_head=True)
    assert allowed.back.vocabulary_head
    check_split(allowed, model).refuse()


class SkipsAroundTheCut(BertForSequenceClassification):
    """Hostile: adds something of the raw text to the logits, past every block."""

    def forward(self, input_ids=None, **kwargs):
        output = super().forward(input_ids=input_ids, **kwargs)
        if input_ids is not None:
            output.logits = output.logits + input_ids.float().mean(dim=1, keepdim=True)
        return output


@pytest.mark.slow
def test_a_skip_around_the_cut_under_a_known_name_shows_in_the_equality() -> None:
    disguised = type("BertForSequenceClassification", (SkipsAroundTheCut,), {})
    hostile = disguised(tiny("bert").config).eval()
    report = check_split(split_model(hostile, "encoder.1"), hostile)
    with pytest.raises(InvalidInput, match="something else crosses"):
        report.refuse()


class Remembering(nn.Module):
    """Hostile: keeps the rows it saw in a place that the other half can read."""

    def __init__(self, inner: nn.Module, memory: list[torch.Tensor], *, reads: bool) -> None:
        super().__init__()
        self.inner, self.memory, self.reads = inner, memory, reads
        for name in ("cut", "width", "row_local", "vocabulary_head", "model"):
            if hasattr(inner, name):
                setattr(self, name, getattr(inner, name))

    def forward(self, *args, **kwargs):
        output = self.inner(*args, **kwargs)
        if not self.reads:
            self.memory[:] = [output]
        elif self.memory:
            output.logits = output.logits + self.memory[0].mean()
        return output


def _conspiring(model: nn.Module, *, detach: bool) -> Split:
    memory: list[torch.Tensor] = []
    front, back = split_model(model, "encoder.1")
    writer = Remembering(front, memory, reads=False)
    if detach:
        writer.register_forward_hook(lambda *_: memory.__setitem__(0, memory[0].detach()))
    return Split(writer, Remembering(back, memory, reads=True))  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize("detach", [True, False])
def test_hidden_rows_carried_past_the_noise_are_found(detach: bool) -> None:
    model = tiny("bert")
    pair = _conspiring(model, detach=detach)
    report = check_split(pair, model)
    found = " ".join(report.problems)
    assert "read before" in found
    assert ("gradient" in found) is not detach
    with pytest.raises(InvalidInput):
        report.refuse()


@pytest.mark.slow
def test_a_length_carried_past_the_noise_is_found() -> None:
    model = tiny("bert")
    pair = split_model(model, "encoder.1")
    lengths: list[int] = []

    def noted(module: nn.Module, args: tuple[()], inputs: dict[str, torch.Tensor]) -> None:
        lengths[:] = [int(inputs["attention_mask"].sum())]

    def told(module: nn.Module, args: tuple[()], output: Any) -> Any:
        output.logits = output.logits + lengths[0] if lengths else output.logits
        return output

    assert not check_split(pair, model).problems
    pair.front.register_forward_pre_hook(noted, with_kwargs=True)
    pair.back.register_forward_hook(told)
    assert any("read before" in problem for problem in check_split(pair, model).problems)


@pytest.mark.slow
def test_shared_memory_is_found() -> None:
    model = tiny("bert")
    pair = split_model(model, "encoder.1")
    pair.back.model.stolen = next(iter(pair.front.parameters()))
    problems = check_split(pair, model).problems
    assert "front and back share memory" in problems
    assert any("vocabulary" in problem for problem in problems)


@pytest.mark.slow
def test_a_shape_that_follows_the_text_is_found() -> None:
    class Shortens(nn.Module):
        def __init__(self, front: nn.Module) -> None:
            super().__init__()
            self.front, self.cut, self.width, self.row_local = front, front.cut, front.width, front.row_local

        def forward(self, **inputs):
            longest = int(inputs["attention_mask"].sum(dim=1).max())
            return self.front(**inputs)[:, :longest]

    model = tiny("bert")
    front, back = split_model(model, "encoder.1")
    report = check_split(Split(Shortens(front), back), model)  # type: ignore[arg-type]
    assert any("shape" in problem for problem in report.problems)
