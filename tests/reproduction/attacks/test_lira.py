"""LiRA on simulated scores: as good as the best attacker there is, and a coin where there is nothing."""

import math

import numpy as np
import pytest

from dp_forward.attacks.membership import threshold_attack
from dp_forward.errors import InvalidInput
from reproduction.attacks.lira import halves, lira, logit_confidence, score_shadows

TEXTS, SPREAD = 4000, 20.0


def _phi(x: float) -> float:
    return 0.5 * (1 + math.erf(x / math.sqrt(2)))


def _simulated(shift: float, shadows: int, *, seed: int = 0):
    """Texts that are easy or hard for every model, and a little easier for one that was trained on them."""
    rng = np.random.default_rng(seed)
    ease = SPREAD * rng.standard_normal(TEXTS)
    inside = halves(TEXTS, shadows, seed=seed)
    members = rng.permutation(TEXTS) < TEXTS // 2
    scores = ease + shift * inside + rng.standard_normal(inside.shape)
    target = ease + shift * members + rng.standard_normal(TEXTS)
    return target, members, scores, inside


@pytest.mark.parametrize("shadows", [16, 128])
@pytest.mark.parametrize("offline", [False, True])
def test_a_gaussian_shift_is_found_as_well_as_can_be(shadows: int, offline: bool) -> None:
    target, members, scores, inside = _simulated(2.0, shadows)
    found = lira(target, members, scores, inside, offline=offline, ceiling=0.99)
    best, best_auc = _phi(1.0), _phi(2 / math.sqrt(2))
    few = shadows == 16  # means of eight shadows are a little off
    assert found.success <= best + 4 * math.sqrt(best * (1 - best) / found.trials)
    assert found.success > best - (0.05 if few else 0.03)
    assert best_auc - (0.03 if few else 0.01) < found.details["auc"] < best_auc + 0.02
    assert found.details["tpr_at_1_percent_fpr"] > 0.2
    assert (found.chance, found.trials, found.within_ceiling) == (0.5, TEXTS // 2, True)
    # One threshold for all texts sees only who is easy: that is why there is LiRA.
    plain = threshold_attack(target[members], target[~members], seed=0)
    assert plain.success < 0.56 < found.success


@pytest.mark.parametrize("offline", [False, True])
def test_without_a_shift_it_is_a_coin(offline: bool) -> None:
    found = lira(*_simulated(0.0, 16, seed=2), offline=offline)
    assert found.low <= 0.5 <= found.high
    assert found.details["auc"] == pytest.approx(0.5, abs=0.03)
    assert found.details["tpr_at_1_percent_fpr"] < 0.03


def _trained(learned_by: float, *, seed: int):
    """A training that learns its texts by so much, on texts that are easy or hard for every model."""
    rng = np.random.default_rng(seed)
    ease = SPREAD * rng.standard_normal(1000)

    def train(indices):
        learned = np.zeros(1000)
        learned[indices] = learned_by
        return ease + learned + rng.standard_normal(1000)

    return train


def test_the_shadows_are_trained_by_the_caller_on_halves() -> None:
    train, calls, told = _trained(3.0, seed=0), [], []

    def called(indices):
        calls.append(indices)
        return train(indices)

    scores, inside = score_shadows(1000, called, shadows=16, seed=4, progress=told.append)
    assert told == list(range(1, 17))
    assert all(400 < len(indices) < 600 for indices in calls)
    assert all(
        np.array_equal(np.flatnonzero(chosen), seen) for chosen, seen in zip(inside, calls, strict=True)
    )
    members = np.random.default_rng(5).permutation(1000) < 500
    found = lira(train(np.flatnonzero(members)), members, scores, inside, ceiling=0.8)
    assert found.low > 0.8
    assert not found.within_ceiling
    blind = lira(_trained(0.0, seed=1)([]), members, scores, inside)
    assert blind.low <= 0.5 <= blind.high, "a target that learned nothing is a coin"


def test_each_text_is_in_half_of_the_shadows() -> None:
    inside = halves(500, 16, seed=0)
    assert (inside.sum(axis=0) == 8).all()
    assert (np.abs(inside.sum(axis=1) - 250) < 70).all()
    assert not np.array_equal(inside, halves(500, 16, seed=1))


def test_the_logit_of_the_confidence_keeps_its_digits() -> None:
    found = logit_confidence([[0.5, 0.5], [1 - 1e-12, 1e-12], [1.0, 0.0], [0.2, 0.8]], [0, 0, 1, 1])
    assert found[:2] == pytest.approx([0.0, 12 * math.log(10)], rel=1e-6)
    assert np.isfinite(found).all()
    assert found[2] < -40
    assert found[3] == pytest.approx(math.log(4))


def test_what_does_not_fit_is_refused() -> None:
    target, members, scores, inside = _simulated(1.0, 4)
    never_in = inside.copy()
    never_in[:, 0] = False
    for wrong in (
        (target[:-1], members, scores, inside),
        (target, members[:-1], scores, inside),
        (target, members.astype(int), scores, inside),
        (target, members, scores[:, :-1], inside),
        (target, members, scores, never_in),
        (target, np.zeros_like(members), scores, inside),
        (np.full_like(target, np.nan), members, scores, inside),
    ):
        with pytest.raises(InvalidInput):
            lira(*wrong)
    assert lira(target, members, scores, never_in, offline=True).success > 0.6
    with pytest.raises(InvalidInput, match="shadows"):
        score_shadows(100, lambda indices: np.zeros(100), shadows=1)
    with pytest.raises(InvalidInput, match="scores"):
        score_shadows(100, lambda indices: np.zeros(99))
