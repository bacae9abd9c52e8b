"""Dimension maps."""

import pytest
import torch

from dp_forward.errors import InvalidInput
from dp_forward.split import split_model
from dp_forward.split.check import check_split
from tiny_models import tiny, tiny_inputs


def test_fewer_columns_cross() -> None:
    model = tiny("bert")
    pair = split_model(model, "encoder.2", width=8)
    hidden = pair.front(**tiny_inputs("bert"))
    assert hidden.shape == (2, 9, 8)
    assert pair.back(hidden).logits.shape == (2, 3)
    assert (pair.front.width, pair.back.width, str(pair.cut)) == (8, 8, "encoder.2")
    assert (pair.front.max_rows, pair.front.pads_left) == (40, False)
    report = check_split(pair, model)
    report.refuse()
    assert report.max_abs_difference is None


def test_padding_stays_zero_and_rows_stay_local() -> None:
    pair = split_model(tiny("bert"), "embeddings", width=8)
    inputs = tiny_inputs("bert")
    mask = torch.ones_like(inputs["input_ids"])
    mask[:, 6:] = 0
    hidden = pair.front(**inputs, attention_mask=mask)
    assert not hidden[:, 6:].any()
    assert pair.front.row_local


def test_the_maps_start_as_a_projection_and_its_transpose() -> None:
    pair = split_model(tiny("bert"), "encoder.2", width=8)
    narrow, widen = pair.front.narrow.weight, pair.back.widen.weight
    assert torch.allclose(narrow @ narrow.T, torch.eye(8), atol=1e-5)
    assert torch.equal(widen, narrow.T)
    assert widen.data_ptr() != narrow.data_ptr()


@pytest.mark.parametrize("width", [1, 0, -3, 32, 500])
def test_impossible_widths_are_refused(width: int) -> None:
    with pytest.raises(InvalidInput, match="width"):
        split_model(tiny("bert"), "encoder.1", width=width)
