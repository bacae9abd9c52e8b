"""Laws of pure releases through a shuffler."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dp_forward.errors import InvalidInput
from dp_forward.privacy.shuffling import shuffled_epsilon
from shuffling_deltas import shuffled_delta


def brute_force_delta(epsilon, local_epsilon, users):
    """Enumerate both distributions of (first, second) and sum what P has above e^epsilon Q."""
    clone, theta = math.exp(-local_epsilon), 1 / (1 + math.exp(-local_epsilon))
    p, q = {}, {}
    for k in range(users):
        weight = math.comb(users - 1, k) * clone**k * (1 - clone) ** (users - 1 - k)
        for a in range(k + 1):
            share = weight * math.comb(k, a) / 2**k
            for d, chance in ((1, theta), (0, 1 - theta)):
                one, two = (a + d, k - a + 1 - d), (a + 1 - d, k - a + d)
                p[one] = p.get(one, 0.0) + share * chance
                q[two] = q.get(two, 0.0) + share * chance
    return sum(max(0.0, p[pair] - math.exp(epsilon) * q.get(pair, 0.0)) for pair in p)


def closed_form_epsilon(delta: float, *, local_epsilon: float, users: int) -> float:
    """The closed form of the theorem of the clones: looser, and a check on the numbers.

    Edges:
        Returns ``local_epsilon`` where the condition
        ``local_epsilon <= ln(users / (16 ln(2 / delta)))`` fails or nothing is gained.
    """
    if local_epsilon > math.log(users / (16 * math.log(2 / delta))):
        return local_epsilon
    spread = math.exp(local_epsilon) / users
    gain = 8 * math.sqrt(spread * math.log(4 / delta)) + 8 * spread
    bound = math.log1p(math.tanh(local_epsilon / 2) * gain)
    return min(local_epsilon, bound * (1 + 1e-12))


@pytest.mark.parametrize("users", [1, 2, 3, 7, 20])
@pytest.mark.parametrize("local_epsilon", [0.1, 1.0, 3.0])
def test_delta_is_the_divergence_of_the_enumerated_pair(users, local_epsilon):
    for share in (0.0, 0.2, 0.5, 0.9):
        exact = brute_force_delta(share * local_epsilon, local_epsilon, users)
        computed = shuffled_delta(share * local_epsilon, local_epsilon=local_epsilon, users=users)
        assert exact * (1 - 1e-13) <= computed <= exact * (1 + 1e-9) + 1e-12


def test_the_enumeration_notices_a_wrong_number_of_users():
    computed = shuffled_delta(0.5, local_epsilon=1.0, users=20)
    assert computed < 0.99 * brute_force_delta(0.5, 1.0, 19)


@pytest.mark.parametrize(
    ("users", "local_epsilon", "central"),
    [
        (25_000, 1, 0.0261),
        (25_000, 4, 0.3071),
        (25_000, 8, 7.999),
        (67_349, 5, 0.3167),
        (67_349, 8, 6.358),
        (363_846, 3, 0.0378),
        (363_846, 8, 0.6815),
    ],
)
def test_the_printed_table_is_reproduced(users, local_epsilon, central):
    computed = shuffled_epsilon(1e-5, local_epsilon=local_epsilon, users=users)
    assert computed == pytest.approx(central, abs=1.01e-4, rel=3e-4)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    delta=st.floats(1e-30, 0.5),
    local_epsilon=st.floats(0.05, 60),
    users=st.integers(1, 20_000),
)
def test_central_never_exceeds_local_and_was_checked(delta, local_epsilon, users):
    central = shuffled_epsilon(delta, local_epsilon=local_epsilon, users=users)
    assert 0 <= central <= local_epsilon
    reached = shuffled_delta(central, local_epsilon=local_epsilon, users=users)
    assert reached <= delta * (1 + 1e-6)


def test_epsilon_is_not_needlessly_large():
    central = shuffled_epsilon(1e-6, local_epsilon=2.0, users=5000)
    assert shuffled_delta(central * (1 - 1e-6), local_epsilon=2.0, users=5000) > 1e-6


def test_more_users_hide_better():
    found = [shuffled_epsilon(1e-5, local_epsilon=2.0, users=n) for n in (1, 10, 100, 10_000, 10**6)]
    assert found == sorted(found, reverse=True)
    assert found[-1] < found[0] / 50


def test_blocks_of_clones_only_raise_delta(monkeypatch):
    from dp_forward.privacy.shuffling import clones

    exact = shuffled_delta(0.05, local_epsilon=1.0, users=20_000)
    monkeypatch.setattr(clones, "_MOST_POINTS", 60)
    blocked = shuffled_delta(0.05, local_epsilon=1.0, users=20_000)
    assert exact < blocked < 1.05 * exact


def test_edges_give_the_local_epsilon():
    assert shuffled_epsilon(0, local_epsilon=1.5, users=1000) == 1.5
    assert shuffled_epsilon(1e-5, local_epsilon=50, users=363_846) == pytest.approx(50, rel=1e-6)
    assert shuffled_epsilon(1e-5, local_epsilon=800, users=363_846) == 800
    assert shuffled_epsilon(1e-5, local_epsilon=2, users=1) == pytest.approx(2, rel=1e-4)
    assert shuffled_epsilon(1e-300, local_epsilon=1, users=10_000) == 1
    assert shuffled_delta(2.0, local_epsilon=2.0, users=10) == 0
    assert shuffled_delta(700.0, local_epsilon=800, users=10) == 1


def test_tiny_delta_still_amplifies():
    assert 0.02 < shuffled_epsilon(1e-30, local_epsilon=1, users=363_846) < 0.03


@pytest.mark.parametrize("local_epsilon", [0.5, 1.0, 3.0, 5.0])
def test_the_closed_form_is_looser(local_epsilon):
    loose = closed_form_epsilon(1e-6, local_epsilon=local_epsilon, users=100_000)
    tight = shuffled_epsilon(1e-6, local_epsilon=local_epsilon, users=100_000)
    assert tight < loose <= local_epsilon


def test_the_closed_form_needs_its_condition():
    assert closed_form_epsilon(1e-6, local_epsilon=1.0, users=1_000) == pytest.approx(0.5662014894828)
    assert closed_form_epsilon(1e-6, local_epsilon=3.0, users=1_000) == 3.0


@pytest.mark.parametrize("wrong", [{"delta": 1.0}, {"local_epsilon": 0.0}, {"users": 0}])
def test_wrong_numbers_are_refused(wrong):
    arguments = {"delta": 1e-5, "local_epsilon": 1.0, "users": 100} | wrong
    with pytest.raises(InvalidInput, match=next(iter(wrong))):
        shuffled_epsilon(arguments.pop("delta"), **arguments)


def test_weights_are_a_distribution():
    from dp_forward.privacy.shuffling.clones import Clones

    pair = Clones.of(local_epsilon=1.0, users=50_000, log_tail=-40)
    assert np.sum(pair.weights) == pytest.approx(1, abs=1e-12)
    assert float(pair.weights @ pair.counts) == pytest.approx(49_999 * math.exp(-1), rel=1e-4)
