"""Who sees what, and what is promised against whom."""

import itertools

import numpy as np
import pytest
from scipy.stats import binom

from dp_forward.errors import InvalidInput
from dp_forward.privacy import (
    TEXT,
    TOKEN,
    Budget,
    MatrixGaussian,
    PrivUnit,
    RandomizedResponse,
    calibrate,
    compose,
    curve,
    normalise,
    normalise_rows,
)
from dp_forward.privacy.deployment import Deployment, Observer, _draws_of_one

BOUND = normalise(1.0)
GAUSSIAN = calibrate(MatrixGaussian, Budget(8.0, 1e-5), bound=BOUND)
PURE = calibrate(PrivUnit, Budget(4.0), bound=BOUND)


def test_whoever_sees_a_users_own_releases_behind_a_sampler_has_the_bound_of_all_draws() -> None:
    sampled = Deployment(GAUSSIAN, sampled=67_349)
    assert sampled.guarantee(delta=1e-5).epsilon == pytest.approx(17.66, abs=0.01)
    assert sampled.own_releases.delta(8.0) == pytest.approx(0.0081, abs=1e-4)
    once = Deployment(GAUSSIAN).guarantee(delta=1e-5)
    assert once.epsilon == pytest.approx(8.0)  # the control: one release, nobody between


@pytest.mark.slow
def test_a_sampled_label_is_drawn_anew_and_counted_each_time() -> None:
    noise = MatrixGaussian(4.0, BOUND.sensitivity(TEXT), releases=3, at_delta=1e-5)
    sampled = Deployment(noise, RandomizedResponse(2.0, 2, 3), sampled=1000)
    assert sampled.guarantee(delta=1e-5).epsilon == pytest.approx(25.45, abs=0.01)
    with pytest.raises(InvalidInput, match="drawn once"):
        Deployment(noise, RandomizedResponse(2.0, 2), sampled=1000)


def test_sampled_releases_are_the_mean_over_how_often_a_user_is_drawn() -> None:
    own = Deployment(GAUSSIAN, sampled=50).own_releases
    chances = binom.pmf(np.arange(51), 50, 1 / 50)
    for epsilon in (0.0, 1.0, 8.0):
        slow = sum(
            p * curve.delta(epsilon, GAUSSIAN.gaussian_mu * j**0.5) for j, p in enumerate(chances) if j
        )
        assert own.delta(epsilon) == pytest.approx(slow, rel=1e-8)
        assert own.delta(epsilon) >= slow * (1 - 1e-12)
    assert own.epsilon() == float("inf")
    assert own.delta(own.epsilon(1e-6)) <= 1e-6
    assert own.guess_rate() == pytest.approx((1 + own.delta(0.0)) / 2)


@pytest.mark.slow
@pytest.mark.parametrize(("steps", "users"), [(5, 1), (50, 50), (3000, 1000), (900_000, 1000)])
def test_the_chances_of_so_many_draws_are_binomial_and_rounded_up(steps: int, users: int) -> None:
    found = dict(_draws_of_one(steps, users))
    right = {j: float(binom.pmf(j, steps, 1 / users)) for j in found}
    assert sum(found.values()) == pytest.approx(1.0, rel=1e-6)
    assert sum(found.values()) >= 1 - 1e-12
    likely = [j for j in found if right[j] > 1e-12]
    assert [found[j] for j in likely] == pytest.approx([right[j] for j in likely], rel=1e-6)


@pytest.mark.slow
def test_what_a_sampler_mixes_has_a_central_promise_that_names_it() -> None:
    sampled = Deployment(GAUSSIAN, sampled=1000)
    said = sampled.statements(1e-5)
    assert "a sampler that draws users" in said[Observer.PROVIDER]
    assert "17.6" in said[Observer.SAMPLER]
    assert "n - 1 attack" in said[Observer.PROVIDER]
    assert repr(sampled.own_releases).startswith("SampledReleases(mu=1.66")
    assert "drawn 1 time on average" in sampled.own_releases.promise()
    assert "without looking" in " ".join(sampled.guarantee().assumptions)
    assert set(GAUSSIAN.assumptions) < set(sampled.guarantee().assumptions)


def test_a_ledger_is_charged_for_all_draws_that_a_sampler_could_make() -> None:
    labelled = Deployment(GAUSSIAN, RandomizedResponse(2.0, 2), sampled=50)
    assert labelled.own_releases.charge().epsilon_units >= 100 * 10**9
    assert labelled.own_releases.gaussian_mu == pytest.approx(50**0.5 * GAUSSIAN.gaussian_mu)
    assert Deployment(GAUSSIAN, sampled=50).own_releases.pure_losses == ()


def test_a_simulated_sampler_stays_within_the_bound_and_not_within_that_of_one_draw() -> None:
    """The likelihood ratio of a user's own releases, by simulation: delta at 8 for many draws of the user."""
    rng, mu, draws = np.random.default_rng(5), GAUSSIAN.gaussian_mu, 400_000
    times = rng.binomial(1000, 1 / 1000, draws)
    loss = times * mu**2 / 2 + np.sqrt(times) * mu * rng.standard_normal(draws)
    gains = np.maximum(0.0, -np.expm1(np.minimum(0.0, 8.0 - loss)))
    measured, error = gains.mean(), gains.std() / draws**0.5
    promised = Deployment(GAUSSIAN, sampled=1000).own_releases.delta(8.0)
    assert abs(measured - promised) < 5 * error
    assert measured - 5 * error > 100 * GAUSSIAN.delta(8.0)  # what was printed before


def test_every_observer_has_a_sentence_and_the_central_one_says_what_it_rests_on() -> None:
    said = Deployment(PURE, shuffled=67_349, resends=True).statements(1e-5)
    assert set(said) == {str(who) for who in Observer if who is not Observer.SAMPLER}
    assert "4.0-LDP" in said[Observer.SHUFFLER]
    assert "same text" in said[Observer.SHUFFLER]
    assert "0.1091" in said[Observer.PROVIDER]
    assert "n - 1 attack" in said[Observer.PROVIDER]
    assert "4.0-LDP" not in said[Observer.PROVIDER]
    alone = Deployment(PURE).statements(1e-5)
    assert "4.0-LDP" in alone[Observer.PROVIDER]
    assert "n - 1" not in " ".join(alone.values())
    assert Deployment(PURE).central(1e-5) is None


def test_behind_a_shuffler_a_text_with_a_public_label_has_seq_dp() -> None:
    """Definition 3 of the paper: collections differ in one text, and its label is the same."""
    public = Deployment(PURE, shuffled=67_349, public_label=True)
    said = public.statements(1e-5)
    assert (
        "SeqDP: for any two collections that differ in one text, replaced by one with the same label"
        in (said[Observer.PROVIDER])
    )
    assert "same label" in said[Observer.SHUFFLER]
    assert public.central(1e-5) == Deployment(PURE, shuffled=67_349).central(1e-5)
    assert "SeqDP" not in Deployment(PURE, shuffled=67_349).statements(1e-5)[Observer.PROVIDER]


@pytest.mark.slow
def test_what_no_amplification_is_proved_for_rests_on_nobody() -> None:
    label = RandomizedResponse(2.0, 2)
    said = Deployment(GAUSSIAN, label, shuffled=1000).statements(1e-5)[Observer.PROVIDER]
    assert "No amplification" in said
    assert "n - 1" not in said
    assert Deployment(GAUSSIAN, label).guarantee(delta=1e-5).epsilon == compose(GAUSSIAN, label).epsilon(1e-5)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"text": PURE, "shuffled": 10, "sampled": 10}, "sampler"),
        ({"text": PURE, "sampled": 10}, "Gaussian"),
        ({"text": PURE, "shuffled": 0}, "shuffled"),
        ({"text": RandomizedResponse(1.0, 2), "label": RandomizedResponse(1.0, 2)}, "label"),
        ({"text": RandomizedResponse(1.0, 2), "public_label": True}, "public_label"),
        ({"text": PURE, "label": RandomizedResponse(1.0, 2), "public_label": True}, "public_label"),
        ({"text": GAUSSIAN, "sampled": 10, "public_label": True}, "public_label"),
    ],
)
def test_what_no_theorem_covers_is_refused(settings, named: str) -> None:
    with pytest.raises(InvalidInput, match=named):
        Deployment(**settings)


def test_a_promise_per_token_has_no_mixer() -> None:
    rows = normalise_rows(1.0)
    token = calibrate(MatrixGaussian, Budget(8.0, 1e-5), bound=rows, unit=TOKEN)
    for name in itertools.chain(("shuffled", "sampled")):
        with pytest.raises(InvalidInput, match="Strangers"):
            Deployment(token, **{name: 100})


def test_no_central_epsilon_leaves_a_part_of_what_is_sent_out() -> None:
    label = RandomizedResponse(2.0, 2)
    with pytest.raises(InvalidInput, match="by itself"):
        Deployment(compose(GAUSSIAN, label), shuffled=1000)
    with pytest.raises(InvalidInput, match="drawn once"):
        Deployment(GAUSSIAN, RandomizedResponse(2.0, 2, 5), shuffled=1000)
    with pytest.raises(InvalidInput, match="Strangers"):
        Deployment(calibrate(MatrixGaussian, Budget(8.0, 1e-5), sensitivity=2.0), shuffled=1000)
    assert (
        Deployment(compose(GAUSSIAN, label)).guarantee(delta=1e-5).epsilon > 8
    )  # without a mixer all counts
