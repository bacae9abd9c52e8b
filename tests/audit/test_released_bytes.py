"""The audit of released bytes: honest mechanisms pass, the floor is a floor, and lies are seen."""

import numpy as np
import pytest

from audit.mutants import reused, seeded
from dp_forward.audit import draw_checks
from dp_forward.audit.claims import bounded_vectors, claim_of
from dp_forward.audit.draw_checks import audit_draws
from dp_forward.audit.epsilon_floor import epsilon_floor, largest_floor
from dp_forward.audit.findings import Finding
from dp_forward.audit.released_bytes import (
    audit_matrices,
    audit_released,
    opposed,
    shared_noise,
    usual_draws,
)
from dp_forward.errors import InvalidInput
from dp_forward.noise.folded_record import FoldedCode
from dp_forward.noise.released.released_matrix import dequantise, release_batch
from dp_forward.privacy import NoiseSpec
from reference_samplers import signal

CHOICES = [
    NoiseSpec(mechanism="privunit", epsilon=1.0),
    NoiseSpec(mechanism="privunit", epsilon=8.0, threshold_share=0.5),
    NoiseSpec(mechanism="privunit", epsilon=4.0, unit="token", rows=8),
    NoiseSpec(mechanism="matrix-gaussian", epsilon=8.0),
    NoiseSpec(mechanism="gaussian", epsilon=1.0, how="clip"),
    NoiseSpec(mechanism="matrix-gaussian", epsilon=4.0, unit="phrase:2", rows=8),
]


def _seeded(choice: NoiseSpec, seed: int, bits: int = 16):
    entropy, mechanism = np.random.default_rng(seed).bytes, choice.build()
    return lambda hidden: [one.values for one in release_batch(hidden, mechanism, bits=bits, entropy=entropy)]


@pytest.mark.slow
@pytest.mark.parametrize("choice", CHOICES, ids=str)
def test_an_honest_release_is_not_refuted_and_its_claim_is_met(choice: NoiseSpec) -> None:
    audit = audit_released(choice.build(), draws=3000, draw=_seeded(choice, 1))
    assert not audit.refuted, audit.refuted_by
    assert audit.claimed_epsilon == pytest.approx(choice.epsilon, rel=1e-6)
    assert audit.epsilon_refuting_bound <= audit.epsilon_lower_bound <= audit.epsilon_most_shown
    assert audit.epsilon_lower_bound < audit.claimed_epsilon
    assert abs(audit.z) < 4
    pure = choice.mechanism == "privunit"
    assert (audit.mu_claimed is None) == pure
    assert (audit.cap_share_claimed is None) != pure


def _decision(epsilon: float, labels: int) -> NoiseSpec:
    return NoiseSpec(mechanism="k-ary-response", epsilon=epsilon, columns=labels)


RESPONSES = [
    (1.0, 2),
    (4.0, 5),
    pytest.param(6.0, 2, marks=pytest.mark.slow),
    pytest.param(8.0, 20, marks=pytest.mark.slow),
]


@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize(("epsilon", "labels"), [(0.5, 2), (2.0, 20), (8.0, 3)])
def test_an_honest_decision_is_not_refuted(epsilon: float, labels: int, bits: int) -> None:
    choice = _decision(epsilon, labels)
    audit = audit_released(choice.build(), draws=3000, bits=bits, draw=_seeded(choice, 1, bits))
    assert not audit.refuted, audit.refuted_by
    assert (audit.claimed_epsilon, audit.delta) == (epsilon, 0.0)
    assert audit.epsilon_lower_bound <= audit.epsilon_most_shown
    assert audit.cap_share_measured == pytest.approx(audit.cap_share_claimed, abs=0.05)
    assert audit.mu_claimed is None


@pytest.mark.slow
@pytest.mark.parametrize(("epsilon", "labels"), RESPONSES)
def test_a_decision_with_a_tenth_less_noise_is_refuted(epsilon: float, labels: int) -> None:
    claimed = _decision(epsilon, labels).build()
    draws = usual_draws(claimed)
    honest = audit_released(claimed, draws=draws, draw=_seeded(_decision(epsilon, labels), 2))
    assert not honest.refuted, honest.refuted_by
    louder = audit_released(claimed, draws=draws, draw=_seeded(_decision(epsilon / 0.9, labels), 2))
    assert "share of the decision" in louder.refuted_by


def test_answers_that_are_not_alike_fresh_or_one_hot_are_refuted() -> None:
    choice = _decision(1.0, 4)
    claimed, honest, rng = choice.build(), _seeded(choice, 3), np.random.default_rng(4)

    def next_one(hidden):
        """The right share of decisions; whoever misses takes the label behind it."""
        answers = claimed.decide(hidden[:, 0])
        away = (answers + (rng.random(len(answers)) > claimed.keep)) % 4
        return np.eye(4, dtype=np.int16)[away][:, None]

    def in_pairs(hidden):
        return np.repeat(np.stack(honest(hidden[::2])), 2, axis=0)

    def louder(hidden):
        return 2 * np.stack(honest(hidden))

    for draw, what in (
        (next_one, "share of one other answer"),
        (in_pairs, "pairs of answers that fell alike"),
        (louder, "releases that are not one-hot"),
    ):
        assert what in audit_released(claimed, draws=2000, draw=draw).refuted_by
    both = _seeded(choice, 5)(np.broadcast_to(np.arange(4.0), (2000, 1, 4)))
    same = [dequantise(np.stack(both), claimed, 16)] * 2
    pair = (np.array([[0.0, 1.0, 2.0, 3.0]]), np.array([[1.0, 0.0, 2.0, 3.0]]))
    assert audit_matrices(claimed, *same, pair=pair).refuted_by == ("pairs of answers that fell alike",)


@pytest.mark.slow
def test_the_draws_of_a_decision_are_looked_at_as_others_are() -> None:
    response = _decision(8.0, 3).build()
    assert not [one for one in audit_draws(response) if one.refuted]
    for broken in (reused, seeded):
        with broken():
            refuted = [one.what for one in audit_draws(response) if one.refuted]
        assert refuted == ["noise shared by threads or forks"]


def test_forks_that_gave_nothing_in_time_share_no_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draw_checks, "_in_fork", lambda work: b"")
    for choice in (_decision(8.0, 3), CHOICES[3]):
        assert not [one for one in audit_draws(choice.build()) if one.refuted]


@pytest.mark.slow
@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize("name", ["privunit", "matrix-gaussian"])
def test_noise_for_a_larger_budget_is_refuted(name: str, bits: int) -> None:
    claimed = NoiseSpec(mechanism=name, epsilon=4.0)
    drawn = NoiseSpec(mechanism=name, epsilon=5.0)
    step = claim_of(drawn.build(), bits=bits).mechanism.sigma / claim_of(claimed.build()).mechanism.sigma
    draw = _seeded(drawn, 2, bits)

    def disguised(hidden):
        """On the claimed scale, as a sender who lies about the budget would put it."""
        factor = step if name == "privunit" else 1.0
        return [np.rint(one * factor).astype(one.dtype) for one in draw(hidden)]

    honest = audit_released(claimed.build(), draws=3000, bits=bits, draw=_seeded(claimed, 2, bits))
    assert not honest.refuted, honest.refuted_by
    assert audit_released(claimed.build(), draws=3000, bits=bits, draw=disguised).refuted


@pytest.mark.slow
def test_three_honest_audits_in_a_row_pass_with_fresh_entropy() -> None:
    for choice in (CHOICES[1], CHOICES[3]):
        for _ in range(3):
            audit = audit_released(choice.build(), draws=1000)
            assert not audit.refuted, audit.refuted_by


@pytest.mark.slow
def test_the_cap_share_that_is_claimed_knows_about_rounding() -> None:
    claim = claim_of(NoiseSpec(mechanism="privunit", epsilon=8.0).build())
    rng = np.random.default_rng(3)
    s = signal(claim.mechanism, 400_000, rng)
    seen = np.mean(
        s + rng.uniform(-0.5, 0.5, (400_000, 12)).sum(axis=1) / 12**0.5 / 8 >= claim.mechanism.threshold
    )
    assert seen == pytest.approx(claim.cap_share, abs=0.004)
    assert claim.cap_share < claim.mechanism.cap_probability - 0.01, "the control: without rounding"


@pytest.mark.slow
@pytest.mark.parametrize("width", [1, 2, 64])
def test_rounding_along_few_entries_is_no_broken_promise(width: int) -> None:
    """In one dimension the cells of the grid lie where they lie, and t is not at an edge of one."""
    for epsilon in (8.0, 50.0):
        choice = NoiseSpec(mechanism="privunit", epsilon=epsilon)
        audit = audit_released(choice.build(), rows=1, width=width, draws=1000, draw=_seeded(choice, 7))
        assert not audit.refuted, audit.refuted_by
    claimed, drawn = (NoiseSpec(mechanism="privunit", epsilon=epsilon) for epsilon in (1.0, 3.0))
    assert audit_released(claimed.build(), rows=1, width=width, draws=1000, draw=_seeded(drawn, 7)).refuted, (
        "the control"
    )


def test_opposed_inputs_lie_at_the_full_sensitivity() -> None:
    for choice in CHOICES:
        mechanism = choice.build()
        first, second = opposed(mechanism, rows=8, width=16)
        bound = claim_of(mechanism).bound
        assert np.linalg.norm(first - second) == pytest.approx(bound.reach(mechanism.unit), rel=1e-9)


def test_our_own_bound_agrees_with_the_product_and_takes_anything() -> None:
    rng = np.random.default_rng(4)
    for choice in CHOICES:
        bound = choice.bound
        for scale in (1e-9, 0.1, 1e9):
            hidden = scale * rng.standard_normal((8, 16))
            ours = bounded_vectors(hidden, bound).reshape(8, 16)
            np.testing.assert_allclose(ours, bound.apply(hidden), atol=1e-6)
    assert np.isfinite(bounded_vectors(np.full((8, 16), np.nan), CHOICES[0].bound)).all()


def test_two_inputs_that_the_bound_makes_one_are_refused() -> None:
    mechanism = CHOICES[3].build()
    x = np.ones((8, 16))
    releases = np.stack([one.as_floats() for one in release_batch(np.stack([x] * 20), mechanism)])
    with pytest.raises(InvalidInput, match="pair"):
        audit_matrices(mechanism, releases, releases, pair=(x, 2 * x))
    with pytest.raises(InvalidInput, match="draws"):
        audit_released(mechanism, draws=3)
    with pytest.raises(InvalidInput, match="mechanism"):
        audit_released(NoiseSpec(mechanism="mvg", rows=8, columns=16).build(), draws=100)


@pytest.mark.slow
def test_the_floor_holds_with_its_level_and_finds_what_is_there() -> None:
    """Randomized response at epsilon 1: the floor may pass 1 in five of a hundred audits."""
    rng, p = np.random.default_rng(5), 1 / (1 + np.exp(-1.0))
    floors = []
    for _ in range(200):
        first, second = (rng.random(1000) < p).astype(float), (rng.random(1000) > p).astype(float)
        floors.append(epsilon_floor(first, second, delta=0.0))
    assert np.mean(np.array(floors) > 1.0) <= 0.05 + 3 * (0.05 * 0.95 / 200) ** 0.5
    assert 0.6 < np.median(floors) < 1.0
    apart = epsilon_floor(np.ones(1000), np.zeros(1000), delta=1e-5)
    assert apart == pytest.approx(largest_floor(1000), abs=0.02)
    assert epsilon_floor(np.arange(100.0), np.arange(100.0), delta=0.0) == 0.0
    with pytest.raises(InvalidInput, match="scores"):
        epsilon_floor(np.ones(3), np.ones(3), delta=0.0)


def test_a_measurement_that_is_not_a_number_refutes() -> None:
    assert Finding("x", 1.0, float("nan"), float("nan")).refuted
    assert Finding("x", 1.0, 1.1).refuted
    assert not Finding("x", 1.0, 1.1, z=3.9).refuted


def test_shared_noise_is_seen_and_independent_noise_is_not() -> None:
    rng = np.random.default_rng(6)
    for _ in range(20):
        rows = rng.standard_normal((100, 40))
        assert not shared_noise(rows, 40)[0].refuted
    rows[7] = 0.5 * rows[3] + 0.1 * rows[7]
    assert shared_noise(rows, 40)[0].refuted
    assert shared_noise(rows, 8) == [], "in few dimensions chance comes close"


@pytest.mark.slow
@pytest.mark.parametrize("choice", CHOICES[1:5], ids=str)
def test_draws_are_total_of_one_size_text_by_text_and_fresh(choice: NoiseSpec) -> None:
    found = audit_draws(choice.build())
    assert len(found) == 4
    assert not [one for one in found if one.refuted]


@pytest.mark.slow
def test_records_of_other_text_and_label_are_hidden_by_one_epsilon_and_less_noise_is_caught() -> None:
    """Folded records that differ in text, in label or in both; a sampler at epsilon / 0.9 is refuted."""
    code, claimed = FoldedCode(3, 6), NoiseSpec(epsilon=4.0, unit="record").build()
    directions = np.random.default_rng(4).standard_normal((2, 6))
    first = code.fold(directions[:1], np.array([0]))
    for rows, label in ((directions[1:], 0), (directions[:1], 2), (-directions[:1], 1)):
        other = code.fold(rows, np.array([label]))
        assert not audit_released(claimed, pair=(first, other), draws=4000).refuted
    louder = NoiseSpec(epsilon=4.0 / 0.9, unit="record").build()

    def false(batch):
        return [one.values for one in release_batch(np.asarray(batch), louder)]

    # The wrong threshold and odds, under the claim of epsilon 4.
    assert audit_released(claimed, pair=(first, other), draws=30_000, draw=false).refuted
