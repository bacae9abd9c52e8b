"""A release is the ideal mechanism on integers, post-processed; and nothing else can leave."""

import copy
import dataclasses
import math
import pickle
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from audit.two_point import audit_gaussian
from dp_forward.errors import InvalidInput
from dp_forward.noise import Sanitizer
from dp_forward.noise.released.grid import Grid, held, largest_square, quantise, shrunk_to, sums_of_squares
from dp_forward.noise.released.released_matrix import Released, dequantise, release, release_batch, serialise
from dp_forward.privacy import (
    MVG,
    TEXT,
    TOKEN,
    AnalyticGaussian,
    Budget,
    ClassicalGaussian,
    Factor,
    LinearImage,
    MatrixGaussian,
    RandomizedResponse,
    calibrate,
    clip,
    clip_rows,
    normalise,
    normalise_rows,
)

BUDGET = Budget(8.0, 1e-5)
BOUND = normalise(1.0)
MATRIX = calibrate(MatrixGaussian, BUDGET, bound=BOUND, unit=TEXT)
GOOD = {
    "matrix": MATRIX,
    "analytic": calibrate(AnalyticGaussian, BUDGET, bound=BOUND, unit=TEXT),
    "clipped": calibrate(MatrixGaussian, BUDGET, bound=clip(2.5), unit=TEXT),
    "rows": calibrate(MatrixGaussian, BUDGET, bound=normalise_rows(1.0, rows=3), unit=TOKEN),
    "clipped rows": calibrate(AnalyticGaussian, BUDGET, bound=clip_rows(0.1, rows=3), unit=TEXT),
}
HIDDEN = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)


def _entropy(seed: int):
    return np.random.default_rng(seed).bytes


def _releases(hidden, mechanism, many: int, entropy) -> np.ndarray:
    """So many releases of one matrix."""
    batch = np.broadcast_to(hidden, (many, *hidden.shape))
    return np.stack([r.as_floats() for r in release_batch(batch, mechanism, entropy=entropy)])


# What it promises


@pytest.mark.slow
@pytest.mark.parametrize("factor", [1.0, 0.5, 0.9], ids=["honest", "sensitivity C", "0.9 sigma"])
def test_the_two_point_audit_passes_the_honest_and_catches_the_others(factor: float) -> None:
    drawn = MatrixGaussian(factor * MATRIX.sigma, MATRIX.sensitivity)
    entropy, draws = _entropy(1), 4000
    plus = BOUND.apply([[1.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    pools = {sign: iter(_releases(sign * plus, drawn, draws, entropy)) for sign in (1.0, -1.0)}

    def sampler(x, _):
        return next(pools[np.sign(x[0, 0])])

    rng = np.random.default_rng(0)
    audit = audit_gaussian(MATRIX, sampler, plus, -plus, draws=draws, rng=rng)
    assert audit.refuted == (factor < 1)


@pytest.mark.slow
@pytest.mark.parametrize("name", GOOD)
def test_mean_and_variance_are_those_of_the_mechanism(name: str) -> None:
    mechanism, many = GOOD[name], 3000
    noisy = _releases(HIDDEN, mechanism, many, _entropy(2))
    bounded = mechanism.sensitivity.bound.apply(HIDDEN)
    error = mechanism.sigma / math.sqrt(many)
    assert np.abs(noisy.mean(axis=0, dtype=np.float64) - bounded).max() < 5 * error
    ratio = float(np.square(noisy - bounded, dtype=np.float64).mean()) / mechanism.sigma**2
    noise = math.sqrt(2 / noisy.size)
    assert abs(ratio - 1) < 5 * noise + 0.002
    assert abs(0.81 * ratio - 1) > 5 * noise + 0.002  # negative control: 0.9 sigma


@pytest.mark.slow
def test_rounding_adds_at_most_a_five_hundredth_of_variance() -> None:
    hidden = np.random.default_rng(3).standard_normal((1000, 2000))
    for sigma in (MATRIX.sigma, 0.5, 0.999):
        mechanism = MatrixGaussian(sigma, MATRIX.sensitivity)
        step = Grid.for_noise(sigma, norm=1.0).step
        assert step**2 / 12 <= 0.002 * sigma**2
        noisy = release(hidden, mechanism, entropy=_entropy(4)).as_floats().astype(np.float64)
        added = np.mean((noisy - BOUND.apply(hidden)) ** 2) / sigma**2 - 1
        assert abs(added - step**2 / 12 / sigma**2) < 5 * math.sqrt(2 / hidden.size)


@pytest.mark.slow
def test_a_signal_far_below_the_step_survives_in_the_mean() -> None:
    """A 64 x 384 matrix of norm 1 has entries of 0.006; the step is 0.125."""
    hidden = np.random.default_rng(5).standard_normal((64, 384))
    bounded = BOUND.apply(hidden)
    grid = Grid.for_noise(MATRIX.sigma, norm=1.0)
    assert not np.rint(bounded / grid.step).any(), "the coarse grid alone would keep nothing"
    many = 150
    along = np.sum(_releases(hidden, MATRIX, many, _entropy(6)) * bounded, axis=(1, 2))
    error = MATRIX.sigma / math.sqrt(many)
    assert abs(np.mean(along) - 1) < 4 * error < 0.5


def test_a_release_states_the_guarantee_of_its_mechanism_and_no_values() -> None:
    released = release(HIDDEN, MATRIX)
    assert released.guarantee.mechanism == MATRIX
    assert any("operating system" in assumption for assumption in released.guarantee.assumptions)
    assert repr(released) == "Released(3 x 4, step=0.125) -> (8.0, 1e-05)-LDP per text"


def test_every_release_is_fresh() -> None:
    assert len({release(HIDDEN, MATRIX).to_bytes() for _ in range(50)}) == 50


# Total, and of one size

STRANGE = {
    "nan": np.full((3, 4), np.nan),
    "inf": np.array([[np.inf, -np.inf, 1.0, 0.0]] * 3),
    "1e30": np.full((3, 4), 1e30, dtype=np.float32),
    "1e308": np.full((3, 4), -1e308),
    "zeros": np.zeros((3, 4)),
    "denormal": np.full((3, 4), 5e-324),
    "half": HIDDEN.astype(np.float16),
    "long": np.full((3, 4), np.finfo(np.longdouble).max),
    "bfloat16": torch.tensor(HIDDEN, dtype=torch.bfloat16),
    "with gradient": torch.tensor(HIDDEN, requires_grad=True),
    "transposed": np.asfortranarray(HIDDEN),
}


@pytest.mark.parametrize("kind", STRANGE)
def test_no_value_raises_or_changes_the_length(kind: str) -> None:
    for mechanism in GOOD.values():
        released = release(STRANGE[kind], mechanism)
        assert len(released.to_bytes()) == len(serialise(released)) == 2 * 3 * 4
        assert released.shape == (3, 4)
        assert np.isfinite(released.as_floats()).all()


def test_torch_and_numpy_are_released_alike() -> None:
    first, second = (
        release(h, MATRIX, entropy=_entropy(7)).to_bytes() for h in (HIDDEN, torch.tensor(HIDDEN))
    )
    assert first == second


def test_the_bytes_are_little_endian_rows() -> None:
    released = release(HIDDEN, MATRIX)
    assert (np.frombuffer(released.to_bytes(), "<i2").reshape(3, 4) == released.values).all()
    assert (released.as_floats() == released.values.astype(np.float64) * released.step).all()
    assert released.as_floats().dtype == np.float32


def test_the_most_extreme_entropy_is_held_within_int16() -> None:
    loud = MatrixGaussian(1 / 256, MATRIX.sensitivity)
    for byte in (b"\x00", b"\xff"):
        assert np.abs(release(HIDDEN, loud, entropy=lambda n, b=byte: b * n).values).max() < 32767
    far = Grid(0.5).coarsened(np.array([2**62, -(2**62)]))
    assert held(far, bits=16).tolist() == [32767, -32768]
    assert held(far, bits=8).tolist() == [127, -128]


# Bits and batches


def test_eight_bits_are_the_same_numbers_in_half_the_bytes() -> None:
    wide, narrow = (release(HIDDEN, MATRIX, bits=bits, entropy=_entropy(12)) for bits in (16, 8))
    assert (wide.bits, narrow.bits) == (16, 8)
    assert narrow.values.dtype == np.int8
    assert len(narrow.to_bytes()) == 12
    assert (narrow.as_floats() == wide.as_floats()).all()


def test_eight_bits_are_refused_where_the_signal_leaves_too_little_room() -> None:
    quiet = MatrixGaussian(0.4, MATRIX.sensitivity)
    release(HIDDEN, quiet)
    with pytest.raises(InvalidInput, match=r"`norm`.*8 bits"):
        release(HIDDEN, quiet, bits=8)
    with pytest.raises(InvalidInput, match="`bits`"):
        release(HIDDEN, MATRIX, bits=32)


@pytest.mark.parametrize("name", GOOD)
def test_a_batch_of_one_is_a_release(name: str) -> None:
    one = release(HIDDEN, GOOD[name], entropy=_entropy(13))
    (batched,) = release_batch(HIDDEN[None], GOOD[name], entropy=_entropy(13))
    assert batched.to_bytes() == one.to_bytes()
    assert batched.guarantee == one.guarantee


@pytest.mark.slow
@pytest.mark.parametrize("name", GOOD)
def test_a_batch_bounds_every_text_by_itself(name: str) -> None:
    mechanism, many = GOOD[name], 3000
    texts = np.stack([HIDDEN, 1000 * np.flip(HIDDEN, 0)])
    batch = torch.tensor(np.tile(texts, (many, 1, 1)))
    noisy = np.stack([r.as_floats() for r in release_batch(batch, mechanism, entropy=_entropy(14))])
    error = mechanism.sigma / math.sqrt(many)
    for i, text in enumerate(texts):
        mean = noisy[i::2].mean(axis=0, dtype=np.float64)
        assert np.abs(mean - mechanism.sensitivity.bound.apply(text)).max() < 5 * error
    ratio = (
        np.mean((noisy[::2] - noisy[1::2] - (noisy[::2] - noisy[1::2]).mean(axis=0)) ** 2)
        / mechanism.sigma**2
    )
    assert abs(ratio / 2 - 1) < 5 * math.sqrt(2 / noisy[::2].size) + 0.002, (
        "the noise of two texts is independent"
    )


def test_an_empty_batch_is_released_as_nothing() -> None:
    assert release_batch(np.zeros((0, 3, 4)), MATRIX) == []
    for wrong in (HIDDEN, np.zeros((2, 0, 4)), np.zeros((2, 3, 4), dtype=int)):
        with pytest.raises(InvalidInput, match="`hidden`"):
            release_batch(wrong, MATRIX)


def test_every_text_of_a_batch_has_the_rows_of_the_bound() -> None:
    for wrong in (HIDDEN[None, :2], np.tile(HIDDEN, (2, 2, 1))):
        with pytest.raises(InvalidInput, match="have 3 rows"):
            release_batch(wrong, GOOD["rows"])


@pytest.mark.parametrize("bits", [16, 8])
def test_stored_values_are_read_back_without_a_secret(bits: int) -> None:
    released = release(HIDDEN, MATRIX, bits=bits)
    stored = np.frombuffer(released.to_bytes(), f"<i{bits // 8}").reshape(3, 4)
    assert (dequantise(stored, MATRIX, bits) == released.as_floats()).all()
    for wrong in (stored.astype(np.int64), stored.astype(np.float32), stored.tolist()):
        with pytest.raises(InvalidInput, match="`values`"):
            dequantise(wrong, MATRIX, bits)


# The norm, in integers

floats = st.floats(width=32) | st.floats() | st.sampled_from([1e30, 5e-324, math.nan, math.inf])
matrices = arrays.arrays(np.float64, arrays.array_shapes(min_dims=2, max_dims=2, max_side=6), elements=floats)


@pytest.mark.slow
@given(
    hidden=matrices,
    norm=st.floats(1e-3, 1e3),
    how=st.sampled_from([normalise, clip, normalise_rows, clip_rows]),
    over_sigma=st.floats(1e-6, 256),
)
@example(hidden=np.ones((6, 6)), norm=1.0, how=normalise, over_sigma=256)
def test_the_norm_holds_exactly_and_is_nearly_used(hidden, norm: float, how, over_sigma: float) -> None:
    bound = how(norm)
    step = Grid.for_noise(norm / over_sigma, norm=norm * (1 - 1e-12)).signal_step
    q = quantise(hidden, bound=bound, step=step)
    limit = (Fraction(norm) / Fraction(step)) ** 2
    bounded = bound.apply(hidden)
    groups = [q.ravel()] if bound.over == "matrix" else list(q)
    for vector in groups:
        assert sum(int(v) ** 2 for v in vector) <= limit
    assert (np.abs(q * step - bounded) <= step + 1e-15 * norm).all()


@pytest.mark.slow
@given(arrays.arrays(np.int64, (3, 5), elements=st.integers(-(2**33), 2**33)), st.integers(0, 2**67))
def test_whatever_is_too_long_is_shrunk_and_the_rest_is_kept(vectors, limit: int) -> None:
    before = [sum(int(v) ** 2 for v in row) for row in vectors]
    assert sums_of_squares(vectors) == before
    after = shrunk_to(vectors, limit)
    for row, old, square in zip(after, vectors, before, strict=True):
        assert sum(int(v) ** 2 for v in row) <= limit
        assert square > limit or (row == old).all()


def test_the_largest_square_is_the_floor_of_the_floats_as_they_are() -> None:
    assert largest_square(1.0, 0.25) == 16
    assert largest_square(0.1, 2.0**-30) == math.floor(Fraction(0.1) ** 2 * 2**60)


# What cannot leave


def _simulated() -> torch.Tensor:
    return Sanitizer(MATRIX, seed=0)(torch.tensor(HIDDEN)[None])


@pytest.mark.parametrize(
    "thing", [_simulated(), _simulated().numpy(), HIDDEN, np.zeros((3, 4), np.int16), b"bytes", None]
)
def test_only_a_release_is_serialised(thing) -> None:
    with pytest.raises(InvalidInput, match="be a Released") as refused:
        serialise(thing)
    assert "\n" not in str(refused.value)
    with pytest.raises(InvalidInput, match=r"come out of release\(\)"):
        Released(thing, 0.125, release(HIDDEN, MATRIX).guarantee)


def test_a_release_is_not_changed_copied_or_pickled() -> None:
    released = release(HIDDEN, MATRIX)
    for attempt in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="to_bytes"):
            attempt(released)
    with pytest.raises(InvalidInput, match="come out of"):
        dataclasses.replace(released, values=HIDDEN, made_by=None)
    with pytest.raises(dataclasses.FrozenInstanceError):
        released.values = HIDDEN  # type: ignore[misc, assignment]
    with pytest.raises(ValueError, match="read-only"):
        released.values[0, 0] = 1
    with pytest.raises(ValueError, match="WRITEABLE"):
        released.values.setflags(write=True)


REFUSED = {
    "shaped": calibrate(MatrixGaussian, BUDGET, bound=BOUND, unit=TEXT, row_factor=Factor([1.0, 2.0, 1.0])),
    "mvg": calibrate(MVG, BUDGET, bound=BOUND, unit=TEXT, rows=3, columns=4),
    "classical": ClassicalGaussian.baseline(BUDGET, sensitivity=BOUND.sensitivity(TEXT)),
    "response": RandomizedResponse(1.0, 2),
    "image": calibrate(
        MatrixGaussian, BUDGET, bound=LinearImage(normalise_rows(1.0, rows=3), np.eye(4)), unit=TOKEN
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_simulated_only_is_not_released(name: str) -> None:
    with pytest.raises(InvalidInput, match="simulated only so far"):
        release(HIDDEN, REFUSED[name])


@pytest.mark.parametrize("hidden", [HIDDEN[0], HIDDEN[None], HIDDEN.astype(int), HIDDEN + 0j, [[1.0]], None])
def test_only_one_floating_matrix_is_released(hidden) -> None:
    with pytest.raises(InvalidInput, match="`hidden`"):
        release(hidden, MATRIX)


def test_a_mechanism_without_bound_or_far_from_its_noise_is_refused() -> None:
    with pytest.raises(InvalidInput, match="no norm bound"):
        release(HIDDEN, MatrixGaussian(1.0, 2.0))
    with pytest.raises(InvalidInput, match="256 sigma"):
        release(HIDDEN, MatrixGaussian(1e-3, MATRIX.sensitivity))
    with pytest.raises(InvalidInput, match="`sigma`"):
        release(HIDDEN, MatrixGaussian(2.0**101, MATRIX.sensitivity))
    with pytest.raises(InvalidInput, match="power of two"):
        Grid(0.3)


# The lattice attack: the control that must be broken


def _impossible(noisy: np.ndarray, candidate: np.ndarray, sigma: np.float32) -> int:
    """How many entries no float32 draw g can explain as ``candidate + sigma * g``."""
    nearby = _near(noisy - candidate)
    explained = np.zeros(noisy.shape, dtype=bool)
    for noise in nearby:
        reachable = np.any([sigma * g == noise for g in _near(noise / sigma)], axis=0)
        explained |= reachable & (candidate + noise == noisy)
    return int(np.sum(~explained))


def _near(x: np.ndarray) -> list[np.ndarray]:
    """x and the two floats on either side of it."""
    up, down = (np.nextafter(x, np.float32(side), dtype=np.float32) for side in (np.inf, -np.inf))
    return [x, up, down, *(np.nextafter(y, np.float32(s)) for y, s in ((up, np.inf), (down, -np.inf)))]


def _right_guesses(draw, candidates, sigma: float, trials: int = 200) -> float:
    rng = np.random.default_rng(8)
    right = 0
    for _ in range(trials):
        truth = int(rng.integers(2))
        noisy = draw(candidates[truth])
        counts = [_impossible(noisy, c, np.float32(sigma)) for c in candidates]
        guess = int(counts[1] < counts[0]) if counts[0] != counts[1] else int(rng.integers(2))
        right += guess == truth
    return right / trials


@pytest.mark.slow
def test_low_bits_betray_float_noise_and_not_a_release() -> None:
    quiet = calibrate(MatrixGaussian, Budget(0.5, 1e-5), bound=BOUND, unit=TEXT)
    rng = np.random.default_rng(9)
    candidates = [BOUND.apply(rng.standard_normal((32, 64))).astype(np.float32) for _ in range(2)]
    generator, entropy = torch.Generator().manual_seed(10), _entropy(11)

    def floating(x):
        return (torch.tensor(x) + quiet.sigma * torch.randn(x.shape, generator=generator)).numpy()

    def ours(x):
        return release(x, quiet, entropy=entropy).as_floats()

    broken, safe = (_right_guesses(draw, candidates, quiet.sigma) for draw in (floating, ours))
    print(f"\nright guesses at epsilon 0.5: float32 {broken:.1%}, released {safe:.1%}")
    assert broken >= 0.95
    assert 0.4 <= safe <= 0.6
