"""Try to refute a promise: two inputs, many releases of each, and how well they can be told apart.

What is audited are the integers that would leave. The product's own sampler passes. A sampler with 0.9 of the
noise that it claims is refuted, and so is that of the paper's experiments, made for half of what two texts
can lie apart.

    python examples/audit_a_promise.py
"""

import numpy as np

from dp_forward.audit.released_bytes import ReleasedAudit, audit_released
from dp_forward.noise import release_batch
from dp_forward.privacy import TEXT, Budget, MatrixGaussian, PaperReading, PrivUnit, calibrate, normalise

BUDGET, BOUND = Budget(epsilon=8.0, delta=1e-5), normalise(1.0)
claim = calibrate(MatrixGaussian, BUDGET, bound=BOUND, unit=TEXT)
claimed_step = release_batch(np.zeros((1, 8, 16)), claim)[0].step


def show(name: str, audit: ReleasedAudit) -> None:
    """What was found, in one line."""
    verdict = f"REFUTED by {', '.join(audit.refuted_by)}" if audit.refuted else "not refuted"
    floor, claimed = audit.epsilon_lower_bound, audit.claimed_epsilon
    print(f"{name}: at least epsilon {floor:.2f} of {claimed:.2f} -> {verdict}")


def audit_with_sigma(sigma: float) -> ReleasedAudit:
    """Releases with another sigma, on the claimed grid, under the claimed name: as a bug would send them."""
    other = MatrixGaussian(sigma, claim.sensitivity)

    def draw(hidden: np.ndarray) -> list[np.ndarray]:
        sent = release_batch(hidden, other)
        return [np.rint(one.as_floats() / claimed_step).astype(np.int16) for one in sent]

    return audit_released(claim, draw=draw)


print(claim)
show("matrix Gaussian, honest", audit_released(claim))
show("matrix Gaussian, sigma x 0.9", audit_with_sigma(0.9 * claim.sigma))
half = PaperReading.for_budget(BUDGET, bound=BOUND).sigma
show("matrix Gaussian, S = C (the authors' experiments)", audit_with_sigma(half))
privunit = calibrate(PrivUnit, Budget(epsilon=8.0), bound=BOUND, unit=TEXT)
show("PrivUnit, honest", audit_released(privunit))
