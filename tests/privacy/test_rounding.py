"""What may be expected is printed rounded down, what is promised rounded up."""

import pytest

from dp_forward.privacy.rounding import percent_down, percent_up


@pytest.mark.parametrize(
    ("rate", "down", "up"),
    [(0.98222, "98.2 %", "98.3 %"), (0.999651, "99.96 %", "99.97 %"), (0.5, "50 %", "50 %")],
)
def test_a_percentage_is_rounded_to_the_safe_side(rate: float, down: str, up: str) -> None:
    assert (percent_down(rate), percent_up(rate)) == (down, up)
