"""Bounds: total functions with a known reach."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from dp_forward.errors import InvalidInput
from dp_forward.privacy import (
    LABEL,
    RECORD,
    TEXT,
    TOKEN,
    LinearImage,
    NormBound,
    Sensitivity,
    clip,
    clip_rows,
    normalise,
    normalise_rows,
    phrase,
)

WEIRD = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True),
    st.sampled_from([0.0, -0.0, 5e-324, 1e-310, 1e30, 1e308, -1e308]),
)
BOUNDS = [normalise(1.0), clip(1.0), normalise_rows(2.0), clip_rows(0.5), normalise(1e-3), clip(1e20)]


@pytest.mark.slow
@pytest.mark.parametrize("bound", BOUNDS, ids=str)
@given(hidden=arrays(np.float64, (3, 4), elements=WEIRD))
def test_no_input_raises_or_leaves_the_bound(bound: NormBound, hidden: np.ndarray) -> None:
    bounded = bound.apply(hidden)
    assert np.isfinite(bounded).all()
    vectors = bounded.reshape(1, -1) if bound.over == "matrix" else bounded
    lengths = [math.sqrt(math.fsum(float(x) ** 2 for x in row)) for row in vectors]
    assert max(lengths) <= bound.norm
    if bound.how == "normalise":
        assert min(lengths) >= bound.norm * (1 - 1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("bound", BOUNDS, ids=str)
@given(pair=arrays(np.float64, (2, 3, 4), elements=WEIRD))
def test_two_bounded_matrices_are_never_further_apart_than_the_sensitivity(
    bound: NormBound, pair: np.ndarray
) -> None:
    known = NormBound(bound.norm, bound.how, bound.over, rows=3 if bound.over == "row" else None)
    distance = float(np.linalg.norm(bound.apply(pair[0]) - bound.apply(pair[1])))
    assert distance <= known.sensitivity(TEXT).value * (1 + 1e-15)


def test_the_sensitivity_is_reached_so_c_alone_would_be_false() -> None:
    x = np.eye(3)
    for bound in (normalise(1.0), clip(1.0)):
        distance = float(np.linalg.norm(bound.apply(x) - bound.apply(-x)))
        assert math.isclose(distance, bound.sensitivity(TEXT).value, rel_tol=1e-12)
        assert distance > 1.9 * bound.norm


def test_whole_matrix_sensitivity_is_2c_for_every_unit() -> None:
    assert [clip(1.5).reach(u) for u in (TEXT, TOKEN, phrase(7))] == [3.0, 3.0, 3.0]


def test_row_wise_sensitivity_grows_with_the_root_of_the_tokens() -> None:
    bound = normalise_rows(1.0, rows=16)
    assert bound.reach(TOKEN) == pytest.approx(2.0)
    assert bound.reach(phrase(4)) == pytest.approx(4.0)
    assert bound.reach(TEXT) == pytest.approx(8.0)
    assert bound.reach(phrase(99)) == pytest.approx(8.0)
    assert bound.radius() == pytest.approx(4.0)
    assert clip(1.5).radius() == 1.5


def test_a_phrase_moves_exactly_its_rows() -> None:
    rng = np.random.default_rng(0)
    bound = normalise_rows(1.0, rows=6)
    first = rng.standard_normal((6, 5))
    second = first.copy()
    second[2:4] = -first[2:4]
    distance = float(np.linalg.norm(bound.apply(first) - bound.apply(second)))
    assert distance == pytest.approx(bound.reach(phrase(2)))


def test_a_zero_matrix_gets_a_fixed_direction_or_stays() -> None:
    assert np.linalg.norm(normalise(1.0).apply(np.zeros((2, 2)))) == pytest.approx(1.0)
    assert not clip(1.0).apply(np.full((2, 2), np.nan)).any()


def test_clipping_leaves_small_matrices_alone() -> None:
    x = np.full((2, 2), 0.1)
    assert np.array_equal(clip(1.0).apply(x), x)


def test_a_row_wise_text_needs_its_length() -> None:
    with pytest.raises(InvalidInput, match="rows"):
        normalise_rows(1.0).sensitivity(TEXT)
    with pytest.raises(InvalidInput, match="rows"):
        normalise_rows(1.0).radius()


@pytest.mark.parametrize(
    ("bound", "unit"), [(normalise(1.0), LABEL), (normalise_rows(1.0), LABEL), (normalise_rows(1.0), RECORD)]
)
def test_a_bound_cannot_speak_for_a_label(bound, unit) -> None:
    with pytest.raises(InvalidInput, match="Use text, token or phrase:c"):
        bound.sensitivity(unit)


def test_a_record_folded_into_one_vector_moves_by_twice_the_norm() -> None:
    assert normalise(0.5).sensitivity(RECORD).value == 1.0


@pytest.mark.parametrize(
    "settings",
    [
        (0.0, "normalise", "matrix", None),
        (math.nan, "clip", "matrix", None),
        (1.0, "scale", "matrix", None),
        (1.0, "clip", "column", None),
        (1.0, "clip", "row", 0),
    ],
)
def test_an_impossible_bound_is_refused(settings) -> None:
    with pytest.raises(InvalidInput):
        NormBound(*settings)


def test_wrong_shapes_are_refused() -> None:
    with pytest.raises(InvalidInput, match="one matrix"):
        normalise(1.0).apply(np.zeros((2, 2, 2)))
    with pytest.raises(InvalidInput, match="rows"):
        normalise_rows(1.0, rows=3).apply(np.zeros((2, 2)))


def test_a_sensitivity_cannot_be_talked_down() -> None:
    with pytest.raises(InvalidInput, match="own"):
        Sensitivity(1.0, normalise(1.0), TEXT)
    with pytest.raises(InvalidInput, match="both"):
        Sensitivity(1.0, normalise(1.0))
    with pytest.raises(InvalidInput):
        Sensitivity(0.0)
    assert str(normalise(1.0).sensitivity(TEXT)) == "2 per text"
    assert str(Sensitivity.of(2)) == "2"
    assert Sensitivity.of(2).window is None


def test_the_joint_map_multiplies_the_sensitivity_by_its_largest_singular_value() -> None:
    rng = np.random.default_rng(3)
    weight = rng.standard_normal((8, 24))
    image = LinearImage(normalise_rows(1.0, rows=5), weight)
    largest = float(np.linalg.svd(weight, compute_uv=False)[0])
    assert image.reach(TOKEN) == pytest.approx(2 * largest, rel=1e-9)
    assert image.reach(TOKEN) >= 2 * largest
    assert image.reach(phrase(4)) == pytest.approx(4 * largest, rel=1e-9)
    assert image.radius() == pytest.approx(math.sqrt(5) * largest, rel=1e-9)
    assert "public" in image.assumptions[-1]
    assert "8 x 24" in str(image)
    top = np.linalg.svd(weight)[0][:, 0]
    first, second = np.tile(top, (5, 1)), np.tile(top, (5, 1))
    second[0] *= -1
    distance = float(np.linalg.norm((image.base.apply(first) - image.base.apply(second)) @ image.weight))
    assert distance == pytest.approx(image.reach(TOKEN), rel=1e-9)


def test_the_joint_map_does_not_follow_a_weight_that_changes_behind_its_back() -> None:
    weight = np.eye(3)
    image = LinearImage(normalise_rows(1.0), weight)
    weight *= 100
    assert image.reach(TOKEN) == pytest.approx(2.0)
    with pytest.raises(ValueError, match="read-only"):
        image.weight[0, 0] = 5.0


def test_a_joint_map_needs_rows_and_a_real_weight() -> None:
    with pytest.raises(InvalidInput, match="each row"):
        LinearImage(normalise(1.0), np.eye(3))
    with pytest.raises(InvalidInput, match="weight"):
        LinearImage(normalise_rows(1.0), np.zeros((3, 3)))
