"""Rounded Gaussians are exact: no bit of a draw differs from what 100 digits say."""

import math

import mpmath as mp
import numpy as np
import pytest
from scipy import stats
from scipy.special import ndtri

from dp_forward.errors import InvalidInput
from dp_forward.noise.released import exact_normal
from dp_forward.noise.released.exact_normal import NDTRI_ERROR, rounded_normal, threshold

FINE = 1.2 * 2.0**23
"""The scale of a release."""
SCALES = [0.3, 1.0, 8.3, 1000.0, FINE, 2.0**32]


class Recorder:
    """Entropy that remembers what it gave."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self.given: list[bytes] = []

    def __call__(self, size: int) -> bytes:
        self.given.append(self._rng.bytes(size))
        return self.given[-1]


def _inside(word: int, digits: int, size: int, scale: float) -> bool:
    """Whether every V in [word, word + 1) / 2^digits has |round(Z)| = size, by mpmath."""
    low, high = mp.mpf(word) / mp.mpf(2) ** digits, mp.mpf(word + 1) / mp.mpf(2) ** digits

    def beyond(k: int) -> mp.mpf:
        return mp.erfc((mp.mpf(k) + mp.mpf("0.5")) / (mp.mpf(scale) * mp.sqrt(2)))

    return bool(low >= beyond(size) and (size == 0 or high <= beyond(size - 1)))


def _split(word: int, word_bits: int) -> tuple[int, int]:
    word >>= 64 - word_bits
    return word >> (word_bits - 1), word & ((1 << (word_bits - 1)) - 1)


def _mismatches(draws, words, word_bits: int, scale: float) -> int:
    wrong = 0
    for draw, (first, *more) in zip(draws, words, strict=True):
        sign, digits = _split(first, word_bits)
        length = word_bits - 1
        for word in more:
            digits, length = (digits << 64) | word, length + 64
        right_sign = draw == 0 or (draw < 0) == bool(sign)
        wrong += not (right_sign and _inside(digits, length, abs(int(draw)), scale))
    return wrong


@pytest.mark.slow
def test_no_draw_differs_from_100_digits_on_the_same_bits() -> None:
    with mp.workdps(100):
        for scale in (8.3, FINE):
            recorder = Recorder(1)
            draws = rounded_normal(2000, scale=scale, entropy=recorder)
            assert len(recorder.given) == 1, "64 bits were enough for all"
            words = [[int(w)] for w in np.frombuffer(recorder.given[0], dtype="<u8")]
            assert _mismatches(draws, words, 64, scale) == 0
            # Negative control: the comparison sees one cell of error, and a scale off by a millionth.
            assert _mismatches(draws[:50] + 1, words[:50], 64, scale) == 50
        assert _mismatches(draws[:50], words[:50], 64, FINE * (1 + 1e-6)) > 30


@pytest.mark.slow
@pytest.mark.parametrize(("word_bits", "scale"), [(2, 1.0), (8, 8.3), (12, FINE), (30, FINE), (40, 2.0**32)])
def test_short_words_are_extended_and_still_exact(word_bits: int, scale: float) -> None:
    recorder, words, draws = Recorder(word_bits), [], []
    for _ in range(2000):
        recorder.given.clear()
        draws.append(int(rounded_normal(1, scale=scale, entropy=recorder, word_bits=word_bits)[0]))
        words.append([int.from_bytes(data, "little") for data in recorder.given])
    extended = [i for i, w in enumerate(words) if len(w) > 1]
    assert len(extended) > 10, "some words were too short"
    looked_at = sorted({*extended[:300], *range(0, len(words), 10)})
    with mp.workdps(100):
        assert (
            _mismatches([draws[i] for i in looked_at], [words[i] for i in looked_at], word_bits, scale) == 0
        )


@pytest.mark.parametrize("scale", SCALES)
def test_thresholds_are_the_floor_of_the_true_tail(scale: float) -> None:
    with mp.workdps(250):
        for deviations in (0.0, 0.01, 0.7, 3.0, 9.0, 20.0, 40.0):
            k = int(deviations * scale)
            tail = mp.erfc((mp.mpf(k) + mp.mpf("0.5")) / (mp.mpf(scale) * mp.sqrt(2)))
            for digits in (1, 8, 63, 127, 447):
                assert threshold(k, scale, digits) == int(mp.floor(tail * mp.mpf(2) ** digits))


def test_a_word_on_the_edge_is_decided_by_the_bits_that_follow() -> None:
    k = int(0.7 * FINE)
    edge, longer = threshold(k, FINE, 63), threshold(k, FINE, 127)
    tail = longer - (edge << 64)
    for first, following, expected in [
        (edge - 1, [], k + 1),
        (edge + 1, [], k),
        (edge, [tail - 1], k + 1),
        (edge, [tail + 1], k),
        (edge, [tail, 0], k + 1),
        (edge, [tail, 2**64 - 1], k),
    ]:
        words = iter([first, *following])
        draw = rounded_normal(1, scale=FINE, entropy=lambda n, w=words: next(w).to_bytes(8, "little"))
        assert draw[0] == expected
        assert next(words, None) is None, "no more bits than needed"


def _wrong_near_edges() -> int:
    """Wrong cells among words a few units to 2^20 units away from an edge, where floats cannot tell."""
    rng = np.random.default_rng(5)
    wrong = 0
    for _ in range(100):
        k = int(abs(rng.standard_normal()) * FINE)
        edge = threshold(k, FINE, 63)
        offsets = [sign << j for j in range(20) for sign in (1, -1)]
        words = np.array([edge + offset for offset in offsets], dtype="<u8")
        draws = rounded_normal(len(words), scale=FINE, entropy=lambda n, w=words: w.tobytes())
        wrong += int(np.sum(draws != np.where(words < edge, k + 1, k)))
    return wrong


def test_words_beside_an_edge_fall_on_its_right_side(monkeypatch) -> None:
    assert _wrong_near_edges() == 0
    # Negative control: floats taken at their word, without a margin, are caught.
    monkeypatch.setattr(exact_normal, "NDTRI_ERROR", 0.0)
    monkeypatch.setattr(exact_normal, "_FLAT_ERROR", 0.0)
    assert _wrong_near_edges() > 100


@pytest.mark.parametrize("byte", [b"\x00", b"\x7f", b"\x80", b"\xff"])
def test_no_entropy_makes_it_run_forever(byte: bytes) -> None:
    for scale in SCALES:
        draws = rounded_normal((3, 2), scale=scale, entropy=lambda n: byte * n)
        assert draws.shape == (3, 2)
        assert np.abs(draws).max() <= 30 * scale + 1


@pytest.mark.slow
def test_ndtri_is_far_better_than_what_is_assumed_of_it() -> None:
    rng = np.random.default_rng(2)
    tails = np.concatenate([rng.uniform(0, 0.5, 400), np.exp(-rng.uniform(0.7, 350, 400)), [0.1353, 0.1354]])
    with mp.workdps(60):
        worst = max(_relative_error(float(u)) for u in tails)
    print(f"\nworst relative error of ndtri: {worst:.2g} (assumed {NDTRI_ERROR:.2g})")
    assert worst < NDTRI_ERROR / 16


def _relative_error(u: float) -> float:
    """By one Newton step on log Q from the float, in 60 digits: its length is the error, to second order."""
    z = -mp.mpf(float(ndtri(u)))
    tail = mp.erfc(z / mp.sqrt(2)) / 2
    return abs(float((mp.log(tail) - mp.log(mp.mpf(u))) * tail / mp.npdf(z) / z))


def _fits(draws, scale: float, mean: float = 0.0) -> float:
    """The p-value of round(N(mean, scale^2)) for these draws, by chi-squared over cells of 20 or more."""
    edge = math.ceil(3 * scale)
    edges = np.concatenate([[-np.inf], np.arange(-edge, edge + 1) + 0.5, [np.inf]])
    expected = len(draws) * np.diff(stats.norm.cdf(edges, mean, scale))
    observed = np.histogram(draws, np.nan_to_num(edges, posinf=1e18, neginf=-1e18))[0]
    return float(stats.chisquare(observed, expected).pvalue)


@pytest.mark.parametrize("word_bits", [64, 9])
@pytest.mark.parametrize("scale", [0.6, 1.0, 8.3])
def test_the_distribution_is_the_rounded_normal_and_no_other(scale: float, word_bits: int) -> None:
    size = 200_000 if word_bits == 64 else 20_000
    draws = rounded_normal(size, scale=scale, entropy=np.random.default_rng(3).bytes, word_bits=word_bits)
    assert _fits(draws, scale) > 1e-4
    assert _fits(draws, scale * 2 / 3) < 1e-9
    assert _fits(draws, scale * 3 / 2) < 1e-9
    assert _fits(draws, scale, mean=0.1 * scale) < 1e-9


@pytest.mark.slow
def test_fine_draws_are_normal_in_every_octave() -> None:
    draws = rounded_normal(300_000, scale=FINE, entropy=np.random.default_rng(4).bytes) / FINE
    assert stats.kstest(draws, "norm").pvalue > 1e-4
    for wrong in (2 / 3, 3 / 2):
        assert stats.kstest(draws * wrong, "norm").pvalue < 1e-9
    assert stats.kstest(draws + 0.05, "norm").pvalue < 1e-9


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("scale", {"scale": 0.0}),
        ("scale", {"scale": math.nan}),
        ("scale", {"scale": 2.0**33}),
        ("word_bits", {"word_bits": 1}),
        ("word_bits", {"word_bits": 65}),
        ("entropy", {"entropy": lambda n: b""}),
    ],
)
def test_what_makes_no_sense_is_refused(name: str, wrong) -> None:
    with pytest.raises(InvalidInput, match=f"`{name}`"):
        rounded_normal(4, **({"scale": 1.0} | wrong))


def test_nothing_is_drawn_for_nothing() -> None:
    assert rounded_normal(0, scale=1.0).shape == (0,)
    assert rounded_normal((2, 0), scale=1.0).shape == (2, 0)
