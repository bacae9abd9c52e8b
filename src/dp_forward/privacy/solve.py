"""Root finding on the safe side: the last point where a promise still holds.

Root finders answer "about here". A privacy parameter must not be "about": every search in this
package ends at a point where the promise *was evaluated and found to hold*.
"""

import math
from collections.abc import Callable

__all__ = ["last_safe"]

_MOST_STEPS = 300


def log_gap(allowed: float, reached: float) -> float:
    """The slack of a delta, ``ln(allowed / reached)``; infinite where nothing is reached."""
    return math.log(allowed / reached) if reached > 0 else math.inf


def last_safe(
    slack: Callable[[float], float], *, safe: float, unsafe: float, tolerance: float = 1e-14
) -> float:
    """The point nearest to ``unsafe`` at which ``slack`` is still >= 0, searched from ``safe``.

    ``slack`` changes its sign once between the two ends. Steps follow the Illinois rule (a secant
    that halves the weight of an end it has kept twice); a step that would land within
    ``tolerance`` of an end is pushed that far off it, so the bracket closes from both sides; and
    whenever three steps did not halve the bracket, it is halved outright.

    Guarantees:
        ``slack(result) >= 0`` was evaluated for the returned float, unless ``result`` is ``safe``
        itself, which the caller vouches for.
    Edges:
        If even ``unsafe`` turns out to be safe, it is returned. ``tolerance`` is relative to the
        larger end, with 1e-300 as the floor.
    """
    slack_safe, slack_unsafe = slack(safe), slack(unsafe)
    if slack_unsafe >= 0:
        return unsafe
    kept_safe = kept_unsafe = 0
    width_before = math.inf
    for step in range(_MOST_STEPS):
        width = unsafe - safe
        least = tolerance * max(abs(safe), abs(unsafe), 1e-300)
        if abs(width) <= 2 * least:
            break
        share = 0.5
        stalled = step % 3 == 2 and abs(width) > width_before / 2
        if step % 3 == 2:
            width_before = abs(width)
        if not stalled and math.isfinite(slack_safe) and math.isfinite(slack_unsafe):
            share = max(slack_safe, 0.0) / (max(slack_safe, 0.0) - slack_unsafe)
        edge = least / abs(width)
        middle = safe + min(max(share, edge), 1 - edge) * width
        slack_middle = slack(middle)
        if slack_middle >= 0:
            safe, slack_safe = middle, slack_middle
            kept_safe, kept_unsafe = 0, kept_unsafe + 1
            if kept_unsafe > 1:
                slack_unsafe /= 2
        else:
            unsafe, slack_unsafe = middle, slack_middle
            kept_unsafe, kept_safe = 0, kept_safe + 1
            if kept_safe > 1:
                slack_safe /= 2
    return safe
