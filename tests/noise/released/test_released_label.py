"""Released labels: exact coins, exact choices, and a type of its own."""

import copy
import itertools
import math
import pickle
from fractions import Fraction

import mpmath as mp
import numpy as np
import pytest
from scipy import stats

from audit.response_audit import audit_response
from dp_forward.errors import InvalidInput
from dp_forward.noise.released.coins import chance_floor, choices, coins
from dp_forward.noise.released.released_label import ReleasedLabels, release_labels
from dp_forward.noise.released.released_matrix import dequantise, release, release_batch, serialise
from dp_forward.privacy import (
    TEXT,
    Budget,
    KaryResponse,
    Prior,
    PrivUnit,
    RandomizedResponse,
    ResponseWithPrior,
    calibrate,
    normalise,
)

PLAIN = RandomizedResponse(1.5, 4)
PRIOR = ResponseWithPrior(1.0, Prior.public([0.4, 0.05, 0.35, 0.15, 0.05], where="a test"))


def _entropy(seed: int):
    return np.random.default_rng(seed).bytes


# Exact coins


@pytest.mark.parametrize("log_odds", [0.0, 1e-300, 2.197, 16.0, 60.3, 700.0, 1e300])
def test_a_chance_is_the_floor_of_the_true_one(log_odds: float) -> None:
    for sign, others, digits in itertools.product((1, -1), (1, 2, 999), (1, 64, 128, 448)):
        found = chance_floor(sign * log_odds, others, digits)
        if log_odds == 1e300:
            assert found == (2**digits - 1 if sign > 0 else 0)
            continue
        with mp.workdps(900):
            true = mp.mpf(2) ** digits / (1 + others * mp.exp(-sign * mp.mpf(log_odds)))
            assert found == int(mp.floor(true))


def test_a_coin_on_the_edge_is_decided_by_the_bits_that_follow() -> None:
    edge, longer = chance_floor(2.197, 1, 64), chance_floor(2.197, 1, 128)
    tail = longer - (edge << 64)
    for words, expected in [
        ([edge - 1], True),
        ([edge + 1], False),
        ([edge, tail - 1], True),
        ([edge, tail + 1], False),
        ([edge, tail, 0], True),
        ([edge, tail, 2**64 - 1], False),
    ]:
        supply = iter(words)
        heads = coins(1, log_odds=2.197, entropy=lambda n, it=supply: next(it).to_bytes(8, "little"))
        assert heads.tolist() == [expected]
        assert next(supply, None) is None, "no more bits than needed"


@pytest.mark.parametrize("among", [1, 2, 3, 7, 1000, 2**32 - 1, 2**32])
def test_a_choice_is_the_cell_of_its_number(among: int) -> None:
    rng = np.random.default_rng(among)
    cells = [int(c) for c in rng.integers(1, among, 20)] if among > 1 else []
    edges = [(c << 64) // among for c in cells]
    words = [
        0,
        2**64 - 1,
        *(e + i for e in edges for i in (-1, 0, 1)),
        *(int(w) for w in rng.integers(0, 2**63, 50)),
    ]
    extra = int(rng.integers(2**63))
    for word in words:
        supply = iter([word, *[extra] * 7])
        (chosen,) = choices(1, among=among, entropy=lambda n, it=supply: next(it).to_bytes(8, "little"))
        assert chosen == math.floor(Fraction((word << 64) + extra, 2**128) * among)


@pytest.mark.parametrize("byte", [b"\x00", b"\x7f", b"\x80", b"\xff"])
def test_no_entropy_makes_it_run_forever(byte: bytes) -> None:
    for mechanism in (PLAIN, PRIOR, RandomizedResponse(1e-12, 2), RandomizedResponse(500.0, 3)):
        assert len(release_labels([0, 1], mechanism, entropy=lambda n: byte * n)) == 2


# The law


def _fits(answers, row) -> float:
    """The p-value of these probabilities; cells that cannot be answered must be empty."""
    observed = np.bincount(answers, minlength=len(row))
    assert not observed[row == 0].any()
    if (row > 0).sum() == 1:
        return 1.0
    expected = row[row > 0] * len(answers)
    return float(stats.chisquare(observed[row > 0], expected * len(answers) / expected.sum()).pvalue)


@pytest.mark.parametrize(
    "mechanism", [PLAIN, PRIOR, RandomizedResponse(2.197, 2)], ids=["plain", "prior", "two"]
)
def test_answers_follow_the_transition_of_the_mechanism(mechanism) -> None:
    entropy, many = _entropy(1), 40_000
    for label, row in enumerate(mechanism.transition()):
        answers = release_labels(np.full(many, label), mechanism, entropy=entropy).values
        assert _fits(answers, row) > 1e-4
        tilted = row**1.15 / np.sum(row**1.15)
        if not np.allclose(tilted, row):
            assert _fits(answers, tilted) < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("response", [KaryResponse(1.5, 4), KaryResponse(2.197, 2)], ids=["four", "two"])
def test_one_hot_rows_follow_the_transition_of_the_response(response: KaryResponse) -> None:
    entropy, many, labels = _entropy(2), 40_000, response.labels
    for decision, row in enumerate(response.transition()):
        scores = np.full((1, labels), -2.0)
        scores[0, decision] = -1.0
        released = release_batch(np.broadcast_to(scores, (many, 1, labels)), response, entropy=entropy)
        values = np.concatenate([one.values for one in released])
        assert (values.sum(axis=1) == 1).all()
        assert set(np.unique(values)) == {0, 1}
        answers = values.argmax(axis=1)
        assert _fits(answers, row) > 1e-4
        tilted = row ** (1 / 0.9) / np.sum(row ** (1 / 0.9))
        assert _fits(answers, tilted) < 1e-6  # negative control: 0.9 of the noise


@pytest.mark.parametrize("bits", [8, 16])
def test_a_released_decision_is_one_row_of_the_answers_size(bits: int) -> None:
    response = KaryResponse(1.0, 5)
    strange = [np.nan, np.inf, -np.inf, 1e300, 5e-324, 0.0]
    for value in strange:
        released = release(np.full((1, 5), value), response, bits=bits)
        assert len(serialise(released)) == 5 * bits // 8
        assert released.step == 1.0
        assert np.array_equal(dequantise(released.values, response, bits), released.as_floats())
    assert repr(released) == "Released(1 x 5, step=1) -> 1.0-LDP per text"
    assert any("operating system" in line for line in released.guarantee.assumptions)
    for shape in ((1, 4), (2, 5), (5, 1)):
        with pytest.raises(InvalidInput, match="hidden"):
            release(np.zeros(shape), response, bits=bits)


def test_only_the_very_response_is_drawn() -> None:
    class Other(KaryResponse):
        __slots__ = ()

    with pytest.raises(InvalidInput, match="mechanism"):
        release(np.zeros((1, 2)), Other(1.0, 2))
    with pytest.raises(InvalidInput, match="mechanism"):
        release_labels([0, 1], KaryResponse(1.0, 2))  # type: ignore[arg-type]


def test_a_prior_with_one_label_worth_answering_answers_it_to_all() -> None:
    sure = ResponseWithPrior(0.5, Prior.public([0.01, 0.98, 0.01], where="a test"))
    assert len(sure.top) == 1
    assert set(release_labels([0, 1, 2] * 20, sure).values.tolist()) == {1}


@pytest.mark.parametrize("more", [0.0, 0.2], ids=["honest", "epsilon too high"])
def test_the_audit_passes_the_honest_and_catches_the_other(more: float) -> None:
    drawn, entropy = RandomizedResponse(PLAIN.label_epsilon + more, 4), _entropy(2)

    def sampler(labels, _):
        return release_labels(labels, drawn, entropy=entropy).values

    audit = audit_response(PLAIN, sampler, draws=20_000, rng=np.random.default_rng(0))
    assert audit.refuted == (more > 0)


def test_labels_are_drawn_independently_and_afresh() -> None:
    labels = np.zeros(4000, dtype=np.int64)
    first, second = (release_labels(labels, PLAIN).values for _ in range(2))
    assert (first != second).any()
    for a, b in ((first[1:], first[:-1]), (first, second)):
        assert abs(np.corrcoef(a, b)[0, 1]) < 5 / math.sqrt(len(a))


# The type


def test_labels_leave_as_bytes_of_a_width_that_the_number_of_labels_says() -> None:
    for kinds, width in ((2, 1), (256, 1), (257, 2), (65536, 2), (65537, 4)):
        released = release_labels([0, kinds - 1, 1], RandomizedResponse(1.0, kinds))
        data = serialise(released)
        assert len(data) == 3 * width == len(released.to_bytes())
        assert np.frombuffer(data, f"<u{width}").tolist() == released.values.tolist()


def test_released_labels_are_not_made_changed_copied_or_pickled() -> None:
    released = release_labels([0, 1, 2, 3], PLAIN)
    for attempt in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="to_bytes"):
            attempt(released)
    with pytest.raises(InvalidInput, match=r"come out of release_labels\(\)"):
        ReleasedLabels(np.zeros(3, dtype=np.int64), 4, released.guarantee)
    with pytest.raises(ValueError, match="read-only"):
        released.values[0] = 1
    with pytest.raises(ValueError, match="WRITEABLE"):
        released.values.setflags(write=True)


def test_released_labels_state_their_guarantee_and_no_values() -> None:
    released = release_labels([0, 1, 2, 3], PLAIN)
    assert repr(released) == "ReleasedLabels(4 of 4 kinds) -> 1.5-LDP per label"
    assert released.guarantee.mechanism == PLAIN
    assert any("operating system" in assumption for assumption in released.guarantee.assumptions)


@pytest.mark.parametrize("labels", [[0, 4], [-1], [0.5], [[0]], [True], ["a"], 3])
def test_only_known_labels_are_released(labels) -> None:
    with pytest.raises(InvalidInput, match="`labels`") as refused:
        release_labels(labels, PLAIN)
    assert "\n" not in str(refused.value)


def test_only_randomized_response_releases_labels() -> None:
    with pytest.raises(InvalidInput, match="randomized response"):
        release_labels([0], calibrate(PrivUnit, Budget(1.0), bound=normalise(), unit=TEXT))


def test_no_labels_are_released_as_nothing() -> None:
    assert release_labels(np.zeros(0, dtype=np.int64), PRIOR).to_bytes() == b""
