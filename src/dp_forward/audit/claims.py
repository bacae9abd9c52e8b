r"""Claims of a mechanism about its releases: the numbers that an auditor tests.

Releases are looked at as vectors, [releases, vectors, entries]: one vector per text, or one per row where the
bound is by row. For two bounded inputs the exact likelihood ratio of a claimed mechanism is known:

* *Gaussian*: monotone in ``<y, D> / (sigma |D|)`` with D the difference. That is N(., 1), and its means for
  the two inputs lie ``mu = |D| / sigma`` apart.
* *PrivUnit*: the density of the real vector V is that of N(0, I) times ``a = p / (1 - q)`` where
  ``<x, V> >= t``, and times ``b = (1 - p) / q`` elsewhere. A release is V rounded to cells of width 1/8.
  Within a cell ``<x, V>`` is its value at the middle, with a deviation of ``1 / (8 sqrt 12)`` (a sum of many
  small uniform errors), so the likelihood of a cell is ``b + (a - b) Phi((<x, W> - t) / tau)`` times what
  both inputs share.
* *K-ary response*: an answer has probability keep where it is the decision about the input, and the same for
  all others.

Edges:
    Inputs are bounded here anew, by plain arithmetic of our own: an auditor who asked the audited code where
    its signal should lie would not see that code's mistakes.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr, ndtr, owens_t

from dp_forward import privacy
from dp_forward.audit import findings
from dp_forward.audit.findings import Finding, Floats, cap_sum_z, mean_z, share_off_z
from dp_forward.errors import InvalidInput
from dp_forward.noise import dequantise
from dp_forward.privacy import KaryResponse, NormBound, PrivUnit, curve

Seen = tuple[Floats, Floats]  # releases of two inputs

_CELL: Final = 1 / 8
_TAU: Final = _CELL / math.sqrt(12)


@dataclass(frozen=True)
class GaussianClaim:
    """Uniform Gaussian noise within a norm bound."""

    mechanism: privacy.MatrixGaussian | privacy.AnalyticGaussian
    bound: NormBound
    step: float

    @property
    def deviation(self) -> float:
        """Of the released noise in a direction that no input points to."""
        return math.hypot(self.mechanism.sigma, self.step / math.sqrt(12))

    def along_z(self, total: float, claimed: float, trials: int) -> float:
        """How far the sum of so many releases along their inputs lies from the claimed one, either side."""
        return mean_z(total - claimed, self.deviation * math.sqrt(trials))

    def law(self, seen: Seen, first: Floats, second: Floats) -> Finding:
        """What the likelihood ratio says of how far apart the releases of these inputs lie."""
        scores = [self.ratios(some, first, second) for some in seen]
        promised, apart = self._promised_and_apart(first, second)
        return findings.distance_finding(scores[0], scores[1], min(apart, promised))

    def epsilon(self, first: Floats, second: Floats, delta: float) -> float:
        """What is promised at ``delta`` for one release of each of two bounded inputs."""
        return curve.epsilon(delta, self._promised_and_apart(first, second)[0])

    def _promised_and_apart(self, first: Floats, second: Floats) -> tuple[float, float]:
        """How far apart the promise lets one release of these inputs lie, and how far the noise alone does.

        Inputs that differ in more rows than neighbours do are no neighbours: for them only the noise counts.
        """
        unit, apart = self.mechanism.unit, float(np.linalg.norm(first - second)) / self.mechanism.sigma
        covered = None if unit is None else self.bound.changed_rows(unit)
        neighbours = covered is None or int(np.sum(np.any(first != second, axis=1))) <= covered
        return self.mechanism.mu / math.sqrt(self.mechanism.releases) if neighbours else apart, apart

    def ratios(self, released: Floats, first: Floats, second: Floats) -> Floats:
        """The log-likelihood ratio of each release, or something monotone in it."""
        difference = first - second
        direction = difference / (self.mechanism.sigma * float(np.linalg.norm(difference)))
        return np.asarray(np.tensordot(released, direction, axes=2))


@dataclass(frozen=True)
class PrivUnitClaim:
    """PrivUnit, per text or per row; the methods of `GaussianClaim` mean the same here."""

    mechanism: PrivUnit
    bound: NormBound

    @property
    def deviation(self) -> float:
        return self.mechanism.sigma * math.hypot(1.0, _TAU)

    def along_z(self, total: float, claimed: float, trials: int) -> float:
        total, t = total / self.mechanism.sigma, self.mechanism.threshold
        return cap_sum_z(total, trials, threshold=t, log_levels=self.mechanism.log_levels, tau=_TAU)

    @cached_property
    def cap_share(self) -> float:
        """How often a release lies in the cap of its input: p, but for what rounding moves over its edge.

        For normal X and rounding Z, ``X + tau Z`` is at least t where Y, its standard form, is at least
        ``k = t / hypot(1, tau)``. X and Y have the correlation ``k / t``, so by Owen (1956) both X is at
        least t and Y at least k with the mean of these two probabilities, less ``T(k, tau)``.
        """
        t, (above, below) = self.mechanism.threshold, self.mechanism.log_levels
        k = t / math.hypot(1.0, _TAU)
        both = float(ndtr(-t) + ndtr(-k)) / 2 - float(owens_t(k, _TAU))
        return math.exp(above + math.log(both)) + math.exp(below) * (float(ndtr(-k)) - both)

    def largest_share(self, x: Floats) -> float:
        """What the share in the cap may be at most, for these inputs; `cap_share` where entries are many.

        With few entries that matter the rounding error is not normal, nor independent of s. It still is at
        most ``sum |x_i| / 16``, so no release with s further than that below t is counted into the cap.
        """
        unit = x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-300)
        # The rounding errors of 4 equal entries, or more, add up to one that is as good as normal.
        spread = np.sum(unit**4, axis=1) <= 1 / 4
        t, (_, below) = self.mechanism.threshold, self.mechanism.log_levels
        reach = np.sum(np.abs(unit), axis=1) * _CELL / 2
        moved = np.exp(below) * (ndtr(reach - t) - ndtr(-t))
        at_most = np.minimum(1.0, self.mechanism.cap_probability + moved)
        return float(np.mean(np.where(spread, self.cap_share, at_most)))

    def law(self, seen: Seen, first: Floats, second: Floats) -> Finding:
        """How many vectors lie in the cap of their own input."""
        along = [self._along(some, own).ravel() for some, own in zip(seen, (first, second), strict=True)]
        p = self.largest_share(np.concatenate([first, second]))
        return findings.share_finding(np.concatenate(along) >= self.mechanism.threshold, p)

    def epsilon(self, first: Floats, second: Floats, delta: float) -> float:
        changed = int(np.sum(np.any(first != second, axis=1)))
        return self.mechanism.loss.epsilon * max(changed, self.bound.changed_rows(self.mechanism.unit) or 1)

    def ratios(self, released: Floats, first: Floats, second: Floats) -> Floats:
        changed = np.any(first != second, axis=1)
        part = released[:, changed]
        return np.asarray(self._likelihood(part, first[changed]) - self._likelihood(part, second[changed]))

    def _likelihood(self, released: Floats, x: Floats) -> Floats:
        u = (self._along(released, x) - self.mechanism.threshold) / _TAU
        above, below = self.mechanism.log_levels
        return np.asarray(np.logaddexp(below + log_ndtr(-u), above + log_ndtr(u)).sum(axis=1))

    def _along(self, released: Floats, x: Floats) -> Floats:
        unit = x / (np.linalg.norm(x, axis=1, keepdims=True) * self.mechanism.sigma)
        return np.asarray(np.einsum("nkd,kd->nk", released, unit))


@dataclass(frozen=True)
class ResponseClaim:
    """K-ary response: one-hot rows, the decision with the claimed probability, all else alike."""

    mechanism: KaryResponse
    bound: NormBound

    def epsilon(self, first: Floats, second: Floats, delta: float) -> float:
        return self.mechanism.label_epsilon

    def ratios(self, released: Floats, first: Floats, second: Floats) -> Floats:
        """epsilon for the decision about the first, -epsilon for that about the second, 0 elsewhere."""
        scores = np.zeros(self.mechanism.labels)
        scores[np.argmax(first)] += self.mechanism.label_epsilon
        scores[np.argmax(second)] -= self.mechanism.label_epsilon
        return np.asarray(released[:, 0] @ scores)

    def findings(self, seen: Seen, x: Floats, y: Floats) -> list[Finding]:
        """How often the decision is answered, whether all else is alike and fresh, and what is no answer."""
        keep, both = self.mechanism.keep, tuple(zip(seen, (x, y), strict=True))
        kept = [some[:, 0, np.argmax(own)] == 1 for some, own in both]
        hits, draws = int(sum(map(np.sum, kept))), sum(map(len, kept))
        others = [np.delete(np.sum(some[:, 0] == 1, axis=0), np.argmax(own)) for some, own in both]
        odd = sum(int(np.sum((np.abs(some).sum(axis=2) != 1) | (some.max(axis=2) != 1))) for some in seen)
        return [
            Finding("share of the decision", keep, hits / draws, share_off_z(hits, draws, keep)),
            *self._others(others),
            self._together(kept),
            Finding("releases that are not one-hot", 0.0, float(odd)),
        ]

    def _others(self, counts: list[NDArray[np.int64]]) -> list[Finding]:
        """The other answer that leans most, about either input."""
        share, times = 1 / (self.mechanism.labels - 1), 2 * (self.mechanism.labels - 1)
        if self.mechanism.labels == 2:
            return []
        z = max(share_off_z(int(n), int(rest.sum()), share, times=times) for rest in counts for n in rest)
        largest = max(float(rest.max()) / max(1, int(rest.sum())) for rest in counts)
        return [Finding("share of one other answer", share, largest, z)]

    def _together(self, kept: list[NDArray[np.bool_]]) -> Finding:
        """Neighbours in time, and one of each input: coins that are used twice fall alike too often."""
        alike = self.mechanism.keep**2 + (1 - self.mechanism.keep) ** 2
        size = min(map(len, kept)) // 2 * 2
        first, second = kept[0][:size], kept[1][:size]
        neighbours = np.concatenate([one[::2] == one[1::2] for one in (first, second)])
        pairs = (neighbours, first == second)
        z = max(share_off_z(int(some.sum()), size, alike, times=2) for some in pairs)
        return Finding("pairs of answers that fell alike", alike, float(np.concatenate(pairs).mean()), z)


Claim = GaussianClaim | PrivUnitClaim | ResponseClaim


def claim_of(mechanism: privacy.Mechanism, *, bits: int = 16) -> Claim:
    """What a mechanism claims; refused where it cannot be released."""
    step = float(dequantise(np.ones(1, dtype=f"<i{bits // 8}"), mechanism, bits)[0])  # refuses what cannot
    if isinstance(mechanism, PrivUnit):
        return PrivUnitClaim(mechanism, mechanism.bound)
    if isinstance(mechanism, KaryResponse):
        return ResponseClaim(mechanism, mechanism.bound)
    if isinstance(mechanism, privacy.MatrixGaussian | privacy.AnalyticGaussian):
        bound = mechanism.sensitivity.bound
        if isinstance(bound, NormBound):
            return GaussianClaim(mechanism, bound, step)
    raise InvalidInput("mechanism", "be one that can be released", mechanism.name, "Use privunit.")


def as_vectors(matrices: NDArray[Any], bound: NormBound) -> Floats:
    """[..., rows, width] as [..., vectors, entries]."""
    array = np.asarray(matrices, dtype=np.float64)
    return array if bound.over == "row" else array.reshape(*array.shape[:-2], 1, -1)


def bounded_vectors(hidden: NDArray[Any], bound: NormBound) -> Floats:
    """One hidden matrix inside the bound, by our own arithmetic; see the module."""
    x = as_vectors(np.where(np.isfinite(hidden), hidden, 0.0), bound)
    length = np.linalg.norm(x, axis=1, keepdims=True)
    if bound.how == "clip":
        return np.asarray(x * np.minimum(1.0, bound.norm / np.maximum(length, 1e-300)))
    fixed = np.zeros_like(x)
    fixed[:, 0] = 1.0
    return np.asarray(bound.norm * np.where(length > 0, x / np.maximum(length, 1e-300), fixed))
