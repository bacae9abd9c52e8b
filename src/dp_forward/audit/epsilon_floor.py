r"""Lower bound on epsilon from two lists of scores: which (epsilon, delta) an attack that was run refutes.

An attacker names the first input wherever a score is at least a threshold. With TPR the share of releases of
the first input that it names, and FPR that of the second, (epsilon, delta)-DP says of any threshold

.. math:: \mathrm{TPR} \le e^{\varepsilon}\,\mathrm{FPR} + \delta, \qquad
          1 - \mathrm{FPR} \le e^{\varepsilon}\,(1 - \mathrm{TPR}) + \delta .

So epsilon is at least ``ln((TPR - delta) / FPR)`` and ``ln((1 - FPR - delta) / (1 - TPR))``.

Guarantees:
    `epsilon_floor` is above the true epsilon with probability at most ``1 - level``, for any scores. Proof:
    one threshold per inequality is chosen on the first half of the scores alone. On the second half the
    counts at a fixed threshold are binomial; each of the four one-sided Clopper-Pearson bounds that are used
    fails with probability at most ``(1 - level) / 4``, and if none fails both floors hold.
Edges:
    n scores of each input cannot show more than about ``ln(n / 8)``, whatever the mechanism does. The floor
    refutes only what is far off; for the rest there is the law of the statistic.
"""

import math

import numpy as np
from numpy.typing import NDArray
from scipy.stats import beta

from dp_forward.errors import InvalidInput, refuse_if
from dp_forward.privacy import checks

Floats = NDArray[np.float64]


def epsilon_floor(first: Floats, second: Floats, *, delta: float, level: float = 0.95) -> float:
    """The epsilon that these scores refute anything below of, with confidence ``level``; see the module."""
    if min(len(first), len(second)) < 8:
        raise InvalidInput("scores", "be 8 or more of each input", len(first), "Draw more releases.")
    refuse_if(not 0 < level < 1, "level", "lie in (0, 1)", level, "Use 0.95.")
    delta = checks.delta(delta, zero=True)
    each = (1 - level) / 4
    learnt = (first[: len(first) // 2], second[: len(second) // 2])
    tested = (first[len(first) // 2 :], second[len(second) // 2 :])
    thresholds = np.unique(np.quantile(np.concatenate(learnt), np.linspace(0, 1, 400)))
    guessed = _floors(*learnt, thresholds, delta, each)
    chosen = [thresholds[[int(np.argmax(floors))]] for floors in guessed]
    return max(0.0, *(float(_floors(*tested, one, delta, each)[kind][0]) for kind, one in enumerate(chosen)))


def largest_floor(draws: int, *, level: float = 0.95) -> float:
    """The most that ``draws`` scores of each input can show, were they told apart without a mistake."""
    each = (1 - level) / 4
    return max(0.0, math.log(each ** (2 / draws)) - math.log(-math.expm1(2 / draws * math.log(each))))


def _floors(first: Floats, second: Floats, thresholds: Floats, delta: float, each: float) -> list[Floats]:
    """Both floors at every threshold, each bound with the error ``each``."""
    named = len(first) - np.searchsorted(np.sort(first), thresholds, side="left")
    low = _low(named, len(first), each)
    high = 1 - _low(np.searchsorted(np.sort(second), thresholds, side="left"), len(second), each)
    with np.errstate(divide="ignore", invalid="ignore"):
        by_true = np.log(np.maximum(low - delta, 0)) - np.log(high)
        by_false = np.log(np.maximum(1 - high - delta, 0)) - np.log(1 - low)
    return [np.nan_to_num(floors, nan=-math.inf) for floors in (by_true, by_false)]


def _low(right: NDArray[np.intp], trials: int, each: float) -> Floats:
    """The one-sided lower Clopper-Pearson bound of a share."""
    some = np.maximum(right, 1)
    return np.where(right > 0, beta.ppf(each, some, trials - some + 1), 0.0)
