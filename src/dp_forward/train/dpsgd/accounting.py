"""Privacy accounting of DP-SGD by Opacus's PRV accountant: noise for a budget, epsilon of the steps taken.

One step draws each record with probability ``sample_rate`` (Poisson), clips its gradient to norm C, sums, and
adds Gaussian noise of deviation ``noise_multiplier * C``. The relation is *add or remove one record*, with C
as the sensitivity. Our own central numbers are for *replace one*, the stricter notion: see `as_replace_one`.

Paper: the accounting of the DP-SGD baseline (Abadi et al. 2016).
"""

import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache

from dp_forward.errors import InvalidInput, refuse_if
from dp_forward.privacy import checks

__all__ = ["as_replace_one"]

# PRV asks RDP only for how far to look; that RDP could be tighter does not matter there.
_LOOSE_RDP = "Optimal order is the"


def sampling(records: int, batch: int) -> tuple[float, int]:
    """Opacus's sampling of ``records`` in batches of about ``batch``: rate of a step, steps of an epoch."""
    rule = f"be smaller than the number of records, {records}"
    refuse_if(batch >= records, "batch", rule, batch, "Use a smaller batch.")
    rate = 1 / math.ceil(records / batch)
    return rate, int(1 / rate)


@lru_cache(maxsize=64)  # the search takes seconds for a long run
def noise_multiplier_for(epsilon: float, *, delta: float, sample_rate: float, steps: int) -> float:
    """The least noise multiplier that Opacus finds for a budget over ``steps`` steps.

    Guarantees:
        ``epsilon_of`` the result is at most ``epsilon``.
    Edges:
        The accountant reports the upper end of its error band, about 0.01 wide, so the result is 0.05 % to
        0.4 % above the exact one for epsilon 8 to 1. It follows the removal of a record, which costs more
        than an addition at all these settings.
    """
    from opacus.accountants.utils import get_noise_multiplier  # type: ignore[import-untyped]

    target, delta = checks.epsilon(epsilon), checks.delta(delta, zero=False)
    band = _error_band(target)
    try:
        with ignore_warning(_LOOSE_RDP):
            found = get_noise_multiplier(
                target_epsilon=target,
                target_delta=delta,
                sample_rate=sample_rate,
                steps=steps,
                accountant="prv",
                epsilon_tolerance=band,
                eps_error=band,
            )
    except ValueError:
        found = 0.0
    if not epsilon_of([(found, sample_rate, steps)], delta=delta, near=target) <= target:
        rule, remedy = "be within reach of DP-SGD here", "Ask for more, or train less."
        raise InvalidInput("epsilon", rule, target, remedy)
    return float(found)


def epsilon_of(history: Sequence[tuple[float, float, int]], *, delta: float, near: float = 1.0) -> float:
    """The epsilon of some steps by Opacus's accountant; infinite without noise.

    ``history`` has noise multiplier, sampling rate and number of steps, in order. ``near`` is the epsilon
    expected: below 0.5 the accountant is asked for a narrower error band.
    """
    from opacus.accountants import PRVAccountant  # type: ignore[import-untyped]

    if any(noise == 0 for noise, _, _ in history):
        # The accountant divides by it; a sum without noise hides nothing.
        return math.inf
    accountant = PRVAccountant()
    accountant.history = list(history)
    with ignore_warning(_LOOSE_RDP):
        return float(accountant.get_epsilon(delta, eps_error=_error_band(near)))


def as_replace_one(epsilon: float, delta: float) -> tuple[float, float]:
    """What add-or-remove-one at (epsilon, delta) proves for replace-one: remove, then add.

    Group privacy of two steps: (2 epsilon, (1 + e^epsilon) delta). True for every mechanism, seldom tight.
    """
    return 2 * epsilon, min(1.0, (1 + math.exp(min(epsilon, 700.0))) * delta)


@contextmanager
def ignore_warning(message: str) -> Iterator[None]:
    """Without the warnings of Opacus, torch or peft that begin with this and say nothing to our users."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=message)
        yield


def _error_band(target: float) -> float:
    return min(0.01, target / 50)
