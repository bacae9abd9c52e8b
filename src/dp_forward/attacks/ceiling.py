r"""Upper bounds on the success of any attacker: one of K values, guessed from a release.

The game. A secret A (an attribute of a text, a token of it, ...) has the value a with probability p_a, p is
the largest p_a, and a text with A = a is released. The attacker sees the release Y and names a value. Without
Y the best guess is right with p. Let the mechanism be (e, delta(e))-DP between any two texts.

Let Q_a be the law of Y when A = a, and Q_-a when A is anything else. Both are mixtures of releases of texts,
and the hockey stick is jointly convex, so for every event S and every e >= 0

.. math:: Q_a(S) \le e^{e}\,Q_b(S) + \delta(e), \qquad Q_a(S) \le e^{e}\,Q_{-a}(S) + \delta(e) .

The attacker says a on S_a; these events are disjoint. Two bounds follow, each for every e >= 0; write
``E = e^e``. Randomness of the attacker changes nothing: it is a mixture of such attackers.

*By odds.* Let ``s_a = p_a Q_a(S_a)`` (right, having said a) and ``r_a = P(Y in S_a)``. From
``s_a <= E p_a/(1-p_a) (r_a - s_a) + p_a delta`` follows, with ``t(x) = E x / (E x + 1 - x)``,
``s_a <= t(p_a) r_a + p_a (1 - t(p_a)) delta``. The r_a sum to 1, t grows, and of the second terms only that
of the likeliest value is kept exactly:

.. math:: \text{success} \;\le\; t(p) + \delta(e)\,(1 - p\,t(p)) .

For a pure mechanism at its epsilon this is the rule of Bayes: posterior odds are at most e^epsilon times the
prior odds, ``success <= e^epsilon p / (e^epsilon p + 1 - p)``. Randomized response reaches it.

*By a reference.* Let a* be the likeliest value and R = Q_a*. With ``E_a = E p / p_a >= E`` for the others,
``p_a Q_a(S_a) <= p E R(S_a) + p_a delta(e + ln(p/p_a))``, and ``p Q_a*(S_a*) = p R(S_a*)``. R(S_a) sum to 1:

.. math:: \text{success} \;\le\; p\,E + (1 - p)\,\delta(e) .

At p = 1/2 and e = 0 this is ``(1 + delta(0)) / 2``, which two candidates reach.

Both are concave in p, and so is the least of concave functions. So they hold for averages too (Jensen): over
places of a text, or over what the attacker knows besides, p is then the *mean* success of the best guess
without the release.

Guarantees:
    What is returned is one of these bounds at one e, with the mechanism's own delta (rounded up), so it holds
    whichever e was looked at; looking at more could only lower it.
Edges:
    At epsilon 8 these ceilings are close to 1 for any prior that is not tiny. That is what the promise says;
    an attack that stays at chance shows more than the promise does.
Paper: not in it; the paper reports attacks without a ceiling.
"""

import math
from typing import Final

import numpy as np
from scipy.special import expit

from dp_forward.errors import refuse_if
from dp_forward.privacy import RECORD, TEXT, Mechanism
from dp_forward.privacy.rounding import nudge_up

_FURTHEST: Final = 60.0  # from this epsilon on every ceiling is 1 for a prior that can be measured


def attribute_ceiling(mechanism: Mechanism | None, prior: float) -> float:
    """The most success at a secret about a whole text whose best guess without the release is ``prior``.

    Edges:
        1 where nothing is promised about a whole text: no mechanism, a baseline outside its theorem, or a
        promise per token, phrase or label. (A text of n tokens differs from another in all of them.)
    """
    refuse_if(not 0 < prior <= 1, "prior", "lie in (0, 1]", prior, "It is the share of the likeliest value.")
    promised = mechanism is not None and mechanism.guaranteed and mechanism.unit in (TEXT, RECORD)
    if mechanism is None or not promised or prior == 1:
        return 1.0
    prior = float(prior)
    pure = mechanism.epsilon(0.0)
    most = min(pure, _FURTHEST)
    looked_at = [*np.square(np.linspace(0.0, math.sqrt(most), 257))[:-1].tolist(), most]
    found = math.inf
    for e in looked_at:
        delta = 0.0 if e >= pure else mechanism.delta(e)
        t = float(expit(e + math.log(prior) - math.log1p(-prior)))
        by_odds = t + delta * (1 - prior * t)
        by_reference = prior * math.exp(e) + (1 - prior) * delta
        found = min(found, by_odds, by_reference)
    return max(prior, min(1.0, nudge_up(found)))
