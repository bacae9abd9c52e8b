"""The noise that a budget needs, against reference values."""

import math

import pytest

pytest.importorskip("opacus")

from dp_forward.errors import InvalidInput
from dp_forward.train.dpsgd.accounting import as_replace_one, epsilon_of, noise_multiplier_for, sampling


@pytest.mark.slow
def test_the_noise_multiplier_is_the_reference_rounded_to_the_safe_side() -> None:
    # 25,000 records, batches of 32, three epochs, delta 1e-5: the exact value by privacy-loss distributions.
    exact = 0.6982679341457687
    found = noise_multiplier_for(1.0, delta=1e-5, sample_rate=0.00128, steps=2344)
    assert exact < found < 1.005 * exact
    assert 0.98 < epsilon_of([(found, 0.00128, 2344)], delta=1e-5) <= 1.0
    assert epsilon_of([(exact * 0.98, 0.00128, 2344)], delta=1e-5) > 1.0


def test_steps_without_noise_have_no_epsilon() -> None:
    assert epsilon_of([(1.0, 0.01, 100), (0.0, 0.01, 1)], delta=1e-5) == math.inf


def test_replacing_a_record_is_removing_one_and_adding_another() -> None:
    epsilon, delta = as_replace_one(1.0, 1e-5)
    assert epsilon == 2.0
    assert delta == pytest.approx((1 + math.e) * 1e-5)


def test_a_batch_of_all_records_is_refused() -> None:
    with pytest.raises(InvalidInput, match="`batch`"):
        sampling(8, 8)
