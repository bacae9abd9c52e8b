"""A released PrivUnit is the rounded ideal vector: no bit differs from what 80 digits say."""

import hashlib
import itertools
import math
import os
from collections.abc import Callable

import mpmath as mp
import numpy as np
import pytest
from scipy import stats
from scipy.special import ndtr

from audit.two_point import audit_privunit
from dp_forward.errors import InvalidInput
from dp_forward.noise.released import released_privunit
from dp_forward.noise.released.released_matrix import dequantise, release, release_batch
from dp_forward.noise.released.released_privunit import PER_UNIT, Law, directions, rounded_privunit
from dp_forward.privacy import TEXT, TOKEN, Budget, PrivUnit, calibrate, normalise, normalise_rows
from reference_samplers import raw_vector

WHOLE = calibrate(PrivUnit, Budget(4.0), bound=normalise(1.0), unit=TEXT)
ROWS = calibrate(PrivUnit, Budget(4.0), bound=normalise_rows(2.5, rows=3), unit=TOKEN)
LAW = Law(WHOLE.threshold, WHOLE.cap_log_odds)
HIDDEN = np.random.default_rng(0).standard_normal((3, 4))


def _entropy(seed: int) -> Callable[[int], bytes]:
    return np.random.default_rng(seed).bytes


class Recorder:
    """Entropy that remembers what it gave."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self.given: list[bytes] = []

    def __call__(self, size: int) -> bytes:
        self.given.append(self._rng.bytes(size))
        return self.given[-1]


# Exact


def _quantile(twice: mp.mpf) -> mp.mpf:
    """z with 2 Q(z) = twice."""
    return mp.sqrt(2) * mp.erfinv(1 - twice)


def _ideal(whole, along: mp.mpf, in_cap: bool, normals: list[mp.mpf], law: Law) -> list[int]:
    """round(8 V), in 80 digits, for a uniform number and Gaussians."""
    t = mp.mpf(law.threshold if in_cap else -law.threshold)
    s = _quantile(along * mp.erfc(t / mp.sqrt(2))) * (1 if in_cap else -1)
    length = mp.sqrt(sum(int(k) ** 2 for k in whole))
    x = [int(k) / length for k in whole]
    c = s - mp.fsum(a * b for a, b in zip(x, normals, strict=True))
    return [int(mp.floor(PER_UNIT * (g + c * a) + mp.mpf("0.5"))) for g, a in zip(normals, x, strict=True)]


def _read(given: list[bytes], word_bits: int, more: int) -> tuple[int, list[int], list[int], int]:
    """The coin, all words as far as they were read, and how far; ``more`` digits are put behind them."""
    coin, along, noise = (np.frombuffer(data, "<u8").tolist() for data in given[:3])
    signed = [(w - (w >> 63 << 64)) >> (64 - word_bits) for w in noise]
    words, digits = [along[0] >> (64 - word_bits), *signed], word_bits
    for data in [*given[3:], more.to_bytes(8, "little") * len(words)]:
        words = [w << 64 | m for w, m in zip(words, np.frombuffer(data, "<u8").tolist(), strict=True)]
        digits += 64
    return coin[0], words[:1], words[1:], digits


def _ideals(whole, given: list[bytes], word_bits: int, law: Law = LAW) -> np.ndarray:
    """Where three continuations of the words that were read would put the cells."""
    found = []
    for more in (0, 2**63 + 1, 2**64 - 1):
        coin, (along,), noise, digits = _read(given, word_bits, more)
        in_cap = bool(coin < 2**64 / (1 + mp.exp(-mp.mpf(law.cap_log_odds))))
        uniform = (along + mp.mpf("0.5")) / mp.mpf(2) ** digits
        normals = [
            (1 if w >= 0 else -1) * _quantile((max(w, ~w) + mp.mpf("0.5")) / mp.mpf(2) ** (digits - 1))
            for w in noise
        ]
        found.append(_ideal(whole, uniform, in_cap, normals, law))
    return np.array(found)


def _wrong(ideals: np.ndarray, cells: np.ndarray) -> int:
    """How many cells some continuation would put elsewhere."""
    return int((ideals != cells).any(axis=0).sum())


VECTORS = {
    "plain": [3, 1, -4, 2],
    "pole": [0, -7, 0],
    "flat": [1, 1],
    "long": [2**30, 5, -(2**29), 0],
    "one": [-2],
}


@pytest.mark.slow
@pytest.mark.parametrize("word_bits", [64, 14, 10, 8, 2])
def test_no_entry_differs_from_80_digits_on_the_same_bits(word_bits: int) -> None:
    many = 12 if word_bits == 64 else 8
    refined = 0
    with mp.workdps(80):
        for i in range(many):
            for vector in VECTORS.values():
                recorder, whole = Recorder(100 * word_bits + i), np.array([vector])
                cells = rounded_privunit(whole, law=LAW, entropy=recorder, word_bits=word_bits)[0]
                ideals = _ideals(vector, recorder.given, word_bits)
                assert _wrong(ideals, cells) == 0
                refined += len(recorder.given) > 3
                # Negative control: the comparison sees one cell of error.
                assert _wrong(ideals, cells + 1) == len(vector)
    assert refined == 0 if word_bits == 64 else refined >= 3


@pytest.mark.slow
def test_the_comparison_sees_a_threshold_that_is_off_by_a_little() -> None:
    other, wrong = Law(LAW.threshold + 0.02, LAW.cap_log_odds), 0
    with mp.workdps(40):
        for i in range(60):
            recorder = Recorder(i)
            cells = rounded_privunit(np.array([[3, 4]]), law=LAW, entropy=recorder)[0]
            wrong += _wrong(_ideals([3, 4], recorder.given, 64, other), cells) > 0
    assert wrong > 3


def _wrong_beside_edges() -> int:
    """Wrong cells where one word puts one entry a few to 2^12 units beside a half."""
    rng, wrong = np.random.default_rng(4), 0
    whole, i = np.array([[3, -4, 12]]), 0
    x = [mp.mpf(k) / 13 for k in whole[0].tolist()]
    coin = b"\x00" * 8  # in the cap
    for _ in range(12):
        along, *noise = (int(w) >> 1 for w in np.frombuffer(rng.bytes(32), "<u8"))
        uniform = (along + mp.mpf("0.5")) / mp.mpf(2) ** 64
        g = [_quantile((w + mp.mpf("0.5")) / mp.mpf(2) ** 63) for w in noise]
        s = _quantile(uniform * mp.erfc(mp.mpf(LAW.threshold) / mp.sqrt(2)))
        rest = x[i] * (s - mp.fsum(x[j] * g[j] for j in (1, 2)))
        below = int(mp.floor(PER_UNIT * (rest + g[0] * (1 - x[i] ** 2))))
        edge = ((below + mp.mpf("0.5")) / PER_UNIT - rest) / (1 - x[i] ** 2)
        if edge <= 0:
            continue
        word = int(mp.floor(mp.erfc(edge / mp.sqrt(2)) * mp.mpf(2) ** 63))
        # The other numbers are read on as 1000..., so that they are what was computed with.
        middle = (2**63).to_bytes(8, "little")
        for offset in (sign << j for j in range(12) for sign in (1, -1)):
            stream = [
                coin,
                along.to_bytes(8, "little"),
                np.array([word + offset, *noise[1:]], "<u8").tobytes(),
            ]
            supply = iter([*stream, *[middle * 4] * 8])
            cells = rounded_privunit(whole, law=LAW, entropy=lambda n, it=supply: next(it))
            wrong += int(cells[0, i] != below + (offset < 0))
    return wrong


@pytest.mark.slow
def test_words_beside_an_edge_fall_on_its_right_side(monkeypatch) -> None:
    with mp.workdps(60):
        assert _wrong_beside_edges() == 0
        # Negative control: floats taken at their word, without a margin, are caught.
        for name in ("NDTRI_ERROR", "_FLAT_ERROR", "_U"):
            monkeypatch.setattr(released_privunit, name, -1.0)
        assert _wrong_beside_edges() > 20


@pytest.mark.slow
@pytest.mark.parametrize("shape", ["spread", "one large entry", "few large entries"])
def test_the_integers_say_what_the_floats_said_of_a_long_vector(shape: str, monkeypatch) -> None:
    """Levels of sums, and entries of every size: here nobody but the integers could tell."""
    hidden = np.random.default_rng(10).standard_normal((1, 1500))
    hidden[0, : {"spread": 0, "one large entry": 1, "few large entries": 40}[shape]] *= 1000
    whole = directions(hidden)
    by_floats = rounded_privunit(whole, law=LAW, entropy=_entropy(11))
    nearest, calls = released_privunit._nearest, []

    def never_sure(*details):
        cells, decided = nearest(*details)
        calls.append(decided.all())
        return np.full_like(cells, 10**6), np.zeros_like(decided)

    monkeypatch.setattr(released_privunit, "_nearest", never_sure)
    by_integers = rounded_privunit(whole, law=LAW, entropy=_entropy(11))
    assert calls == [True]
    assert (by_integers == by_floats).all()


def test_a_float_pass_hardly_ever_needs_more_digits() -> None:
    asked = []

    def entropy(size: int) -> bytes:
        asked.append(size)
        return os.urandom(size)

    rounded_privunit(np.ones((2000, 384), dtype=np.int64), law=LAW, entropy=entropy)
    assert len(asked) == 3, "the coins, the signals and the noise of all"


@pytest.mark.slow
@pytest.mark.parametrize("byte", [b"\x00", b"\x7f", b"\x80", b"\xff"])
def test_no_entropy_makes_it_run_forever_or_leave_its_bits(byte: bytes) -> None:
    for mechanism in (WHOLE, PrivUnit(35.0, 2.0), PrivUnit(-3.0, 9.0), PrivUnit(0.0, 1.0)):
        released = release(HIDDEN[:1], mechanism, entropy=lambda n: byte * n)
        assert np.abs(released.as_floats() / mechanism.sigma).max() < 50


# The law


def _along_and_across(values, mechanism: PrivUnit, hidden):
    x = mechanism.bound.apply(hidden).ravel()
    x = x / np.linalg.norm(x)
    raw = values.reshape(len(values), -1) / mechanism.sigma
    along = raw @ x
    return along, (np.sum(raw**2) - np.sum(along**2)) / (len(raw) * (len(x) - 1))


@pytest.fixture(scope="module")
def reference() -> np.ndarray:
    rng = np.random.default_rng(1)
    raw = np.stack([raw_vector(WHOLE, HIDDEN, rng) for _ in range(6000)])
    return WHOLE.sigma * np.rint(PER_UNIT * raw) / PER_UNIT


@pytest.mark.slow
@pytest.mark.parametrize("bits", [16, 8])
def test_the_law_is_that_of_the_reference_and_of_no_other(bits: int, reference: np.ndarray) -> None:
    many = len(reference)
    batch = np.broadcast_to(HIDDEN, (many, *HIDDEN.shape))
    ours = np.stack([r.as_floats() for r in release_batch(batch, WHOLE, bits=bits, entropy=_entropy(2))])
    (along, across), (expected, _) = (_along_and_across(v, WHOLE, HIDDEN) for v in (ours, reference))
    assert stats.ks_2samp(along, expected).pvalue > 1e-4
    assert stats.ks_2samp(0.9 * along, expected).pvalue < 1e-9
    noise = math.sqrt(2 / (many * (HIDDEN.size - 1)))
    assert abs(across - 1 - 1 / 768) < 5 * noise
    assert abs(0.81 * across - 1) > 5 * noise
    # Unbiased for the bounded matrix, on the scale of a Sanitizer.
    error = 1.2 * WHOLE.sigma / math.sqrt(many)
    assert np.abs(ours.mean(axis=0, dtype=np.float64) - WHOLE.bound.apply(HIDDEN)).max() < 4.5 * error
    other = PrivUnit(WHOLE.threshold, WHOLE.cap_log_odds + 0.5)
    wrong = np.stack([r.as_floats() for r in release_batch(batch, other, bits=bits, entropy=_entropy(3))])
    along, _ = _along_and_across(wrong * WHOLE.sigma / other.sigma, WHOLE, HIDDEN)
    assert stats.ks_2samp(along, expected).pvalue < 1e-9


def _cells_fit(cells, law: Law) -> float:
    """The p-value of round(8 s) for these cells, by chi-squared with the exact probabilities."""
    edges = (np.arange(-20, 30) + 0.5) / PER_UNIT
    t, p = law.threshold, 1 / (1 + math.exp(-law.cap_log_odds))
    cdf = np.where(edges < t, (1 - p) * ndtr(edges) / ndtr(t), 1 - p * ndtr(-edges) / ndtr(-t))
    expected = len(cells) * np.diff(np.concatenate([[0.0], cdf, [1.0]]))
    observed = np.histogram(cells / PER_UNIT, np.concatenate([[-1e9], edges, [1e9]]))[0]
    assert expected.min() > 5
    return float(stats.chisquare(observed, expected).pvalue)


def test_the_signal_falls_in_the_cap_as_often_as_promised_to_the_cell() -> None:
    """Along an axis V is s itself; with t on an edge of a cell, the cap is a set of cells."""
    law = Law(12.5 / PER_UNIT, 1.25)
    cells = rounded_privunit(np.tile([[5, 0]], (60_000, 1)), law=law, entropy=_entropy(5))
    p = 1 / (1 + math.exp(-1.25))
    share = float(np.mean(cells[:, 0] >= 13))
    assert abs(share - p) < 4.5 * math.sqrt(p * (1 - p) / len(cells))
    assert _cells_fit(cells[:, 0], law) > 1e-4
    assert _cells_fit(cells[:, 0], Law(law.threshold, 1.4)) < 1e-9
    assert _cells_fit(cells[:, 0], Law(law.threshold + 0.05, 1.25)) < 1e-9
    spread = np.random.default_rng(6).uniform(-0.5, 0.5, len(cells))
    across = (cells[:, 1] + spread) / PER_UNIT / math.sqrt(1 + 1 / 384)
    assert stats.kstest(across, "norm").pvalue > 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("more", [0.0, 0.4], ids=["honest", "odds too high"])
def test_the_audit_passes_the_honest_and_catches_the_other(more: float) -> None:
    claim = PrivUnit(12.5 / PER_UNIT, 1.25)
    drawn = PrivUnit(claim.threshold, claim.cap_log_odds + more)
    hidden, draws = np.array([[1.0, 0.0, 0.0]]), 3000
    batch = np.broadcast_to(hidden, (draws, *hidden.shape))
    pool = iter(release_batch(batch, drawn, entropy=_entropy(7)))

    def sampler(*_):
        return next(pool).values / PER_UNIT

    audit = audit_privunit(claim, sampler, hidden, draws=draws, rng=np.random.default_rng(0))
    assert audit.refuted == (more > 0)


def test_rows_are_released_each_by_itself() -> None:
    many = 4000
    batch = np.broadcast_to(HIDDEN, (many, 3, 4))
    noisy = np.stack([r.as_floats() for r in release_batch(batch, ROWS, entropy=_entropy(8))])
    bounded = ROWS.bound.apply(HIDDEN)
    assert np.abs(noisy.mean(axis=0) - bounded).max() < 4.5 * 1.2 * ROWS.sigma / math.sqrt(many)
    along = np.einsum("brd,rd->br", noisy, bounded)
    correlations = np.corrcoef(along.T)
    assert np.abs(correlations - np.eye(3)).max() < 5 / math.sqrt(many)


@pytest.mark.slow
def test_texts_of_a_batch_have_noise_of_their_own() -> None:
    batch = np.broadcast_to(HIDDEN, (20_000, 3, 4))  # more than one block
    noisy = np.stack([r.values for r in release_batch(batch, WHOLE)])
    assert len(np.unique(noisy.reshape(len(noisy), -1), axis=0)) == len(noisy)
    along = (noisy * HIDDEN).sum(axis=(1, 2))
    for lag in (1, 2, 5461, 5462):
        assert abs(np.corrcoef(along[lag:], along[:-lag])[0, 1]) < 5 / math.sqrt(len(noisy) - lag)


# Edges


STRANGE = {
    "nan": np.full((3, 4), np.nan),
    "inf": np.array([[np.inf, -np.inf, 1.0, 0.0]] * 3),
    "1e300": np.full((3, 4), -1e300),
    "zeros": np.zeros((3, 4)),
    "denormal": np.full((3, 4), 5e-324),
    "mixed": np.array([[1e300, 1e-300, 0.0, np.nan]] * 3),
}


@pytest.mark.parametrize("kind", STRANGE)
@pytest.mark.parametrize("bits", [16, 8])
def test_no_value_raises_or_changes_the_length(kind: str, bits: int) -> None:
    for mechanism in (WHOLE, ROWS):
        released = release(STRANGE[kind], mechanism, bits=bits)
        assert len(released.to_bytes()) == bits // 8 * 12
        assert np.isfinite(released.as_floats()).all()


def test_a_direction_is_never_zero_and_close_to_the_hidden_one() -> None:
    strange = np.concatenate([matrix.reshape(1, -1) for matrix in STRANGE.values()])
    assert directions(strange).any(axis=1).all()
    hidden = np.random.default_rng(9).standard_normal((4, 5000))
    k = directions(hidden).astype(np.float64)
    cosine = (k * hidden).sum(axis=1) / np.linalg.norm(k, axis=1) / np.linalg.norm(hidden, axis=1)
    assert (cosine > 1 - 1e-9).all()
    assert directions(np.zeros((1, 3))).tolist() == [[2**30, 0, 0]]


def _stream() -> Callable[[int], bytes]:
    """Other bytes at every call, and the same ones in every test."""
    calls = itertools.count()
    return lambda size: hashlib.shake_256(b"golden %d" % next(calls)).digest(size)


def test_the_same_entropy_gives_the_same_bytes_for_ever() -> None:
    """The cells are exact, so no version of anything may change them."""
    hidden, mechanism = np.arange(12.0).reshape(3, 4) - 5.5, PrivUnit(1.5, 1.25)
    first, second = (release(hidden, mechanism, bits=bits, entropy=_stream()).to_bytes() for bits in (16, 8))
    assert first.hex() == "fdff1200f9fffbff09000200efffebff03001300fbff0200"
    assert second.hex() == "fd12f9fb0902efeb0313fb02"
    assert release_batch(hidden[None], mechanism, entropy=_stream())[0].to_bytes() == first


def test_stored_values_are_read_back_on_the_same_scale() -> None:
    for bits in (16, 8):
        released = release(HIDDEN, WHOLE, bits=bits)
        assert (dequantise(released.values, WHOLE, bits) == released.as_floats()).all()
        assert released.step == WHOLE.sigma / 8


def test_eight_bits_are_refused_where_the_signal_would_not_fit() -> None:
    far = PrivUnit(12.0, 1.0)
    release(HIDDEN, far)
    with pytest.raises(InvalidInput, match=r"`threshold`.*8 bits"):
        release(HIDDEN, far, bits=8)


def test_a_release_states_pure_epsilon_and_shows_no_values() -> None:
    released = release(HIDDEN, WHOLE)
    assert repr(released) == f"Released(3 x 4, step={WHOLE.sigma / 8:g}) -> 4.0-LDP per text"
    assert released.guarantee.delta == 0
    assert released.guarantee.epsilon == WHOLE.epsilon()
