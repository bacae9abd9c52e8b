"""Central epsilon as the paper's authors estimate it, by a subsampled Gaussian: no theorem.

The paper assumes a shuffler (Section 3.4) and reads it as DP-SGD is read: a Gaussian mechanism on a Poisson
sample at rate ``1 / users``, ``epochs * users`` steps (Section 5.4). But every user sends one release per
epoch, no coin says who takes part, and the number of releases is public, so that only replacing a record
makes sense. Without labels, and at S = 2C (the text, and the proof), the number lies close to what the best
known attack achieves; with labels, or at S = C (the authors' experiments), it is too low. It is never a
guarantee.
"""

from typing import Final

from dp_forward.privacy import checks

_COARSE: Final = 1e-3
_SHARE: Final = 5e-5  # the discretisation interval, as a share of the epsilon it is to resolve
_FINEST: Final = 1e-5
"""At mu = 1: finer takes minutes, and an estimate far below 1 needs no third digit. Losses shrink with mu."""


def paper_estimate(delta: float, *, mu: float, users: int, epochs: int) -> float:
    """The authors' central epsilon, that of a subsampled Gaussian: an estimate, no theorem.

    Computed with Google's dp-accounting (privacy loss distributions, connect-the-dots), once
    coarsely to learn the size of the answer and again with an interval to suit it.

    Edges:
        ``users = 1`` is plain composition of ``epochs`` Gaussian releases.
    Paper: Tables 5 and 7 to 9, noise multiplier ``sigma / S = 1/mu``.
    """
    delta = checks.delta(delta, zero=False)
    mu = checks.positive("mu", mu, remedy="Pass sensitivity / sigma.")
    users = checks.count("users", users, remedy="Pass the number of training records.")
    epochs = checks.count("epochs", epochs, remedy="Pass the passes over the data.")
    from dp_accounting.pld import privacy_loss_distribution as pld  # slow to import

    interval = _COARSE
    for _ in range(4):
        step = pld.from_gaussian_mechanism(
            standard_deviation=1 / mu, sampling_prob=1 / users, value_discretization_interval=interval
        )
        estimate = float(step.self_compose(epochs * users).get_epsilon_for_delta(delta))
        wanted = max(_SHARE * estimate, _FINEST * min(1.0, mu * mu))
        if estimate == 0 or 0.5 * interval <= wanted:
            break
        interval = wanted
    return estimate
