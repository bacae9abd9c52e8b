"""The service: equal answers, throughput against the bare back, a soak, and 100,000 hostile frames.

python -m benchmarks.service [--run RUN] [--seconds 120] [--only PART...] [--json OUT] [--smoke] [--no-goals]

The real server (`dpf serve`) runs as a process of its own on the first core with one thread; the load comes
from the second core; the bare back is measured on the first core, with one thread, while the server idles.
`cpu_ratio` is the same ratio in CPU time, which other work on the machine disturbs less.
Without a RUN one is made: the installed MiniLM, cut at encoder.3, 64 tokens, an untrained head.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.goals import Results, arguments, on_cores, say
from benchmarks.hostile import fuzz_http
from benchmarks.load import (
    Line,
    Tally,
    closed_loop,
    frames_for,
    fresh,
    http_clients,
    steady,
    transport_clients,
)
from dp_forward.privacy import NoiseSpec
from dp_forward.release_spec import ReleaseSpec
from dp_forward.service.protocol.frame import HEADER_BYTES
from dp_forward.service.protocol.manifest import Manifest
from dp_forward.split import split_model
from dp_forward.split.artifacts import load_provider_side, save_sides
from dp_forward.split.pretrained import load_model, model_folder

CLIENTS = 32
CUT, ROWS = "encoder.3", 64
WAYS: dict[str, Callable[..., Any]] = {"http": http_clients, "ask_many": transport_clients}
PARTS = ("equality", "throughput", "soak", "fuzz")
"""The soak takes its rate from the throughput, so it measures that as well."""
_SIZES = re.compile(r'^dpf_batch_size_bucket\{le="([0-9.]+|\+Inf)"\} ([0-9.e+]+)$', re.MULTILINE)
_SUM = re.compile(r"^dpf_batch_size_sum ([0-9.e+]+)$", re.MULTILINE)


def make_run(folder: Path, cut: str = CUT) -> Path:
    """Both halves of the installed MiniLM."""
    import transformers

    torch.manual_seed(0)
    pair = split_model(load_model("minilm", labels=2), cut)
    tokenizer = transformers.AutoTokenizer.from_pretrained(model_folder("minilm"))
    spec = ReleaseSpec.of(
        pair.front,
        noise=NoiseSpec(mechanism="privunit", epsilon=8.0),
        rows=ROWS,
        labels=("negative", "positive"),
    )
    save_sides(pair, spec, tokenizer, folder)
    return folder


# The server as a process


@dataclass(frozen=True)
class Served:
    """A server that listens."""

    process: subprocess.Popen[str]
    host: str
    port: int
    errors: Path

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        return self.process.poll() is None

    @property
    def worker(self) -> int:
        """The process that answers; ``process`` only sees to it."""
        pid = self.process.pid
        return int(Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()[0])

    def rss_mib(self) -> float:
        """Its resident memory."""
        text = Path(f"/proc/{self.worker}/status").read_text(encoding="ascii")
        return int(text.split("VmRSS:")[1].split()[0]) / 1024

    def cpu_s(self) -> float:
        """The CPU time that it has used."""
        fields = Path(f"/proc/{self.worker}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def tracebacks(self) -> int:
        """How many of them it wrote to stderr."""
        return self.errors.read_text(encoding="utf-8", errors="replace").count("Traceback")


@contextmanager
def served(run: Path, core: int, scratch: Path) -> Iterator[Served]:
    """`dpf serve` on one core; ended in order."""
    errors = scratch / "server.err"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    command = [str(Path(sys.executable).with_name("dpf")), "serve", str(run / "back"), "--port", "0"]
    # A process inherits the cores of the one that starts it.
    with errors.open("w") as log, on_cores({core}):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment)
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        if not line:
            raise SystemExit("the server did not start:\n" + errors.read_text(encoding="utf-8"))
        told = json.loads(line)
        yield Served(process, told["host"], told["port"], errors)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(45)
        except subprocess.TimeoutExpired:
            process.kill()


# Equal answers


async def equality(results: Results, server: Served, frames: list[bytes]) -> None:
    """Each frame alone, then all of them together."""
    lines = [Line(server.host, server.port) for _ in range(CLIENTS)]
    alone = [await _probabilities(lines[0], frame) for frame in frames]
    before = await batches(lines[0])
    together: list[list[float]] = []
    for start in range(0, len(frames), CLIENTS):
        group = frames[start : start + CLIENTS]
        together += await asyncio.gather(
            *(_probabilities(line, frame) for line, frame in zip(lines, group, strict=False))
        )
    after = await batches(lines[0])
    for line in lines:
        await line.close()
    difference = float(np.abs(np.array(alone) - np.array(together)).max())
    mean = len(frames) / max(1, after.count - before.count)
    results.put("equality", {"frames": len(frames), "mean_batch": mean, "largest_difference": difference})
    results.goal("batched against single answers", difference, "at most 1e-5", difference <= 1e-5)
    results.goal("requests in a batch, on average", mean, "above 2", mean > 2)


async def _probabilities(line: Line, frame: bytes) -> list[float]:
    status, body = await line.post(fresh(frame))
    if status != 200:
        raise SystemExit(f"an honest frame was refused: {status} {body.decode(errors='replace')}")
    return list(json.loads(body)["probabilities"].values())


@dataclass(frozen=True)
class Batches:
    """The server's histogram of batch sizes: how many up to each limit, not cumulative."""

    by_limit: dict[float, int]
    requests: float

    @property
    def count(self) -> int:
        """Batches in all."""
        return sum(self.by_limit.values())

    def since(self, before: Batches) -> Batches:
        """Those that came later."""
        later = {limit: many - before.by_limit[limit] for limit, many in self.by_limit.items()}
        return Batches(later, self.requests - before.requests)

    def sizes(self) -> Counter[int]:
        """Sizes with this histogram and this sum, equally far into every bucket."""
        limits = sorted(self.by_limit)
        lower = [0.0, *limits[:-1]]
        least = sum((low + 1) * self.by_limit[high] for low, high in zip(lower, limits, strict=True))
        room = sum((high - low - 1) * self.by_limit[high] for low, high in zip(lower, limits, strict=True))
        share = (self.requests - least) / room if room else 0.0
        found: Counter[int] = Counter()
        for low, high in zip(lower, limits, strict=True):
            if self.by_limit[high]:
                found[round(low + 1 + share * (high - low - 1))] += self.by_limit[high]
        return found


async def batches(line: Line) -> Batches:
    """What the server counted so far."""
    text = (await line.get("/metrics"))[1].decode()
    cumulative = [(float(limit), int(float(many))) for limit, many in _SIZES.findall(text) if limit != "+Inf"]
    by_limit, below = {}, 0
    for limit, many in cumulative:
        by_limit[limit], below = many - below, many
    found = _SUM.search(text)
    return Batches(by_limit, float(found[1]) if found else 0.0)


# Throughput


class Bare:
    """The back itself, called with batches of given sizes."""

    def __init__(self, run: Path, manifest: Manifest, frames: list[bytes], core: int) -> None:
        self._back = load_provider_side(run / "back").back.eval()
        kind = f"<i{manifest.release.bits // 8}"
        values = np.stack([np.frombuffer(frame, dtype=kind, offset=HEADER_BYTES) for frame in frames])
        noisy = values.reshape(len(frames), manifest.release.matrix_rows, manifest.release.width).astype(
            np.float32
        )
        self._noisy = torch.from_numpy(noisy * np.float32(manifest.step))
        self._core = core

    def per_second(self, sizes: Counter[int], *, seconds: float) -> tuple[float, float]:
        """Rows per second over batches in these proportions, and the CPU seconds of a row."""
        order = sorted(sizes.elements())
        done, taken, cpu, at = 0, 0.0, 0.0, 0
        # A stride that shares no factor with the length visits all sizes, well mixed.
        stride = next(
            step for step in range(max(1, len(order) // 3), len(order) + 2) if math.gcd(step, len(order)) == 1
        )
        with on_cores({self._core}), torch.inference_mode():
            self._back(self._noisy[: order[-1]])
            while taken < seconds:
                size = order[at % len(order)]
                at += stride
                start, worked = time.perf_counter(), time.process_time()
                self._back(self._noisy[:size])
                taken, cpu = taken + time.perf_counter() - start, cpu + time.process_time() - worked
                done += size
        return done / taken, cpu / done


async def one_turn(
    server: Served, bare: Bare, frames: list[bytes], *, way: str, seconds: float
) -> dict[str, Any]:
    """Closed-loop clients for a while, then the bare back with the batches that the server had."""
    line = Line(server.host, server.port)
    clients, close = await WAYS[way](server.host, server.port, CLIENTS)
    await closed_loop(clients, frames, seconds=min(1.0, seconds / 4))
    before, cpu = await batches(line), server.cpu_s()
    tally = await closed_loop(clients, frames, seconds=seconds)
    counted, cpu = (await batches(line)).since(before), server.cpu_s() - cpu
    await close()
    await line.close()
    sizes = counted.sizes()
    direct, bare_cpu = bare.per_second(sizes, seconds=seconds)
    answered = max(1, len(tally.latencies))
    return {
        "way": way,
        "clients": CLIENTS,
        "answers_per_s": tally.per_second,
        "bare_back_per_s": direct,
        "ratio": tally.per_second / direct,
        "mean_batch": counted.requests / max(1, counted.count),
        "server_cpu_ms_per_answer": 1e3 * cpu / answered,
        "bare_cpu_ms_per_row": 1e3 * bare_cpu,
        "cpu_ratio": bare_cpu * answered / cpu,
        "p50_ms": tally.quantile(0.5),
        "p99_ms": tally.quantile(0.99),
        "batch_sizes": dict(sorted(sizes.items())),
        "errors": dict(tally.errors),
    }


async def throughput(
    results: Results, server: Served, bare: Bare, frames: list[bytes], *, turns: int, seconds: float
) -> float:
    """Closed-loop clients against the bare back, in turn; the capacity over HTTP."""
    rows = []
    for turn in range(turns):
        for way in WAYS:
            say(f"throughput: turn {turn + 1} of {turns}, {way} ...")
            rows.append(await one_turn(server, bare, frames, way=way, seconds=seconds))
            results.add("throughput_turns", rows[-1])
    found = {
        f"{way}_{key}": statistics.median(row[key] for row in rows if row["way"] == way)
        for way in WAYS
        for key in ("answers_per_s", "ratio", "cpu_ratio")
    }
    results.put("throughput", found)
    for way in WAYS:
        ratio = found[f"{way}_ratio"]
        results.goal(f"{way} against the bare back", ratio, "at least 0.85", ratio >= 0.85)
    return found["http_answers_per_s"]


# The soak


async def soak(
    results: Results, server: Served, frames: list[bytes], *, per_second: float, seconds: float
) -> None:
    """A steady rate for a while: latencies, errors, memory."""
    clients, close = await http_clients(server.host, server.port, CLIENTS)
    await steady(clients, frames, per_second=per_second, seconds=min(5.0, seconds), progress=lambda *_: None)
    memory = [(0.0, server.rss_mib())]

    def watch(passed: float, tally: Tally) -> None:
        memory.append((passed, server.rss_mib()))
        say(
            f"soak: {passed:.0f} of {seconds:.0f} s, {len(tally.latencies)} answers, "
            f"p50 {tally.quantile(0.5):.1f}, p99 {tally.quantile(0.99):.1f} ms, {memory[-1][1]:.1f} MiB ..."
        )

    tally = await steady(clients, frames, per_second=per_second, seconds=seconds, progress=watch)
    await close()
    memory.append((seconds, server.rss_mib()))
    middle = min(memory, key=lambda entry: abs(entry[0] - seconds / 2))[1]
    p50, p99, errors = tally.quantile(0.5), tally.quantile(0.99), sum(tally.errors.values())
    results.put(
        "soak",
        {
            "clients": CLIENTS,
            "seconds": seconds,
            "wanted_per_s": per_second,
            "answers_per_s": tally.per_second,
            "p50_ms": p50,
            "p99_ms": p99,
            "p99_to_p50": p99 / p50,
            "largest_ms": tally.quantile(1.0),
            "errors": errors,
            "rss_start_mib": memory[0][1],
            "rss_middle_mib": middle,
            "rss_end_mib": memory[-1][1],
            "growth_mib": memory[-1][1] - memory[0][1],
            "growth_second_half_mib": memory[-1][1] - middle,
        },
    )
    results.goal("soak p99 / p50", p99 / p50, "at most 3", p99 / p50 <= 3)
    results.goal("soak errors", errors, "0", errors == 0)
    growth = memory[-1][1] - middle
    results.goal("soak growth in its second half, MiB", growth, "at most 16", growth <= 16)


# Hostile frames


async def fuzz(results: Results, server: Served, frame: bytes, *, many: int) -> None:
    """Nothing that is sent may break it, and an honest request is answered afterwards as before."""
    line = Line(server.host, server.port)
    expected = await _probabilities(line, frame)
    start = time.perf_counter()

    def progress(sent: int) -> None:
        say(f"fuzz: {sent}, {time.perf_counter() - start:.0f} s ...")

    found = await fuzz_http(server.host, server.port, frame, many=many, seed=1, progress=progress)
    alive = server.alive
    await line.close()
    honest = await _probabilities(line, frame) if alive else []
    await line.close()
    same = alive and bool(np.allclose(honest, expected, rtol=0, atol=1e-5))
    failures, silent = found.failures, found.outcomes["silent"]
    results.put(
        "fuzz",
        {
            "frames": found.sent,
            "http": dict(found.outcomes.most_common()),
            "crashes": int(not alive),
            "failures_5xx": failures,
            "tracebacks": server.tracebacks(),
            "without_any_reaction": silent,
            "honest_request_answered_after": same,
            "per_second": found.sent / (time.perf_counter() - start),
            "rss_mib": server.rss_mib() if alive else None,
        },
    )
    results.goal("hostile frames: crashes", int(not alive), "0", alive)
    results.goal("hostile frames: 5xx", failures, "0", failures == 0)
    results.goal("hostile frames: tracebacks", server.tracebacks(), "0", server.tracebacks() == 0)
    results.goal("hostile frames: left waiting", silent, "0", silent == 0)
    results.goal("honest request after them", int(same), "1", same)


async def manifest_of(server: Served) -> Manifest:
    """What the server says it wants."""
    line = Line(server.host, server.port)
    manifest = Manifest.from_dict(json.loads((await line.get("/v1/manifest"))[1]))
    await line.close()
    return manifest


async def measure(results: Results, server: Served, run: Path, core: int, given: Any) -> None:
    """All parts against one server."""
    manifest = await manifest_of(server)
    frames = frames_for(manifest, 64)
    small = given.smoke
    results.put(
        "setup",
        {
            "cut": manifest.release.cut,
            "rows": manifest.release.matrix_rows,
            "width": manifest.release.width,
            "bits": manifest.release.bits,
            "frame_bytes": manifest.frame_bytes,
            "server_cores": [core],
            "server_threads": 1,
            "load_cores": sorted(os.sched_getaffinity(0)),
            "bare_back_cores": [core],
            "server_rss_mib": server.rss_mib(),
        },
    )
    if "equality" in given.only:
        await equality(results, server, frames)
    if "throughput" in given.only or "soak" in given.only:
        bare = Bare(run, manifest, frames, core)
        turns, seconds = (1, 2.0) if small else (5, 10.0)
        capacity = await throughput(results, server, bare, frames, turns=turns, seconds=seconds)
    if "soak" in given.only:
        await soak(results, server, frames, per_second=0.6 * capacity, seconds=given.seconds)
    if "fuzz" in given.only:
        await fuzz(results, server, frames[0], many=2_000 if small else 100_000)


def main() -> int:
    """Serve, measure, judge."""
    parser = arguments(__doc__ or "", "service")
    parser.add_argument("--run", type=Path, help="a RUN of dpf finetune [one is made]")
    parser.add_argument("--seconds", type=float, help="length of the soak [120, with --smoke 6]")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="some parts [all]")
    given = parser.parse_args()
    given.seconds = given.seconds or (6.0 if given.smoke else 120.0)
    torch.set_num_threads(1)
    results = Results(
        given.json,
        command="python -m benchmarks.service",
        libraries=("torch", "transformers", "starlette", "uvicorn", "httpx"),
        smoke=given.smoke,
    )
    cores = sorted(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as folder:
        run = given.run or make_run(Path(folder) / "run")
        with served(run, cores[0], Path(folder)) as server, on_cores({cores[-1]}):
            asyncio.run(measure(results, server, run, cores[0], given))
    return results.close(judge=not given.no_goals)


if __name__ == "__main__":
    sys.exit(main())
