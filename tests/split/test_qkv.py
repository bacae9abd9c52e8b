"""The joint release of Q, K and V, with noise that follows the weights."""

import numpy as np
import pytest
import torch

import dp_forward as dpf
from dp_forward.errors import InvalidInput
from dp_forward.noise import ProjectedSanitizer
from dp_forward.privacy import TEXT, TOKEN, Budget, normalise, normalise_rows, phrase
from dp_forward.split.private_model import open_at_qkv
from tiny_models import SETTINGS, tiny, tiny_inputs

BUDGET = Budget(8.0, 1e-5)
TEXT_FAMILIES = [family for family in SETTINGS if family != "vit"]


@pytest.mark.parametrize("family", SETTINGS)
def test_the_projections_after_the_rows_are_what_the_front_gave(family: str) -> None:
    pair = dpf.split(tiny(family), "encoder.1.qkv")
    opened, projections = open_at_qkv(pair)
    inputs = tiny_inputs(family)
    with torch.no_grad():
        rows = opened.front(**inputs)
        again = torch.cat([projection(rows) for projection in projections], dim=-1)
        assert torch.equal(again, pair.front(**inputs))
    assert rows.shape[-1] == opened.front.width == 32


@pytest.mark.parametrize("family", TEXT_FAMILIES)
def test_it_trains_and_the_noise_follows_the_weights(family: str) -> None:
    pair = dpf.split(tiny(family), "encoder.1.qkv")
    joined = dpf.join_qkv(pair, BUDGET, bound=normalise_rows(1.0), seed=1, draws=2).train()
    optimizer = torch.optim.SGD(joined.parameters(), lr=0.5)
    before = joined.sanitizer.mechanism.sigma
    for _ in range(2):
        optimizer.zero_grad()
        joined(**tiny_inputs(family), labels=torch.tensor([0, 1])).loss.backward()
        optimizer.step()
    after = joined.sanitizer.mechanism.sigma
    assert after != before
    weights = [
        p.weight.detach().double().numpy().T
        if isinstance(p, torch.nn.Linear)
        else p.weight.detach().double().numpy()
        for p in joined.sanitizer.projections
    ]
    largest = np.linalg.svd(np.concatenate(weights, axis=1), compute_uv=False)[0]
    assert after == pytest.approx(2 * largest / 1.6660305978, rel=1e-6)
    assert joined.guarantee().epsilon <= 8.0
    assert "token" in joined.guarantee().promise


def test_a_stale_sigma_would_break_the_promise_and_is_never_used() -> None:
    projection = torch.nn.ModuleList([torch.nn.Linear(4, 6)])
    sanitizer = ProjectedSanitizer(projection, BUDGET, bound=normalise_rows(1.0), seed=1)
    rows = torch.randn(1, 3, 4)
    before = sanitizer.mechanism
    with torch.no_grad():
        projection[0].weight.mul_(10)
    assert sanitizer.mechanism.sigma == pytest.approx(10 * before.sigma, rel=1e-6)
    noisy = sanitizer(rows, draws=20_000).detach()
    assert float(noisy.std(dim=0).mean()) == pytest.approx(10 * before.sigma, rel=0.02)
    # Negative control: the old mechanism's noise would be seen by the same comparison.
    assert noisy.std(dim=0).mean() > 5 * before.sigma


def test_weights_written_behind_the_version_counter_are_seen_too() -> None:
    projection = torch.nn.ModuleList([torch.nn.Linear(4, 6)])
    sanitizer = ProjectedSanitizer(projection, BUDGET, bound=normalise_rows(1.0))
    before = sanitizer.mechanism.sigma
    version = projection[0].weight._version
    projection[0].weight.data.mul_(10)
    assert projection[0].weight._version == version
    assert sanitizer.mechanism.sigma == pytest.approx(10 * before, rel=1e-6)


def test_a_phrase_costs_the_root_of_its_tokens() -> None:
    projection = torch.nn.ModuleList([torch.nn.Linear(4, 6)])
    one = ProjectedSanitizer(projection, BUDGET, bound=normalise_rows(1.0), unit=TOKEN).mechanism.sigma
    four = ProjectedSanitizer(projection, BUDGET, bound=normalise_rows(1.0), unit=phrase(4)).mechanism.sigma
    assert four == pytest.approx(2 * one)


def test_what_does_not_fit_is_refused() -> None:
    pair = dpf.split(tiny("bert"), "encoder.1.qkv")
    with pytest.raises(InvalidInput, match="row"):
        dpf.join_qkv(pair, BUDGET, bound=normalise(1.0))
    with pytest.raises(InvalidInput, match="row"):
        dpf.join_qkv(pair, BUDGET, bound=normalise_rows(1.0), unit=TEXT)
    with pytest.raises(InvalidInput, match="qkv"):
        dpf.join_qkv(dpf.split(tiny("bert"), "encoder.1"), BUDGET, bound=normalise_rows(1.0))
    joined = dpf.join_qkv(pair, BUDGET, bound=normalise_rows(1.0))
    with pytest.raises(InvalidInput, match="rows"):
        joined.sanitizer(torch.zeros(2, 3))
    no_maps = torch.nn.ModuleList([torch.nn.Identity()])
    with pytest.raises(InvalidInput, match="linear"):
        ProjectedSanitizer(no_maps, BUDGET, bound=normalise_rows(1.0)).guarantee()
    assert "per token" in repr(joined.sanitizer)
