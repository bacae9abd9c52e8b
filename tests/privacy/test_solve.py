"""The search that ends on the safe side."""

import math

from hypothesis import given
from hypothesis import strategies as st

from dp_forward.privacy.solve import last_safe


@given(root=st.floats(1e-12, 1e12), power=st.sampled_from([1, 2, 3, 7]))
def test_it_ends_on_the_safe_side_and_close(root: float, power: int) -> None:
    def slack(x: float) -> float:
        return 1 - (x / root) ** power

    found = last_safe(slack, safe=0.0, unsafe=root * 50)
    assert slack(found) >= 0
    assert math.isclose(found, root, rel_tol=1e-12)


def test_it_works_downwards_and_with_infinite_slack() -> None:
    def slack(x: float) -> float:
        return math.log(x) if x > 0 else -math.inf

    found = last_safe(slack, safe=10.0, unsafe=0.0)
    assert found >= 1
    assert math.isclose(found, 1.0, rel_tol=1e-12)


def test_an_end_that_is_safe_after_all_is_returned() -> None:
    assert last_safe(lambda x: 1.0, safe=0.0, unsafe=3.0) == 3.0


def test_a_step_function_is_closed_in_on() -> None:
    found = last_safe(lambda x: 1.0 if x <= 0.3 else -1.0, safe=0.0, unsafe=1.0)
    assert 0.3 - 1e-12 <= found <= 0.3


def test_few_evaluations_are_enough_for_a_smooth_law() -> None:
    calls = 0

    def slack(x: float) -> float:
        nonlocal calls
        calls += 1
        return 2 - math.exp(x)

    last_safe(slack, safe=0.0, unsafe=5.0)
    assert calls < 25
