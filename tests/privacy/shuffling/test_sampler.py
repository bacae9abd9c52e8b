"""Laws of the anonymous sampler."""

import math
import resource

import numpy as np
import pytest

from dp_forward.errors import InvalidInput
from dp_forward.privacy import curve
from dp_forward.privacy.shuffling import sampler, sampler_epsilon
from dp_forward.privacy.shuffling.local_curve import record_curve
from shuffling_deltas import sampler_delta

LABEL = math.log(9)


def connect_the_dots(delta, *, users, steps, mu, interval):
    """The same bound with Google's dp-accounting, on its own grid."""
    from dp_accounting.pld import pld_pmf

    points = math.ceil(20 / interval)
    losses = interval * np.arange(points + 1)
    up = curve.hockey_stick(np.log1p(np.expm1(losses) * users), mu) / users
    down = -np.expm1(-losses[1:]) + np.exp(-losses[1:]) * up[1:]
    step = pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(
        interval, -points, points, np.concatenate((down[::-1], up))
    )
    return step.self_compose(steps).get_epsilon_for_delta(delta)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("users", "noise", "label", "target"),
    [
        (67_349, 0.4598, None, 1.0),
        (67_349, 0.3959, None, 3.0),
        (67_349, 0.3207, None, 8.0),
        (67_349, 0.5466, LABEL, 1.0),
        (67_349, 0.3596, LABEL, 8.0),
    ],
)
def test_the_printed_noise_gives_its_central_epsilon(users, noise, label, target):
    release = record_curve(mu=1 / noise, label_epsilon=label)
    found = sampler_epsilon(1e-5, users=users, steps=3 * users, local_delta=release)
    assert found == pytest.approx(target, rel=2e-3)


@pytest.mark.slow
@pytest.mark.parametrize(("mu", "steps"), [(1.0, 1), (1.0, 3), (0.05, 1000), (3.0, 50)])
@pytest.mark.parametrize("delta", [1e-5, 1e-30])
def test_a_single_user_is_plain_composition_from_above(mu, steps, delta):
    exact = curve.epsilon(delta, mu * math.sqrt(steps))
    found = sampler_epsilon(delta, users=1, steps=steps, local_delta=record_curve(mu=mu))
    assert exact * (1 - 1e-11) <= found <= exact * (1 + 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(("users", "steps", "mu"), [(50, 100, 1.0), (1000, 3000, 2.0)])
def test_it_agrees_with_dp_accounting(users, steps, mu):
    other = connect_the_dots(1e-5, users=users, steps=steps, mu=mu, interval=2e-4)
    found = sampler_epsilon(1e-5, users=users, steps=steps, local_delta=record_curve(mu=mu))
    assert found == pytest.approx(other, rel=1e-3)


@pytest.mark.slow
def test_a_coarser_grid_only_raises_epsilon(monkeypatch):
    arguments = {"users": 10_000, "steps": 30_000, "local_delta": record_curve(mu=2.0)}
    found = []
    for points in (2**18, 2**14, 2**11):
        monkeypatch.setattr(sampler, "_POINTS", points)
        found.append(sampler_epsilon(1e-5, **arguments))
    assert found == sorted(found)
    assert found[0] < 0.99 * found[2]


@pytest.fixture
def coarse(monkeypatch):
    """A grid of a quarter of the points, for laws that hold on any grid."""
    monkeypatch.setattr(sampler, "_POINTS", 2**18)


@pytest.mark.slow
def test_delta_and_epsilon_agree(coarse):
    arguments = {"users": 500, "steps": 1500, "local_delta": record_curve(mu=1.5)}
    for delta in (1e-2, 1e-30):
        epsilon = sampler_epsilon(delta, **arguments)
        assert sampler_delta(epsilon, **arguments) == pytest.approx(delta, rel=1e-2)


@pytest.mark.slow
def test_an_impossible_loss_has_next_to_no_delta(coarse):
    assert sampler_delta(100.0, users=10, steps=10, local_delta=record_curve(mu=0.01)) < 1e-270


@pytest.mark.slow
def test_a_curve_that_never_comes_down_proves_nothing(coarse):
    found = sampler_epsilon(1e-5, users=10, steps=10, local_delta=lambda e: np.full(np.shape(e), 1e-3))
    assert found == math.inf


@pytest.mark.slow
def test_sampling_hides_and_steps_reveal(coarse):
    release = record_curve(mu=1.0)
    few = sampler_epsilon(1e-5, users=1000, steps=100, local_delta=release)
    many = sampler_epsilon(1e-5, users=1000, steps=3000, local_delta=release)
    assert few < many < curve.epsilon(1e-5, math.sqrt(3.0))


@pytest.mark.slow
def test_a_million_steps_take_little_memory():
    release = record_curve(mu=1 / 0.4755, label_epsilon=LABEL)
    sampler_epsilon(1e-5, users=363_846, steps=3 * 363_846, local_delta=release)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 2 * 1024**2


@pytest.mark.parametrize("wrong", [{"delta": 0.0}, {"users": 0}, {"steps": 0}])
def test_wrong_numbers_are_refused(wrong):
    arguments = {"delta": 1e-5, "users": 10, "steps": 10, "local_delta": record_curve(mu=1.0)} | wrong
    with pytest.raises(InvalidInput, match=next(iter(wrong))):
        sampler_epsilon(arguments.pop("delta"), **arguments)
