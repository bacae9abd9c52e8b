"""Accuracy of the default regime: folded releases, the closed form, and a question at the same epsilon.

    python -m benchmarks.closed_form --sst2 FOLDER --genres FILE.csv --out results/closed-form.json

SST-2 (GLUE) and a CSV `text,label,split` of four film genres. The rows of the frozen front are read once;
then every cell is drawn ``--seeds`` times: another sample of records, PrivUnit noise of its own for each,
and the answer to a question in expectation. The constants of `train.closed_form` were fixed on training
splits; the evaluation splits are only read here.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import log_ndtr, ndtri_exp

from dp_forward.data import EncodedTexts, FixedLength, Record
from dp_forward.data.row_files import read_rows as read_file
from dp_forward.noise.folded_record import FoldedCode
from dp_forward.privacy import NoiseSpec
from dp_forward.split import split_model
from dp_forward.split.front_statistics import FrontStatistics, find_shipped
from dp_forward.split.halves import Front
from dp_forward.split.pretrained import default_pooling, load_model, load_tokenizer
from dp_forward.train.closed_form import Hints, choose_width, fit, make_projection
from dp_forward.train.closed_form_training import read_rows

PHRASES = {
    "negative": [
        "a terrible movie",
        "a boring film",
        "awful acting and a weak story",
        "I hated it",
        "a waste of time",
        "disappointing and dull",
        "bad",
        "the worst film of the year",
        "a mess that fails",
        "poorly written",
    ],
    "positive": [
        "a wonderful movie",
        "a delightful film",
        "great acting and a strong story",
        "I loved it",
        "worth every minute",
        "satisfying and fun",
        "good",
        "the best film of the year",
        "a triumph that succeeds",
        "beautifully written",
    ],
}
GENRES = {
    "action": ["an action movie", "a film full of fights, chases and explosions"],
    "comedy": ["a comedy", "a funny film that makes you laugh"],
    "drama": ["a drama", "a serious film about people and their lives"],
    "horror": ["a horror movie", "a scary film with monsters and killers"],
}
WORDS = {label: [label] for label in PHRASES}
EPSILONS = (1.0, 2.0, 4.0, 8.0)


@dataclass
class Split:
    """Rows of a front, and labels."""

    rows: np.ndarray
    labels: np.ndarray


class Reader:
    """A front and its tokens: texts to rows."""

    def __init__(self, model: str, statistics: Path | None) -> None:
        front = split_model(load_model(model), "output", pooling=default_pooling(model)).front
        assert isinstance(front, Front)
        self.front, self.tokenizer = front.eval(), load_tokenizer(model)
        found = find_shipped(front) if statistics is None else FrontStatistics.load(statistics)
        if found is None:
            raise SystemExit("no statistics come with this model: name a file of them")
        self.statistics = found

    def read(self, texts: Sequence[str], labels: Sequence[int], length: int) -> Split:
        fixed = FixedLength(self.tokenizer, length)
        made = (Record(text, None, label) for text, label in zip(texts, labels, strict=True))
        encoded = EncodedTexts.from_records(made, fixed)
        assert encoded.labels is not None
        return Split(read_rows(self.front, encoded).astype(np.float64), encoded.labels)

    def hints(self, phrases: Mapping[str, Sequence[str]], length: int) -> Hints:
        said = [(phrase, number) for number, label in enumerate(phrases) for phrase in phrases[label]]
        found = self.read([text for text, _ in said], [number for _, number in said], length)
        return Hints(found.rows, found.labels)


def cell(
    reader: Reader,
    train: Split,
    test: Split,
    hints: Hints | None,
    *,
    records: int,
    epsilon: float,
    seeds: int,
) -> dict[str, Any]:
    """Accuracy after the question, over ``seeds`` samples and draws."""
    statistics = reader.statistics
    labels, noise = int(train.labels.max()) + 1, NoiseSpec(epsilon=epsilon, unit="record").build()
    answer = NoiseSpec(mechanism="k-ary-response", epsilon=epsilon, columns=labels).build()
    sigma: float = noise.sigma  # type: ignore[attr-defined]
    width = choose_width(records, sigma, labels=labels, most=len(statistics.variances))
    projection, code = make_projection(statistics, width, labels, hints), FoldedCode(labels, width)
    z, held, found = projection.directions(train.rows), projection.directions(test.rows), []
    for seed in range(seeds):
        rng = np.random.default_rng(seed)
        chosen = rng.permutation(len(z))[:records]
        total = np.zeros(code.columns)
        for folded in _released(code.fold(z[chosen], train.labels[chosen]), noise, rng):
            total += folded.sum(axis=0)
        learnt = fit(total / len(chosen), sigma**2 / len(chosen), code, projection)
        found.append(float(answer.transition()[learnt.decide(held), test.labels].mean()))
    return {
        "records": min(records, len(z)),
        "epsilon": epsilon,
        "width": width,
        "accuracy": float(np.mean(found)),
        "deviation": float(np.std(found, ddof=1)),
        "seeds": seeds,
    }


def _released(folded: np.ndarray, noise: Any, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """Unbiased PrivUnit releases of unit rows, each with noise of its own, some thousands at a time."""
    for start in range(0, len(folded), 8192):
        unit = folded[start : start + 8192]
        drawn = rng.standard_normal(unit.shape)
        drawn -= np.sum(unit * drawn, axis=1, keepdims=True) * unit
        yield noise.sigma * (_signals(noise, len(unit), rng)[:, None] * unit + drawn)


def _signals(noise: Any, size: int, rng: np.random.Generator) -> np.ndarray:
    """PrivUnit's s: N(0, 1) above t with probability p, else below, by inverse CDF in log space."""
    logs, t = np.log1p(-rng.random(size)), noise.threshold
    above, below = -ndtri_exp(logs + log_ndtr(-t)), ndtri_exp(logs + log_ndtr(t))
    return np.where(rng.random(size) < noise.cap_probability, np.maximum(above, t), below)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sst2", type=Path)
    parser.add_argument("--genres", type=Path)
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--statistics", type=Path, help="of the front [those that come with the package]")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    reader, results = Reader(given.model, given.statistics), {}
    plans: list[tuple[str, Split, Split, Hints | None, int, tuple[float, ...]]] = []
    if given.sst2:
        train, dev = (_sst2(reader, given.sst2 / name) for name in ("train.tsv", "dev.tsv"))
        ten, words = reader.hints(PHRASES, 64), reader.hints(WORDS, 64)
        plans += [
            ("SST-2, 67,349 records, ten phrases", train, dev, ten, 67_349, EPSILONS),
            ("SST-2, 2,000 records, ten phrases", train, dev, ten, 2000, EPSILONS),
            ("SST-2, 500 records, ten phrases", train, dev, ten, 500, EPSILONS),
            ("SST-2, 2,000 records, the labels' own words", train, dev, words, 2000, EPSILONS),
            ("SST-2, 67,349 records, no description", train, dev, None, 67_349, EPSILONS),
        ]
    if given.genres:
        rows = list(read_file(given.genres))
        parts = {}
        for split in ("train", "test"):
            some = [row.fields for row in rows if row.fields["split"] == split]
            kinds = [list(GENRES).index(str(fields["label"])) for fields in some]
            parts[split] = reader.read([str(fields["text"]) for fields in some], kinds, 256)
        described = reader.hints(GENRES, 64)
        plans.append(
            ("genres, 6,238 records, two phrases", parts["train"], parts["test"], described, 6238, EPSILONS)
        )
    for name, train, test, hints, records, epsilons in plans:
        results[name] = [
            cell(reader, train, test, hints, records=records, epsilon=epsilon, seeds=given.seeds)
            for epsilon in epsilons
        ]
        print(name, *(f"{found['accuracy']:.4f}" for found in results[name]), flush=True)
        given.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


def _sst2(reader: Reader, path: Path) -> Split:
    rows = [row.fields for row in read_file(path)]
    return reader.read([str(row["sentence"]) for row in rows], [int(str(row["label"])) for row in rows], 64)


if __name__ == "__main__":
    main()
