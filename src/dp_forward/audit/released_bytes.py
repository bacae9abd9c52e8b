r"""Two-point audit of released bytes: anyone can try to refute the promise.

Two candidate inputs are released many times through the real `release_batch`; the integers that would leave
are read back as whoever receives them reads them, and held against the claim:

* *the ratio*: the exact log-likelihood ratio of the claimed mechanism (`claims`) is computed for every
  release. For Gaussian noise its distance between the inputs is mu, measured with its standard error; for
  PrivUnit the share of releases in the cap of their input is measured, for K-ary response the share of
  answers that are the decision. Whatever the mechanism, the same scores give a floor under epsilon
  (`epsilon_floor`).
* *the noise*: as strong as claimed in the directions that no input points to, alike for both inputs, and
  never shared by two releases.
* *the signal*: the mean over many releases is the bounded input, as long as it should be and nothing beside
  it. A residual that was kept, or a bound that was not applied, shows here. (An answer of K-ary response has
  neither noise nor mean: there the shares of all answers are compared, and the form of each release.)

What refutes. A floor above the claimed epsilon at 99.999 % confidence, or a finding that chance explains no
better than 5 standard errors of a normal variable, by the exact law of its statistic (`findings`): with 16
draws as with 4000. The floor that is *reported* has 95 % confidence; for PrivUnit, whose ratio is e^epsilon
exactly, it would by itself refute an honest mechanism once in forty audits.

Guarantees:
    An honest system is refuted in at most 1 of 10,000 audits, loaded machine or not (`false_alarm_rate`).
    Proof: a finding with a chance refutes an honest system with at most Phi(-5) = 2.9e-7, a floor with at
    most 1e-5. The audit of a run has three floors and 20 such findings, that of a mechanism one and seven: by
    the union bound at most 3.6e-5. A finding without a chance compares what is the same for an honest system
    however slow it is.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy.stats import beta, chi2, norm

from dp_forward.audit import claims
from dp_forward.audit.epsilon_floor import epsilon_floor, largest_floor
from dp_forward.audit.findings import REFUTED_FROM, Finding, Floats, unlike_noise_z, weak_noise_z, z_of
from dp_forward.errors import InvalidInput
from dp_forward.noise.released import released_matrix as released
from dp_forward.privacy import KaryResponse, Mechanism
from dp_forward.privacy.checks import count
from dp_forward.privacy.response import keep_probability
from dp_forward.progress import Count

__all__ = ["REPORTED", "ReleasedAudit", "audit_matrices", "audit_released", "false_alarm_rate", "usual_draws"]

REPORTED: Final = 0.95
REFUTING: Final = 0.99999
_DRAWS: Final = 4000
_MOST_DRAWS: Final = 300_000

Matrix = NDArray[Any]
_Noisy = claims.GaussianClaim | claims.PrivUnitClaim


@dataclass(frozen=True, kw_only=True)
class ReleasedAudit:
    """What was claimed about the releases of two inputs, and what was found in ``draws`` of each.

    ``claimed_epsilon`` of a ``mechanism`` (its name) is tested by a ``statistic``, one number for each
    release: of Gaussian noise ``mu_claimed`` against ``mu_measured``, of others ``cap_share_claimed`` against
    ``cap_share_measured``. ``findings`` are further checks.
    ``epsilon_lower_bound`` holds with 95 % confidence; ``epsilon_refuting_bound`` with 99.999 %, and only
    that one refutes. ``epsilon_most_shown`` is the greatest floor that so many draws could show. ``z`` is
    that of mu, or of the cap share: how many releases lie on the side of their input, or are the decision
    about it.
    """

    mechanism: str
    statistic: str
    draws: int
    delta: float
    claimed_epsilon: float
    epsilon_lower_bound: float
    epsilon_refuting_bound: float
    epsilon_most_shown: float
    mu_claimed: float | None
    mu_measured: float | None
    cap_share_claimed: float | None
    cap_share_measured: float | None
    z: float
    findings: tuple[Finding, ...]

    @property
    def refuted(self) -> bool:
        """Whether the promise is broken beyond chance; see the module for how often that is wrong."""
        return bool(self.refuting)

    @property
    def refuting(self) -> tuple[Finding, ...]:
        """What refutes it: findings, and the floor where it lies above the claim."""
        floor = Finding("epsilon floor", self.claimed_epsilon, self.epsilon_refuting_bound)
        refuted = tuple(finding for finding in self.findings if finding.refuted)
        return (floor, *refuted) if floor.measured > floor.claimed else refuted

    @property
    def refuted_by(self) -> tuple[str, ...]:
        """What was measured in the findings that refute."""
        return tuple(finding.what for finding in self.refuting)

    def as_dict(self) -> dict[str, Any]:
        """For JSON, with its findings."""
        plain = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "findings"}
        found = [finding.as_dict() for finding in self.findings]
        return {**plain, "refuted": self.refuted, "refuted_by": list(self.refuted_by), "findings": found}


def false_alarm_rate(audits: Iterable[ReleasedAudit], findings: Iterable[Finding]) -> float:
    """How often an honest system is refuted by any of these ``audits`` and ``findings``, at most."""
    audits = tuple(audits)
    by_chance = [one.z is not None for some in (findings, *(one.findings for one in audits)) for one in some]
    return sum(by_chance) * float(norm.sf(REFUTED_FROM)) + len(audits) * (1 - REFUTING)


def usual_draws(mechanism: Mechanism) -> int:
    """So many releases of each input: 4000, and for K-ary response as many as show 0.9 of its noise.

    Edges:
        300,000 at most: below epsilon 0.2 and above 9, with two labels, 0.9 of the noise is not always seen.
    """
    if not isinstance(mechanism, KaryResponse):
        return _DRAWS
    claimed = mechanism.keep
    drawn = keep_probability(mechanism.label_epsilon / 0.9, mechanism.labels)
    spread = REFUTED_FROM * math.sqrt(claimed * (1 - claimed)) + 3 * math.sqrt(drawn * (1 - drawn))
    return min(_MOST_DRAWS, max(_DRAWS, math.ceil((spread / max(drawn - claimed, 1e-9)) ** 2 / 2)))


def opposed(mechanism: Mechanism, *, rows: int, width: int) -> tuple[Floats, Floats]:
    """Two inputs as far apart as neighbours can be: x and -x, in as many rows as neighbours differ in.

    x points nowhere in particular: a direction along one entry would make rounding look like signal. K-ary
    response has a shape of its own, one row of its labels.
    """
    bound = claims.claim_of(mechanism).bound
    if isinstance(mechanism, KaryResponse):
        rows, width = 1, mechanism.labels
    unit = mechanism.unit
    first = np.random.default_rng(0).standard_normal((rows, width))
    first = claims.bounded_vectors(first, bound).reshape(rows, width)
    changed = rows if bound.over == "matrix" or unit is None else min(rows, bound.changed_rows(unit) or rows)
    second = first.copy()
    second[:changed] *= -1
    return first, second


def audit_released(
    mechanism: Mechanism,
    *,
    pair: tuple[Matrix, Matrix] | None = None,
    rows: int = 8,
    width: int = 16,
    draws: int = 4000,
    bits: int = 16,
    draw: Callable[[Matrix], Sequence[Matrix]] | None = None,
    level: float = REPORTED,
    progress: Count | None = None,
) -> ReleasedAudit:
    """Release two hidden matrices ``draws`` times each, and audit the integers.

    >>> from dp_forward.privacy import NoiseSpec
    >>> audit = audit_released(NoiseSpec(epsilon=8.0).build(), draws=200)
    >>> round(audit.claimed_epsilon, 6), audit.epsilon_lower_bound < 8, audit.refuted
    (8.0, True, False)

    Without a ``pair`` the two lie as far apart as neighbours can (`opposed`). ``draw`` may be another sampler
    that claims to be this mechanism, from a batch to the integers that would leave; by default the product's
    own is audited. ``progress`` is called with the releases so far, of twice ``draws``.
    """
    draws = count("draws", draws, at_least=16, remedy="Use a few thousand.")
    pair = opposed(mechanism, rows=rows, width=width) if pair is None else pair
    draw = draw or (lambda batch: [one.values for one in released.release_batch(batch, mechanism, bits=bits)])
    seen, done = [], 0
    at_once = max(1, (1 << 18) // max(1, pair[0].size))
    for hidden in pair:
        parts = []
        for start in range(0, draws, at_once):
            some = min(at_once, draws - start)
            integers = np.stack(draw(np.broadcast_to(hidden, (some, *hidden.shape))))
            parts.append(released.dequantise(integers, mechanism, bits))
            done += some
            if progress is not None:
                progress(done)
        seen.append(np.concatenate(parts))
    return audit_matrices(mechanism, seen[0], seen[1], pair=pair, bits=bits, level=level)


def audit_matrices(
    mechanism: Mechanism,
    first: Matrix,
    second: Matrix,
    *,
    pair: tuple[Matrix, Matrix],
    bits: int = 16,
    level: float = REPORTED,
) -> ReleasedAudit:
    """Audit releases (``first``, ``second``: [draws, rows, width]) of the two hidden matrices in ``pair``."""
    claim = claims.claim_of(mechanism, bits=bits)
    x, y = (claims.bounded_vectors(np.asarray(hidden, dtype=np.float64), claim.bound) for hidden in pair)
    if x.shape != y.shape or np.allclose(x, y, atol=1e-9):
        raise InvalidInput("pair", "be two inputs that the bound keeps apart", "one", "Choose other texts.")
    seen = (claims.as_vectors(first, claim.bound), claims.as_vectors(second, claim.bound))
    scores = tuple(claim.ratios(some, x, y) for some in seen)
    delta = mechanism.shown_delta
    if isinstance(claim, claims.ResponseClaim):
        law, *rest = claim.findings(seen, x, y)
    else:
        law, *rest = claim.law(seen, x, y), *_signal(claim, seen, x, y), *_noise(claim, seen, x, y)
    gaussian = law.what == "mu"
    return ReleasedAudit(
        mechanism=mechanism.name,
        statistic="log-likelihood ratio of the claimed mechanism",
        draws=min(len(first), len(second)),
        delta=delta,
        claimed_epsilon=claim.epsilon(x, y, delta),
        epsilon_lower_bound=epsilon_floor(*scores, delta=delta, level=level),
        epsilon_refuting_bound=epsilon_floor(*scores, delta=delta, level=REFUTING),
        epsilon_most_shown=largest_floor(min(len(first), len(second)), level=level),
        mu_claimed=law.claimed if gaussian else None,
        mu_measured=law.measured if gaussian else None,
        cap_share_claimed=None if gaussian else law.claimed,
        cap_share_measured=None if gaussian else law.measured,
        z=law.z or 0.0,
        findings=(law, *rest),
    )


def _signal(claim: _Noisy, seen: claims.Seen, x: Floats, y: Floats) -> list[Finding]:
    """The mean along the input is as long as the input, and there is nothing beside it."""
    total, claimed, trials, beside, freedom = 0.0, 0.0, 0, 0.0, 0
    for some, own in zip(seen, (x, y), strict=True):
        mean, length = some.mean(axis=0), np.linalg.norm(own, axis=1)
        unit, there = own / np.maximum(length, 1e-300)[:, None], int(np.count_nonzero(length))
        along = np.sum(mean * unit, axis=1)
        rest = mean - along[:, None] * unit
        total += len(some) * float(along.sum())
        claimed += len(some) * float(length.sum())
        trials += len(some) * there
        beside += len(some) * float(np.sum(rest * rest)) / claim.deviation**2
        freedom += rest.size - there
    z = claim.along_z(total, claimed, trials)
    found = [Finding("mean along the input", 1.0, total / claimed, z)]
    if freedom:
        z = z_of(float(chi2.sf(beside, freedom)))
        found.append(Finding("mean beside the input", 1.0, beside / freedom, z))
    return found


def _noise(claim: _Noisy, seen: claims.Seen, x: Floats, y: Floats) -> list[Finding]:
    """Across both inputs the noise is as strong as claimed, alike for both, and never used twice."""
    (one, freedom), (other, _) = (across_inputs(some, x, y) for some in seen)
    if freedom < 1:
        return []
    squares = [float(np.mean(np.sum(across * across, axis=(1, 2)))) for across in (one, other)]
    first, second = (square / freedom / claim.deviation**2 for square in squares)
    counts = (len(one) * freedom, len(other) * freedom)
    both = (first * counts[0] + second * counts[1]) / sum(counts)
    unlike = unlike_noise_z(first, second, freedom=counts)
    return [
        Finding("variance across", 1.0, both, weak_noise_z(both, sum(counts))),
        Finding("variance of one input over the other", 1.0, first / max(second, 1e-12), unlike),
        *shared_noise(np.concatenate([one[:256], other[:256]]), freedom),
    ]


def across_inputs(released: Floats, *inputs: Floats) -> tuple[Floats, int]:
    """What of each release lies in directions that no input points to, and how many dimensions those have."""
    directions, lengths, _ = np.linalg.svd(np.stack(inputs, axis=2), full_matrices=False)
    spanned = lengths > 1e-6 * np.maximum(lengths[:, :1], 1e-300)
    basis = directions * spanned[:, None, :]  # orthonormal per vector; zeros where the inputs span less
    across = released.copy()
    for _ in range(2):  # once leaves rounding errors of the first
        across -= np.einsum("kdm,nkm->nkd", basis, np.einsum("nkd,kdm->nkm", across, basis))
    return across, int(inputs[0].size - spanned.sum())


def shared_noise(across: Floats, dimensions: int) -> list[Finding]:
    r"""The largest correlation of the noise of any two releases: of what lies across all inputs.

    For independent normal vectors in n dimensions the square of the cosine is Beta(1/2, (n - 1)/2), exactly;
    the chance is multiplied by the number of pairs.

    Edges:
        Nothing is said in fewer than 16 dimensions: there, chance alone comes close to 1.
    """
    if dimensions < 16 or len(across) < 2:
        return []
    rows = across.reshape(len(across), -1)
    rows = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-300)
    cosines = np.abs(rows @ rows.T)
    np.fill_diagonal(cosines, 0.0)
    largest = min(float(cosines.max()), 1 - 1e-9)
    pairs = len(rows) * (len(rows) - 1) / 2
    chance = pairs * float(beta.sf(largest * largest, 0.5, (dimensions - 1) / 2))
    return [Finding("noise shared by two releases", 0.0, largest, z_of(chance))]
