"""Quantiles in integers: what is said about their error holds, and is not far off."""

import mpmath as mp
import numpy as np
import pytest

from dp_forward.noise.released.quantiles import LEAST_PRECISION, quantile, twice_tail


def _encloses(number: int, slack: int, bits: int, precision: int, off: int = 0) -> bool:
    """Whether z +- error holds every z whose 2 Q(z) is within slack of number."""
    z, error = quantile(number, slack=slack, bits=bits, precision=precision)
    assert error is not None
    low, high = (mp.mpf(z + off + side) / mp.mpf(2) ** precision for side in (-error, error))
    scale = mp.mpf(2) ** bits
    above, below = (mp.erfc(end / mp.sqrt(2)) * scale for end in (low, high))
    return bool(above >= number + slack and below <= number - slack)


@pytest.mark.slow
@pytest.mark.parametrize(("bits", "precision"), [(65, 64), (128, 80), (192, 144), (512, 400), (900, 80)])
def test_a_quantile_is_enclosed_and_an_enclosure_is_not_wide(bits: int, precision: int) -> None:
    rng = np.random.default_rng(bits)
    with mp.workdps(300):
        for shift in (0, 1, 2, 10, 25, 40):
            for slack in (1, 3):
                number = max(
                    1 << 12, int.from_bytes(rng.bytes(bits // 8 + 1), "little") % (1 << (bits - shift))
                )
                assert _encloses(number, slack, bits, precision)
                _, error = quantile(number, slack=slack, bits=bits, precision=precision)
                width = 2 * slack * 2**precision / number
                assert error is not None
                assert error < 40 + 2 * width
                # Negative control: twice its error away, it no longer is.
                assert not _encloses(number, slack, bits, precision, off=2 * error)


def test_the_middle_of_the_law_is_enclosed() -> None:
    with mp.workdps(100):
        for number in (1 << 128, (1 << 128) - 1, (1 << 128) - (1 << 60)):
            assert _encloses(number, 1, 128, 80)


def test_too_vague_a_number_has_no_error_but_still_a_value() -> None:
    for number, slack in ((1, 1), (100, 50), (0, 1)):
        z, error = quantile(number, slack=slack, bits=128, precision=LEAST_PRECISION)
        assert error is None
        assert 0 < z < 60 << LEAST_PRECISION


@pytest.mark.parametrize(
    "x", [0.0, 1.5, -1.5, 0.397, 2.0**-20, 6.0, -35.0, 35.0, 1e-280, -1e-280, 5e-324, -5e-324]
)
def test_tails_are_enclosed_within_one(x: float) -> None:
    for bits in (80, 500, 880):
        with mp.workdps(400):
            true = mp.erfc(mp.mpf(x) / mp.sqrt(2)) * mp.mpf(2) ** bits
            found = twice_tail(x, bits)
            assert found <= true <= found + 1
