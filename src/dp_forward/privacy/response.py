r"""Randomized response on labels, plain or with a public prior, and on a front's decision: pure epsilon-LDP.

*Plain*: keep the label with probability ``e^eps / (e^eps + K - 1)``, else one of the others, all alike.
For two labels y, y' and any output the ratio of probabilities is ``e^eps``, 1 or ``e^-eps``.

*With a prior* (Ghazi et al. 2021): with labels sorted by a public prior, choose k to maximise
``e^eps / (e^eps + k - 1) * (sum of the top-k prior)`` and answer within the top k; a label outside them
is first replaced by a uniform one of them (a mixture of two of its outputs: the ratio stays within
e^eps). The prior must not come from the labels themselves, or the choice of k leaks them: it is a
type, and says where it came from.

*On a decision* (`KaryResponse`): the front scores K labels, decides for one of them, and answers for that
label as above. It is a mechanism for the text.

`transition` is the flip matrix; a server that corrects its loss for it only post-processes.

Paper: randomized response on labels; keeping with 0.9 of two labels is epsilon 2.197.
"""

import math
from dataclasses import dataclass, field
from typing import ClassVar, Final, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dp_forward.errors import InvalidInput
from dp_forward.privacy import checks
from dp_forward.privacy.bounds import NormBound
from dp_forward.privacy.mechanism import Budget
from dp_forward.privacy.pure_loss import PureNoise, ThreeLevelLoss
from dp_forward.privacy.rounding import shown_up
from dp_forward.privacy.units import LABEL, TEXT, Unit

__all__ = ["checked_labels", "keep_probability"]

_ONCE = "Draw a label once and keep it: 1."
_LABELS = "There must be something to choose from: 2 labels or more."
ONE_ROW: Final = NormBound(1.0, "normalise", "matrix", 1)
"""What scores go through before a decision: one row, its length does not matter, NaN and Inf count as 0."""


def keep_probability(epsilon: float, labels: int) -> float:
    """``e^eps / (e^eps + K - 1)``."""
    return 1 / (1 + (labels - 1) * math.exp(-epsilon))


def _share(budget: Budget, releases: int) -> float:
    """The epsilon of one of ``releases`` answers, so that rounding never passes the budget."""
    releases = checks.count("releases", releases, remedy=_ONCE)
    return budget.epsilon if releases == 1 else budget.epsilon / releases * (1 - 1e-14)


def checked_labels(labels: ArrayLike, known: int) -> NDArray[np.int64]:
    """A list of labels, whole numbers 0..known-1."""
    array = np.asarray(labels)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise InvalidInput("labels", "be a list of whole numbers", array.dtype, "Use 0..K-1.")
    if array.size and not (array.min() >= 0 and array.max() < known):
        raise InvalidInput("labels", f"lie in 0..{known - 1}", "a label outside", "Check the task.")
    return array.astype(np.int64)


class _Response(PureNoise):
    """What all kinds of randomized response share: the labels that are answered, and with what chances."""

    label_epsilon: float
    labels: int
    releases: int
    unit: ClassVar[Unit] = LABEL
    assumptions = ("the set of labels is public",)

    @property
    def top(self) -> range | NDArray[np.int64]:
        """The labels that are ever answered: all of them, where no prior says otherwise."""
        return range(self.labels)

    @property
    def keep(self) -> float:
        """The probability that a label of ``top`` is answered truly."""
        return keep_probability(self.label_epsilon, len(self.top))

    def transition(self) -> NDArray[np.float64]:
        """Row y: the probabilities of what is answered for the label y."""
        top, k = np.asarray(self.top), len(self.top)
        matrix = np.zeros((self.labels, self.labels))
        matrix[:, top] = 1 / k
        if k > 1:
            matrix[np.ix_(top, top)] = (1 - self.keep) / (k - 1)
            matrix[top, top] = self.keep
        return matrix

    def sample(self, labels: ArrayLike, rng: np.random.Generator) -> NDArray[np.int64]:
        """One answer for each label, for experiments: what is released is drawn by exact coins."""
        array, ladder = checked_labels(labels, self.labels), np.cumsum(self.transition(), axis=1)
        ladder[:, -1] = 1.0
        coin = rng.random(array.shape)
        return np.asarray(np.sum(coin[:, None] >= ladder[array], axis=1), dtype=np.int64)


@dataclass(frozen=True, slots=True, repr=False)
class _Uniform(_Response):
    """Over ``labels`` labels, all wrong answers alike; ``label_epsilon`` per release."""

    label_epsilon: float
    labels: int
    releases: int = 1
    loss: ThreeLevelLoss = field(init=False)

    def __post_init__(self) -> None:
        epsilon = checks.epsilon(self.label_epsilon, name="label_epsilon")
        checks.count("labels", self.labels, at_least=2, remedy=_LABELS)
        checks.count("releases", self.releases, remedy=_ONCE)
        keep = keep_probability(epsilon, self.labels)
        object.__setattr__(self, "loss", ThreeLevelLoss(epsilon, keep, self.releases, 1 / self.labels))

    @classmethod
    def for_budget(cls, budget: Budget, *, labels: int, releases: int = 1) -> Self:
        """The budget spread evenly over the releases."""
        return cls(_share(budget, releases), labels, releases)

    def __repr__(self) -> str:
        keep = shown_up(self.keep)
        return f"{type(self).__name__}(labels={self.labels}, keep={keep}) -> {self.promise()}"


class RandomizedResponse(_Uniform):
    """Plain randomized response over ``labels`` labels; ``label_epsilon`` per release.

    Guarantees:
        Pure epsilon-LDP of the label; k fresh answers cost k epsilon, one stored answer costs one.
    """

    name: ClassVar[str] = "randomized-response"


class KaryResponse(_Uniform):
    r"""Randomized response on the decision of a front that gives K scores: one row in, a one-hot row out.

    The decision is the label with the largest score, the first of them where several are equal. What leaves
    is the row of K that holds 1 at the answer and 0 elsewhere.

    Guarantees:
        Pure epsilon-LDP of the text, for any front. Proof: the decision d is a function of the text alone.
        Given d, the answer a has probability ``e^eps / Z`` where a = d and ``1 / Z`` elsewhere, with
        ``Z = e^eps + K - 1`` for every d. So for two texts and any a the ratio of the probabilities is
        e^eps, 1 or e^-eps. The one-hot row is a function of a: post-processing. k fresh answers cost k
        epsilon.
        No row of scores raises: NaN and Inf count as 0, as in every bound.
    Edges:
        What is protected is the text, not the front: whoever trained the front on private texts needs a
        promise for that as well. Where ``e^eps < K - 1`` an answer that names several labels (subset
        selection) would tell more at the same epsilon; it is not offered.
    """

    name: ClassVar[str] = "k-ary-response"
    unit: ClassVar[Unit] = TEXT
    bound: ClassVar[NormBound] = ONE_ROW
    """What the scores go through."""

    def decide(self, rows: NDArray[np.floating]) -> NDArray[np.int64]:
        """The decision about each row [rows, K] of scores."""
        if rows.ndim != 2 or rows.shape[1] != self.labels:
            rule = f"have a score for each of {self.labels} labels"
            raise InvalidInput("hidden", rule, f"shape {rows.shape}", "Use a front that ends in K scores.")
        return np.asarray(np.argmax(np.where(np.isfinite(rows), rows, 0.0), axis=1))

    def success_between(self, first: NDArray[np.floating], second: NDArray[np.floating]) -> float:
        """How often the best test names the right one of two rows of scores, from one release; exact.

        Rows with one decision have one law. Otherwise the laws differ in the two decisions alone, each by
        ``keep - (1 - keep) / (K - 1)``: that is their total variation.
        """
        if np.array_equal(self.decide(first), self.decide(second)):
            return 0.5
        return (1 + self.keep - (1 - self.keep) / (self.labels - 1)) / 2

    def accuracy(self, of_decisions: float) -> float:
        """How often an answer is right, where so many of the decisions are; exact.

        A right decision is kept, or a wrong one is answered by the true label: one of K - 1, all alike.
        """
        return of_decisions * self.keep + (1 - of_decisions) * (1 - self.keep) / (self.labels - 1)


@dataclass(frozen=True, slots=True, eq=False)
class Prior:
    """How common each label is believed to be (``weights``), and ``where`` that belief came from.

    Its ``source`` is "public" (known beforehand, see `public`) or "noisy" (computed from releases that carry
    a guarantee already: post-processing). There is no way to make one from raw labels on purpose.
    """

    weights: NDArray[np.float64]
    source: Literal["public", "noisy"]
    where: str

    def __post_init__(self) -> None:
        weights = checks.finite_array("prior", self.weights, ndim=1)
        checks.count("labels", len(weights), at_least=2, remedy=_LABELS)
        if (weights < 0).any() or abs(float(weights.sum()) - 1) > 1e-9:
            rule = "hold probabilities that sum to 1"
            raise InvalidInput("prior", rule, f"a sum of {float(weights.sum()):g}", "Divide by the sum.")
        if self.source not in ("public", "noisy"):
            raise InvalidInput("source", "be public or noisy", self.source, "Use Prior.public().")
        if not self.where.strip():
            raise InvalidInput("where", "say where the prior came from", repr(self.where), "Name the source.")
        object.__setattr__(self, "weights", weights)

    @classmethod
    def public(cls, weights: ArrayLike, *, where: str) -> Self:
        """A prior that anybody may know, such as a published class balance."""
        return cls(np.asarray(weights, dtype=np.float64), "public", where)

    def __repr__(self) -> str:
        return f"Prior(labels={len(self.weights)}, source={self.source!r}, where={self.where!r})"


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class ResponseWithPrior(_Response):
    """Randomized response within the k labels that a public prior makes worth it.

    Guarantees:
        Pure epsilon-LDP of the label for every prior, right or wrong; the prior only steers accuracy.
    Edges:
        k = 1 answers the most common label to everybody: no information, epsilon 0.
    """

    name: ClassVar[str] = "randomized-response"

    label_epsilon: float
    prior: Prior
    releases: int = 1
    labels: int = field(init=False)
    top: NDArray[np.int64] = field(init=False)
    loss: ThreeLevelLoss = field(init=False)

    def __post_init__(self) -> None:
        epsilon = checks.epsilon(self.label_epsilon, name="label_epsilon")
        checks.count("releases", self.releases, remedy=_ONCE)
        object.__setattr__(self, "labels", len(self.prior.weights))
        order = np.argsort(-self.prior.weights, kind="stable").astype(np.int64)
        covered = np.cumsum(self.prior.weights[order])
        sizes = np.arange(1, self.labels + 1)
        hit = covered / (1 + (sizes - 1) * math.exp(-epsilon))
        best = int(np.argmax(hit)) + 1
        top = np.sort(order[:best])
        top.setflags(write=False)
        object.__setattr__(self, "top", top)
        real = epsilon if best > 1 else 0.0
        mass = keep_probability(epsilon, best) if best > 1 else 0.5
        object.__setattr__(self, "loss", ThreeLevelLoss(real, mass, self.releases, 1 / best))

    @classmethod
    def for_budget(cls, budget: Budget, *, prior: Prior, releases: int = 1) -> Self:
        """The budget spread evenly over the releases."""
        return cls(_share(budget, releases), prior, releases)

    def __repr__(self) -> str:
        size = f"{len(self.top)} of {self.labels}"
        return f"ResponseWithPrior(top={size}, keep={shown_up(self.keep)}) -> {self.promise()}"
