r"""Released labels and decisions: randomized response that may leave the machine.

`release_labels` draws from operating-system entropy with exactly the mechanism's probabilities (`coins`):

1. the answer is the true label with probability ``1 / (1 + (K - 1) e^-epsilon)``, epsilon being the float of
   the mechanism as it is, else one of the K - 1 others, all alike. The ratio of any two probabilities is
   ``e^epsilon``, 1 or ``e^-epsilon``, with no numerical slack.
2. With a prior, K is k, the number of labels worth answering, and a label outside them is first replaced by
   one of them drawn uniformly: after step 1 its answer is uniform too.

`draw_decisions` does step 1 on the decisions of a front (`KaryResponse`) and gives one-hot rows for
`released_matrix`.

Guarantees:
    Probabilities to within 2^-400, if the entropy is uniform. Coins and choices are drawn for all labels
    alike, whatever they are; the size is ``width`` bytes per label, and width depends on K alone.
Edges:
    Each call draws fresh answers and is one release: draw a label once and keep it. A label outside 0..K-1
    is refused, as no mechanism knows it.
Paper: randomized response on labels.
"""

from dataclasses import InitVar, dataclass
from functools import lru_cache
from typing import Any, NoReturn, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dp_forward.errors import InvalidInput, refuse_if
from dp_forward.noise.released.coins import choices, coins
from dp_forward.noise.released.entropy import ENTROPY_IS_SECRET, keystream
from dp_forward.noise.released.exact_normal import Entropy
from dp_forward.privacy import (
    Deployment,
    Guarantee,
    KaryResponse,
    Mechanism,
    RandomizedResponse,
    ResponseWithPrior,
)
from dp_forward.privacy.response import checked_labels

BY_RELEASE = object()
"""Whoever makes a release says so with this."""

Labels = NDArray[np.int64]


def seal(name: str, way: str, values: NDArray[Any], made_by: object) -> NDArray[Any]:
    """Refuse what was not made by a release; else the values, which nobody can change any more."""
    rule, found = f"come out of {way.partition('(')[0]}()", type(values).__name__
    refuse_if(made_by is not BY_RELEASE, name, rule, found, f"Call {way}.")
    # An array on immutable bytes stays read-only whatever its flags are set to.
    kind = f"<i{values.itemsize}"
    fixed = np.frombuffer(values.astype(kind, copy=False).tobytes(), dtype=kind)
    return fixed.reshape(values.shape)


@final
@dataclass(frozen=True, slots=True, repr=False, eq=False)
class ReleasedLabels:
    """Answers that may leave (``values``, of so many ``labels``), and what each of them promises.

    Guarantees:
        Every instance came out of `release_labels`; its values cannot be changed, pickled or seen in a repr.
    """

    values: Labels
    labels: int
    guarantee: Guarantee
    made_by: InitVar[object] = None

    def __post_init__(self, made_by: object) -> None:
        sealed = seal("ReleasedLabels", "release_labels(labels, mechanism)", self.values, made_by)
        object.__setattr__(self, "values", sealed)

    @property
    def width(self) -> int:
        """Bytes per label: 1 for up to 256 labels, 2 for up to 65536, else 4."""
        return 1 if self.labels <= 1 << 8 else 2 if self.labels <= 1 << 16 else 4

    def to_bytes(self) -> bytes:
        """Little-endian unsigned integers of `width` bytes, in the order of the labels."""
        return self.values.astype(f"<u{self.width}").tobytes()

    def __len__(self) -> int:
        return len(self.values)

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError("A ReleasedLabels is never pickled or copied; send to_bytes().")

    def __repr__(self) -> str:
        return f"ReleasedLabels({len(self)} of {self.labels} kinds) -> {self.guarantee.promise}"


def draw_decisions(response: KaryResponse, vectors: NDArray[np.float64], entropy: Entropy) -> Labels:
    """One answer to each row of scores, as a row with 1 at the answer and 0 elsewhere."""
    answers = _answered(response.decide(vectors), response.labels, response.label_epsilon, entropy)
    rows = np.zeros(vectors.shape, dtype=np.int64)
    rows[np.arange(len(rows)), answers] = 1
    return rows


def release_labels(
    labels: ArrayLike, mechanism: RandomizedResponse | ResponseWithPrior, *, entropy: Entropy | None = None
) -> ReleasedLabels:
    """One answer for each of the ``labels`` (whole numbers 0..K-1); see the module."""
    # Exact types: a subclass could promise something else than is drawn.
    if type(mechanism) is not RandomizedResponse and type(mechanism) is not ResponseWithPrior:
        rule, found = "be randomized response to release labels", type(mechanism).__name__
        remedy = "Calibrate a RandomizedResponse."
        raise InvalidInput("mechanism", rule, getattr(mechanism, "name", found), remedy)
    entropy = keystream() if entropy is None else entropy
    true = checked_labels(labels, mechanism.labels)
    top = np.asarray(mechanism.top, dtype=np.int64)
    position = _position(true, top, mechanism.labels, entropy)
    answers = top[_answered(position, len(top), mechanism.label_epsilon, entropy)]
    return ReleasedLabels(answers, mechanism.labels, guarantee_of(mechanism), made_by=BY_RELEASE)


def _position(true: Labels, top: Labels, known: int, entropy: Entropy) -> Labels:
    """Where each label stands in ``top``; a uniform place for one that is not there."""
    places = np.full(known, -1, dtype=np.int64)
    places[top] = np.arange(len(top))
    place = places[true]
    if len(top) == known:  # public: no label can be outside
        return place
    return np.where(place < 0, choices(len(true), among=len(top), entropy=entropy), place)


def _answered(position: Labels, kinds: int, epsilon: float, entropy: Entropy) -> Labels:
    """Randomized response on 0..kinds-1."""
    if kinds == 1:
        return position
    keep = coins(len(position), log_odds=epsilon, others=kinds - 1, entropy=entropy)
    other = choices(len(position), among=kinds - 1, entropy=entropy)
    return np.where(keep, position, other + (other >= position))


@lru_cache(maxsize=16)
def guarantee_of(mechanism: Mechanism) -> Guarantee:
    """What a release by this mechanism promises."""
    return Deployment(mechanism).guarantee(assumptions=(ENTROPY_IS_SECRET,))
