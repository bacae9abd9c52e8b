"""The discriminant that the mean of folded releases says."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dp_forward.noise.folded_record import FoldedCode, simplex
from dp_forward.split.front_statistics import FrontStatistics
from dp_forward.train.closed_form import (
    Hints,
    choose_width,
    expected_signal,
    fit,
    fit_public_labels,
    make_projection,
    unit_rows,
)

WIDTH = 24


def statistics(seed: int = 0) -> FrontStatistics:
    rng = np.random.default_rng(seed)
    directions = np.linalg.qr(rng.standard_normal((WIDTH, WIDTH)))[0].T
    variances = 1 / np.arange(1, WIDTH + 1) ** 1.2
    return FrontStatistics("", "mean", "a test", 1000, 0.3 * directions[3], directions, variances, 0.0)


def records(
    labels: int, number: int, *, seed: int = 1, shares: list[float] | None = None
) -> tuple[np.ndarray, ...]:
    """Rows around a mean of each label, along directions that public text varies in."""
    public, rng = statistics(), np.random.default_rng(seed)
    means = public.mean + 0.9 * np.random.default_rng(7).standard_normal((labels, 6)) @ public.directions[:6]
    classes = rng.choice(labels, number, p=shares)
    noise = rng.standard_normal((number, WIDTH)) * np.sqrt(public.variances) @ public.directions
    return unit_rows(means[classes] + 0.7 * noise), classes, unit_rows(means)


@pytest.mark.parametrize("labels", [2, 3, 5])
def test_without_noise_it_finds_the_labels_and_their_shares(labels: int) -> None:
    shares = (np.arange(1, labels + 1) / np.arange(1, labels + 1).sum()).tolist()
    rows, classes, _ = records(labels, 4000, shares=shares)
    projection, code = make_projection(statistics(), 16, labels, None), FoldedCode(labels, 16)
    learnt = fit(code.fold(projection.directions(rows), classes).mean(axis=0), 0.0, code, projection)
    right = (learnt.decide(projection.directions(rows)) == classes).mean()
    assert right > max(shares) + 0.6 * (1 - max(shares))
    np.testing.assert_allclose(learnt.shares, np.bincount(classes) / len(classes), atol=0.01)
    z, others = projection.directions(rows), (classes + 1) % labels
    moved = fit(code.fold(z, others).mean(axis=0), 0.0, code, projection).decide(z)
    assert (moved == others).mean() == pytest.approx(right, abs=0.02)
    assert (moved == classes).mean() < 0.3


def test_records_decide_where_there_are_many_and_descriptions_where_there_are_few() -> None:
    """Descriptions that name the labels the wrong way round are believed, until the records are heard."""
    rows, classes, means = records(2, 4000)
    hints = Hints(means[::-1].copy(), np.array([0, 1]))
    projection, code = make_projection(statistics(), 16, 2, hints), FoldedCode(2, 16)
    z = projection.directions(rows)
    mean = code.fold(z, classes).mean(axis=0)
    assert (fit(mean, 1e-8, code, projection).decide(z) == classes).mean() > 0.8
    assert (fit(mean, 100.0, code, projection).decide(z) == classes).mean() < 0.3
    alone = fit(np.zeros(code.columns), math.inf, code, projection)
    assert (alone.decide(z) == classes).mean() < 0.3
    assert alone.signal == 0.0
    np.testing.assert_allclose(alone.shares, 0.5)


def test_phrases_that_all_read_alike_are_as_good_as_none() -> None:
    alike = Hints(np.ones((3, WIDTH)), np.arange(3))
    found, none = make_projection(statistics(), 16, 3, alike), make_projection(statistics(), 16, 3, None)
    assert found.hint is None
    np.testing.assert_array_equal(found.matrix, none.matrix)


def test_labelled_public_texts_are_worth_more_than_phrases() -> None:
    rows, classes, means = records(3, 3000)
    others, known, _ = records(3, 3000, seed=9)
    found = {}
    for name, hints in {
        "phrases": Hints(means + 0.2 * np.random.default_rng(2).standard_normal(means.shape), np.arange(3)),
        "labelled": Hints(others, known, labelled=True),
    }.items():
        projection, code = make_projection(statistics(), 16, 3, hints), FoldedCode(3, 16)
        alone = fit(np.zeros(code.columns), math.inf, code, projection)
        found[name] = (alone.decide(projection.directions(rows)) == classes).mean()
    assert found["labelled"] > found["phrases"] > 1 / 3


def test_the_projection_is_orthogonal_and_knows_its_own_spread() -> None:
    rows, classes, means = records(3, 500)
    for hints in (None, Hints(means, np.arange(3)), Hints(rows, classes, labelled=True)):
        projection = make_projection(statistics(), 12, 3, hints)
        gram = projection.matrix.T @ projection.matrix
        np.testing.assert_allclose(gram - np.diag(np.diag(gram)), 0, atol=1e-9)
        assert projection.width == 12
        assert 0 < np.trace(projection.covariance) <= 1 + 1e-9
        np.testing.assert_allclose(np.linalg.norm(projection.directions(rows), axis=1), 1)


def test_more_records_are_released_in_more_directions() -> None:
    widths = [choose_width(n, 0.7, labels=2, most=160) for n in (10, 2000, 20_000, 10**7)]
    assert widths == sorted(widths)
    assert (widths[0], widths[-1]) == (16, 160)
    assert choose_width(10, 0.7, labels=40, most=160) == 41


def test_the_signal_grows_with_the_records_and_falls_with_the_labels() -> None:
    def signal(records: int, labels: int) -> float:
        return expected_signal(0.5 / records, FoldedCode(labels, 20), described=True)

    assert signal(4000, 2) == pytest.approx(2 * signal(1000, 2))
    assert signal(1000, 4) < signal(1000, 2)
    assert expected_signal(1e-3, FoldedCode(2, 20), described=False) < expected_signal(
        1e-3, FoldedCode(2, 20), described=True
    )


def test_it_is_the_same_every_time() -> None:
    rows, classes, means = records(4, 800)
    projection, code = make_projection(statistics(), 16, 4, Hints(means, np.arange(4))), FoldedCode(4, 16)
    mean = code.fold(projection.directions(rows), classes).mean(axis=0)
    first, second = (fit(mean, 1e-3, code, projection) for _ in range(2))
    assert np.array_equal(first.weights, second.weights)
    assert np.array_equal(first.biases, second.biases)


def test_public_labels_are_learnt_from_what_the_code_has_in_common() -> None:
    """Whatever label was folded; with the noise of a release, and not from releases in another order."""
    rows, classes, _ = records(3, 6000, shares=[0.5, 0.3, 0.2])
    projection, code = make_projection(statistics(), 16, 2, None), FoldedCode(2, 16)
    z, rng = projection.directions(rows), np.random.default_rng(4)
    folded = code.fold(z, rng.integers(0, 2, len(z))) + 0.5 * rng.standard_normal((len(z), code.columns))
    variance, right = code.variances(0.25)[1], []
    for public in (classes, rng.permutation(classes)):
        means = np.stack([code.unfold(folded[public == label].mean(axis=0))[1] for label in range(3)])
        counts = np.bincount(public)
        learnt = fit_public_labels(means, counts, variance, projection)
        np.testing.assert_allclose(learnt.shares, counts / len(z))
        right.append((learnt.decide(z) == classes).mean())
    clean = np.stack([z[classes == label].mean(axis=0) for label in range(3)])
    best = (fit_public_labels(clean, np.bincount(classes), 0.0, projection).decide(z) == classes).mean()
    assert right[0] > best - 0.05 > 0.7
    assert right[1] < 0.6


def test_the_noise_of_contrasts_of_public_labels_is_the_one_assumed() -> None:
    """Of unequal shares, where it matters; half of it would show."""
    shares, repeats, rng = np.array([0.6, 0.3, 0.1]), 4000, np.random.default_rng(5)
    corners, counts = simplex(3), np.array([60, 30, 10])
    noise = rng.standard_normal((repeats, 3)) / np.sqrt(counts)
    away = corners - shares @ corners
    inverse = np.linalg.inv((away * shares[:, None]).T @ away)
    found = np.cov((noise * shares) @ away @ inverse, rowvar=False)
    np.testing.assert_allclose(found, inverse / 100, rtol=0.15, atol=0.003)
    assert not np.allclose(found, inverse / 200, rtol=0.15, atol=0.003)
