r"""A classifier in closed form, learnt from the mean of folded releases: seconds, and nothing to tune.

Every record is released once as PrivUnit of ``u = c_y (x) (r z, kappa)`` (`noise.folded_record`), where z is
the direction of its text in a public projection (`Projection`). Only the mean of the releases is used here,
so all of it is post-processing: it costs no privacy and its result may be published.

Notation: K labels, d' columns of z, N records; every coordinate of the mean carries noise of variance
``sigma^2 / N``, sigma = 1/m of PrivUnit. h_1..h_K are the corners of the simplex.

All constants below were fixed on the training splits of SST-2, Rotten Tomatoes, IMDb and film genres, before
anything was measured on an evaluation split; docs/recipes.md has the search.

Paper: not in it.
"""

import math
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dp_forward.noise.folded_record import FoldedCode, simplex
from dp_forward.split.front_statistics import FrontStatistics

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]

_ORIGIN: Final = 0.6  # how far the origin moves from the public mean to the mean of the descriptions
_GAIN_WIDTH: Final = 16
_LABELLED_GAIN: Final = 3.0
"""Described directions are made 1 + sqrt(16 / d') times longer before a direction is normalised."""
_WIDTH: Final = 0.3
_NARROWEST: Final = 16
_SHARE_SPREAD: Final = 0.15  # prior standard deviation of each coordinate of the mean of h_y
_CENTRE_SPREAD: Final = 0.5  # prior norm of the mean of z
_CONTRAST_SPREADS: Final = tuple(np.geomspace(0.1, 0.6, 8).tolist())
"""Prior norms of the contrasts; the least of them keeps a weak direction alive."""
_DESCRIBED: Final = (0.3, 0.3)
_LABELLED: Final = (1.0, 0.5)
"""Mean and spread of beta: contrasts of the records over those of descriptions, or of labelled texts."""
_RIDGE: Final = 3.0  # of the mean eigenvalue, added to the covariance
_LEAST_SHARE: Final = 0.2  # of 1/K
_USUAL_CONTRAST: Final = 0.12
_DESCRIBED_CONTRAST: Final = 0.2
"""The norm of a contrast, without and with descriptions, in the tasks that the constants were fixed on."""


@dataclass(frozen=True, slots=True, eq=False)
class Hints:
    """What is known of the labels before any record is: unit rows [n, d] of public texts, with their labels.

    ``labelled``: they are many texts of the kind, such as public reviews, not a few phrases for each.
    """

    rows: Floats
    labels: Labels
    labelled: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Projection:
    """``z = A^T (x / |x| - origin)``, normalised, with what is known there beforehand.

    ``matrix`` is A [d, d'], orthogonal columns. ``covariance`` is that of z on public text, ``hint`` the
    contrasts [K - 1, d'] of the hints, and ``trust`` mean and spread of the factor on them.
    """

    origin: Floats
    matrix: Floats
    covariance: Floats
    hint: Floats | None = None
    trust: tuple[float, float] = _DESCRIBED
    source: str = ""  # from which public text the statistics are

    @property
    def width(self) -> int:
        return int(self.matrix.shape[1])

    def directions(self, rows: Floats) -> Floats:
        return unit_rows((unit_rows(rows) - self.origin) @ self.matrix)


@dataclass(frozen=True, slots=True, eq=False)
class Discriminant:
    """``argmax_y weights_y . z + biases_y``, and what was learnt on the way."""

    weights: Floats
    biases: Floats
    shares: Floats
    signal: float  # the norm of a contrast over the noise in its direction
    beta: float  # the factor on the contrasts of the hints

    def decide(self, directions: Floats) -> Labels:
        return np.asarray(np.argmax(directions @ self.weights.T + self.biases, axis=1), dtype=np.int64)


def choose_width(records: int, sigma: float, *, labels: int, most: int) -> int:
    """How many directions are released: ``0.3 sqrt(N) / sigma``, known before any record is read.

    A direction is worth its place while what it adds to the distance of the classes exceeds its noise.
    """
    return min(most, max(_NARROWEST, labels + 1, round(_WIDTH * math.sqrt(records) / sigma)))


def unit_rows(rows: Floats) -> Floats:
    """Rows at norm 1; a zero row stays zero."""
    rows = np.asarray(rows, dtype=np.float64)
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(rows / np.where(norms > 0, norms, 1.0))


def make_projection(statistics: FrontStatistics, width: int, labels: int, hints: Hints | None) -> Projection:
    """The contrasts of the hints, then the leading public directions, orthonormal.

    Labelled hints replace the public statistics: the origin is their mean, the contrasts are turned into
    their discriminant ``(C + c I)^-1 B``, C their covariance within a label and c its mean eigenvalue.

    Edges:
        Hints that are the same for all labels, such as words that the tokenizer does not know, are none.
    """
    public = statistics.directions[:width].T
    if hints is None:
        return _with_covariance(statistics, statistics.mean, public)
    centred = unit_rows(hints.rows) - statistics.mean
    span, means = _contrasts(centred, hints.labels, labels)
    if np.linalg.norm(span) < 1e-6:  # descriptions that the front cannot tell apart
        return _with_covariance(statistics, statistics.mean, public)
    if hints.labelled:
        within = np.cov((centred - means[hints.labels]).T)
        span = np.linalg.solve(within + np.trace(within) / len(within) * np.eye(len(within)), span.T).T
    span = span / np.linalg.norm(span)
    basis = np.linalg.qr(np.concatenate([span.T, public], axis=1))[0][:, :width]
    basis[:, : labels - 1] *= _LABELLED_GAIN if hints.labelled else 1 + math.sqrt(_GAIN_WIDTH / width)
    origin = statistics.mean + (1.0 if hints.labelled else _ORIGIN) * means.mean(axis=0)
    made = _with_covariance(statistics, origin, basis)
    found = made.directions(hints.rows)
    hint, means = _contrasts(found, hints.labels, labels)
    if not hints.labelled:
        return replace(made, hint=hint)
    within = np.cov((found - means[hints.labels]).T)
    return replace(made, covariance=within, hint=hint, trust=_LABELLED)


def _with_covariance(statistics: FrontStatistics, origin: Floats, matrix: Floats) -> Projection:
    """The covariance of z as the low-rank statistics say: of the projected rows, over their mean square."""
    spread = matrix.T @ statistics.covariance @ matrix
    away = matrix.T @ (statistics.mean - origin)
    covariance = spread / (np.trace(spread) + away @ away)
    return Projection(origin, matrix, covariance, source=statistics.source)


def _contrasts(rows: Floats, labels: Labels, kinds: int) -> tuple[Floats, Floats]:
    """B with ``mean_y = mean of means + h_y B`` as [K - 1, d], and the means [K, d] of the labels.

    ``sum_y h_y h_y^T = K / (K - 1) I``, so ``B = (K - 1) / K sum_y h_y mean_y^T``.
    """
    means = np.stack([rows[labels == label].mean(axis=0) for label in range(kinds)])
    return (kinds - 1) / kinds * simplex(kinds).T @ means, means


def fit(mean: Floats, variance: float, code: FoldedCode, projection: Projection) -> Discriminant:
    r"""The discriminant from the mean of the releases, each coordinate with noise of this ``variance``.

    *Shares.* The mean of h_y says them; it is shrunk by its known noise against N(0, 0.15^2) first, and no
    share falls below a fifth of 1/K.
    *Centre.* c ~ N(0, 0.5^2 S), S the covariance of public text at trace one: shrunk likewise.
    *Contrasts.* Every set of class means is ``mean_y = c + (h_y - h)^T B``, h the mean of h_y, and
    ``E[h_y z^T] - h c^T = Cov(h_y) B``. So B is estimated without bias, its rows with the covariance
    ``v Cov(h_y)^-2``. Rotated so that this and S are diagonal, the estimate is ``N(beta q, tau^2 s_j + r_i)``
    around the contrasts q of the hints: beta is integrated out against its Gaussian, tau over a fixed grid.
    A description points along the discriminant rather than along the difference of the means, so q is
    the covariance times its contrasts, at their norm.
    *Discriminant.* ``W = k (C + ridge)^-1 (mean_y - c)``; k makes slope and variance agree along W, so that
    the log shares weigh as they should.

    With an infinite ``variance`` it is what the hints alone say.
    """
    v_shares, v_centre, v_joint = code.variances(variance)
    corner_mean, centre, joint = code.unfold(mean)
    corner_mean = corner_mean * _shrinkage(_SHARE_SPREAD**2, v_shares)
    shares = np.maximum(code.shares(corner_mean), _LEAST_SHARE / code.labels)
    shares /= shares.sum()
    centre = _shrunk_centre(centre, v_centre, projection)
    joint -= np.outer(shares @ simplex(code.labels), centre)
    return _discriminate(shares, centre, joint, variance=v_joint, power=2, projection=projection)


def fit_public_labels(means: Floats, counts: Labels, variance: float, projection: Projection) -> Discriminant:
    r"""The discriminant of other, *public* labels of the same records, from the mean of z of each of them.

    The part of the code that is common to all labels says z of a record whatever its folded label is
    (`FoldedCode.unfold`): unbiased, each coordinate with noise of this ``variance``. So the mean over the
    ``counts[y]`` records of a public label y estimates theirs, with ``variance / counts[y]``. It is a
    function of the releases and of public labels: post-processing.

    The shares p_y are known. ``B = Cov(h_y)^-1 sum_y p_y (h_y - h) mean_y^T``, so the noise of its rows has
    the covariance ``variance / N Cov(h_y)^-1``. Otherwise as `fit`, without hints.
    """
    records, corners = int(counts.sum()), simplex(len(counts))
    shares, each = counts / records, variance / records
    joint = (corners - shares @ corners).T @ (shares[:, None] * means)
    centre, unhinted = _shrunk_centre(shares @ means, each, projection), replace(projection, hint=None)
    return _discriminate(shares, centre, joint, variance=each, power=1, projection=unhinted)


def _shrunk_centre(centre: Floats, variance: float, projection: Projection) -> Floats:
    """The mean of z, shrunk by its known noise; see `fit`."""
    shape, vectors = _public_shape(projection)
    return np.asarray(vectors @ (_shrinkage(_CENTRE_SPREAD**2 * shape, variance) * (vectors.T @ centre)))


def _public_shape(projection: Projection) -> tuple[Floats, Floats]:
    """S, the covariance of public text at trace one: eigenvalues and eigenvectors."""
    values, vectors = np.linalg.eigh(projection.covariance)
    shape = np.maximum(values, 1e-9)
    return np.asarray(shape / shape.sum()), np.asarray(vectors)


def _discriminate(
    shares: Floats, centre: Floats, joint: Floats, *, variance: float, power: int, projection: Projection
) -> Discriminant:
    """From the shares, the centre and ``joint``, which estimates Cov(h_y) B, to the decision; see `fit`.

    The rows of B have noise of the covariance ``variance Cov(h_y)^-power``.
    """
    corners = simplex(len(shares))
    corner_mean = shares @ corners
    inverse = np.linalg.inv((corners * shares[:, None]).T @ corners - np.outer(corner_mean, corner_mean))
    spread, rows = np.linalg.eigh(np.linalg.matrix_power(inverse, power))
    noise, (shape, vectors) = variance * spread, _public_shape(projection)
    seen = rows.T @ inverse @ joint @ vectors
    hint, trust = np.zeros_like(seen), (0.0, 1.0)
    if projection.hint is not None:
        hint, trust = (rows.T @ projection.hint @ vectors) * shape, projection.trust
        hint = hint * np.linalg.norm(projection.hint) / max(float(np.linalg.norm(hint)), 1e-300)
    rotated, beta = _posterior(seen, noise, shape, hint, trust)
    away = (corners - corner_mean) @ (rows @ rotated @ vectors.T)
    within = projection.covariance
    ridge = _RIDGE * float(np.trace(within)) / projection.width
    weights = np.linalg.solve(within + ridge * np.eye(projection.width), away.T).T
    weights *= float((weights * away).sum()) / max(float(((weights @ within) * weights).sum()), 1e-300)
    biases = -weights @ centre - 0.5 * (weights * away).sum(axis=1) + np.log(shares)
    signal = float(np.linalg.norm(rotated) / math.sqrt(noise.sum())) if variance else math.inf
    return Discriminant(np.asarray(weights, dtype=np.float64), biases, shares, signal, beta)


def _shrinkage(spread: float | Floats, noise: float) -> Floats:
    """``spread / (spread + noise)``, also where the noise is infinite."""
    return np.asarray(spread) / (np.asarray(spread) + noise)


def _posterior(
    seen: Floats, noise: Floats, shape: Floats, hint: Floats, trust: tuple[float, float]
) -> tuple[Floats, float]:
    """The mean of the contrasts given what was seen, and that of beta; see `fit`."""
    if np.isinf(noise).any():
        return trust[0] * hint, trust[0]
    expected, precise = trust[0], trust[1] ** -2
    evidence, estimates, betas = [], [], []
    for spread in _CONTRAST_SPREADS:
        variance = spread**2 * shape[None, :] + noise[:, None]
        precision = float((hint**2 / variance).sum()) + precise
        beta = (float((hint * seen / variance).sum()) + expected * precise) / precision
        rest = seen - beta * hint
        likely = float(np.log(variance).sum() + (rest**2 / variance).sum())
        evidence.append(-0.5 * (likely + (beta - expected) ** 2 * precise + math.log(precision)))
        estimates.append(beta * hint + spread**2 * shape / variance * rest)
        betas.append(beta)
    weight = np.exp(np.array(evidence) - max(evidence))
    weight /= weight.sum()
    return np.tensordot(weight, np.array(estimates), axes=1), float(weight @ betas)


def expected_signal(variance: float, code: FoldedCode, *, described: bool) -> float:
    """A usual contrast between labels over the noise in its direction, for equal shares.

    Above 4 the records say clearly what they have to say; below 1.5 the descriptions decide.
    """
    # At equal shares Cov(h_y) = I / (K - 1), so a contrast is K - 1 times as noisy as what it is read from.
    noise = (code.labels - 1) * math.sqrt(code.variances(variance)[2])
    return (_DESCRIBED_CONTRAST if described else _USUAL_CONTRAST) / noise
