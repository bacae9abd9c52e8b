"""The linear map before the gradient attack: it finds the first rows, and noise takes them away."""

import numpy as np
import pytest
import torch

from attacks.inversion.inversion_cases import PUBLIC, SECRET, front, noise, target
from benchmarks.linear_map import entry_rows, fit_linear_map, invert_through

BATCH = {k: v for k, v in SECRET.batch(np.arange(6)).items() if k != "labels"}


@pytest.mark.parametrize("family", ["bert", "albert", "electra"])
def test_the_rows_of_the_first_block_are_those_of_the_cut_at_embeddings(family: str) -> None:
    with torch.no_grad():
        deep, shallow = front("encoder.2", family=family), front("embeddings", family=family)
        text = BATCH["attention_mask"] != 0
        assert torch.equal(entry_rows(deep, BATCH)[text], shallow(**BATCH)[text])


@pytest.mark.slow
def test_a_linear_map_leads_back_to_the_rows_of_the_first_block() -> None:
    deep = front("encoder.1")
    told: list[int] = []
    found = fit_linear_map(target(deep, None), PUBLIC, progress=told.append)
    assert 0 < found.error < 0.5
    assert told[-1] == len(PUBLIC)
    result = invert_through(found, target(deep, None), steps=60)
    assert result.success > 0.8
    assert result.details["map_error"] == found.error
    strong = target(deep, noise(0.5))
    blind = fit_linear_map(strong, PUBLIC)
    assert blind.error > found.error
    defended = invert_through(blind, strong, steps=20)
    assert defended.success < 0.25
