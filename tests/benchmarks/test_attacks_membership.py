"""The ceiling of membership against DP-SGD."""

import math

import pytest

from benchmarks.attacks_membership import membership_ceiling
from dp_forward.errors import InvalidInput


def test_membership_of_a_private_training() -> None:
    assert membership_ceiling(0.0) == pytest.approx(0.5)
    assert membership_ceiling(8.0, 1e-5) == pytest.approx((math.exp(8) + 1e-5) / (1 + math.exp(8)), rel=1e-12)
    # (0, delta): a pair at total variation delta is told apart with (1 + delta) / 2.
    assert membership_ceiling(0.0, 0.2) == pytest.approx(0.6)
    assert membership_ceiling(1000.0, 0.1) == 1.0
    with pytest.raises(InvalidInput, match="epsilon"):
        membership_ceiling(-1.0)
