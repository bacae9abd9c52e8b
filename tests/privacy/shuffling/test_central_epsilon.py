"""Laws of central bounds: three numbers, three kinds, never mixed up."""

import dataclasses
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dp_forward.errors import InvalidInput
from dp_forward.privacy import (
    TEXT,
    Budget,
    PrivUnit,
    RandomizedResponse,
    calibrate,
    compose,
    curve,
    normalise,
)
from dp_forward.privacy.shuffling import (
    CentralBound,
    CentralBounds,
    central_epsilon,
    sampled_gaussian,
    sampler,
    shuffled_gaussian,
    shuffled_pure,
)
from dp_forward.privacy.shuffling.central_epsilon import NOBODY, SAMPLER, SHUFFLER, shuffled_mechanism


def bound(kind):
    return CentralBound(kind, 1.0, 1e-5, SHUFFLER, "A sentence.")


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(
    mu=st.floats(0.05, 20),
    users=st.integers(1, 5_000),
    delta=st.floats(1e-10, 1e-2),
    releases=st.integers(1, 6),
    label_epsilon=st.one_of(st.none(), st.floats(0.1, 5)),
    labels=st.integers(2, 10),
    label_once=st.booleans(),
)
def test_no_attack_beats_the_proof_for_shuffled_gaussians(label_epsilon, **arguments):
    read = shuffled_gaussian(label_epsilon=label_epsilon, with_estimate=False, **arguments)
    assert 0 <= read.lower.epsilon <= read.upper.epsilon


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    local_epsilon=st.floats(0.05, 20),
    users=st.integers(1, 50_000),
    delta=st.one_of(st.just(0.0), st.floats(1e-12, 0.3)),
    share=st.floats(0.01, 1),
)
def test_no_attack_beats_the_proof_for_shuffled_pure_releases(local_epsilon, share, **arguments):
    cap_mass = share / (1 + np.exp(-local_epsilon))
    read = shuffled_pure(local_epsilon=local_epsilon, cap_mass=cap_mass, **arguments)
    assert 0 <= read.lower.epsilon <= read.upper.epsilon <= local_epsilon


@pytest.mark.slow
@settings(max_examples=10, deadline=None)
@given(
    mu=st.floats(0.3, 6),
    users=st.integers(1, 5_000),
    delta=st.floats(1e-10, 1e-2),
    epochs=st.integers(1, 4),
    label_epsilon=st.one_of(st.none(), st.floats(0.1, 4)),
)
def test_no_attack_beats_the_proof_for_the_sampler(label_epsilon, **arguments):
    with mock.patch.object(sampler, "_POINTS", 2**18):  # a bound on any grid, and quicker
        read = sampled_gaussian(label_epsilon=label_epsilon, with_estimate=False, **arguments)
    assert 0 <= read.lower.epsilon <= read.upper.epsilon


@pytest.mark.slow
def test_without_amplification_the_local_epsilon_holds():
    read = shuffled_gaussian(mu=2.0, users=25_000, delta=1e-5, releases=3, with_estimate=False)
    assert read.upper.epsilon == pytest.approx(curve.epsilon(1e-5, 2.0 * 3**0.5))
    assert read.upper.trusted == NOBODY
    assert "o amplification is proved" in read.upper.statement


@pytest.mark.slow
def test_with_amplification_the_shuffler_is_named():
    read = shuffled_gaussian(mu=0.02, users=5_000, delta=1e-5, releases=2, with_estimate=False)
    assert read.upper.epsilon < 0.5 * curve.epsilon(1e-5, 0.02 * 2**0.5)
    assert read.upper.trusted == SHUFFLER
    assert SHUFFLER in read.upper.statement
    assert read.lower.epsilon == 0
    assert "finds nothing" in read.lower.statement


@pytest.mark.slow
def test_the_estimate_is_optional_and_says_what_it_is():
    read = shuffled_gaussian(mu=2.0, users=1_000, delta=1e-5, label_epsilon=1.0)
    assert read.estimate.epsilon > 0
    assert "without a theorem, and it leaves the labels out" in read.estimate.statement
    without = sampled_gaussian(mu=2.0, users=100, delta=1e-5, epochs=1, with_estimate=False)
    assert without.estimate.epsilon is None
    assert "not asked for" in without.estimate.statement


@pytest.mark.slow
def test_the_sampler_reading_brackets_the_paper():
    read = sampled_gaussian(mu=2.0, users=2_000, delta=1e-5, epochs=3)
    assert read.lower.epsilon < read.estimate.epsilon < read.upper.epsilon
    assert read.upper.trusted == read.lower.trusted == SAMPLER
    assert read.estimate.statement.endswith("without a theorem.")


def test_pure_releases_have_no_estimate_and_no_attack_without_their_cap():
    read = shuffled_pure(local_epsilon=2.0, users=1_000, delta=1e-5)
    assert read.estimate.epsilon is None
    assert read.lower.epsilon is None
    assert "cap mass" in read.lower.statement
    assert 0 < read.upper.epsilon < 1


def test_a_shuffler_that_gains_nothing_for_pure_releases_is_called_so():
    nothing, much = (shuffled_pure(local_epsilon=10.0, users=users, delta=1e-5) for users in (500, 10**8))
    assert "That is the local epsilon" in nothing.upper.statement
    assert "That is the local epsilon" not in much.upper.statement
    assert much.upper.epsilon < 1
    assert 9.9 < nothing.upper.epsilon <= 10


def test_no_finite_proof_is_none(monkeypatch):
    monkeypatch.setattr(central_epsilon, "sampler_epsilon", lambda *_, **__: float("inf"))
    read = sampled_gaussian(mu=2.0, users=100, delta=1e-5, epochs=1, with_estimate=False)
    assert read.upper.epsilon is None
    assert "No finite epsilon is proved" in read.upper.statement


@pytest.mark.parametrize("order", [("attack", "proved", "estimate"), ("proved", "estimate", "attack")])
def test_kinds_cannot_be_swapped(order):
    with pytest.raises(InvalidInput, match="kind"):
        CentralBounds(*map(bound, order))


def test_a_bound_cannot_be_changed_after_it_was_proved():
    with pytest.raises(dataclasses.FrozenInstanceError):
        bound("proved").epsilon = 0.1


@pytest.mark.parametrize(
    ("field", "value"),
    [("kind", "guess"), ("trusted", "me"), ("delta", 2.0), ("epsilon", -1.0), ("epsilon", float("inf"))],
)
def test_a_bound_refuses_nonsense(field, value):
    with pytest.raises(InvalidInput, match=field):
        dataclasses.replace(bound("proved"), **{field: value})


def test_a_label_is_checked_before_any_work():
    with pytest.raises(InvalidInput, match="labels"):
        shuffled_gaussian(mu=1.0, users=10, delta=1e-5, label_epsilon=1.0, labels=1)
    with pytest.raises(InvalidInput, match="label_epsilon"):
        sampled_gaussian(mu=1.0, users=10, delta=1e-5, epochs=1, label_epsilon=0.0)


@pytest.mark.parametrize("wrong", [{"delta": 0.0}, {"mu": 0.0}, {"users": 0}, {"label_epsilon": -1.0}])
def test_wrong_numbers_are_refused(wrong):
    for function in (shuffled_gaussian, lambda **given: sampled_gaussian(epochs=1, **given)):
        with pytest.raises(InvalidInput, match=next(iter(wrong))):
            function(**({"delta": 1e-5, "mu": 1.0, "users": 100} | wrong))


def test_a_pure_mechanism_is_shuffled_with_its_own_loss_and_a_composition_with_its_sum() -> None:
    text = calibrate(PrivUnit, Budget(2.0), bound=normalise(1.0), unit=TEXT)
    label = RandomizedResponse(1.0, 2)
    mass = text.pure_losses[0].mass
    alone = shuffled_mechanism(text, users=10_000, delta=1e-6)
    same = shuffled_pure(local_epsilon=text.epsilon(), users=10_000, delta=1e-6, cap_mass=mass)
    assert (alone.upper.epsilon, alone.lower.epsilon) == (same.upper.epsilon, same.lower.epsilon)
    both = compose(text, label)
    together = shuffled_mechanism(both, users=10_000, delta=1e-6)
    summed = shuffled_pure(local_epsilon=both.epsilon(), users=10_000, delta=1e-6)
    assert together.upper.epsilon == summed.upper.epsilon > alone.upper.epsilon
