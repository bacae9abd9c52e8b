"""An honest payload passes, one without its noise does not."""

from __future__ import annotations

import math
import secrets
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from dp_forward.errors import InvalidInput
from dp_forward.noise import release_batch
from dp_forward.privacy import Mechanism, NoiseSpec, PrivUnit
from dp_forward.service.server import noise_check as noise_check_module
from dp_forward.service.server.noise_check import (
    MOST_FALSE_REFUSALS,
    NoiseCheck,
    OneHotCheck,
    noise_check,
    warn_if_blind,
)
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
    assert check.frames == 1
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
    mechanism = CHOICES["gaussian"].build()
    random = np.random.default_rng(3)
    plain = {"signal": 0.0, "rounding": 0.0, "log_ratio": 0.0, "beyond": 0.0}
    limits = noise_check_module._limits(WIDTH, **plain, rate=0.01)
    lengths = np.linalg.norm(random.normal(size=(40_000, WIDTH)), axis=1)
    outside = int(np.sum((lengths < limits.low) | (lengths > limits.high)))
    assert limits.rate == pytest.approx(0.02, rel=1e-3)
    assert stats.binomtest(outside, len(lengths), limits.rate).pvalue > 1e-6
    # The control: limits for one degree less are refuted by the same draws.
    other = noise_check_module._limits(WIDTH - 8, **plain, rate=0.01)
    wrong = int(np.sum((lengths < other.low) | (lengths > other.high)))
    assert stats.binomtest(wrong, len(lengths), other.rate).pvalue < 1e-6
    assert made_check(mechanism).false_refusals < MOST_FALSE_REFUSALS


@pytest.mark.slow
def test_privunit_is_never_denser_than_the_ratio_says() -> None:
    """R bounds the frequency of every event: here, of the cap itself, which is where it is reached."""
    mechanism = CHOICES["privunit"].build()
    assert isinstance(mechanism, PrivUnit)
    x = np.zeros((1, WIDTH))
    x[0, 0] = 1.0
    random = np.random.default_rng(4)
    share = np.mean([raw_vector(mechanism, x, random)[0, 0] >= mechanism.threshold for _ in range(4000)])
    ratio = float(share / stats.norm.sf(mechanism.threshold))
    bound = float(np.exp(noise_check_module._log_ratio(mechanism)))
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
    assert check.frames == 1


NARROW = {"privunit": 19, "gaussian": 8}
"""At eight numbers and epsilon 8: a client without noise is refused at this release."""


def narrow_check(name: str, bits: int = 16) -> tuple[NoiseCheck, NDArray[np.int16]]:
    """A check of eight numbers, and a payload that lacks its noise."""
    mechanism = CHOICES[name].build()
    check = made_check(mechanism, bits=bits, rows=1, width=8)
    bound = mechanism.bound if isinstance(mechanism, PrivUnit) else mechanism.sensitivity.bound  # type: ignore[attr-defined]
    step = check.per_deviation * mechanism.sigma  # type: ignore[attr-defined]
    return check, np.rint(bound.apply(hidden_matrices(1, rows=1, width=8)[0]) / step).astype(np.int16)


def narrow_releases(name: str, count: int, bits: int = 16) -> list[NDArray[np.int16]]:
    hidden = hidden_matrices(count, rows=1, width=8)
    return [one.values for one in release_batch(hidden, CHOICES[name].build(), bits=bits)]


def refusal_of(check: NoiseCheck, values: NDArray[np.int16], sender: str, request: bytes = b"") -> str | None:
    try:
        check(values, request or secrets.token_bytes(16), sender)
    except Refused as refused:
        return refused.code
    return None


@pytest.mark.parametrize("name", NARROW)
@pytest.mark.parametrize("bits", [8, 16])
def test_where_few_numbers_cross_a_client_without_noise_is_refused_and_honest_ones_never(
    name: str, bits: int
) -> None:
    check, bare = narrow_check(name, bits)
    assert check.frames == NARROW[name]
    assert check.false_refusals < MOST_FALSE_REFUSALS
    assert {refusal_of(check, one, "all") for one in narrow_releases(name, 20_000, bits)} == {None}
    for _ in range(check.frames - 1):
        assert refusal_of(check, bare, "one") is None
        assert refusal_of(check, bare, "retry", b"the same again") is None, "no second release"
    assert [refusal_of(check, bare, "one") for _ in range(3)] == ["no_noise"] * 3
    assert refusal_of(check, bare, "another") is None


@pytest.mark.parametrize("name", NARROW)
def test_honest_releases_in_between_hide_no_client_without_noise(name: str) -> None:
    """Alternated one to one under one token and one address."""
    check, bare = narrow_check(name)
    needed = math.ceil(math.log(1e15) / (check.gain - math.log(2)))
    assert needed == {"privunit": 29, "gaussian": 9}[name]
    found = []
    for honest in narrow_releases(name, 2000):
        found.append(refusal_of(check, bare, "all"))
        refusal_of(check, honest, "all")
    assert set(found[needed:]) == {"no_noise"}
    assert None in found


def test_a_score_refuses_honest_senders_no_oftener_than_promised(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same at a rate that can be seen: 20 releases reach a limit of log A in 20 / A of all senders."""
    monkeypatch.setattr(noise_check_module, "_LIMIT", math.log(200))
    check, _ = narrow_check("privunit")
    releases = narrow_releases("privunit", 20_000)

    def refused_senders() -> int:
        found = [refusal_of(check, one, str(n // 20)) is not None for n, one in enumerate(releases)]
        return int(np.any(np.reshape(found, (-1, 20)), axis=1).sum())

    assert stats.binomtest(refused_senders(), 1000, 20 / 200, alternative="greater").pvalue > 1e-6
    check = replace(check, gain=check.gain + 2)  # the control: as if short releases were rarer than they are
    check.scores.clear()
    assert stats.binomtest(refused_senders(), 1000, 20 / 200, alternative="greater").pvalue < 1e-6


def test_senders_and_ids_are_forgotten_beyond_a_bound() -> None:
    check, bare = narrow_check("gaussian")
    for n in range(70_000):
        check(bare, n.to_bytes(16), str(n))
    assert len(check.scores) == 4096
    assert len(check._ids) == 1 << 16


@pytest.mark.parametrize("width", [2, 8])
@pytest.mark.parametrize("name", NARROW)
def test_an_honest_release_is_as_short_as_without_noise_no_oftener_than_computed(
    name: str, width: int
) -> None:
    mechanism = CHOICES[name].build()
    random, reach, count = np.random.default_rng(8), 3.0, 20_000
    x = np.zeros((1, width))
    if isinstance(mechanism, PrivUnit):
        x[0, 0] = 1.0
        lengths = np.array([np.linalg.norm(raw_vector(mechanism, x, random)) for _ in range(count)])
    else:
        lengths = np.linalg.norm(random.normal(size=(count, width)), axis=1)
    vectors = int(isinstance(mechanism, PrivUnit))
    rate, short = (
        noise_check_module._short_rate(mechanism, width, vectors, reach),
        int(np.sum(lengths <= reach)),
    )
    assert stats.binomtest(short, count, rate).pvalue > 1e-6
    # The control: the rate of a length a tenth smaller is refuted by the same draws.
    wrong = noise_check_module._short_rate(mechanism, width, vectors, 0.9 * reach)
    assert stats.binomtest(short, count, wrong, alternative="greater").pvalue < 1e-6


def test_a_number_that_a_thousand_releases_cannot_tell_is_said_to_be_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    loud = made_check(NoiseSpec(mechanism="gaussian", epsilon=60.0).build(), rows=1, width=1)
    assert loud.frames is None
    warn_if_blind([loud])
    warn_if_blind([made_check(CHOICES["gaussian"].build(), rows=1, width=8)])
    warn_if_blind([made_check(CHOICES["gaussian"].build())])
    assert [record.getMessage() for record in caplog.records] == [
        "so few numbers cross that a client without noise may not be noticed",
        "a client without noise is noticed after 8 releases",
    ]


def test_a_refusal_shows_no_value() -> None:
    check = made_check(CHOICES["privunit"].build())
    with pytest.raises(Refused) as caught:
        check(np.full((ROWS, WIDTH), 12345, dtype=np.int16))
    assert not any(letter.isdigit() for letter in str(caught.value))


def test_an_answer_among_labels_is_one_hot_or_refused() -> None:
    response = NoiseSpec(mechanism="k-ary-response", epsilon=1.0, columns=4).build()
    check = noise_check(response, shape=(1, 4), step=1.0, bits=8)
    assert check.false_refusals == 0
    assert check.frames is None, "a bare decision looks like an answer"
    for released in release_batch(hidden_matrices(200, rows=1, width=4), response, bits=8):
        check(released.values)
    for values in ([0, 0, 0, 0], [1, 1, 0, 0], [2, 0, 0, 0], [-1, 0, 0, 0], [1, -1, 1, 0], [1, 0, 0, -1]):
        assert refusal(check, np.array([values], dtype=np.int8)) == "no_noise"
    assert isinstance(noise_check(CHOICES["privunit"].build(), shape=(2, 64), step=0.1, bits=16), NoiseCheck)
