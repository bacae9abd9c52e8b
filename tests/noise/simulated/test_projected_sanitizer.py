"""The joint release of Q, K and V: noise that follows the weights."""

import pytest
import torch

from dp_forward.errors import InvalidInput
from dp_forward.noise import ProjectedSanitizer
from dp_forward.privacy import TEXT, TOKEN, Budget, normalise, normalise_rows, phrase

BUDGET = Budget(8.0, 1e-5)


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
    linear = torch.nn.ModuleList([torch.nn.Linear(4, 6)])
    with pytest.raises(InvalidInput, match="row"):
        ProjectedSanitizer(linear, BUDGET, bound=normalise(1.0))
    with pytest.raises(InvalidInput, match="row"):
        ProjectedSanitizer(linear, BUDGET, bound=normalise_rows(1.0), unit=TEXT)
    sanitizer = ProjectedSanitizer(linear, BUDGET, bound=normalise_rows(1.0))
    with pytest.raises(InvalidInput, match="rows"):
        sanitizer(torch.zeros(2, 3))
    no_maps = torch.nn.ModuleList([torch.nn.Identity()])
    with pytest.raises(InvalidInput, match="linear"):
        ProjectedSanitizer(no_maps, BUDGET, bound=normalise_rows(1.0)).guarantee()
    assert "per token" in repr(sanitizer)
