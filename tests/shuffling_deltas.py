"""The delta at a given epsilon, from the parts behind `shuffled_epsilon` and `sampler_epsilon`."""

from __future__ import annotations

import math

from dp_forward.privacy.shuffling import sampler
from dp_forward.privacy.shuffling.clones import Clones
from dp_forward.privacy.shuffling.local_curve import Curve


def shuffled_delta(epsilon: float, *, local_epsilon: float, users: int) -> float:
    """The delta proved at ``epsilon`` for the shuffled releases of ``users`` people.

    A wide window first; its answer says how narrow, and so how fine, the second may be.
    """
    wide = Clones.of(local_epsilon=local_epsilon, users=users, log_tail=-690.0).delta(epsilon)
    if wide == 0:
        return 0.0
    log_tail = math.log(wide) - 18.0
    return min(wide, Clones.of(local_epsilon=local_epsilon, users=users, log_tail=log_tail).delta(epsilon))


def sampler_delta(epsilon: float, *, users: int, steps: int, local_delta: Curve) -> float:
    """The delta proved at ``epsilon`` after ``steps`` draws.

    The composition is repeated with its accuracy moved until it lies where the answer is; every pass is a
    bound, and the least is returned.
    """
    guess, best, smallest = 1e-3, 1.0, 1e-280
    for _ in range(8):
        composed = sampler._compose(local_delta, users=users, steps=steps, delta=guess)
        reached = composed.delta(epsilon)
        best = min(best, reached)
        if 0.1 * guess <= reached <= 10 * guess or guess == smallest:
            break
        # Where next to nothing but the cut is left, the answer lies far below.
        guess = max(reached if reached > 1e-6 * guess else guess**3, smallest)
    return best
