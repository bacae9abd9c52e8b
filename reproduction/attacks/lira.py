r"""Likelihood-ratio attack (LiRA, Carlini et al. 2022): membership, judged text by text.

One threshold for all texts is weak, since some are easy for every model. So the attacker trains *shadow*
models like the target, each on a random half of the texts. Text i then has scores from shadows that were
trained on it ("in") and from others ("out"), and the score is chosen to look Gaussian: the logit of the
confidence. With means and deviations of both, the target's score s_i is judged by

.. math:: \log N(s_i; \mu_i^{in}, \sigma_{in}) - \log N(s_i; \mu_i^{out}, \sigma_{out})  \qquad\text{(online)}

or, for an attacker who had no text when it trained its shadows, by how far s_i lies above "out" alone:
``(s_i - mu_i^out) / sigma_out`` (offline).

Where scores are Gaussian with a shift of d deviations, this reaches the best there is: a success of Phi(d/2).

Edges:
    A deviation from a few shadows is worse than none: below 32 in (and out) of a text, one deviation is taken
    for all texts.
Paper: not in it; stronger than its thresholds.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dp_forward.attacks.attack_result import AttackResult
from dp_forward.attacks.membership import checked_labels, threshold_attack
from dp_forward.errors import InvalidInput
from dp_forward.privacy.checks import count, finite_array
from dp_forward.progress import Count

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
TrainShadow = Callable[[NDArray[np.int64]], ArrayLike]
"""From the numbers of the texts to train on to the scores of *all* texts; see `logit_confidence`."""

_LEAST_CHANCE = 1e-18


def logit_confidence(probabilities: ArrayLike, labels: ArrayLike) -> Floats:
    """``ln p_y - ln(sum of the others)``: the score that LiRA works on."""
    chances = finite_array("probabilities", probabilities, ndim=2)
    place = np.arange(len(chances)), checked_labels(labels, chances)
    rest = np.array(chances)
    rest[place] = 0.0
    right, others = (np.log(np.maximum(share, _LEAST_CHANCE)) for share in (chances[place], rest.sum(axis=1)))
    return np.asarray(right - others)


def lira(
    target_scores: ArrayLike,
    target_members: ArrayLike,
    shadow_scores: ArrayLike,
    shadow_members: ArrayLike,
    *,
    offline: bool = False,
    seed: int = 0,
    ceiling: float | None = None,
) -> AttackResult:
    """Attack one target: scores [N] and who was a member [N], and the same of the shadows, [S, N] each."""
    target = finite_array("target_scores", target_scores, ndim=1)
    shadows = finite_array("shadow_scores", shadow_scores, ndim=2)
    if shadows.shape[1] != len(target):
        rule = f"be [shadows, {len(target)}]"
        raise InvalidInput("shadow_scores", rule, shadows.shape, "Score every text with every shadow.")
    members = _flags("target_members", target_members, target.shape)
    inside = _flags("shadow_members", shadow_members, shadows.shape)
    if (not offline and inside.sum(axis=0).min() < 1) or (~inside).sum(axis=0).min() < 1:
        raise InvalidInput(
            "shadow_members", "have every text in one shadow and out of another", "others", "Use halves()."
        )
    off, spread = _fitted(target, shadows, ~inside)
    judged = off / spread
    if not offline:
        off_in, spread_in = _fitted(target, shadows, inside)
        in_power, out_power = -0.5 * (off_in / spread_in) ** 2, -0.5 * judged**2
        judged = (in_power - np.log(spread_in)) - (out_power - np.log(spread))
    name = "membership, LiRA offline" if offline else "membership, LiRA"
    return threshold_attack(
        judged[members], judged[~members], seed=seed, direction="high", ceiling=ceiling, name=name
    )


def score_shadows(
    texts: int, train: TrainShadow, *, shadows: int = 16, seed: int = 0, progress: Count | None = None
) -> tuple[Floats, Bools]:
    """Train each shadow on a random half of the texts: its scores of all texts, and who was in; [S, N] both.

    ``progress`` is called with the shadows so far.
    """
    shadows = count("shadows", shadows, at_least=2, remedy="Use 16 or more.")
    inside = halves(texts, shadows, seed=seed)
    scores: list[Floats] = []
    for chosen in inside:
        scores.append(np.asarray(train(np.flatnonzero(chosen)), dtype=np.float64))
        if scores[-1].shape != (texts,):
            raise InvalidInput("scores", f"be {texts}", scores[-1].shape, "Score all texts, in their order.")
        if progress is not None:
            progress(len(scores))
    return np.stack(scores), inside


def halves(texts: int, shadows: int, *, seed: int) -> Bools:
    """Who is in which shadow [S, N]: half of the texts each, and each text in half of the shadows."""
    order = np.random.default_rng([seed, 0]).random((shadows, texts)).argsort(axis=0).argsort(axis=0)
    return np.asarray(order < shadows // 2)


def _fitted(target: Floats, scores: Floats, chosen: Bools) -> tuple[Floats, Floats]:
    """How far the target lies above the mean of the chosen shadows, and their deviation (one, if few)."""
    number = chosen.sum(axis=0)
    mean = np.where(chosen, scores, 0.0).sum(axis=0) / np.maximum(number, 1)
    squares = np.where(chosen, (scores - mean) ** 2, 0.0).sum(axis=0)
    if number.min() >= 32:
        variance = squares / (number - 1)
    else:
        free = max(1, int(np.maximum(number - 1, 0).sum()))
        # The mean of a few shadows is off by itself, and the target is a new draw.
        variance = squares.sum() / free * (1 + 1 / np.maximum(number, 1))
    return target - mean, np.maximum(np.sqrt(variance), 1e-6)


def _flags(name: str, value: ArrayLike, shape: tuple[int, ...]) -> Bools:
    flags = np.asarray(value)
    if flags.dtype != np.bool_ or flags.shape != shape:
        found = f"{flags.dtype} {flags.shape}"
        raise InvalidInput(name, f"be {shape}, true or false", found, "Say of every text whether it was one.")
    return flags
