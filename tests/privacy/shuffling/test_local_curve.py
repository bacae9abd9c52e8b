"""Laws of Gaussian releases through a shuffler."""

import math

import numpy as np
import pytest

from dp_forward.privacy import curve
from dp_forward.privacy.response import keep_probability
from dp_forward.privacy.shuffling.clones import amplified_epsilon
from dp_forward.privacy.shuffling.local_curve import curve_epsilon, record_curve
from shuffling_deltas import shuffled_delta

PAPER_NOISE = {
    25_000: (0.4942, 0.4196, 0.3358),
    67_349: (0.4593, 0.3953, 0.3194),
    363_846: (0.4115, 0.3609, 0.2961),
}


def shuffled_gaussian_epsilon(delta, *, mu, users):
    """The central epsilon of Gaussian releases, None where no amplification is proved."""
    return amplified_epsilon(delta, users=users, local_delta=record_curve(mu=mu))


@pytest.mark.slow
@pytest.mark.parametrize("users", PAPER_NOISE)
def test_nothing_is_amplified_at_the_paper_sigmas(users):
    for noise in PAPER_NOISE[users]:
        assert shuffled_gaussian_epsilon(1e-5, mu=1 / noise, users=users) is None


@pytest.mark.slow
@pytest.mark.parametrize(("mu", "users"), [(0.05, 1000), (0.1, 25_000), (0.3, 25_000), (1.0, 363_846)])
def test_amplification_is_found_where_it_exists(mu, users):
    central = shuffled_gaussian_epsilon(1e-5, mu=mu, users=users)
    assert central is not None
    assert 0 < central < 0.8 * curve.epsilon(1e-5, mu)


@pytest.mark.slow
def test_what_is_found_is_proved_by_some_local_epsilon():
    mu, users, delta = 0.3, 25_000, 1e-5
    central = shuffled_gaussian_epsilon(delta, mu=mu, users=users)
    totals = [
        shuffled_delta(central, local_epsilon=e0, users=users)
        + (math.exp(central) + 1) * (1 + math.exp(-e0) / 2) * users * curve.delta(e0, mu)
        for e0 in np.linspace(1.5, 3, 301)
    ]
    assert 0.95 * delta < min(totals) <= delta * 1.001
    best = int(np.argmin(totals))
    assert 0 < best < 300


def test_one_user_has_nobody_to_hide_among():
    assert shuffled_gaussian_epsilon(1e-5, mu=0.3, users=1) is None


@pytest.mark.slow
def test_noise_that_hides_everything_needs_no_shuffler():
    assert shuffled_gaussian_epsilon(1e-5, mu=1e-7, users=1000) is None


def test_a_delta_too_small_to_be_split_proves_nothing():
    assert shuffled_gaussian_epsilon(1e-289, mu=0.1, users=1000) is None


def test_the_record_curve_without_label_is_the_gaussian_curve():
    assert curve_epsilon(1e-5, record_curve(mu=1.0)) == pytest.approx(curve.epsilon(1e-5, 1.0))


def test_a_label_costs_a_little_less_than_its_epsilon():
    label = math.log(9)
    alone = curve.epsilon(1e-5, 1.0)
    both = curve_epsilon(1e-5, record_curve(mu=1.0, label_epsilon=label))
    assert alone + 0.8 * label < both < alone + label


def test_the_record_curve_is_the_mixture_of_shifted_curves():
    keep = keep_probability(1.0, 4)
    other = (1 - keep) / 3
    at = np.array([-1.0, 0.5, 3.0])
    mixed = (
        keep * curve.hockey_stick(at - 1, 2.0)
        + other * curve.hockey_stick(at + 1, 2.0)
        + 2 * other * curve.hockey_stick(at, 2.0)
    )
    assert record_curve(mu=2.0, label_epsilon=1.0, labels=4)(at) == pytest.approx(mixed, rel=1e-9)


def test_fresh_labels_cost_more_than_one():
    once = curve_epsilon(1e-5, record_curve(mu=1.0, label_epsilon=1.0))
    thrice = curve_epsilon(1e-5, record_curve(mu=1.0, label_epsilon=1.0, draws=3))
    assert once + 0.5 < thrice < once + 2


@pytest.mark.slow
def test_a_pure_curve_amplifies_like_the_clones():
    def pure(epsilon):
        top = 1 / (1 + math.exp(-1.0))
        return np.maximum(0.0, top - np.exp(epsilon) * (1 - top))

    central = amplified_epsilon(1e-5, users=10_000, local_delta=pure)
    assert central is not None
    assert shuffled_delta(central, local_epsilon=1.0, users=10_000) <= 1.01e-5
