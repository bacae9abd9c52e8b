"""An honest payload passes, one without its noise does not."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from dp_forward.errors import InvalidInput
from dp_forward.noise import release_batch
from dp_forward.privacy import Mechanism, NoiseSpec, PrivUnit
from dp_forward.service.server.noise_check import MOST_FALSE_REFUSALS, NoiseCheck, OneHotCheck, noise_check
from dp_forward.service.server.request_limits import Refused
from reference_samplers import raw_vector

ROWS, WIDTH = 12, 32
CHOICES = {
    "privunit": NoiseSpec(epsilon=8.0),
    "privunit, much": NoiseSpec(epsilon=30.0),
    "gaussian": NoiseSpec(mechanism="gaussian", epsilon=8.0),
    "matrix-gaussian": NoiseSpec(mechanism="matrix-gaussian", epsilon=1.0),
    "gaussian by row": NoiseSpec(mechanism="gaussian", epsilon=8.0, unit="token"),
    "privunit by row": NoiseSpec(epsilon=8.0, unit="token"),
}


def hidden_matrices(count: int, *, rows: int = ROWS, width: int = WIDTH) -> NDArray[np.float64]:
    """Of many kinds: dense, a single peak, one common direction, zeros."""
    random = np.random.default_rng(5)
    made = random.normal(size=(count, rows, width))
    made[1::4] = 0.0
    made[1::4, 0, 0] = 1.0
    made[2::4] = random.normal(size=width)
    made[3::8] = 0.0
    return made


def made_check(mechanism: Mechanism, *, bits: int = 16, rows: int = ROWS, width: int = WIDTH) -> NoiseCheck:
    step = release_batch(np.zeros((1, rows, width)), mechanism, bits=bits)[0].step
    return NoiseCheck.of(mechanism, shape=(rows, width), step=step, bits=bits)


def refusal(check: NoiseCheck | OneHotCheck, values: NDArray[np.int16]) -> str | None:
    try:
        check(values)
    except Refused as refused:
        return refused.code
    return None


def without_noise(mechanism: Mechanism, check: NoiseCheck, *, scale: float = 1.0) -> list[NDArray[np.int16]]:
    bound = mechanism.bound if isinstance(mechanism, PrivUnit) else mechanism.sensitivity.bound  # type: ignore[attr-defined]
    step = check.per_deviation * mechanism.sigma  # type: ignore[attr-defined]
    return [np.rint(scale * bound.apply(one) / step).astype(np.int16) for one in hidden_matrices(16)]


@pytest.mark.parametrize("name", CHOICES)
@pytest.mark.parametrize("bits", [8, 16])
def test_honest_releases_pass(name: str, bits: int) -> None:
    mechanism = CHOICES[name].build()
    try:
        check = made_check(mechanism, bits=bits)
    except InvalidInput:
        assert bits == 8  # no room for so loud a signal
        return
    assert 0 < check.false_refusals < MOST_FALSE_REFUSALS
    for released in release_batch(hidden_matrices(200), mechanism, bits=bits):
        check(released.values)


@pytest.mark.parametrize("name", CHOICES)
def test_a_client_that_forgot_the_noise_is_refused(name: str) -> None:
    mechanism = CHOICES[name].build()
    check = made_check(mechanism)
    assert check.tells
    assert {refusal(check, values) for values in without_noise(mechanism, check)} == {"no_noise"}
    assert refusal(check, np.zeros((ROWS, WIDTH), dtype=np.int16)) == "no_noise"


@pytest.mark.parametrize("name", ["privunit", "gaussian", "matrix-gaussian"])
@pytest.mark.parametrize(("scale", "code"), [(0.5, "no_noise"), (2.0, "too_much_noise")])
def test_noise_of_half_or_twice_the_deviation_is_refused(name: str, scale: float, code: str) -> None:
    """The negative control of the honest ones: the same numbers on another scale."""
    mechanism = CHOICES[name].build()
    check = made_check(mechanism)
    for released in release_batch(hidden_matrices(50), mechanism):
        assert refusal(check, np.rint(released.values * scale).astype(np.int16)) == code


def test_a_tenth_less_noise_is_refused_where_much_crosses() -> None:
    mechanism = CHOICES["matrix-gaussian"].build()
    check = made_check(mechanism, rows=64, width=768)
    values = release_batch(hidden_matrices(2, rows=64, width=768), mechanism)[0].values
    assert refusal(check, values) is None
    assert refusal(check, np.rint(values * 0.9).astype(np.int16)) == "no_noise"


def test_rows_without_noise_are_refused_among_rows_with_noise() -> None:
    """Padding that was left out of the noise would tell the length of a text."""
    mechanism = CHOICES["gaussian"].build()
    check = made_check(mechanism, rows=128, width=64)
    values = np.array(release_batch(hidden_matrices(1, rows=128, width=64), mechanism)[0].values)
    assert refusal(check, values) is None
    values[-1] = 0
    assert refusal(check, values) == "no_noise"


def test_a_hidden_matrix_that_only_has_the_right_length_is_refused() -> None:
    """Rows of one common direction, scaled to the length of noise."""
    check = made_check(CHOICES["privunit"].build())
    direction = np.random.default_rng(1).choice([-1.0, 1.0], size=WIDTH)
    alike = np.rint(np.tile(direction, (ROWS, 1)) / check.per_deviation).astype(np.int16)
    length = np.linalg.norm(alike.astype(float)) * check.per_deviation
    assert check.whole.low < length < check.whole.high
    assert refusal(check, alike) == "no_noise"


def test_the_computed_rate_is_an_upper_bound() -> None:
    """The same construction at a rate that can be seen: the tails of the law itself, not of a formula."""
    from dp_forward.service.server import noise_check as check_noise

    mechanism = CHOICES["gaussian"].build()
    random = np.random.default_rng(3)
    plain = {"signal": 0.0, "rounding": 0.0, "log_ratio": 0.0, "beyond": 0.0}
    limits = check_noise._limits(WIDTH, **plain, rate=0.01)
    lengths = np.linalg.norm(random.normal(size=(40_000, WIDTH)), axis=1)
    outside = int(np.sum((lengths < limits.low) | (lengths > limits.high)))
    assert limits.rate == pytest.approx(0.02, rel=1e-3)
    assert stats.binomtest(outside, len(lengths), limits.rate).pvalue > 1e-6
    # The control: limits for one degree less are refuted by the same draws.
    other = check_noise._limits(WIDTH - 8, **plain, rate=0.01)
    wrong = int(np.sum((lengths < other.low) | (lengths > other.high)))
    assert stats.binomtest(wrong, len(lengths), other.rate).pvalue < 1e-6
    assert made_check(mechanism).false_refusals < MOST_FALSE_REFUSALS


@pytest.mark.slow
def test_privunit_is_never_denser_than_the_ratio_says() -> None:
    """R bounds the frequency of every event: here, of the cap itself, which is where it is reached."""
    from dp_forward.service.server import noise_check as check_noise

    mechanism = CHOICES["privunit"].build()
    assert isinstance(mechanism, PrivUnit)
    x = np.zeros((1, WIDTH))
    x[0, 0] = 1.0
    random = np.random.default_rng(4)
    share = np.mean([raw_vector(mechanism, x, random)[0, 0] >= mechanism.threshold for _ in range(4000)])
    ratio = float(share / stats.norm.sf(mechanism.threshold))
    bound = float(np.exp(check_noise._log_ratio(mechanism)))
    assert 0.9 * bound < ratio < 1.1 * bound


@pytest.mark.parametrize("entries", [10_000, 100_000, 1 << 24])
def test_clamping_costs_next_to_nothing_however_much_crosses(entries: int) -> None:
    """In int8 a few entries in 10^15 are clamped: that must neither refuse a client nor stop a server."""
    choice = NoiseSpec(mechanism="gaussian", epsilon=2.0)
    mechanism = choice.build()
    sigma: float = mechanism.sigma  # type: ignore[attr-defined]
    # A sixteenth is the least that a step can be, so the ends lie as near as they can.
    check = NoiseCheck.of(mechanism, shape=(1, entries), step=sigma / 16, bits=8)
    wide = NoiseCheck.of(mechanism, shape=(1, entries), step=sigma / 16, bits=16)
    assert check.false_refusals < MOST_FALSE_REFUSALS
    assert wide.whole.low - check.whole.low < 1
    assert check.whole.high - wide.whole.high < 3
    assert check.tells


def test_few_entries_are_told_to_be_too_few() -> None:
    check = made_check(CHOICES["privunit"].build(), rows=1, width=4)
    assert not check.tells
    assert check.false_refusals < MOST_FALSE_REFUSALS


def test_a_refusal_shows_no_value() -> None:
    check = made_check(CHOICES["privunit"].build())
    with pytest.raises(Refused) as caught:
        check(np.full((ROWS, WIDTH), 12345, dtype=np.int16))
    assert not any(letter.isdigit() for letter in str(caught.value))


def test_an_answer_among_labels_is_one_hot_or_refused() -> None:
    response = NoiseSpec(mechanism="k-ary-response", epsilon=1.0, columns=4).build()
    check = noise_check(response, shape=(1, 4), step=1.0, bits=8)
    assert check.false_refusals == 0
    assert not check.tells, "a bare decision looks like an answer"
    for released in release_batch(hidden_matrices(200, rows=1, width=4), response, bits=8):
        check(released.values)
    for values in ([0, 0, 0, 0], [1, 1, 0, 0], [2, 0, 0, 0], [-1, 0, 0, 0], [1, -1, 1, 0], [1, 0, 0, -1]):
        assert refusal(check, np.array([values], dtype=np.int8)) == "no_noise"
    assert isinstance(noise_check(CHOICES["privunit"].build(), shape=(2, 64), step=0.1, bits=16), NoiseCheck)
