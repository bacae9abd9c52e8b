"""Laws of central bounds: three numbers, three kinds, never mixed up."""

import dataclasses
import math
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dp_forward.errors import InvalidInput
from dp_forward.privacy import (
    TEXT,
    AnalyticGaussian,
    Budget,
    NoiseSpec,
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
)
from dp_forward.privacy.shuffling.central_epsilon import (
    NOBODY,
    SAMPLER,
    SHUFFLER,
    privunit_for_central,
    shuffled_mechanism,
)


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
    labels=st.integers(2, 100),
)
def test_no_attack_beats_the_proof_for_shuffled_pure_releases(local_epsilon, labels, **arguments):
    read = shuffled_mechanism(RandomizedResponse(local_epsilon, labels), **arguments)
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


def test_pure_releases_have_no_estimate():
    read = shuffled_mechanism(RandomizedResponse(2.0, 3), users=1_000, delta=1e-5)
    assert read.estimate.epsilon is None
    assert 0 < read.lower.epsilon < read.upper.epsilon < 1


def test_a_shuffler_that_gains_nothing_for_pure_releases_is_called_so():
    response = RandomizedResponse(10.0, 2)
    nothing, much = (shuffled_mechanism(response, users=users, delta=1e-5) for users in (500, 10**8))
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


def test_what_the_shuffling_theorems_do_not_cover_is_refused() -> None:
    token = NoiseSpec(epsilon=1.0, unit="token", rows=6).build()
    with pytest.raises(InvalidInput, match="unit"):
        shuffled_mechanism(token, users=1000, delta=1e-6)
    with pytest.raises(InvalidInput, match="unit"):
        privunit_for_central(0.5, users=1000, delta=1e-6, bound=token.bound, unit=token.unit)
    gaussian = calibrate(AnalyticGaussian, Budget(1.0, 1e-5), bound=normalise(1.0))
    with pytest.raises(InvalidInput, match="be pure"):
        shuffled_mechanism(gaussian, users=1000, delta=1e-6)


def test_text_and_label_together_cost_more_than_the_text_and_each_names_its_proof() -> None:
    text = calibrate(PrivUnit, Budget(2.0), bound=normalise(1.0), unit=TEXT)
    alone = shuffled_mechanism(text, users=10_000, delta=1e-6)
    together = shuffled_mechanism(compose(text, RandomizedResponse(1.0, 2)), users=10_000, delta=1e-6)
    assert alone.upper.epsilon < together.upper.epsilon
    assert alone.lower.epsilon < together.lower.epsilon < together.upper.epsilon
    assert alone.upper.bound == together.upper.bound == "blanket"


def test_the_least_of_the_proofs_is_taken_and_named(monkeypatch):
    """Where the blanket is the larger one, or is not known, the clones are printed."""
    for blanket in (0.5, None):
        monkeypatch.setattr(central_epsilon, "blanket_epsilon", lambda *_, found=blanket, **__: found)
        read = shuffled_mechanism(RandomizedResponse(2.0, 2), users=10_000, delta=1e-6)
        assert read.upper.bound == "clones"
        assert "by hiding among the clones" in read.upper.statement


def test_a_proved_central_epsilon_has_a_guess_rate_with_its_delta_in_it() -> None:
    found = shuffled_mechanism(RandomizedResponse(2.0, 2), users=10_000, delta=1e-3)
    epsilon = found.upper.epsilon
    assert epsilon is not None
    for candidates in (2, 100):
        wanted = (math.exp(epsilon) + (candidates - 1) * 1e-3) / (math.exp(epsilon) + candidates - 1)
        assert found.upper.guess_rate(candidates) == pytest.approx(wanted)
    assert found.lower.guess_rate() is None
    assert found.estimate.guess_rate() is None
