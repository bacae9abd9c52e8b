"""Growth and memory: the right one is told from the wrong one."""

from __future__ import annotations

import mmap
import sys

import pytest

from benchmarks.timing import Peak, slope


def test_the_slope_tells_linear_from_quadratic() -> None:
    sizes = (1.0, 2.0, 4.0, 8.0)
    assert slope([(x, 3 * x) for x in sizes]) == pytest.approx(1)
    assert slope([(x, 3 * x**2) for x in sizes]) == pytest.approx(2)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_peak_sees_what_was_held_and_given_back() -> None:
    peak = Peak()
    # Pages of its own: an array might lie in memory that an earlier test gave back and the process kept.
    with mmap.mmap(-1, 64 << 20) as held:
        for page in range(0, len(held), mmap.PAGESIZE):
            held[page] = 1
    assert 60 < peak.mib() < 90
    assert Peak().mib() < 5
