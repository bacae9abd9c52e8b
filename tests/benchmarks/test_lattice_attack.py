"""Low bits betray float noise, at any epsilon; of a release nothing is left but what the promise allows."""

import numpy as np
import pytest
import torch

from benchmarks.lattice_attack import (
    Guesses,
    gaussian_lattice,
    gaussian_likelihood,
    guess,
    privunit_lattice,
    privunit_likelihood,
    unreachable,
    worst_pair,
)
from dp_forward.errors import InvalidInput
from dp_forward.noise import Sanitizer, release
from dp_forward.privacy import TEXT, Budget, MatrixGaussian, PrivUnit, calibrate, normalise

BOUND = normalise(1.0)
PAIR = worst_pair(BOUND, rows=32, width=64)
SMALL = worst_pair(BOUND, rows=4, width=8)
"""Enough where only the size of the noise matters."""


def _gaussian(epsilon: float) -> MatrixGaussian:
    return calibrate(MatrixGaussian, Budget(epsilon, 1e-5), bound=BOUND, unit=TEXT)


def _privunit(epsilon: float) -> PrivUnit:
    return calibrate(PrivUnit, Budget(epsilon), bound=BOUND, unit=TEXT)


def _floating(sigma: float, seed: int = 1):
    generator = torch.Generator().manual_seed(seed)

    def draw(x):
        x = torch.from_numpy(x)
        return (x + torch.normal(0.0, sigma, x.shape, generator=generator, dtype=x.dtype)).numpy()

    return draw


def _simulated(mechanism):
    sanitizer = Sanitizer(mechanism, seed=2)
    return lambda x: sanitizer(torch.from_numpy(x)[None])[0].numpy()


def _seeded(mechanism, bits: int, seed: int = 3):
    entropy = np.random.default_rng(seed).bytes
    return lambda x: release(x, mechanism, bits=bits, entropy=entropy)


def _played(draw, score, mechanism, *, pair=PAIR, trials: int = 200) -> Guesses:
    return guess(pair, draw, score, attack="test", ceiling=mechanism.guess_rate(), trials=trials, seed=4)


# The lattice


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("epsilon", [0.1, 0.5, 8.0])
def test_the_true_candidate_explains_every_entry_and_another_does_not(epsilon: float, dtype) -> None:
    sigma = _gaussian(epsilon).sigma
    true, other = worst_pair(BOUND, rows=32, width=64, dtype=dtype)
    draw = _floating(sigma)
    for _ in range(5):
        noisy = draw(true)
        assert not unreachable(noisy, true, sigma=sigma).any()
        assert unreachable(noisy, other, sigma=sigma).sum() > 5


def test_a_fused_sum_is_explained_as_well() -> None:
    sigma, g = 14.063653, torch.randn(64, 64, generator=torch.Generator().manual_seed(5))
    x = torch.from_numpy(np.resize(PAIR[0], (64, 64)))
    noisy = (x.double() + float(np.float32(sigma)) * g.double()).float()
    assert not unreachable(noisy.numpy(), x.numpy(), sigma=sigma).any()
    assert unreachable(noisy.numpy(), -x.numpy(), sigma=sigma).any()


@pytest.mark.slow
def test_a_sigma_without_gaps_of_its_own_does_not_help() -> None:
    """sigma = 2^e leaves out no float; what crosses into a finer octave still tells."""
    result = _played(_floating(16.0), gaussian_lattice(16.0), _gaussian(0.5))
    assert result.success >= 0.9


# The game


@pytest.mark.slow
def test_float_gaussian_noise_is_broken_at_a_small_epsilon() -> None:
    quiet = _gaussian(0.5)
    for draw in (_floating(quiet.sigma), _simulated(quiet)):
        result = _played(draw, gaussian_lattice(quiet.sigma), quiet)
        assert result.success >= 0.99
        assert result.breaks_the_promise


@pytest.mark.slow
def test_float_privunit_is_broken_at_a_small_epsilon() -> None:
    quiet = _privunit(0.5)
    result = _played(_simulated(quiet), privunit_lattice(quiet.sigma), quiet)
    assert result.success >= 0.99
    assert result.breaks_the_promise


@pytest.mark.slow
@pytest.mark.parametrize("bits", [8, 16])
def test_released_integers_give_the_lattice_nothing(bits: int) -> None:
    gaussian, privunit = _gaussian(0.1), _privunit(0.1)
    for mechanism, score in (
        (gaussian, gaussian_lattice(gaussian.sigma)),
        (privunit, privunit_lattice(privunit.sigma)),
    ):
        result = _played(_seeded(mechanism, bits), score, mechanism)
        assert 0.4 <= result.success <= 0.6
        assert not result.breaks_the_promise


@pytest.mark.slow
@pytest.mark.parametrize("bits", [8, 16])
def test_the_likelihood_reaches_what_the_promise_allows_and_no_more(bits: int) -> None:
    gaussian, privunit = _gaussian(8.0), _privunit(4.0)
    trials, off = 1000, 0.04
    for mechanism, score in (
        (gaussian, gaussian_likelihood(gaussian)),
        (privunit, privunit_likelihood(privunit)),
    ):
        result = _played(_seeded(mechanism, bits), score, mechanism, trials=trials, pair=SMALL)
        assert not result.breaks_the_promise
        # At t* a text is not always told from its opposite, so PrivUnit stays further below its ceiling.
        least = result.ceiling if mechanism is gaussian else mechanism.cap_probability
        assert result.success > least - off
    # Negative control: half the noise that is promised is seen as a broken promise.
    half = MatrixGaussian(gaussian.sigma / 2, gaussian.sensitivity)
    broken = _played(_seeded(half, 16), gaussian_likelihood(half), gaussian, trials=trials, pair=SMALL)
    assert broken.breaks_the_promise


def test_floats_and_integers_have_the_same_likelihood_ratio() -> None:
    mechanism = _gaussian(8.0)
    score = gaussian_likelihood(mechanism)
    released = release(PAIR[0], mechanism, entropy=np.random.default_rng(6).bytes)
    exact, smooth = (score(seen, PAIR[0]) - score(seen, PAIR[1]) for seen in (released, released.as_floats()))
    assert exact == pytest.approx(smooth, rel=0.02)


def test_a_clamped_integer_is_a_cell_without_an_end() -> None:
    mechanism = _gaussian(8.0)
    score = gaussian_likelihood(mechanism)
    for byte in (b"\x00", b"\xff"):
        held = release(PAIR[0], mechanism, bits=8, entropy=lambda n, b=byte: b * n)
        assert np.isfinite(score(held, PAIR[0]))


def test_the_pair_lies_at_the_full_sensitivity_and_differs_in_its_zeros() -> None:
    first, second = PAIR
    assert np.linalg.norm(first - second) == pytest.approx(2.0, abs=1e-5)
    assert not first[16:].any()
    assert second.all()


def test_the_interval_is_that_of_clopper_and_pearson() -> None:
    certain = guess(
        PAIR,
        lambda x: x,
        lambda seen, x: float((seen == x).all()),
        attack="none",
        ceiling=0.8,
        trials=10,
        seed=0,
    )
    assert (certain.right, certain.success, certain.high) == (10, 1.0, 1.0)
    assert certain.low == pytest.approx(0.025 ** (1 / 10))
    blind = guess(PAIR, lambda x: x, lambda seen, x: 0.0, attack="none", ceiling=0.8, trials=1000, seed=0)
    assert 0.4 < blind.low < blind.success < blind.high < 0.6
    assert set(certain.as_dict()) >= {"attack", "success", "chance", "low", "high", "ceiling"}


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(InvalidInput, match="`trials`"):
        _played(lambda x: x, lambda seen, x: 0.0, _gaussian(1.0), trials=0)
    with pytest.raises(InvalidInput, match="`candidates`"):
        _played(lambda x: x, lambda seen, x: 0.0, _gaussian(1.0), pair=(PAIR[0], PAIR[1][:4]))
    with pytest.raises(InvalidInput, match="`mechanism`"):
        gaussian_likelihood(MatrixGaussian(1.0, 2.0))
