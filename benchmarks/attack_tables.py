"""The tables and the figures of docs/attacks.md, from the result files.

    python -m benchmarks.attack_tables collect --membership OUT.jsonl --inversion OUT.jsonl [--run FILE ...]
    python -m benchmarks.attack_tables

`collect` makes results/attacks.json from the lines that `benchmarks.attacks_membership run` and
`benchmarks.attacks_inversion run` wrote: of a name the last line counts, and what no table needs is left out.
A ``--run`` is what `dpf attack membership --json` printed about a run of yours.
Without a word, results/attacks.json and results/mutants.json are put into the page and the figures are drawn.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.report import ROOT, provenance
from benchmarks.tables import _write, filled
from dp_forward.train.figure_style import Scheme
from reproduction.render.svg_files import draw_schemes

Record = dict[str, Any]

PAGE, FIGURES = ROOT / "docs" / "attacks.md", ROOT / "docs" / "figures"
ATTACKS, MUTANTS = ROOT / "results" / "attacks.json", ROOT / "results" / "mutants.json"
SCORES = ("entropy", "confidence")
NAMES = {
    "undefended": "non-private",
    "dp-sgd": "DP-SGD",
    "matrix-gaussian": "matrix Gaussian",
    "privunit": "PrivUnit",
}
DEFENDED = ("matrix-gaussian", "privunit")
_KEPT = (
    "success",
    "chance",
    "low",
    "high",
    "trials",
    "ceiling",
    "within_ceiling",
    "auc",
    "tpr_at_1_percent_fpr",
    "tpr_at_0.1_percent_fpr",
    "seeds",
    "releases",
    "bag_recall",
    "best_fixed_in_hindsight",
    "map_error",
    "mechanism",
    "promise",
    "noise",
    "front",
)
_RATES = ("tpr_at_1_percent_fpr", "tpr_at_0.1_percent_fpr")


def collect(membership: Path, inversion: Path, runs: Iterable[Path] = ()) -> Record:
    """What the tables need, from the lines of both runs."""
    first, second = _last_lines(membership), _last_lines(inversion)
    own = second.pop("provenance", None)
    made: Record = {
        "command": "python -m benchmarks.attack_tables collect",
        "smoke": False,
        "epsilon": 8.0,
        "provenance": {
            "inversion": {"command": "python -m benchmarks.attacks_inversion run", **_without(own, "job")},
            "membership": {
                "command": "python -m benchmarks.attacks_membership run",
                **_without(first.pop("provenance", None), "job"),
            },
            "collected": provenance(("numpy", "scipy", "torch", "transformers")),
        },
        "membership": {},
        "lira": {},
        "trained": {},
        "attribute": {},
        "runs": [_of_a_run(json.loads(path.read_text(encoding="utf-8"))) for path in runs],
        "inversion": {name: _compact(line) for name, line in second.items()},
    }
    for name, line in first.items():
        kind, _, rest = name.partition("/")
        if name.startswith("pooled membership, LiRA"):
            made["lira"][name.removeprefix("pooled membership, ")] = _compact(line)
        elif name.startswith("pooled "):
            job, key = rest.rsplit(" ", 1)
            seeds = [other for other in first if other.rsplit("/", 1)[0] == f"membership/{job}"]
            rates = {rate: _mean(first[other][key][rate] for other in seeds) for rate in _RATES}
            made["membership"][f"{job}/{key}"] = _compact({**line, **rates})
        elif kind == "attribute":
            made["attribute"][rest.rsplit("/", 1)[0]] = _compact(line)
        elif kind == "membership":
            facts = ("members", "epochs", "epsilon", "noise_multiplier", "promise")
            accuracies = {key: value for key, value in line.items() if key.endswith("_accuracy")}
            made["trained"][rest] = {**{key: line[key] for key in facts if key in line}, **accuracies}
    made["goals"] = goals(made)
    return made


def _of_a_run(found: Record) -> Record:
    """The scores of one `dpf attack membership`, the one on top among them."""
    facts = (
        "mechanism",
        "promise",
        "cut",
        "task",
        "regime",
        "members",
        "others_from",
        "noiseless",
    )
    right = ("accuracy_on_members", "accuracy_on_others")
    scores = {found["attack"]: _compact(found)} | {
        name: _compact(one) for name, one in found["scores"].items()
    }
    return {name: _short(found[name]) for name in (*facts, *right)} | {"scores": scores}


def _last_lines(path: Path) -> dict[str, Record]:
    lines = (json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())
    return {line["job"]: line for line in lines if not {"error", "skipped"} & line.keys()}


def _compact(line: Record) -> Record:
    return {key: _short(line[key]) for key in _KEPT if key in line}


def _short(value: Any) -> Any:
    return float(f"{value:.6g}") if isinstance(value, float) else value


def _without(line: Record | None, *names: str) -> Record:
    if line is None:
        return {"note": "the run wrote no line about its machine"}
    return {key: value for key, value in line.items() if key not in names}


def _mean(values: Iterable[float]) -> float:
    given = list(values)
    return sum(given) / len(given)


def goals(record: Record) -> Record:
    """Every number that was wanted, with what was found."""
    inversion, attribute, members = record["inversion"], record["attribute"], record["membership"]
    everything = [
        one for part in ("membership", "lira", "attribute", "inversion") for one in record[part].values()
    ]
    made: Record = {}

    def goal(name: str, value: float, rule: str, met: bool) -> None:
        made[name] = {"value": _short(value), "rule": rule, "met": met}

    def at_least(name: str, value: float, least: float) -> None:
        goal(name, value, f">= {least:g}", value >= least)

    at_least("nearest at embeddings, non-private", inversion["nearest/embeddings/undefended"]["success"], 1.0)
    at_least(
        "gradient at embeddings, non-private", inversion["gradient/embeddings/undefended"]["success"], 0.99
    )
    at_least("decoder at encoder.3, non-private", inversion["decoder/encoder.3/undefended"]["success"], 0.8)
    at_least("nearest at embeddings, DP-SGD", inversion["dp-sgd"]["success"], 0.99)
    plain = [one["low"] - one["chance"] for name, one in attribute.items() if "/undefended/" in name]
    goal("attribute above the majority, non-private, least of all", min(plain), "> 0", min(plain) > 0)
    for task in ("imdb", "sst2"):
        overfit = members[f"{task}/undefended/plain_entropy"]["success"]
        goal(f"membership by entropy, {task}, non-private", overfit, "> 0.6", overfit > 0.6)
    passed = sum(one["within_ceiling"] for one in everything)
    goal("results inside their ceiling", passed, f"= {len(everything)}", passed == len(everything))
    for task in ("imdb", "sst2"):
        off = [
            abs(one["success"] - 0.5)
            for name, one in members.items()
            if _defended(name) and name.startswith(task)
        ]
        goal(f"membership, {task}, farthest from a coin", max(off), "<= 0.01", max(off) <= 0.01)
    off = [abs(one["success"] - 0.5) for name, one in record["lira"].items() if _defended(name)]
    goal("membership by LiRA, farthest from a coin", max(off), "<= 0.01", max(off) <= 0.01)
    for name in DEFENDED:
        found = inversion[f"nearest/embeddings/{name} 8"]["success"]
        goal(f"nearest at embeddings, {NAMES[name]}", found, "< 0.05", found < 0.05)
    for labels in ("keyword", "true"):
        over = {
            name: one["low"] - one["chance"]
            for name, one in attribute.items()
            if _defended(name) and name.startswith(labels)
        }
        goal(
            f"attribute ({labels} genre), most that an interval begins above the majority",
            max(over.values()),
            "<= 0",
            max(over.values()) <= 0,
        )
    return made


def _defended(name: str) -> bool:
    return any(one in name for one in DEFENDED)


def interval(one: Record) -> str:
    """A success with its interval."""
    return f"{one['success']:.3f} ({one['low']:.3f} to {one['high']:.3f})"


def ceiling(one: Record) -> str:
    """Or that nothing is promised."""
    return "none" if one["ceiling"] is None else f"{one['ceiling']:.4f}"


def found_at(one: Record) -> str:
    """The members that are found while 1 % and 0.1 % of the others are accused."""
    first, second = (100 * one[rate] for rate in _RATES)
    return f"{first:.1f} %, {second:.2f} %"


def right_about(record: Record, job: str, how: str) -> str:
    """How good the attacked model is, over its seeds: on what it was trained on, and on others."""
    seeds = [one for name, one in record["trained"].items() if name.rsplit("/", 1)[0] == job]
    members, others = (_mean(one[f"{how}_accuracy"][side] for one in seeds) for side in (0, 1))
    return f"{members:.3f}, {others:.3f}"


def table(head: str, rows: Iterable[Iterable[str]]) -> str:
    """Markdown."""
    columns = head.split(" | ")
    lines = [f"| {head} |", "|" + "---|" * len(columns)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def membership_table(record: Record, task: str) -> str:
    """One row for every model and every way of asking it."""
    found, rows = record["membership"], []
    targets = [("undefended", "", "plain"), ("dp-sgd", "", "plain")]
    targets += [
        (name, cut, how)
        for name in DEFENDED
        for cut in ("encoder.3", "output")
        for how in ("noisy", "noiseless")
    ]
    for name, cut, how in targets:
        job = f"{task}/{name}/{cut}" if cut else f"{task}/{name}"
        entropy, confidence = (found.get(f"{job}/{how}_{score}") for score in SCORES)
        if entropy is None or confidence is None:
            continue
        asked = {"plain": "as it is", "noisy": "through releases", "noiseless": "without noise"}[how]
        rows.append(
            (
                f"{NAMES[name]}{f', {cut}' if cut else ''}",
                asked,
                interval(entropy),
                interval(confidence),
                f"{confidence['auc']:.3f}",
                found_at(confidence),
                right_about(record, job, how),
                f"{entropy['chance']:g}",
                ceiling(entropy),
            )
        )
    head = (
        "model | asked | entropy | confidence | AUC | members found at 1 %, 0.1 % false | "
        "right about members, others | chance | ceiling"
    )
    return table(head, rows)


def runs_table(record: Record) -> str:
    """Runs that have learnt something, by the verb itself."""
    names = ("entropy", "confidence")
    rows = []
    for run in record["runs"]:
        scores = [run["scores"][f"membership, {name}"] for name in names]
        rows.append(
            (
                f"{NAMES[run['mechanism']]}, {run['promise']}",
                "without noise" if run["noiseless"] else "through releases",
                *(interval(one) for one in scores),
                f"{run['accuracy_on_members']:.3f}, {run['accuracy_on_others']:.3f}",
                f"{scores[0]['chance']:g}",
                ceiling(scores[0]),
            )
        )
    head = "run | asked | entropy | confidence | right about members, others | chance | ceiling"
    return table(head, rows)


def lira_table(record: Record) -> str:
    """The strongest membership attack."""
    rows = []
    for name, one in record["lira"].items():
        attack, _, target = name.partition("/")
        who, _, cut = target.partition("/")
        model = f"{NAMES[who]}{f', {cut}' if cut else ''}"
        rows.append((model, attack, interval(one), f"{one['auc']:.3f}", found_at(one), "0.5", ceiling(one)))
    return table(
        "model | attack | success | AUC | members found at 1 %, 0.1 % false | chance | ceiling", rows
    )


def inversion_table(record: Record) -> str:
    """Recall of tokens by model and attack."""
    found, rows = record["inversion"], []
    order = [("undefended", "undefended"), ("dp-sgd", None), *((name, f"{name} 8") for name in DEFENDED)]
    for name, noise in order:
        if noise is None:
            rows.append((NAMES[name], "nearest, embeddings", *_cells(found["dp-sgd"])))
            continue
        for job, one in sorted(found.items(), key=lambda item: _attack_order(item[0])):
            attack, _, rest = job.partition("/")
            cut, _, of = rest.partition("/")
            if of == noise:
                rows.append((NAMES[name], f"{attack}, {cut}", *_cells(one)))
    return table("model | attack, cut | recall | chance | ceiling | texts", rows)


def _attack_order(job: str) -> tuple[int, str]:
    attacks = ("nearest/", "nearest with prior", "gradient/", "gradient after", "decoder")
    return next((number for number, start in enumerate(attacks) if job.startswith(start)), len(attacks)), job


def _cells(one: Record) -> tuple[str, ...]:
    return interval(one), f"{one['chance']:.3f}", ceiling(one), str(one["trials"])


def averaging_table(record: Record) -> str:
    """What several fresh releases of one text give away."""
    found, rows = record["inversion"], []
    for attack in (
        "nearest/embeddings",
        "nearest with prior/embeddings",
        "decoder/embeddings",
        "decoder/encoder.3",
    ):
        names = [f"{attack}/privunit 8{more}" for more in ("", " x 8", " x 64")]
        rows.append((attack.replace("/", ", "), *(interval(found[name]) for name in names)))
    return table("attack, cut (PrivUnit) | 1 release | 8 averaged | 64 averaged", rows)


def token_table(record: Record) -> str:
    """Noise per token, where the promise is about one token."""
    found, rows = record["inversion"], []
    for epsilon in (8, 32):
        for attack in ("nearest", "nearest with prior"):
            one = found[f"{attack}/embeddings/matrix-gaussian {epsilon} per token"]
            rows.append((f"{epsilon}", attack, *_cells(one)[:2]))
    return table("epsilon per token | attack | recall | chance", rows)


def attribute_table(record: Record) -> str:
    """The genre of a review."""
    found, rows = record["attribute"], []
    for labels in ("keyword", "true"):
        for name in ("undefended", *DEFENDED):
            for pool in ("mean", "flatten"):
                cells = [
                    found.get(f"{labels}/{name}/{cut}/{pool}")
                    for cut in ("embeddings", "encoder.3", "output")
                ]
                there = [one for one in cells if one is not None]
                rows.append(
                    (
                        labels,
                        NAMES[name],
                        pool,
                        *("" if one is None else interval(one) for one in cells),
                        f"{there[0]['chance']:.3f}",
                        ceiling(there[0]),
                    )
                )
    return table("genre | model | read as | embeddings | encoder.3 | output | majority | ceiling", rows)


def outside_table(record: Record) -> str:
    """Defended results of one release that a reader should know of."""
    rows, looked_at = [], 0
    for part in ("membership", "lira", "attribute", "inversion"):
        for name, one in record[part].items():
            if not _defended(name) or one.get("releases", 1) != 1 or " per token" in name:
                continue
            looked_at += 1
            far = part in ("membership", "lira") and abs(one["success"] - 0.5) > 0.01
            above = one["low"] > one["chance"]
            if far or above:
                why = [
                    *(["outside 0.49 to 0.51"] if far else []),
                    *(["above chance beyond its interval"] if above else []),
                ]
                rows.append((part, name, interval(one), f"{one['chance']:.3f}", ceiling(one), ", ".join(why)))
    text = table("attack | which | success | chance | ceiling | why it is here", rows)
    return f"{text}\n\n{len(rows)} of {looked_at} defended results."


def goals_table(record: Record) -> str:
    """Wanted and found."""
    rows = [
        (name, f"{one['value']:.4g}", one["rule"], "met" if one["met"] else "**missed**")
        for name, one in record["goals"].items()
    ]
    return table("what | found | wanted | ", rows)


def mutant_table(record: Record) -> str:
    """Which broken variant is caught by what."""
    rows = [
        (
            one["mutant"],
            f"`{one['by']}`" if one["caught"] else "**not caught**",
            one["finding"],
            f"{one['claimed']:.4g}",
            f"{one['measured']:.4g}",
            "" if one["z"] is None else f"{one['z']:+.1f}",
        )
        for one in record["mutants"]
    ]
    return table("broken variant | caught by | finding | claimed | measured | z", rows)


PLACES: list[tuple[str, Path, Callable[[Record], str]]] = [
    ("membership", ATTACKS, lambda record: membership_table(record, "imdb")),
    ("membership-sst2", ATTACKS, lambda record: membership_table(record, "sst2")),
    ("lira", ATTACKS, lira_table),
    ("runs", ATTACKS, runs_table),
    ("inversion", ATTACKS, inversion_table),
    ("averaging", ATTACKS, averaging_table),
    ("token", ATTACKS, token_table),
    ("attribute", ATTACKS, attribute_table),
    ("outside", ATTACKS, outside_table),
    ("goals", ATTACKS, goals_table),
    ("mutants", MUTANTS, mutant_table),
    ("audits", MUTANTS, goals_table),
]


def draw(record: Record, folder: Path) -> list[Path]:
    """One figure for each of the three attacks."""
    members, inversion, attribute = (record[part] for part in ("membership", "inversion", "attribute"))
    told = {"non-private": members["imdb/undefended/plain_confidence"]}
    told["DP-SGD"] = members["imdb/dp-sgd/plain_confidence"]
    plain = [(f"non-private, {a} {c}", inversion[f"{a}/{c}/undefended"]) for a, c in _READ]
    read = dict([plain[0], ("DP-SGD, nearest embeddings", inversion["dp-sgd"]), *plain[1:]])
    kinds = {f"non-private, {cut}": attribute[f"keyword/undefended/{cut}/mean"] for cut in _CUTS}
    for name in DEFENDED:
        for cut in ("encoder.3", "output"):
            told[f"{NAMES[name]}, {cut}"] = members[f"imdb/{name}/{cut}/noisy_confidence"]
        read |= {f"{NAMES[name]}, {a} {c}": inversion[f"{a}/{c}/{name} 8"] for a, c in _READ}
        kinds |= {f"{NAMES[name]}, {cut}": attribute[f"keyword/{name}/{cut}/mean"] for cut in _CUTS}
    shown = {
        "membership": ("success, by confidence, on IMDb", told),
        "inversion": ("recall of tokens, on SST-2", read),
        "attribute": ("success, genre by keyword", kinds),
    }
    return [
        path
        for name, (measure, bars) in shown.items()
        for path in draw_attack(bars, folder / f"attacks-{name}", measure=measure)
    ]


_READ = (("nearest", "embeddings"), ("decoder", "embeddings"), ("decoder", "encoder.3"))
_CUTS = ("embeddings", "encoder.3", "output")


def draw_attack(results: Mapping[str, Mapping[str, Any]], path: Path, *, measure: str) -> list[Path]:
    """A bar for each `AttackResult.as_dict`, with its interval, chance and ceiling."""

    def paint(figure: Any, scheme: Scheme) -> None:
        open_to_all, promised, most = (scheme.series[hue] for hue in ("orange", "blue", "vermilion"))
        axes = figure.subplots()
        handles = {}
        for place, bar in enumerate(results.values()):
            said, colour = ("promised", promised) if bar["ceiling"] else ("nothing promised", open_to_all)
            handles[said] = axes.barh([place], [bar["success"]], color=colour, alpha=0.7, height=0.6)
            axes.plot([bar["low"], bar["high"]], [place] * 2, color=scheme.ink, linewidth=1.2)
            for name, at, look in (
                ("chance", bar["chance"], {"color": scheme.ink, "linestyle": ":", "linewidth": 1.4}),
                ("ceiling", bar["ceiling"], {"color": most, "linewidth": 2.2}),
            ):
                if at is not None:
                    (handles[name],) = axes.plot([at] * 2, [place - 0.42, place + 0.42], **look)
        axes.set_yticks(range(len(results)), list(results))
        axes.invert_yaxis()
        axes.set(xlim=(0, 1.03), xlabel=measure)
        axes.grid(visible=False, axis="y")
        figure.legend(list(handles.values()), list(handles), loc="outside lower center", ncols=4)

    return draw_schemes(path, 0.95 + 0.27 * len(results), paint)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.attack_tables")
    first = parser.add_subparsers(dest="verb").add_parser("collect")
    for name in ("membership", "inversion"):
        first.add_argument(f"--{name}", type=Path, required=True)
    first.add_argument("--run", type=Path, action="append", default=[], help="JSON of dpf attack membership.")
    given = parser.parse_args()
    if given.verb == "collect":
        record = collect(given.membership, given.inversion, given.run)
        _write(ATTACKS, json.dumps(record, indent=1) + "\n")
        print(f"{ATTACKS.relative_to(ROOT)}: {ATTACKS.stat().st_size:,} bytes")
        return 0
    for name, source, made in PLACES:
        record = json.loads(source.read_text(encoding="utf-8"))
        if record["smoke"]:
            print(f"{source.name}: a smoke run, the table {name} stays as it is")
            continue
        _write(PAGE, filled(PAGE.read_text(encoding="utf-8"), name, made(record)))
        print(f"{PAGE.relative_to(ROOT)}: {name}")
    for path in draw(json.loads(ATTACKS.read_text(encoding="utf-8")), FIGURES):
        print(path.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
