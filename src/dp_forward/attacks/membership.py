"""Membership inference: was this text in the training set? Guessed from what a trained model answers.

A model is surer of texts that it was trained on. The attacker asks for a text, turns the answer into one
number (`confidence` of the true label, `entropy`, or `modified_entropy`) and compares it with a threshold.

    seen = answers(front, back, mechanism, members)                # [texts, labels]
    threshold_attack(entropy(seen), entropy(others), seed=0)

The threshold and its direction are found on one half of the texts, and the success is that on the other half,
with as many members as others: 0.5 is a coin.

What the promise allows (``ceiling``). A back that was trained from one stored release per record is a
function of these releases (and of the labels, which are known, or randomized and composed). Whether a
record's text is this one or any other is then told with at most the mechanism's ``guess_rate()``, whatever is
asked of the back later: answers to queries are computed from the back and the query, and the attacker has
both. A model that was trained on raw texts (`end-to-end`, or undefended) promises nothing here: leave the
ceiling out.

Paper: the entropy and confidence attacks of Section 6.2 (Tables 7 and 10).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.stats import mannwhitneyu

from dp_forward.attacks.attack_result import AttackResult, require_texts
from dp_forward.attacks.observations import observe_texts
from dp_forward.data import EncodedTexts, Record
from dp_forward.errors import InvalidInput
from dp_forward.privacy import Mechanism
from dp_forward.privacy.checks import finite_array, probability
from dp_forward.progress import Count
from dp_forward.split.device import pick_device
from dp_forward.split.halves import AnyBack, AnyFront

__all__ = ["SCORES", "answers", "drop_words", "entropy", "threshold_attack"]

Floats = NDArray[np.float64]

_TINY = 1e-300


@torch.inference_mode()
def answers(
    front: AnyFront,
    back: AnyBack,
    mechanism: Mechanism | None,
    texts: EncodedTexts,
    *,
    draws: int = 1,
    noiseless: bool = False,
    device: torch.device | str | None = None,
    progress: Count | None = None,
) -> Floats:
    """The model's probabilities [texts, labels], the mean over ``draws`` noisy queries of each text.

    Every query is a fresh release: an attacker who owns a text may ask as often as it likes. ``noiseless`` is
    the stronger attacker who holds the back itself and feeds it bounded matrices without noise.
    """
    place = pick_device(device)
    back.to(place).train(False)
    answered = []
    how: Any = {"draws": draws, "noiseless": noiseless, "device": place, "progress": progress}
    for matrices in observe_texts(front, mechanism, texts, **how):
        logits = back(matrices.flatten(0, 1)).logits
        # In float64: a model that is sure of its texts has probabilities that float32 rounds to 1.
        chances = torch.softmax(logits.double(), dim=-1).reshape(*matrices.shape[:2], -1)
        answered.append(chances.mean(dim=1).cpu().numpy())
    return np.concatenate(answered)


def confidence(probabilities: ArrayLike, labels: ArrayLike) -> Floats:
    """The probability of the true label; members have more of it."""
    chances = _checked(probabilities)
    return np.asarray(chances[np.arange(len(chances)), checked_labels(labels, chances)])


def entropy(probabilities: ArrayLike, labels: ArrayLike | None = None) -> Floats:
    """The entropy of ``probabilities`` in nats; members have less of it. ``labels`` are not needed."""
    chances = _checked(probabilities)
    return np.asarray(-np.sum(chances * np.log(np.maximum(chances, _TINY)), axis=1))


def modified_entropy(probabilities: ArrayLike, labels: ArrayLike) -> Floats:
    """Entropy that knows the label (Song and Mittal 2021): an answer that is sure and wrong has much."""
    chances = _checked(probabilities)
    place = np.arange(len(chances)), checked_labels(labels, chances)
    others = -chances * np.log1p(-np.minimum(chances, 1 - 2.0**-53))
    right = chances[place]
    others[place] = -(1 - right) * np.log(np.maximum(right, _TINY))
    return np.asarray(others.sum(axis=1))


SCORES: Final[Mapping[str, Callable[..., Floats]]] = MappingProxyType(
    {"entropy": entropy, "confidence": confidence, "modified-entropy": modified_entropy}
)
"""Name -> the number that an attacker looks at."""


def threshold_attack(
    member_scores: ArrayLike,
    other_scores: ArrayLike,
    *,
    seed: int,
    direction: Literal["high", "low"] | None = None,
    ceiling: float | None = None,
    name: str = "membership",
) -> AttackResult:
    """Tell members from others by one number (``member_scores``, ``other_scores``); see the module.

    ``ceiling`` is what the promise allows at most, and ``name`` what the result is called.
    ``direction`` says whether members score "high" or "low"; without it the first half of the texts decides.

    Edges:
        Of the larger group as many are drawn (by ``seed``) as the smaller one has. `roc` is over the half
        that decided nothing, or over all texts where the direction was given.
    """
    rng = np.random.default_rng(seed)
    members, others = (finite_array("scores", scores, ndim=1) for scores in (member_scores, other_scores))
    for what, scores in (("members", members), ("others", others)):
        require_texts(what, len(scores))
    size = min(len(members), len(others))
    members, others = (rng.permutation(scores)[:size] for scores in (members, others))
    half = size // 2
    signs = {way: sign for way, sign in (("high", 1.0), ("low", -1.0)) if direction in (None, way)}
    found = [(*_best_threshold(s * members[:half], s * others[:half]), way) for way, s in signs.items()]
    _, threshold, way = max(found, key=lambda one: one[0])
    members, others = signs[way] * members, signs[way] * others
    inside, outside = members[half:], others[half:]
    right = int(np.sum(inside >= threshold) + np.sum(outside < threshold))
    curve = roc(inside, outside) if direction is None else roc(members, others)
    details: Any = {"members_score": way, **curve}
    return AttackResult.from_counts(name, right, 2 * len(inside), chance=0.5, ceiling=ceiling, **details)


def roc(member_scores: Floats, other_scores: Floats) -> dict[str, float]:
    """AUC, and the share of members found while 1 % and 0.1 % of the others are accused; high is member."""
    above = mannwhitneyu(member_scores, other_scores, method="asymptotic").statistic
    falling = np.sort(other_scores)[::-1]
    limits = {"1": falling[int(0.01 * len(falling))], "0.1": falling[int(0.001 * len(falling))]}
    found = {f"tpr_at_{share}_percent_fpr": float(np.mean(member_scores > limits[share])) for share in limits}
    return {"auc": float(above) / (len(member_scores) * len(other_scores)), **found}


def _best_threshold(members: Floats, others: Floats) -> tuple[float, float]:
    """How many are told right at best, and the threshold; a member is what reaches it."""
    candidates = np.append(np.unique(np.concatenate([members, others])), np.inf)
    found = len(members) - np.searchsorted(np.sort(members), candidates, side="left")
    right = found + np.searchsorted(np.sort(others), candidates, side="left")
    best = int(np.argmax(right))
    return float(right[best]), float(candidates[best])


def drop_words(records: Iterable[Record], *, share: float, seed: int) -> Iterator[Record]:
    """The records with a ``share`` of their words left out, at least one word kept.

    Off unless asked for: a text with holes in it is told from a whole one by any model, trained on it or not,
    so the success of an attack on such texts says little about membership.

    Paper: Section 6.2 drops or replaces tokens of the test examples, to make the attack easier.
    """
    share = probability("share", share, remedy="Try 0.2.")
    rng = np.random.default_rng(seed)
    for record in records:
        second = None if record.second is None else _thinned(record.second, share, rng)
        yield record._replace(text=_thinned(record.text, share, rng), second=second)


def _thinned(text: str, share: float, rng: np.random.Generator) -> str:
    words = text.split()
    kept = rng.random(len(words)) >= share
    if words and not kept.any():
        kept[rng.integers(len(words))] = True
    return " ".join(word for word, keep in zip(words, kept, strict=True) if keep)


def _checked(probabilities: ArrayLike) -> Floats:
    chances = finite_array("probabilities", probabilities, ndim=2)
    if chances.min() < 0 or np.abs(chances.sum(axis=1) - 1).max() > 1e-3:
        raise InvalidInput("probabilities", "sum to 1 in every row", "others", "Take them from answers().")
    return chances


def checked_labels(labels: ArrayLike, chances: Floats) -> NDArray[Any]:
    """The number of a column of ``chances`` for each of its rows."""
    known = np.asarray(labels)
    if known.shape != (len(chances),) or known.dtype.kind not in "iu":
        raise InvalidInput("labels", f"be {len(chances)} whole numbers", known.shape, "One for every text.")
    if known.min() < 0 or known.max() >= chances.shape[1]:
        raise InvalidInput("labels", f"lie in 0 to {chances.shape[1] - 1}", "others", "Count from 0.")
    return known
