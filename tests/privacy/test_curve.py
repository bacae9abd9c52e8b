"""The Gaussian curve: right to 1e-9 everywhere, and never on the unsafe side."""

import math

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dp_forward.privacy import curve
from oracles import algorithm_1, gaussian_delta, gaussian_mu

# B(epsilon, delta) from 80-digit arithmetic.
KNOWN_MU = [
    (0.0, 0.5, "1.34897950039216348640445402908"),
    (0.0, 1e-10, "2.50662827463100050242232762229e-10"),
    (1e-6, 0.1, "0.251323830632033296367157679836"),
    (4.0, 1e-3, "1.21495214598455336347922879219"),
]


def _points() -> list[tuple[float, float]]:
    rng = np.random.default_rng(1)
    corners = [(epsilon, delta) for epsilon in (0.0, 1e-6, 1000.0) for delta in (1e-30, 0.5)]
    epsilons = np.concatenate([10 ** rng.uniform(-6, 3, 27), rng.uniform(0, 1000, 27)])
    deltas = 10 ** rng.uniform(-30, math.log10(0.5), 54)
    return [*corners, *zip(epsilons.tolist(), deltas.tolist(), strict=True)]


@pytest.mark.slow
def test_the_returned_noise_is_enough_in_exact_arithmetic_at_60_points() -> None:
    for epsilon, delta in _points():
        mu = curve.largest_mu(epsilon, delta)
        exact = gaussian_delta(epsilon, mu)
        assert exact <= mp.mpf(delta), (epsilon, delta)
        assert exact >= mp.mpf(delta) * (1 - mp.mpf("1e-9")), (epsilon, delta)


@pytest.mark.parametrize(("epsilon", "delta", "known"), KNOWN_MU)
def test_known_values_are_met_to_1e_9_from_below(epsilon: float, delta: float, known: str) -> None:
    ratio = mp.mpf(curve.largest_mu(epsilon, delta)) / mp.mpf(known)
    assert 1 - 1e-9 < ratio <= 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("epsilon", "delta"), [(1e-4, 1e-6), (3.0, 1e-8), (20.0, 1e-12), (100.0, 0.3), (709.9, 1e-5)]
)
def test_the_root_agrees_with_bisection_in_60_digits(epsilon: float, delta: float) -> None:
    assert math.isclose(curve.largest_mu(epsilon, delta), gaussian_mu(epsilon, delta), rel_tol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("delta", [1e-300, 1e-200, 1e-60, 0.9, 0.999999, 1 - 1e-12])
@pytest.mark.parametrize("epsilon", [0.0, 1e-9, 1.0, 50.0, 1000.0])
def test_extreme_deltas_stay_safe(epsilon: float, delta: float) -> None:
    mu = curve.largest_mu(epsilon, delta)
    exact = gaussian_delta(epsilon, mu)
    assert exact <= mp.mpf(delta)
    assert curve.epsilon(delta, mu) <= epsilon


@pytest.mark.slow
def test_the_error_of_log_delta_is_within_the_declared_slack() -> None:
    rng = np.random.default_rng(2)
    for epsilon, delta in zip(10 ** rng.uniform(-8, 3, 50), 10 ** rng.uniform(-300, 0, 50), strict=True):
        mu = curve.largest_mu(float(epsilon), min(float(delta), 0.999))
        error = mp.mpf(float(curve.log_delta(epsilon, mu)[0])) - mp.log(gaussian_delta(float(epsilon), mu))
        assert abs(error) < curve.LOG_SLACK / 2


def test_the_textbook_formula_is_a_trap_that_we_do_not_fall_into() -> None:
    """Negative control: the naive evaluation fails the very check that ours passes."""

    def naive(epsilon: float, mu: float) -> float:
        def cdf(x: float) -> float:
            return (1 + math.erf(x / math.sqrt(2))) / 2

        return cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * cdf(-mu / 2 - epsilon / mu)

    epsilon, delta = 40.0, 1e-12
    mu = curve.largest_mu(epsilon, delta)
    exact = float(gaussian_delta(epsilon, mu))
    assert not math.isclose(naive(epsilon, mu), exact, rel_tol=1e-3)
    assert math.isclose(curve.delta(epsilon, mu), exact, rel_tol=1e-9)


@pytest.mark.slow
@given(epsilon=st.floats(1e-3, 500), delta=st.floats(1e-30, 0.5))
def test_calibrating_and_accounting_are_inverse_and_never_pass_the_budget(
    epsilon: float, delta: float
) -> None:
    mu = curve.largest_mu(epsilon, delta)
    assert curve.delta(epsilon, mu) <= delta
    back = curve.epsilon(delta, mu)
    assert back <= epsilon
    assert math.isclose(back, epsilon, rel_tol=1e-8, abs_tol=1e-9)


@pytest.mark.slow
@given(epsilon=st.floats(0, 300), mu=st.floats(1e-3, 20), factor=st.floats(1.0001, 3))
def test_more_epsilon_or_more_noise_never_raises_delta(epsilon: float, mu: float, factor: float) -> None:
    assert curve.delta(epsilon * factor + 1e-3, mu) <= curve.delta(epsilon, mu)
    assert curve.delta(epsilon, mu / factor) <= curve.delta(epsilon, mu)


@pytest.mark.slow
@settings(deadline=None)
@given(epsilon=st.floats(0, 100), mu=st.floats(0.05, 15))
def test_the_epsilon_returned_is_enough_in_exact_arithmetic(epsilon: float, mu: float) -> None:
    delta = curve.delta(epsilon, mu)
    if not 1e-250 < delta < 0.999:
        return
    found = curve.epsilon(delta, mu)
    assert gaussian_delta(found, mu) <= mp.mpf(delta)


@pytest.mark.slow
@given(exponent=st.floats(-12, 7), delta=st.sampled_from([1e-300, 1e-40, 1e-5, 0.4, 0.9, 1 - 1e-13]))
def test_no_budget_however_silly_hangs_overflows_or_is_passed(exponent: float, delta: float) -> None:
    epsilon = 10**exponent
    mu = curve.largest_mu(epsilon, delta)
    assert 0 < mu < math.inf
    assert curve.delta(epsilon, mu) <= delta
    assert curve.epsilon(delta, mu) <= epsilon


def test_epsilon_zero_has_its_closed_form() -> None:
    from scipy.special import erfinv

    for delta in (1e-12, 1e-5, 0.1, 0.49, 0.6):
        known = 2 * math.sqrt(2) * float(erfinv(delta))
        assert math.isclose(curve.largest_mu(0.0, delta), known, rel_tol=1e-9)
    assert curve.epsilon(0.3, 0.5) == 0.0


def test_no_signal_needs_no_epsilon() -> None:
    assert curve.epsilon(1e-5, 0.0) == 0.0
    assert curve.delta(1.0, 0.0) == 0.0


def test_a_vanishing_mu_gives_a_vanishing_delta_without_warnings() -> None:
    assert curve.delta(1.0, 1e-310) == 0.0
    assert curve.hockey_stick([-2.0, 3.0], 0.0)[1] == 0.0


@pytest.mark.slow
@given(epsilon=st.floats(0.01, 30), mu=st.floats(0.05, 8))
def test_the_curve_is_symmetric_for_negative_epsilon(epsilon: float, mu: float) -> None:
    negative = float(curve.hockey_stick(-epsilon, mu)[0])
    with mp.workdps(60):
        e, m = mp.mpf(-epsilon), mp.mpf(mu)
        direct = mp.ncdf(m / 2 - e / m) - mp.exp(e) * mp.ncdf(-m / 2 - e / m)
    assert math.isclose(negative, float(direct), rel_tol=1e-10, abs_tol=1e-15)


@pytest.mark.parametrize("delta", [1e-10, 1e-5, 1e-2, 0.3])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0, 8.0, 16.0])
def test_algorithm_1_of_the_paper_finds_the_same_root(epsilon: float, delta: float) -> None:
    assert math.isclose(algorithm_1(epsilon, delta), curve.largest_mu(epsilon, delta), rel_tol=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize(("epsilon", "sigma"), [(0.5, 3.0), (1.0, 2.0), (4.0, 0.8), (8.0, 0.6)])
def test_dp_accounting_agrees(epsilon: float, sigma: float) -> None:
    from dp_accounting.pld import privacy_loss_distribution as pld

    theirs = pld.from_gaussian_mechanism(sigma, value_discretization_interval=1e-4)
    ours = curve.delta(epsilon, 1 / sigma)
    assert math.isclose(theirs.get_delta_for_epsilon(epsilon), ours, rel_tol=1e-3)
    assert theirs.get_delta_for_epsilon(epsilon) >= ours * (1 - 1e-9)


def test_prv_accountant_brackets_three_composed_releases() -> None:
    from prv_accountant import PRVAccountant
    from prv_accountant.privacy_random_variables import GaussianMechanism

    accountant = PRVAccountant(
        prvs=[GaussianMechanism(1.0)], eps_error=0.01, delta_error=1e-9, max_self_compositions=[3]
    )
    low, _, high = accountant.compute_epsilon(delta=1e-5, num_self_compositions=[3])
    ours = curve.epsilon(1e-5, math.sqrt(3))
    assert low <= ours <= high
    assert math.isclose(ours, 8.385418924, rel_tol=1e-9)
