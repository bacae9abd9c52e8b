r"""Shares of labels among many records, debiased, with 95 % intervals: what a corpus of releases says of all.

The share pi_y is that of label y in the population from which the records were drawn, independently. Each
interval is for one label. What is read is what was released, so this is post-processing: it costs nothing.

*Folded records* (`noise.folded_record`). With u the folded record, e = 1 if its label is y and 0 otherwise,
there is a public w with ``e = 1/K + <w, u>`` and ``|w|^2 = ((K - 1) / K)^2 / ((1 - alpha) kappa^2)``: it is
what `unfold` and `shares` compute. A release is ``R = u + noise`` with mean u, so ``1/K + <w, mean of R>``
is unbiased for pi_y. Its variance, by the law of total variance over the drawn records:

* *Gaussian noise*: ``Cov(R | u) = sigma^2 I``; N times the variance is ``|w|^2 sigma^2 + pi_y (1 - pi_y)``.
* *PrivUnit*: ``R = V / m``, ``V = s u + (I - u u^T) G``. Integrating by parts on both sides of t gives
  ``E[s^2] = 1 + t phi(t) (p / (1 - q) - (1 - p) / q) = 1 + t m``, so ``Cov(V | u) = I + (t m - m^2) u u^T``
  and, with sigma = 1/m, ``Cov(R | u) = sigma^2 I + (t/m - 1) u u^T``. N times the variance is

  .. math:: |w|^2 \sigma^2 + (t/m - 1)\,E[(e - 1/K)^2] + \pi_y (1 - \pi_y).

  At the best threshold t = m, and the middle term is gone.

Rounding to the step s of the grid after the noise adds ``s^2 / 12`` to sigma^2. All of it is known but pi_y,
for which its estimate, clipped to [0, 1], is put in. The mean is nearly normal, as the noise of each is.

*Answers* (randomized labels, K-ary response). Label y is answered for itself with probability a and for
another with b, so the count of answers y is binomial with ``b + (a - b) pi_y``: linear and increasing in
pi_y. The interval is Clopper and Pearson's for that probability, mapped back: it covers with at least 95 %
for every N and pi_y. What an answer of K-ary response is about is the *decision* of a user's front, right or
wrong, not a true label.

*Public labels* are answers with a = 1 and b = 0: counted, with the sampling alone, and not private.

Guarantees:
    `raw` is unbiased. An interval covers the share of the population in 95 % of the cases (more than that for
    answers), and the share among the N records themselves at least as often.
Edges:
    ``share``, ``low`` and ``high`` are clipped to [0, 1]; the shares then need not sum to 1. A prior that
    left labels out of the answers (`ResponseWithPrior`) leaves their shares unknown: refused.
    A user who sends many records counts as often.
Paper: not in it.
"""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincinv

from dp_forward.corpus.reader import ReleasedCorpus
from dp_forward.errors import InvalidInput, refuse_if
from dp_forward.noise.folded_record import FoldedCode
from dp_forward.privacy import Guarantee, KaryResponse, PrivUnit

__all__ = ["estimate_shares"]

_TAIL: Final = 0.025
_Z: Final = 1.959963984540054
_FREE: Final = (
    "The shares are computed from the releases alone: post-processing, so estimating them costs nothing."
)
_INTERVALS: Final = "Intervals are 95 % for each label, and include that the records are a sample."
_DECISIONS: Final = "These are shares of decisions of the users' fronts, right or wrong, not of true labels."
_PUBLIC: Final = "The labels of these records are public: their shares are counted, not protected."

Floats = NDArray[np.float64]
Estimate = tuple[Floats, Floats, Floats]
"""Shares, and the lower and upper end of their intervals; none of them clipped."""


@dataclass(frozen=True, eq=False)
class LabelShares:
    """What was estimated from so many records; ``of`` says of what: labels, or decisions of a front."""

    of: str
    records: int
    labels: tuple[str, ...]
    estimate: Estimate
    guarantee: Guarantee
    notes: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        shown = zip(*(np.clip(part, 0.0, 1.0).tolist() for part in self.estimate), strict=True)
        rows = zip(self.labels, shown, self.estimate[0].tolist(), strict=True)
        return {
            "records": self.records,
            "of": self.of,
            "shares": {
                label: {"share": share, "low": low, "high": high, "raw": raw}
                for label, (share, low, high), raw in rows
            },
            "guarantee": self.guarantee.as_dict(),
            "notes": list(self.notes),
        }


def estimate_shares(corpus: ReleasedCorpus) -> LabelShares:
    """The share of every label among the records of a ``corpus``; see the module.

    What is counted are the labels in the corpus, in whatever form; else the answers of K-ary response.
    """
    spec, mechanism = corpus.spec, corpus.release.mechanism()
    kinds, of, notes = len(corpus.release.labels), "labels", [_INTERVALS, _FREE]
    if spec.labels == "folded":
        found = _shares_of_folded_corpus(corpus)
    elif corpus.labels is not None:
        counts = np.bincount(corpus.labels, minlength=kinds)
        transition = np.eye(kinds) if corpus.label_transition is None else corpus.label_transition
        found = shares_of_answers(counts, transition)
        if spec.labels == "public":
            notes.insert(0, _PUBLIC)
    elif isinstance(mechanism, KaryResponse):
        found, of = shares_of_answers(_answers(corpus), mechanism.transition()), "decisions"
        notes.insert(0, _DECISIONS)
    else:
        remedy = "Labels of these records were not collected; release them randomized, or folded in."
        raise InvalidInput("releases", "tell something about labels", "no labels", remedy)
    return LabelShares(of, len(corpus), corpus.release.labels, found, corpus.guarantee, tuple(notes))


def shares_of_answers(counts: NDArray[np.integer], transition: Floats) -> Estimate:
    """From how often each label was answered; row y of ``transition``: how y is, all wrong answers alike."""
    kinds, records = len(counts), int(counts.sum())
    rule, remedy = "all be among the answers", "The prior left some out: their shares cannot be known."
    refuse_if(np.linalg.matrix_rank(transition) < kinds, "labels", rule, "a part of them", remedy)
    kept, wrong = float(transition[0, 0]), float(transition[0, 1])
    # betaincinv is not defined at the ends, where the bound is 0 or 1 itself.
    some, rest = np.maximum(counts, 1), np.maximum(records - counts, 1)
    low = np.where(counts == 0, 0.0, betaincinv(some, records - counts + 1, _TAIL))
    high = np.where(counts == records, 1.0, betaincinv(counts + 1, rest, 1 - _TAIL))
    share, low, high = ((rate - wrong) / (kept - wrong) for rate in (counts / records, low, high))
    return share, low, high


def shares_of_folded(
    mean: Floats, records: int, code: FoldedCode, *, variance: float, stretch: float = 1.0
) -> Estimate:
    """From the mean of so many unbiased releases of folded records.

    ``variance`` is that of the noise in a coordinate of one release, ``stretch`` PrivUnit's ``t / m``.
    """
    kinds = code.labels
    share = code.shares(code.unfold(mean)[0])
    noise = ((kinds - 1) / kinds) ** 2 * code.variances(variance)[0]
    likely = np.clip(share, 0.0, 1.0)
    along = likely * (1 - 2 / kinds) + 1 / kinds**2  # E[(e - 1/K)^2]
    half = _Z * np.sqrt((noise + (stretch - 1) * along + likely * (1 - likely)) / records)
    return share, share - half, share + half


def _shares_of_folded_corpus(corpus: ReleasedCorpus) -> Estimate:
    release, mechanism = corpus.release, corpus.release.mechanism()
    bound, sigma = release.required_noise().bound, mechanism.sigma  # type: ignore[attr-defined]
    length = bound.norm if bound.how == "normalise" else min(1.0, bound.norm)
    stretch = mechanism.threshold / mechanism.scale if isinstance(mechanism, PrivUnit) else 1.0
    variance = (sigma**2 + corpus.scale**2 / 12) / length**2
    code = FoldedCode.of_columns(release.width, len(release.labels))
    return shares_of_folded(corpus.mean()[0] / length, len(corpus), code, variance=variance, stretch=stretch)


def _answers(corpus: ReleasedCorpus) -> NDArray[np.int64]:
    """How often each label was answered: the sum of one-hot rows."""
    counts: NDArray[np.int64] = np.rint(corpus.mean()[0] * len(corpus)).astype(np.int64)
    if counts.min() < 0 or counts.sum() != len(corpus):
        raise InvalidInput("releases", "be one-hot rows", "others", "Get the corpus again.")
    return counts
