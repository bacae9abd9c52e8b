"""The linear map before the gradient attack: it finds the first rows, and noise takes them away."""

import numpy as np
import pytest
import torch

from attacks.inversion.inversion_cases import PRIOR, PUBLIC, SECRET, front, noise
from benchmarks.linear_map import entry_rows, fit_linear_map
from dp_forward.attacks.inversion.gradient import invert_by_gradient

BATCH = {k: v for k, v in SECRET.batch(np.arange(6)).items() if k != "labels"}


@pytest.mark.parametrize("family", ["bert", "albert", "electra"])
def test_the_rows_of_the_first_block_are_those_of_the_cut_at_embeddings(family: str) -> None:
    with torch.no_grad():
        deep, shallow = front("encoder.2", family=family), front("embeddings", family=family)
        text = BATCH["attention_mask"] != 0
        assert torch.equal(entry_rows(deep, BATCH)[text], shallow(**BATCH)[text])


def test_a_linear_map_leads_back_to_the_rows_of_the_first_block() -> None:
    deep = front("encoder.1")
    told: list[int] = []
    found = fit_linear_map(deep, None, PUBLIC, progress=told.append)
    assert 0 < found.error < 0.5
    assert told[-1] == len(PUBLIC)
    result = invert_by_gradient(deep, None, SECRET, prior=PRIOR, through=found, steps=60, batch=40)
    assert result.success > 0.8
    assert result.details["map_error"] == found.error
    blind = fit_linear_map(deep, noise(0.5), PUBLIC)
    assert blind.error > found.error
    defended = invert_by_gradient(deep, noise(0.5), SECRET, prior=PRIOR, through=blind, steps=20, batch=40)
    assert defended.success < 0.25
