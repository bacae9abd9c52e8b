"""The proof: calibration against dp-accounting, central bounds, import time, the ledger."""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.report import report
from dp_forward.privacy import TEXT, Budget, MatrixGaussian, PrivUnit, calibrate, curve, normalise
from dp_forward.privacy.central import paper_estimate, sampler_epsilon, shuffled_epsilon
from dp_forward.privacy.ledger import Charge, Ledger

EPSILONS = (0.1, 1.0, 4.0, 8.0, 16.0, 64.0)


def median_ms(call: Callable[[], object], *, repeat: int = 30) -> float:
    """The median time of one call, in milliseconds."""
    call()
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return 1e3 * statistics.median(times)


def seconds(call: Callable[[], object]) -> float:
    """The time of one call."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def calibration() -> dict[str, float]:
    """Ours against dp-accounting's general calibrator on the same task: sigma for (8, 1e-5)."""
    import dp_accounting
    from dp_accounting.pld import PLDAccountant

    def theirs() -> float:
        return dp_accounting.calibrate_dp_mechanism(
            lambda: PLDAccountant(value_discretization_interval=1e-3),
            dp_accounting.GaussianDpEvent,
            8.0,
            1e-5,
            tol=1e-6,
        )

    worst = max(
        median_ms(lambda e=e: calibrate(MatrixGaussian, Budget(e, 1e-5), bound=normalise(), unit=TEXT))
        for e in EPSILONS
    )
    privunit = max(
        median_ms(lambda e=e: calibrate(PrivUnit, Budget(e), bound=normalise(), unit=TEXT)) for e in EPSILONS
    )
    their_ms = median_ms(theirs, repeat=3)
    return {
        "gaussian_ms": worst,
        "privunit_ms": privunit,
        "dp_accounting_ms": their_ms,
        "times_faster": their_ms / worst,
        "sigma_ratio": theirs() * curve.largest_mu(8.0, 1e-5),
    }


def central() -> dict[str, float]:
    """The bounds at the largest corpus of the paper."""
    users = 363_846
    clones = max(
        seconds(lambda e=e: shuffled_epsilon(1e-5, local_epsilon=e, users=users))
        for e in (0.1, 1.0, 4.0, 8.0)
    )
    mu = 1 / 0.3611949656622361
    sampler = seconds(
        lambda: sampler_epsilon(
            1e-5, users=users, steps=3 * users, local_delta=lambda e: curve.hockey_stick(e, mu)
        )
    )
    estimate = seconds(lambda: paper_estimate(1e-5, mu=mu, users=users, epochs=3))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"clones_s": clones, "sampler_s": sampler, "paper_estimate_s": estimate, "peak_rss_mib": peak}


def imports() -> dict[str, float]:
    """How long the proof takes to import, beyond a bare interpreter."""

    def run(code: str) -> float:
        return min(
            seconds(lambda: subprocess.run([sys.executable, "-c", code], check=True)) for _ in range(5)
        )

    return {"import_s": run("import dp_forward.privacy") - run("pass")}


def ledger() -> dict[str, float]:
    """The median time of one durable charge."""
    times = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ledger"
        with Ledger.create(path, cap_epsilon=900.0, delta=1e-5) as book:
            for number in range(500):
                start = time.perf_counter()
                book.reserve(number.to_bytes(16, "big"), Charge.pure(1e-3))
                times.append(time.perf_counter() - start)
    ordered = sorted(times)
    return {"reserve_p50_ms": 1e3 * ordered[250], "reserve_p99_ms": 1e3 * ordered[495]}


THRESHOLDS = {
    "gaussian_ms": 3.0,
    "privunit_ms": 20.0,
    "clones_s": 2.0,
    "sampler_s": 60.0,
    "paper_estimate_s": 60.0,
    "peak_rss_mib": 2048.0,
    "import_s": 0.5,
    "reserve_p50_ms": 5.0,
}


def main() -> int:
    """Measure everything that the proof promised to be fast."""
    return report(
        "privacy", (calibration, central, imports, ledger), THRESHOLDS, ("numpy", "scipy", "dp-accounting")
    )


if __name__ == "__main__":
    sys.exit(main())
