"""The authors' estimate gives the epsilons of their tables, and no more than that."""

import math

import pytest

from dp_forward.errors import InvalidInput
from dp_forward.privacy import curve
from dp_forward.privacy.shuffling import paper_estimate, sampler_epsilon
from dp_forward.privacy.shuffling.local_curve import record_curve


@pytest.mark.slow
@pytest.mark.parametrize(
    ("users", "noise", "target"),
    [(25_000, 0.49423033252627646, 1.0), (67_349, 0.3952816759060062, 3.0), (363_846, 0.2961450369, 8.0)],
)
def test_the_paper_sigmas_give_the_paper_epsilons(users, noise, target):
    assert paper_estimate(1e-5, mu=1 / noise, users=users, epochs=3) == pytest.approx(target, rel=1e-3)


@pytest.mark.slow
def test_the_interval_follows_small_answers():
    users, mu = 10_000, 0.1
    limit = curve.epsilon(1e-5, math.sqrt(3 * math.expm1(mu**2) / users))
    assert paper_estimate(1e-5, mu=mu, users=users, epochs=3) == pytest.approx(limit, rel=2e-2)


@pytest.mark.slow
def test_a_single_user_is_plain_composition():
    assert paper_estimate(1e-5, mu=1.0, users=1, epochs=3) == pytest.approx(8.385418924, rel=1e-5)


def test_noise_that_hides_everything_is_zero():
    assert paper_estimate(1e-2, mu=1e-4, users=100, epochs=1) == 0


@pytest.mark.slow
def test_the_estimate_lies_below_the_theorem_nearest_to_it():
    users, mu = 5_000, 2.0
    estimate = paper_estimate(1e-5, mu=mu, users=users, epochs=3)
    proved = sampler_epsilon(1e-5, users=users, steps=3 * users, local_delta=record_curve(mu=mu))
    assert 0.9 * proved < estimate < proved


@pytest.mark.parametrize("wrong", [{"delta": 0.0}, {"mu": -1.0}, {"users": 0}, {"epochs": 0}])
def test_wrong_numbers_are_refused(wrong):
    arguments = {"delta": 1e-5, "mu": 1.0, "users": 10, "epochs": 1} | wrong
    with pytest.raises(InvalidInput, match=next(iter(wrong))):
        paper_estimate(arguments.pop("delta"), **arguments)
