"""Text and label as one unit vector, and what its releases estimate."""

from __future__ import annotations

import numpy as np
import pytest

from dp_forward.errors import InvalidInput
from dp_forward.noise.folded_record import FoldedCode, simplex
from dp_forward.privacy import Budget, PrivUnit
from dp_forward.privacy.units import RECORD
from reference_samplers import sample


def directions(records: int, width: int, seed: int = 0) -> np.ndarray:
    rows = np.random.default_rng(seed).standard_normal((records, width))
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@pytest.mark.parametrize("corners", [2, 3, 4, 20])
def test_the_corners_are_as_far_apart_as_they_can_be(corners: int) -> None:
    inner = simplex(corners) @ simplex(corners).T
    expected = np.full((corners, corners), -1 / (corners - 1))
    np.fill_diagonal(expected, 1.0)
    np.testing.assert_allclose(inner, expected, atol=1e-12)
    np.testing.assert_allclose(simplex(corners).sum(axis=0), 0, atol=1e-12)


@pytest.mark.parametrize("labels", [2, 4, 7])
def test_a_folded_record_is_a_unit_vector_whatever_text_and_label_are(labels: int) -> None:
    code = FoldedCode(labels, 5)
    rows = directions(60, 5)
    rows[0], rows[1, 2], rows[2, 0], rows[3] = 0.0, np.nan, np.inf, 1e-320
    folded = code.fold(rows, np.arange(60) % labels)
    assert folded.shape == (60, code.columns) == (60, labels * 6)
    np.testing.assert_allclose(np.linalg.norm(folded, axis=1), 1, atol=1e-12)
    assert FoldedCode.of_columns(code.columns, labels) == code


def test_the_mean_says_the_shares_and_the_means_of_the_classes() -> None:
    labels, width, records = 3, 4, 3000
    code = FoldedCode(labels, width)
    classes = np.random.default_rng(1).choice(labels, records, p=[0.5, 0.3, 0.2])
    rows = directions(records, width) + 2 * np.eye(labels, width)[classes]
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    corner_mean, centre, joint = code.unfold(code.fold(rows, classes).mean(axis=0))
    np.testing.assert_allclose(corner_mean, simplex(labels)[classes].mean(axis=0), atol=1e-12)
    np.testing.assert_allclose(code.shares(corner_mean), np.bincount(classes) / records, atol=1e-12)
    np.testing.assert_allclose(centre, rows.mean(axis=0), atol=1e-12)
    np.testing.assert_allclose(joint, simplex(labels)[classes].T @ rows / records, atol=1e-12)


def test_the_variances_are_those_of_the_noise() -> None:
    code, rng = FoldedCode(3, 4), np.random.default_rng(2)
    parts = [code.unfold(noise) for noise in 0.5 * rng.standard_normal((4000, code.columns))]
    for number, variance in enumerate(code.variances(0.25)):
        assert np.var([part[number] for part in parts]) == pytest.approx(variance, rel=0.05)


@pytest.mark.slow
def test_releases_of_folded_records_are_unbiased() -> None:
    code, rng = FoldedCode(2, 3), np.random.default_rng(5)
    folded = code.fold(directions(1, 3), np.array([1]))
    mechanism = PrivUnit.for_budget(Budget(4.0), unit=RECORD)
    assert str(mechanism.unit) == "record"
    drawn = np.stack([sample(mechanism, folded, rng)[0] for _ in range(4000)])
    error = np.abs(drawn.mean(axis=0) - folded[0])
    assert error.max() < 4.5 * mechanism.sigma / np.sqrt(4000)
    assert np.abs(drawn.mean(axis=0) + folded[0]).max() > 4.5 * mechanism.sigma / np.sqrt(4000)


def test_what_does_not_fit_is_refused() -> None:
    code = FoldedCode(2, 3)
    with pytest.raises(InvalidInput, match="directions"):
        code.fold(directions(2, 4), np.array([0, 1]))
    with pytest.raises(InvalidInput, match="labels"):
        code.fold(directions(2, 3), np.array([0, 2]))
    with pytest.raises(InvalidInput, match="width"):
        FoldedCode.of_columns(7, 2)
    with pytest.raises(InvalidInput, match="labels"):
        FoldedCode(1, 3)
