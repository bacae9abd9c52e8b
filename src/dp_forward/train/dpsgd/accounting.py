"""Privacy accounting of DP-SGD by Opacus's accountants: noise for a budget, epsilon of the steps taken.

One step draws each record with probability ``sample_rate`` (Poisson), clips its gradient to norm C, sums, and
adds Gaussian noise of deviation ``noise_multiplier * C``. The relation is *add or remove one record*: C is
then the sensitivity itself. Our own central numbers are for *replace one*, the stricter notion (two gradients
of norm C can lie 2C apart); `as_replace_one` says what an add-or-remove promise is worth there.

Paper: the accounting of the DP-SGD baseline (Abadi et al. 2016).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Literal, get_args

from dp_forward.errors import InvalidInput
from dp_forward.privacy import checks

__all__ = ["Accountant", "as_replace_one", "epsilon_of", "noise_multiplier_for", "sampling"]

Accountant = Literal["prv", "rdp"]
History = Sequence[tuple[float, float, int]]
"""What an accountant of Opacus has seen: noise multiplier, sampling rate and number of steps, in order."""


def sampling(records: int, batch: int) -> tuple[float, int]:
    """Opacus's sampling of ``records`` in batches of about ``batch``: rate of one step, steps of one epoch.

    The rate is ``1 / ceil(records / batch)``, close to batch / records, as its data loader has it.
    """
    if batch >= records:
        raise InvalidInput(
            "batch", f"be smaller than the number of records, {records}", batch, "Use a smaller batch."
        )
    rate = 1 / math.ceil(records / batch)
    return rate, int(1 / rate)


def noise_multiplier_for(
    epsilon: float, *, delta: float, sample_rate: float, steps: int, accountant: Accountant = "prv"
) -> float:
    """The least noise multiplier that Opacus finds for a budget over ``steps`` steps.

    Guarantees:
        ``epsilon_of`` the result, by the same accountant, is at most ``epsilon``.
    Edges:
        "prv" reports the upper end of its error band, about 0.01 wide, so the result is 0.05 % to 0.4 % above
        the exact one for epsilon 8 to 1. "rdp" is 6 % to 39 % above it. The PRV
        accountant follows the removal of a record, which costs more than an addition at all these settings.
    """
    if accountant not in get_args(Accountant):
        raise InvalidInput("accountant", "be prv or rdp", accountant, "Leave it out for prv.")
    return _search(checks.epsilon(epsilon), checks.delta(delta, zero=False), sample_rate, steps, accountant)


@lru_cache(maxsize=64)
def _search(target: float, delta: float, sample_rate: float, steps: int, accountant: Accountant, /) -> float:
    """Opacus's search, which takes seconds for a long run, and a check of what it found."""
    from opacus.accountants.utils import get_noise_multiplier  # type: ignore[import-untyped]

    try:
        with _quiet():
            found = float(
                get_noise_multiplier(
                    target_epsilon=target,
                    target_delta=delta,
                    sample_rate=sample_rate,
                    steps=steps,
                    accountant=accountant,
                    epsilon_tolerance=min(0.01, target / 50),
                    **_precision(target, accountant),
                )
            )
    except ValueError:
        found = 0.0
    spent = epsilon_of([(found, sample_rate, steps)], delta=delta, accountant=accountant, near=target)
    if not spent <= target:
        raise InvalidInput(
            "epsilon", "be within reach of DP-SGD here", target, "Ask for more, or train less."
        )
    return found


def epsilon_of(history: History, *, delta: float, accountant: Accountant = "prv", near: float = 1.0) -> float:
    """The epsilon of the steps of a history by Opacus's accountant; infinite without noise.

    ``near`` is the epsilon expected: below 0.5 the accountant is asked for a narrower error band.
    """
    from opacus.accountants import create_accountant  # type: ignore[import-untyped]

    if any(noise == 0 for noise, _, _ in history):
        # The accountants divide by it; a sum without noise hides nothing.
        return math.inf
    book: Any = create_accountant(mechanism=accountant)
    book.history = list(history)
    with _quiet():
        return float(book.get_epsilon(delta, **_precision(near, accountant)))


def as_replace_one(epsilon: float, delta: float) -> tuple[float, float]:
    """What add-or-remove-one at (epsilon, delta) proves for replace-one: remove, then add.

    Group privacy of two steps: (2 epsilon, (1 + e^epsilon) delta). True for every mechanism, seldom tight.
    """
    return 2 * epsilon, min(1.0, (1 + math.exp(min(epsilon, 700.0))) * delta)


@contextmanager
def _quiet() -> Iterator[None]:
    """PRV asks RDP only for how far to look; that RDP could be tighter does not matter there."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Optimal order is the")
        yield


def _precision(target: float, accountant: Accountant) -> dict[str, float]:
    """The error band of the PRV accountant; RDP has none."""
    return {"eps_error": min(0.01, target / 50)} if accountant == "prv" else {}
