"""The tables of docs/released-noise.md, docs/benchmarks.md and benchmarks/README.md, from the result files.

python -m benchmarks.tables
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.board import markdown
from benchmarks.report import ROOT
from benchmarks.service import WAYS

Record = dict[str, Any]


def attacks(record: Record) -> str:
    """Who guessed right, how often."""
    lines = ["| release, attack | right of trials | success, 95 % | ceiling by theory |", "|---|---|---|---|"]
    for row in record["attacks"]:
        interval = f"{row['low']:.3f} to {row['high']:.3f}"
        lines.append(
            f"| {row['attack']} | {row['right']} of {row['trials']} | {row['success']:.3f} ({interval}) "
            f"| {row['ceiling']:.3f} |"
        )
    return "\n".join(lines)


def noise(record: Record) -> str:
    """Exactness, speed, size, rounding."""
    exact, speed, fresh = record["exactness"], record["speed"], record["freshness"]
    cost = record["release_128_x_768_cpu_ms"]
    added = record["added_variance"]
    theory, measured = (max(row[f"percent_{how}"] for row in added) for how in ("by_theory", "measured"))
    large = next(row for row in record["payloads"] if row["shape"] == "BERT-base")
    rows = [
        (
            "draws that differ from 100 digits on the same bits",
            f"{exact['mismatches']} of {exact['draws']:,} ({exact['refined']:,} took more than one word)",
        ),
        (
            "equal payloads of 8 forked processes, of 8 threads",
            f"{fresh['processes_equal']} and {fresh['threads_equal']} of {fresh['processes_releases']} each",
        ),
        ("exact draws per second, one core", f"{speed['ours_million_per_s']:.1f} million"),
        (
            "OpenDP's exact discrete Gaussian, same scale and core",
            f"{speed['opendp_us']:.1f} us a draw, {speed['times_faster']:.0f} times ours"
            if "opendp_us" in speed
            else "not installed",
        ),
        (
            "CPU time of a 128 x 768 release",
            f"Gaussian {cost['matrix-gaussian_int8_ms']:.1f} ms, PrivUnit {cost['privunit_int8_ms']:.1f} ms",
        ),
        (
            "a 128 x 768 frame",
            f"{large['int8_bytes']:,} bytes in int8, {large['int16_bytes']:,} in int16, "
            f"{large['float32_bytes']:,} for float32 values",
        ),
        (
            "variance that rounding adds, worst recipe",
            f"{theory:.3f} % by theory, {measured:.3f} % measured",
        ),
    ]
    return "\n".join(["| what | measured |", "|---|---|", *(f"| {a} | {b} |" for a, b in rows)])


def service(record: Record) -> str:
    """The service, with its goals."""
    lines = ["| what | measured | goal |", "|---|---|---|"]
    for name, goal in record["goals"].items():
        if name.endswith("against the bare back") and name.split()[0] not in WAYS:
            continue  # of an older result: there is no such way any more
        missed = "" if goal["met"] else ", **missed**"
        lines.append(f"| {name} | {goal['value']:.4g} | {goal['rule']}{missed} |")
    setup = record["setup"]
    shape = f"{setup['rows']} x {setup['width']} int{setup['bits']} at {setup['cut']}"
    found = [f"{shape}, one core for the server, one for 32 clients."]
    if "throughput" in record:
        found.append(f"{record['throughput']['http_answers_per_s']:.0f} answers per second over HTTP.")
    if "soak" in record:
        soak = record["soak"]
        found.append(
            f"Soak of {soak['seconds']:.0f} s at {soak['answers_per_s']:.0f} per second: "
            f"p50 {soak['p50_ms']:.0f} ms, p99 {soak['p99_ms']:.0f} ms; "
            f"memory {soak['rss_start_mib']:.0f}, {soak['rss_middle_mib']:.0f} and "
            f"{soak['rss_end_mib']:.0f} MiB at its start, middle and end."
        )
    if "fuzz" in record:
        found.append(f"{record['fuzz']['frames']:,} hostile frames.")
    return "\n".join(lines) + "\n\n" + "\n".join(found)


PLACES: list[tuple[str, str, str, Callable[[Record], str]]] = [
    ("docs/released-noise.md", "attacks", "results/released-noise.json", attacks),
    ("docs/released-noise.md", "noise", "results/released-noise.json", noise),
    ("docs/benchmarks.md", "bench", "results/bench.json", markdown),
    ("benchmarks/README.md", "service", "results/service.json", service),
]


def filled(page: str, name: str, table: str) -> str:
    """The page with this table between its marks."""
    marks = re.compile(rf"(<!-- table: {name} -->\n).*?(<!-- end -->)", re.DOTALL)
    if not marks.search(page):
        raise SystemExit(f"no marks for the table {name}")
    return marks.sub(lambda found: f"{found[1]}{table}\n{found[2]}", page)


def fill(only: str | None = None) -> None:
    """Every table whose results are there, of one page or of all."""
    for page, name, results, table in PLACES:
        if only not in (None, page):
            continue
        source, target = ROOT / results, ROOT / page
        if not source.exists():
            print(f"{results}: not there, the table {name} stays as it is")
            continue
        record = json.loads(source.read_text(encoding="utf-8"))
        if record["smoke"]:
            print(f"{results}: a smoke run, the table {name} stays as it is")
            continue
        _write(target, filled(target.read_text(encoding="utf-8"), name, table(record)))
        print(f"{page}: {name}")


def main() -> int:
    """Fill every table whose results are there."""
    fill()
    return 0


def _write(path: Path, text: str) -> None:
    draft = path.with_suffix(".new")
    draft.write_text(text, encoding="utf-8")
    draft.replace(path)


if __name__ == "__main__":
    sys.exit(main())
