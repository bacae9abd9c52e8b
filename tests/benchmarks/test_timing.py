"""Growth and memory: the right one is told from the wrong one."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from benchmarks.timing import Peak, slope


def test_the_slope_tells_linear_from_quadratic() -> None:
    sizes = (1.0, 2.0, 4.0, 8.0)
    assert slope([(x, 3 * x) for x in sizes]) == pytest.approx(1)
    assert slope([(x, 3 * x**2) for x in sizes]) == pytest.approx(2)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_peak_sees_what_was_held_and_given_back() -> None:
    peak = Peak()
    np.ones(8 << 20).sum()  # 64 MiB, gone at once
    assert 60 < peak.mib() < 90
    assert Peak().mib() < 5
