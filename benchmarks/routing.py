"""Private questions to a public list (`dpf route`): how often the right entry is answered.

    python -m benchmarks.routing --qqp qqp.tsv

The file has the columns question1, question2 and is_duplicate, as in Quora question pairs; where it has a
column ``source``, rows of cs224n-dev are used. Each pair of duplicates is a private question and the public
entry that fits it. Pairs that share no question are taken in groups of K: the private question is asked among
the K entries of its group. `train.routing` makes the front; nothing is trained or chosen on these pairs.
MiniLM saw Quora question pairs when it was made, so an encoder that did not would choose less well.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import math
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.report import ROOT, provenance
from dp_forward.privacy import KaryResponse, RandomizedResponse
from dp_forward.split.device import pick_device
from dp_forward.split.front_statistics import rows_of
from dp_forward.train.routing import make_route

SIZES, EPSILONS, DRAWS, SEED = (10, 100, 1000), (4.0, 8.0), 50, 0


def read_pairs(path: Path) -> Iterator[tuple[str, str]]:
    """Pairs of duplicates that share no question, in a fixed random order."""
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
        rows = [
            (row["question1"].strip(), row["question2"].strip())
            for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
            if row["is_duplicate"] == "1" and row.get("source", "cs224n-dev") == "cs224n-dev"
        ]
    seen: set[str] = set()
    for number in np.random.default_rng(SEED).permutation(len(rows)):
        pair = {text.lower() for text in rows[number]}
        if len(pair) == 2 and not pair & seen and all(pair):
            seen |= pair
            yield rows[number]


def measure(scores: NDArray[np.float64], size: int, epsilon: float) -> dict[str, float]:
    """One row of the table: groups of ``size`` on the diagonal of the scores of questions by entries."""
    groups = len(scores) // size
    spans = [slice(size * group, size * (group + 1)) for group in range(groups)]
    decided = np.concatenate([scores[span, span].argmax(axis=1) for span in spans])
    truth = np.tile(np.arange(size), groups)
    response, rng = KaryResponse(epsilon, size), np.random.default_rng(SEED)
    sampler = RandomizedResponse(epsilon, size)
    drawn = float(np.mean([(sampler.sample(decided, rng) == truth).mean() for _ in range(DRAWS)]))
    right = float((decided == truth).mean())
    return {
        "entries": size,
        "epsilon": epsilon,
        "questions": len(decided),
        "front": right,
        "keep": response.keep,
        "formula": response.accuracy(right),
        "measured": drawn,
        "measured_error": 1.96 * math.sqrt(drawn * (1 - drawn) / len(decided)),
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--qqp", type=Path, required=True, help="a TSV file of question pairs, or .gz")
    parser.add_argument("--pairs", type=int, default=3000)
    parser.add_argument("--json", type=Path, default=ROOT / "results" / "routing.json")
    given = parser.parse_args()
    pairs = list(islice(read_pairs(given.qqp), given.pairs))
    made = make_route({public: None for _, public in pairs}, epsilon=8.0)
    encoded = (
        made.tokens.encode([asked for asked, _ in pairs[at : at + 64]]) for at in range(0, len(pairs), 64)
    )
    front = made.pair.front
    scores = np.concatenate([rows[:, 0].cpu().numpy() for rows in rows_of(front, encoded, pick_device())])  # type: ignore[arg-type]
    sizes = [size for size in SIZES if size <= len(pairs)]
    found = [measure(scores.astype(np.float64), size, epsilon) for size in sizes for epsilon in EPSILONS]
    for row in found:
        print("  ".join(f"{name} {value:.4g}" for name, value in row.items()))
    record = {"model": "minilm", "draws": DRAWS, "seed": SEED, "rows": found}
    given.json.write_text(json.dumps(record | provenance(["torch", "transformers"]), indent=2) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
