"""The tables of docs/released-noise.md, docs/benchmarks.md, docs/comparison.md and benchmarks/README.md.

python -m benchmarks.tables
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from operator import truediv
from pathlib import Path
from typing import Any

from benchmarks.board import markdown
from benchmarks.light_client import MOST_MB, MOST_SECONDS
from benchmarks.report import ROOT
from benchmarks.service import WAYS
from dp_forward.privacy.rounding import shown_up

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
    return "\n".join([*lines, "", *found, made(record)])


def load(record: Record) -> str:
    """Answers by number of connections."""
    lines = [
        "| connections | answers per second | of the peak | of the bare back | slowest health check |",
        "|---|---|---|---|---|",
    ]
    for row in record["connections"]:
        lines.append(
            f"| {row['connections']} {row['clients']} | {row['answers_per_s']:.0f} | {row['of_peak']:.2f} "
            f"| {row['of_bare_back']:.2f} | {row['health_slowest_ms']:.0f} ms |"
        )
    return "\n".join([*lines, "", made(record)])


def workers(record: Record) -> str:
    """Answers by number of workers."""
    lines = [
        "| workers | answers per second | of the bare back | of it in CPU time | the busiest one's work |",
        "|---|---|---|---|---|",
    ]
    for row in record["medians"]:
        lines.append(
            f"| {row['workers']} | {row['answers_per_s']:.0f} | {row['ratio']:.2f} | {row['cpu_ratio']:.2f} "
            f"| {row['busiest_share']:.0%} |"
        )
    return "\n".join([*lines, "", made(record)])


def light_client(record: Record) -> str:
    """Size and start of the client without torch, both in the same state."""
    lines = [
        "| installed by | MB | first start | later start, new text | below 300 MB and 1 s |",
        "|---|---|---|---|---|",
    ]
    for row in record["states"]:
        both = "yes" if row["mb"] < MOST_MB and row["new"] < MOST_SECONDS else "no"
        seconds = f"{row['first']:.2f} s | {row['new']:.2f} s"
        lines.append(f"| {row['state']} | {row['mb']:.0f} | {seconds} | {both} |")
    before = (
        f"Without any byte code, before its first start, --no-compile has {record['installed_mb']:.0f} MB."
    )
    torch = f"The client with torch takes {record['torch']['new']:.2f} s for a new text."
    return "\n".join([*lines, "", before, torch, made(record)])


def made(record: Record) -> str:
    """Which code and which machine a result is of."""
    versions = ", ".join(f"{name} {found}" for name, found in record["versions"].items() if found)
    load = f", load {record['load_before']:.1f} before it began" if "load_before" in record else ""
    cores = f"{record['cores']} cores ({record['machine']}){load}"
    return f"Commit {(record['commit'] or 'unknown')[:7]} on {cores}; Python {record['python']}, {versions}."


_RIVALS = {
    "SanText": (
        "SanText, distances at most 1",
        "each word: epsilon between any two words",
        "epsilon by its proof, {exact} of it exactly; among texts of equally many words",
    ),
    "CusText": (
        "CusText, sets of 20",
        "each word: epsilon between words of one set",
        "no finite epsilon: the set of every word is told",
    ),
    "DP-MLM": (
        "DP-MLM, a masked model of ours",
        "each word put in: epsilon between any two texts",
        "epsilon, among texts of equally many words",
    ),
}
"""Rival -> what we call it, its promise, what that is worth when n words have epsilon / n each."""


def rivals(record: Record) -> str:
    """Who promises what, and what is left of the accuracy at our epsilon per text."""
    words = record["vocabulary"]
    largest, claimed = words["largest_distance"], words["word_epsilons"]
    exact = shown_up(max(map(truediv, words["exact_word_epsilons"], claimed)), 2)
    ours = "**dp-forward**, the folded default", "text and label together: one pure epsilon", "epsilon"
    local = "local decision, K-ary response", "the answer: epsilon", "epsilon; a training text: nothing"
    rows = [(*ours, _at(record["ours"], 1), ""), (*local, _at(record["local_decision"], 1), "")]
    for name, facts in _RIVALS.items():
        found = _rows_of(record, name)
        if not found:
            continue
        told = (fact.format(exact=exact) for fact in facts)
        rows.append((*told, _at(found, 1), _reached(record, name, 1)))
        if name == "SanText":
            metric = "SanText, its own parameter", "each word: epsilon times the distance of two words"
            worth = f"{shown_up(largest, 2)} times epsilon, among texts of equally many words"
            rows.append((*metric, worth, _at(found, largest), _reached(record, name, largest)))
    head = ("what", "its promise", "worth for a whole text", "accuracy at 4; at 8", "reaches ours at")
    lines = (f"| {' | '.join(row)} |" for row in (head, ("---",) * len(head), *rows))
    return "\n".join(lines)


def _rows_of(record: Record, name: str) -> list[Record]:
    return [row for row in record["rivals"] if row["rival"] == name]


def _at(rows: list[Record], unit: float) -> str:
    """Accuracy at 4 and at 8 times a unit, where they were measured."""
    found = {row["epsilon"]: row for row in rows}
    wanted = (found.get(epsilon * unit) for epsilon in (4.0, 8.0))
    return "; ".join("-" if row is None else _with_deviation(row) for row in wanted)


def _with_deviation(row: Record) -> str:
    return f"{row['accuracy']:.3f} \u00b1 {row['deviation']:.3f}"


def _reached(record: Record, name: str, unit: float) -> str:
    """The epsilon at which a rival has what ours has at 4."""
    found = record["reached_at"].get(name, {}).get("ours_at_4")
    if found is not None:
        return _two(found / unit)
    most = max(row["epsilon"] for row in _rows_of(record, name) if row["epsilon"] is not None)
    return f"not by {_two(most / unit)}"


def _two(value: float) -> str:
    """Two digits, as no more are known."""
    return f"{float(f'{value:.2g}'):,g}"


def rival_curve(record: Record) -> str:
    """Accuracy by epsilon per text."""
    names = [name for name in _RIVALS if _rows_of(record, name)]
    found = {name: {row["epsilon"]: row for row in _rows_of(record, name)} for name in names}
    every = {epsilon for rows in found.values() for epsilon in rows}
    lines = [f"| epsilon per text | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    for epsilon in sorted(every, key=lambda value: float("inf") if value is None else value):
        shown = "no noise" if epsilon is None else f"{epsilon:,.4g}"
        cells = (found[name].get(epsilon) for name in names)
        text = " | ".join("" if row is None else _with_deviation(row) for row in cells)
        lines.append(f"| {shown} | {text} |")
    return "\n".join([*lines, "", *_rival_facts(record)])


def _rival_facts(record: Record) -> list[str]:
    setup, words, model = record["setup"], record["vocabulary"], record.get("masked_model", {})
    clean = next(row for row in record["local_decision"] if row["epsilon"] is None)
    lost = [row["accuracy"] - row["accuracy_with_label_response"] for row in record["rivals"]]
    claimed, exact = words["word_epsilons"], words["exact_word_epsilons"]
    shares = " and ".join(f"{shown_up(b, 3)} at {a:.3g}" for a, b in zip(claimed, exact, strict=True))
    bounds = " and ".join(f"{row['accuracy']:.2f} at {row['epsilon']:g}" for row in record["ceiling"])
    found = [
        f"* {setup['records']:,} training records of {setup['words_per_training_text']:.1f} words, "
        f"{setup['seeds']} samples of them; {setup['questions']:,} questions of "
        f"{setup['words_per_question']:.1f} words.",
        f"* The same classifier on the texts as they are: {_with_deviation(clean)}.",
        f"* {words['words']:,} words of public reviews. The largest distance of two is "
        f"{words['largest_distance']:.2f}, the median distance to the nearest "
        f"{words['distance_to_the_nearest_word']:.2f}.",
        f"* Whatever the word vectors or the masked model are, and whatever reads the texts: over one set of "
        f"candidates for all words, accuracy is at most {bounds}. This is a theorem, not a run.",
        f"* SanText's proof is not tight. Its law is worth {shares} per word, exactly, on this vocabulary.",
        f"* Randomized response on the labels ({setup['label_epsilon']:.3f} more for a training record) "
        f"takes {sum(lost) / len(lost):.3f} from a rival's accuracy on average.",
    ]
    if "pairs_loss" in model:
        found.append(
            f"* Held-out loss of our masked model beside the whole text: {model['pairs_loss']:.2f} per token."
        )
    return found


PLACES: list[tuple[str, str, str, Callable[[Record], str]]] = [
    ("docs/released-noise.md", "attacks", "results/released-noise.json", attacks),
    ("docs/released-noise.md", "noise", "results/released-noise.json", noise),
    ("docs/benchmarks.md", "bench", "results/bench.json", markdown),
    ("docs/benchmarks.md", "load", "results/overload.json", load),
    ("docs/benchmarks.md", "workers", "results/workers.json", workers),
    ("docs/benchmarks.md", "light client", "results/light-client.json", light_client),
    ("docs/comparison.md", "rivals", "results/rivals.json", rivals),
    ("docs/comparison.md", "rival curve", "results/rivals.json", rival_curve),
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
