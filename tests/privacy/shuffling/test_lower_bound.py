"""Laws of the attacks: they are lower bounds, and they find what is known to be there."""

import math

import numpy as np
import pytest
from scipy.special import ndtr

from dp_forward.errors import InvalidInput
from dp_forward.privacy import RandomizedResponse, curve
from dp_forward.privacy.pure_loss import ThreeLevelLoss
from dp_forward.privacy.shuffling import shuffled_epsilon
from dp_forward.privacy.shuffling.lower_bound import (
    attack_epsilon,
    sampler_attack_epsilon,
    shuffled_pure_lower,
)

LABEL = math.log(9)


@pytest.mark.parametrize(
    ("noise", "releases", "label", "known"),
    [
        (0.45927768652701556, 1, None, 0.6871453690622762),
        (0.45927768652701556, 3, None, 0.9866908595064777),
        (0.31938744354363896, 1, LABEL, 8.631652826905892),
        (0.31938744354363896, 3, LABEL, 9.947100469277933),
        (0.31938744354363896 / 2, 1, LABEL, 36.48880479364333),
        (0.31938744354363896 / 2, 3, LABEL, 71.0340486623149),
    ],
)
def test_known_attacks_are_reproduced(noise, releases, label, known):
    found = attack_epsilon(1e-5, mu=1 / noise, users=67_349, releases=releases, label_epsilon=label)
    assert found == pytest.approx(known, rel=1e-6)


@pytest.mark.slow
def test_the_event_has_the_probabilities_it_claims():
    # Simulate the event for one threshold: the two frequencies must give the ratio of the bound.
    generator = np.random.default_rng(7)
    mu, users, threshold, runs = 2.0, 20, 3.0, 200_000
    others = generator.normal(-(mu**2) / 2, mu, (runs, users - 1)).max(axis=1)
    under_p = np.maximum(others, generator.normal(mu**2 / 2, mu, runs)) > threshold
    under_q = np.maximum(others, generator.normal(-(mu**2) / 2, mu, runs)) > threshold
    none = ndtr((threshold + mu**2 / 2) / mu)
    first = ndtr((threshold - mu**2 / 2) / mu)
    assert under_p.mean() == pytest.approx(1 - none ** (users - 1) * first, abs=0.004)
    assert under_q.mean() == pytest.approx(1 - none**users, abs=0.004)
    exact = math.log((1 - none ** (users - 1) * first - 1e-5) / (1 - none**users))
    assert exact <= attack_epsilon(1e-5, mu=mu, users=users) <= curve.epsilon(1e-5, mu)


@pytest.mark.parametrize("mu", [0.1, 1.0, 5.0, 30.0])
@pytest.mark.parametrize("label", [None, 1.0])
def test_a_single_user_cannot_be_attacked_beyond_the_local_epsilon(mu, label):
    from dp_forward.privacy.shuffling.local_curve import curve_epsilon, record_curve

    local = curve_epsilon(1e-5, record_curve(mu=mu, label_epsilon=label))
    found = attack_epsilon(1e-5, mu=mu, users=1, label_epsilon=label)
    assert found <= local
    assert found > 0.7 * local


def test_nothing_underflows():
    found = attack_epsilon(1e-5, mu=100.0, users=1000, releases=2)
    assert 5_000 < found < 2 * curve.epsilon(1e-5, 100.0)
    assert math.isfinite(attack_epsilon(0, mu=50.0, users=10))


@pytest.mark.parametrize("epsilon", [1e-9, 1e-12])
def test_a_loss_that_is_hardly_there_is_attacked_for_nothing(epsilon):
    losses = RandomizedResponse(epsilon, 2).pure_losses
    assert shuffled_pure_lower(1e-6, losses=losses, users=1000) <= epsilon


def test_an_attack_that_finds_nothing_says_zero():
    assert attack_epsilon(1e-5, mu=1e-6, users=1000) == 0
    assert shuffled_pure_lower(0.9, losses=[ThreeLevelLoss(0.1, 0.2)], users=10) == 0


@pytest.mark.slow
def test_a_label_drawn_once_reveals_no_more_than_fresh_ones():
    arguments = {"mu": 2.0, "users": 1000, "releases": 3, "label_epsilon": 2.0}
    text_only = attack_epsilon(1e-5, mu=2.0, users=1000, releases=3)
    once = attack_epsilon(1e-5, label_once=True, **arguments)
    fresh = attack_epsilon(1e-5, **arguments)
    assert text_only < once < fresh
    single = arguments | {"releases": 1}
    assert attack_epsilon(1e-5, label_once=True, **single) == attack_epsilon(1e-5, **single)


@pytest.mark.slow
def test_many_rounds_are_attacked_too():
    few = attack_epsilon(1e-5, mu=1.0, users=100, releases=2)
    many = attack_epsilon(1e-5, mu=1.0, users=100, releases=50)
    assert few < many < curve.epsilon(1e-5, math.sqrt(50))


def test_the_sampler_attack_is_exact_for_one_draw():
    exact = curve.epsilon(1e-10, 1.0)
    found = sampler_attack_epsilon(1e-10, mu=1.0, users=1, steps=1)
    assert exact * (1 - 1e-9) < found <= exact


def test_the_sampler_is_attacked_about_as_well_as_the_shuffler():
    shuffled = attack_epsilon(1e-5, mu=2.0, users=10_000, releases=3)
    sampled = sampler_attack_epsilon(1e-5, mu=2.0, users=10_000, steps=30_000)
    assert sampled == pytest.approx(shuffled, rel=1e-2)
    with_label = sampler_attack_epsilon(1e-5, mu=2.0, users=10_000, steps=30_000, label_epsilon=1.0, labels=3)
    assert with_label > sampled + 0.3


@pytest.mark.parametrize("local_epsilon", [0.5, 2.0, 6.0])
@pytest.mark.parametrize("users", [1, 10, 1000, 100_000])
def test_the_pure_attack_stays_below_the_proof(local_epsilon, users):
    keep = 1 / (1 + math.exp(-local_epsilon))
    lower = shuffled_pure_lower(1e-5, losses=[ThreeLevelLoss(local_epsilon, keep)], users=users)
    upper = shuffled_epsilon(1e-5, local_epsilon=local_epsilon, users=users)
    assert 0.1 * upper < lower <= upper


def test_the_pure_attack_is_the_binomial_ratio():
    users, local_epsilon, cap, delta = 4, 1.0, 0.6, 1e-3
    other = cap * math.exp(-local_epsilon)

    def tail(at_least, first):
        chances = [math.comb(3, k) * other**k * (1 - other) ** (3 - k) for k in range(4)]
        return sum(
            chance * (first if k + 1 >= at_least else 0.0) + chance * ((1 - first) if k >= at_least else 0.0)
            for k, chance in enumerate(chances)
        )

    exact = max(math.log((tail(j, cap) - delta) / tail(j, other)) for j in range(1, 5))
    found = shuffled_pure_lower(delta, losses=[ThreeLevelLoss(local_epsilon, cap)], users=users)
    assert found == pytest.approx(exact, rel=1e-9)
    assert shuffled_pure_lower(0, losses=[ThreeLevelLoss(1.0, 0.6)], users=4) == 1.0


def test_several_parts_and_several_rounds_are_attacked_harder():
    text, label = ThreeLevelLoss(3.0, 0.8), ThreeLevelLoss(1.0, 0.7)
    alone = shuffled_pure_lower(1e-5, losses=[text], users=1000)
    both = shuffled_pure_lower(1e-5, losses=[text, label], users=1000)
    rounds = shuffled_pure_lower(1e-5, losses=[text], users=1000, rounds=5)
    assert 0 < alone < both < 4
    assert alone < rounds < 15
    assert shuffled_pure_lower(1e-5, losses=[ThreeLevelLoss(0.0, 0.5)], users=1000) == 0


@pytest.mark.parametrize(
    ("function", "arguments", "name"),
    [
        (attack_epsilon, {"mu": 0.0, "users": 10}, "mu"),
        (attack_epsilon, {"mu": 1.0, "users": 0}, "users"),
        (attack_epsilon, {"mu": 1.0, "users": 10, "releases": 0}, "releases"),
        (attack_epsilon, {"mu": 1.0, "users": 10, "label_epsilon": -1.0}, "label_epsilon"),
        (attack_epsilon, {"mu": 1.0, "users": 10, "label_epsilon": 1.0, "labels": 1}, "labels"),
        (sampler_attack_epsilon, {"mu": 1.0, "users": 10, "steps": 0}, "steps"),
        (shuffled_pure_lower, {"losses": [], "users": 0}, "users"),
    ],
)
def test_wrong_numbers_are_refused(function, arguments, name):
    with pytest.raises(InvalidInput, match=name):
        function(1e-5, **arguments)
