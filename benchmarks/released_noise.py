"""Released noise: is it exact, does it resist, what does it cost?

python -m benchmarks.released_noise [--json OUT] [--smoke] [--no-goals]

OpenDP's exact sampler is measured beside ours where it can be imported; it is no dependency of this package:
pip install --target FOLDER opendp; PYTHONPATH=FOLDER python -m benchmarks.released_noise
"""

from __future__ import annotations

import hashlib
import math
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import mpmath as mp
import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import ndtri

from benchmarks.goals import Results, arguments, on_cores, say
from benchmarks.lattice_attack import (
    Guesses,
    Score,
    gaussian_lattice,
    gaussian_likelihood,
    guess,
    privunit_lattice,
    privunit_likelihood,
    worst_pair,
)
from benchmarks.timing import cpu_seconds
from dp_forward.noise import Sanitizer, release
from dp_forward.noise.released.entropy import keystream
from dp_forward.noise.released.exact_normal import Entropy, rounded_normal
from dp_forward.noise.released.grid import Grid, quantise
from dp_forward.privacy import (
    TEXT,
    Budget,
    MatrixGaussian,
    Mechanism,
    NoiseSpec,
    PrivUnit,
    calibrate,
    normalise,
)
from dp_forward.service.protocol.frame import frame_of

BOUND = normalise(1.0)
DELTA = 1e-5
SHORT_WORD = 30
"""Bits of a first word that often say too little: the refinement must then decide."""
RECIPES = [
    ("matrix-gaussian", 1.0, None),
    ("matrix-gaussian", 2.0, None),
    ("matrix-gaussian", 4.0, None),
    ("matrix-gaussian", 8.0, None),
    ("matrix-gaussian", 16.0, None),
    ("privunit", 4.0, 0.1),
    ("privunit", 8.0, 0.6),
    ("privunit", 16.0, 1.0),
]
"""Mechanism, epsilon and t / t* of docs/recipes.md. Rounding adds the same to every PrivUnit."""
SHAPES = {"output": (1, 4), "encoder.3": (48, 16), "embeddings": (32, 4), "BERT-base": (128, 768)}


def gaussian(epsilon: float) -> MatrixGaussian:
    """The matrix Gaussian at this epsilon."""
    return calibrate(MatrixGaussian, Budget(epsilon, DELTA), bound=BOUND, unit=TEXT)


def privunit(epsilon: float) -> PrivUnit:
    """PrivUnit at this epsilon and its best threshold."""
    return calibrate(PrivUnit, Budget(epsilon), bound=BOUND, unit=TEXT)


# Attacks


def attacks(results: Results, *, trials: int, trials_ours: int) -> None:
    """Float noise is broken at epsilon 0.5; released integers give away what 0.1 allows, next to nothing."""
    loud_gaussian, loud_privunit, quiet_gaussian, quiet_privunit = (
        gaussian(0.5),
        privunit(0.5),
        gaussian(0.1),
        privunit(0.1),
    )

    def play(what: str, draw: Any, score: Score, mechanism: Mechanism, **more: Any) -> Guesses:
        say(f"attack: {what} ...")
        found = guess(
            more.pop("pair", worst_pair(BOUND, rows=32, width=64)),
            draw,
            score,
            attack=what,
            ceiling=mechanism.guess_rate(),
            **more,
        )
        results.add("attacks", found.as_dict())
        return found

    wide = worst_pair(BOUND, rows=32, width=64, dtype=np.float64)
    lattice, sanitizer = gaussian_lattice(loud_gaussian.sigma), Sanitizer(loud_gaussian, seed=2)
    controls = [
        play(
            "float32 x + torch.normal, lattice, epsilon 0.5",
            _float_noise(loud_gaussian.sigma),
            lattice,
            loud_gaussian,
            trials=trials,
            seed=1,
        ),
        play(
            "float64 x + torch.normal, lattice, epsilon 0.5",
            _float_noise(loud_gaussian.sigma),
            lattice,
            loud_gaussian,
            trials=trials,
            seed=1,
            pair=wide,
        ),
        play(
            "simulated matrix Gaussian, lattice, epsilon 0.5",
            _simulated(sanitizer),
            lattice,
            loud_gaussian,
            trials=trials,
            seed=1,
        ),
        play(
            "simulated PrivUnit, lattice, epsilon 0.5",
            _simulated(Sanitizer(loud_privunit, seed=2)),
            privunit_lattice(loud_privunit.sigma),
            loud_privunit,
            trials=trials,
            seed=1,
        ),
    ]
    ours = [
        play(
            f"released {mechanism.name} int{bits}, {word}, epsilon 0.1",
            lambda x, m=mechanism, b=bits: release(x, m, bits=b),
            score,
            mechanism,
            trials=trials_ours,
        )
        for mechanism, scores in (
            (
                quiet_gaussian,
                {
                    "lattice": gaussian_lattice(quiet_gaussian.sigma),
                    "likelihood": gaussian_likelihood(quiet_gaussian),
                },
            ),
            (
                quiet_privunit,
                {
                    "lattice": privunit_lattice(quiet_privunit.sigma),
                    "likelihood": privunit_likelihood(quiet_privunit),
                },
            ),
        )
        for bits in (8, 16)
        for word, score in scores.items()
    ]
    least = min(found.success for found in controls)
    results.goal("attack on float noise, least success", least, "at least 0.99", least >= 0.99)
    furthest = max((found.success for found in ours), key=lambda success: abs(success - 0.5))
    results.goal("attack on a release, furthest from 1/2", furthest, "in 0.4..0.6", 0.4 <= furthest <= 0.6)
    broken = sum(found.breaks_the_promise for found in ours)
    results.goal("releases beyond their ceiling", broken, "0", broken == 0)


def _float_noise(sigma: float) -> Callable[[NDArray[Any]], NDArray[Any]]:
    generator = torch.Generator().manual_seed(1)

    def draw(x: NDArray[Any]) -> NDArray[Any]:
        signal = torch.from_numpy(x)
        noise = torch.normal(0.0, sigma, signal.shape, generator=generator, dtype=signal.dtype)
        return np.asarray((signal + noise).numpy())

    return draw


def _simulated(sanitizer: Sanitizer) -> Callable[[NDArray[Any]], NDArray[Any]]:
    return lambda x: np.asarray(sanitizer(torch.from_numpy(x)[None])[0].numpy())


# Exactness


class Recorder:
    """Entropy of the system that remembers what it gave."""

    def __init__(self) -> None:
        self._stream = keystream()
        self.given: list[bytes] = []

    def __call__(self, size: int) -> bytes:
        self.given.append(self._stream(size))
        return self.given[-1]


def exactness(results: Results, *, draws: int) -> None:
    """Every draw against 100 digits on the same bits, half of them from words that are too short."""
    scale = fine_scale(gaussian(8.0))
    part = 250
    jobs = [(scale, bits, part) for bits in (64, SHORT_WORD) for _ in range(draws // part // 2)]
    wrong = refined = caught = 0
    start = time.perf_counter()
    with multiprocessing.get_context("fork").Pool(2) as pool:
        for done, found in enumerate(pool.imap_unordered(_compared, jobs), start=1):
            wrong, refined, caught = wrong + found[0], refined + found[1], caught + found[2]
            if done % max(1, len(jobs) // 20) == 0:
                say(f"exactness: {done * part} of {len(jobs) * part} draws, {wrong} mismatches ...")
    compared = len(jobs) * part
    results.put(
        "exactness",
        {
            "draws": compared,
            "digits": 100,
            "scale": scale,
            "word_bits": [64, SHORT_WORD],
            "mismatches": wrong,
            "refined": refined,
            "moved_by_one_cell_and_caught": caught / len(jobs),
            "seconds": time.perf_counter() - start,
        },
    )
    results.goal("mismatches with 100 digits", wrong, "0", wrong == 0)
    results.goal("draws that were refined", refined, "at least 1 in 100", refined >= compared / 100)
    results.goal("wrong cells that are caught", caught / len(jobs), "1", caught == len(jobs))


def fine_scale(mechanism: MatrixGaussian) -> float:
    return mechanism.sigma / Grid.for_noise(mechanism.sigma, norm=1.0).signal_step


def _compared(job: tuple[float, int, int]) -> tuple[int, int, int]:
    """Mismatches, refined draws, and whether a draw that is moved by one cell is caught."""
    scale, bits, many = job
    wrong = refined = 0
    with mp.workdps(100):
        for _ in range(many):
            recorder = Recorder()
            draw = int(rounded_normal(1, scale=scale, entropy=recorder, word_bits=bits)[0])
            words = [int.from_bytes(data, "little") for data in recorder.given]
            refined += len(words) > 1
            wrong += not _fits(draw, words, bits, scale)
        caught = not _fits(draw + 1, words, bits, scale)
    return wrong, refined, caught


def _fits(draw: int, words: list[int], bits: int, scale: float) -> bool:
    """Whether every uniform number that begins with these words has this rounded normal."""
    first, digits = words[0] >> (64 - bits), bits - 1
    sign, word = first >> digits, first & ((1 << digits) - 1)
    for more in words[1:]:
        word, digits = (word << 64) | more, digits + 64
    size = abs(draw)
    if draw and (draw < 0) != bool(sign):
        return False
    low, high = mp.mpf(word) / mp.mpf(2) ** digits, mp.mpf(word + 1) / mp.mpf(2) ** digits
    return bool(low >= _beyond(size, scale) and (size == 0 or high <= _beyond(size - 1, scale)))


def _beyond(k: int, scale: float) -> Any:
    """P[|Z| > k + 1/2]."""
    return mp.erfc((mp.mpf(k) + mp.mpf("0.5")) / (mp.mpf(scale) * mp.sqrt(2)))


# Speed


def speed(results: Results, *, draws: int, theirs: int, repeat: int) -> None:
    """Draws per second on one core, ours and OpenDP's in turn, at the scale of a release."""
    scale = fine_scale(gaussian(8.0))
    opendp = _opendp(scale)
    ours_s, theirs_s = [], []
    with on_cores({0}):
        draw_seconds(draws, scale=scale)
        for turn in range(repeat):
            say(f"speed: {turn + 1} of {repeat} ...")
            ours_s.append(draw_seconds(draws, scale=scale))
            if opendp is not None:
                theirs_s.append(cpu_seconds(lambda: opendp([0] * theirs)) / theirs)
    ours = statistics.median(ours_s)
    found: dict[str, Any] = {
        "scale": scale,
        "cores": 1,
        "ours_million_per_s": 1e-6 / ours,
        "ours_us": 1e6 * ours,
        "opendp": "not installed" if opendp is None else _opendp_version(),
    }
    if theirs_s:
        found["opendp_us"] = 1e6 * statistics.median(theirs_s)
        found["times_faster"] = statistics.median(theirs_s) / ours
    results.put("speed", found)
    if theirs_s:
        faster = found["times_faster"]
        results.goal("times OpenDP's exact sampler", faster, "at least 100", faster >= 100)
    results.goal(
        "million exact draws per second", found["ours_million_per_s"], "at least 15", 1e-6 / ours >= 15
    )


def _opendp(scale: float) -> Callable[[list[int]], list[int]] | None:
    """OpenDP's discrete Gaussian on vectors of integers, exact as well."""
    try:
        import opendp.prelude as dp
    except ImportError:
        return None
    dp.enable_features("contrib")
    domain = dp.vector_domain(dp.atom_domain(T=int))
    return dp.m.make_gaussian(domain, dp.l2_distance(T=float), scale=scale)  # type: ignore[no-any-return]


def _opendp_version() -> str:
    from importlib.metadata import version

    return version("opendp")


def draw_seconds(draws: int, *, scale: float) -> float:
    """CPU seconds of one exact draw, over many."""
    return cpu_seconds(lambda: rounded_normal(draws, scale=scale, entropy=keystream())) / draws


def release_cpu_ms(*, repeat: int) -> dict[str, float]:
    """CPU milliseconds of one release of 128 x 768, by mechanism and width of the integers."""
    hidden = np.random.default_rng(0).standard_normal((128, 768)).astype(np.float32)
    found = {}
    for mechanism in (gaussian(8.0), privunit(8.0)):
        for bits in (8, 16):
            times = [
                cpu_seconds(lambda m=mechanism, b=bits: release(hidden, m, bits=b)) for _ in range(repeat + 1)
            ]
            found[f"{mechanism.name}_int{bits}_ms"] = 1e3 * statistics.median(times[1:])
    return found


def cost(results: Results, *, repeat: int) -> None:
    """CPU milliseconds of one release of 128 x 768."""
    with on_cores({0}):
        found = release_cpu_ms(repeat=repeat)
    results.put("release_128_x_768_cpu_ms", found)
    worst = max(found.values())
    results.goal("CPU ms of a 128 x 768 release", worst, "at most 12", worst <= 12)


# Size and rounding


def payloads(results: Results) -> None:
    """The bytes of a frame: 128 and the integers."""
    rows = []
    right = True
    for name, (n, d) in SHAPES.items():
        row: dict[str, Any] = {"shape": name, "rows": n, "width": d}
        for bits in (8, 16):
            released = release(np.ones((n, d)), privunit(8.0), bits=bits)
            frame = frame_of(released, cut="encoder.3", front="0" * 64, request=bytes(16), time=0)
            row[f"int{bits}_bytes"] = len(frame)
            right &= len(frame) == 128 + n * d * bits // 8
        row["float32_bytes"] = 4 * n * d
        rows.append(row)
    results.put("payloads", rows)
    results.goal("frames of 128 + n d bits / 8 bytes", float(right), "1", right)


def rounding(results: Results, *, draws: int) -> None:
    """The variance that rounding adds to the noise's: by theory, and against the same bits unrounded."""
    rows: list[dict[str, Any]] = []
    for name, epsilon, share in RECIPES:
        say(f"rounding: {name} at {epsilon:g} ...")
        extra = {"threshold_share": share} if name == "privunit" else {"delta": DELTA}
        mechanism = NoiseSpec(mechanism=name, epsilon=epsilon, **extra).build()
        for bits in (8, 16):
            added = _added_gaussian if isinstance(mechanism, MatrixGaussian) else _added_privunit
            parts = np.concatenate([added(mechanism, bits, seed, 1000) for seed in range(draws // 1000**2)])
            step = release(np.ones((1, 1)), mechanism, bits=bits).step
            rows.append(
                {
                    "mechanism": name,
                    "epsilon": epsilon,
                    "bits": bits,
                    "percent_by_theory": 100 * step**2 / 12 / mechanism.sigma**2,
                    "percent_measured": 100 * float(parts.mean()),
                    "standard_error": 100 * float(parts.std() / math.sqrt(parts.size)),
                }
            )
            results.add("added_variance", rows[-1])
    worst = max(row["percent_by_theory"] for row in rows)
    results.goal("added variance by theory, percent", worst, "at most 0.15", worst <= 0.15)
    worst = max(row["percent_measured"] for row in rows)
    results.goal("added variance measured, percent", worst, "at most 0.15", worst <= 0.15)
    off = max(abs(row["percent_measured"] - row["percent_by_theory"]) / row["standard_error"] for row in rows)
    results.goal("measured from theory, standard errors", off, "at most 4.5", off <= 4.5)


def _added_gaussian(mechanism: Any, bits: int, seed: int, side: int) -> NDArray[np.float64]:
    """(noise with rounding)^2 - (noise without)^2 of each entry, in units of sigma^2."""
    sigma, hidden = mechanism.sigma, np.random.default_rng(seed).standard_normal((side, side))
    fine = Grid.for_noise(sigma, norm=1.0, bits=bits).signal_step
    signal = quantise(hidden, bound=BOUND, step=fine) * fine
    released = release(hidden, mechanism, bits=bits, entropy=_replay(seed)).as_floats()
    noise = rounded_normal((1, side * side), scale=sigma / fine, entropy=_replay(seed)).reshape(side, side)
    return np.asarray((((released - signal) / sigma) ** 2 - (noise * (fine / sigma)) ** 2).ravel())


def _added_privunit(mechanism: Any, bits: int, seed: int, side: int) -> NDArray[np.float64]:
    """As for the Gaussian, across a direction of one entry: there V is G itself, the quantile of its word."""
    hidden = np.zeros((side, side))
    hidden[0, 0] = 1.0
    replay, given = _replay(seed), list[bytes]()

    def recorded(size: int) -> bytes:
        given.append(replay(size))
        return given[-1]

    raw = release(hidden, mechanism, bits=bits, entropy=recorded).as_floats().ravel()[1:] / mechanism.sigma
    # A coin, the signal's word, then a word for each entry, whose first bit is its sign.
    words = np.frombuffer(given[2], dtype="<i8")[1:]
    g = ndtri(((words ^ (words >> 63)).astype(np.float64) + 0.5) * 2.0**-64)
    return np.asarray(raw.astype(np.float64) ** 2 - g**2)


def _replay(seed: int) -> Entropy:
    """The same bytes for the same seed; for measuring only."""
    return np.random.default_rng(seed).bytes


# Freshness


def freshness(results: Results) -> None:
    """Forked processes and threads draw different noise."""
    workers, each = 8, 50
    release(np.ones((8, 16)), gaussian(8.0))  # whatever state there were, all of them would share it
    with multiprocessing.get_context("fork").Pool(workers) as pool:
        forked = pool.map(_digests, [each] * workers, chunksize=1)
    with ThreadPoolExecutor(workers) as threads:
        threaded = list(threads.map(_digests, [each] * workers))
    equal = {}
    for name, found in (("processes", forked), ("threads", threaded)):
        all_of_them = [digest for group in found for digest in group]
        equal[f"{name}_releases"] = len(all_of_them)
        equal[f"{name}_equal"] = len(all_of_them) - len(set(all_of_them))
    results.put("freshness", {"workers": workers, **equal})
    same = equal["processes_equal"] + equal["threads_equal"]
    results.goal("equal payloads of processes and threads", same, "0", same == 0)


def _digests(many: int) -> list[bytes]:
    hidden, found = np.ones((8, 16)), []
    for mechanism in (gaussian(8.0), privunit(8.0)):
        found += [hashlib.sha256(release(hidden, mechanism).to_bytes()).digest() for _ in range(many // 2)]
    return found


def main() -> int:
    """Everything, in the order of how soon it would show a fault."""
    parser = arguments(__doc__ or "", "released-noise")
    given = parser.parse_args()
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"
    libraries = ("numpy", "scipy", "torch", "mpmath", "opendp")
    results = Results(
        given.json, command="python -m benchmarks.released_noise", libraries=libraries, smoke=given.smoke
    )
    small = given.smoke
    freshness(results)
    payloads(results)
    attacks(results, trials=50 if small else 200, trials_ours=400 if small else 2000)
    rounding(results, draws=1_000_000 if small else 4_000_000)
    exactness(results, draws=2_000 if small else 100_000)
    speed(
        results,
        draws=200_000 if small else 2_000_000,
        theirs=2_000 if small else 20_000,
        repeat=3 if small else 9,
    )
    cost(results, repeat=5 if small else 25)
    return results.close(judge=not given.no_goals)


if __name__ == "__main__":
    sys.exit(main())
