"""The one-run audit: its bound is a bound, an overfitted back is caught, a private one is not refuted."""

import numpy as np
import pytest
import torch

from audit.canaries import canary_bound, one_run_audit
from corpus import release_cases
from dp_forward.errors import InvalidInput
from dp_forward.noise.released.released_matrix import release_batch
from dp_forward.privacy import NoiseSpec
from tiny_models import LABELS

CANARIES = 60


def test_the_bound_is_where_the_binomial_says() -> None:
    # 20 of 20: q^20 = 0.05 at q = 0.8609.
    q = 0.05 ** (1 / 20)
    assert canary_bound(20, 20, m=40) == pytest.approx(np.log(q / (1 - q)), abs=1e-6)
    assert canary_bound(10, 20, m=40) == 0.0
    assert canary_bound(0, 0, m=40) == 0.0
    more = [canary_bound(v, 100, m=100) for v in (60, 70, 80, 90, 100)]
    assert more == sorted(more)


def test_delta_and_confidence_only_lower_it() -> None:
    plain = canary_bound(90, 100, m=100)
    assert canary_bound(90, 100, m=100, delta=1e-9) == pytest.approx(plain, abs=1e-3)
    assert canary_bound(90, 100, m=100, delta=1e-3) < plain
    assert canary_bound(90, 100, m=100, level=0.9999) < plain


@pytest.mark.slow
def test_an_honest_response_is_rarely_above_its_epsilon_and_comes_close() -> None:
    rng, epsilon = np.random.default_rng(0), 2.0
    keep = 1 / (1 + np.exp(-epsilon))

    def mechanism(included):
        return np.where(rng.random(len(included)) < keep, included, ~included) + 1e-3 * rng.random(
            len(included)
        )

    found = [one_run_audit(mechanism, 400, guesses=400, seed=i) for i in range(100)]
    bounds = [audit.epsilon_lower_bound for audit in found]
    assert np.mean(np.array(bounds) > epsilon) <= 0.05 + 3 * (0.05 * 0.95 / 100) ** 0.5
    assert np.median(bounds) > 1.5
    claims = [one_run_audit(mechanism, 400, claimed_epsilon=epsilon, seed=i).refuted for i in range(50)]
    assert not any(claims)
    assert one_run_audit(mechanism, 400, guesses=400, claimed_epsilon=0.5, seed=1).refuted


def _canaries() -> tuple[torch.Tensor, torch.Tensor]:
    """Hidden matrices of random texts, with labels that nothing in them tells."""
    front, texts = release_cases.pair().front, release_cases.texts(CANARIES, seed=3)
    batch = texts.batch(range(CANARIES))
    batch.pop("labels", None)
    with torch.no_grad():
        hidden = front(**batch)
    return hidden, torch.randint(LABELS, (CANARIES,), generator=torch.Generator().manual_seed(1))


def _trained_on(matrices: torch.Tensor):
    """A back that is trained for long on the canaries that are in, and scored by its loss on all of them."""
    labels = _canaries()[1]

    def train_with(included):
        torch.manual_seed(0)
        width = matrices.shape[1] * matrices.shape[2]
        back = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(width, 64), torch.nn.ReLU())
        back.append(torch.nn.Linear(64, LABELS))
        chosen = torch.from_numpy(included)
        inside, told = matrices[chosen], labels[chosen]
        optimiser = torch.optim.Adam(back.parameters(), lr=3e-3)
        for _ in range(200):
            optimiser.zero_grad()
            torch.nn.functional.cross_entropy(back(inside), told).backward()
            optimiser.step()
        with torch.no_grad():
            loss = torch.nn.functional.cross_entropy(back(_canaries()[0]), labels, reduction="none")
        return -loss.double().numpy()

    return train_with


@pytest.mark.slow
def test_an_undefended_overfitted_back_is_caught_and_a_private_one_is_not_refuted() -> None:
    hidden = _canaries()[0]
    caught = one_run_audit(_trained_on(hidden), CANARIES, claimed_epsilon=0.5, seed=2)
    assert caught.epsilon_lower_bound > 1.0
    assert caught.refuted

    mechanism = NoiseSpec(mechanism="privunit", epsilon=0.5).build()
    entropy = np.random.default_rng(4).bytes
    noisy = np.stack([one.as_floats() for one in release_batch(hidden, mechanism, entropy=entropy)])
    private = one_run_audit(_trained_on(torch.from_numpy(noisy)), CANARIES, claimed_epsilon=0.5, seed=2)
    assert private.epsilon_lower_bound <= 0.5
    assert not private.refuted


def test_bad_input_is_refused() -> None:
    with pytest.raises(InvalidInput, match="right"):
        canary_bound(5, 4, m=10)
    with pytest.raises(InvalidInput, match="canaries"):
        one_run_audit(lambda included: included.astype(float), 5)
    with pytest.raises(InvalidInput, match="scores"):
        one_run_audit(lambda included: np.zeros(3), 40)
    with pytest.raises(InvalidInput, match="guesses"):
        one_run_audit(lambda included: included.astype(float), 40, guesses=50)
