"""Make the public statistics of a front that come with the package (`split.front_statistics`).

    python -m benchmarks.front_statistics wiki.train.raw.gz --model minilm \
        --source "WikiText-2, CC BY-SA" --out src/dp_forward/split/statistics/minilm.safetensors

Reads a text file (plain or .gz), cuts its paragraphs into sentences, takes an even sample of them, and writes
mean, leading directions and variances of the front's rows: numbers, from which no sentence can be read.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch

from dp_forward.data import FixedLength
from dp_forward.data.row_files import read_lines
from dp_forward.split import split_model
from dp_forward.split.front_statistics import rows_of, statistics_of_rows
from dp_forward.split.halves import Front
from dp_forward.split.pretrained import default_pooling, load_model, load_tokenizer
from dp_forward.storage.digests import file_digest

_BATCH = 64


def sentences(path: Path) -> list[str]:
    """Sentences of 6 to 60 words; headings are left out."""
    found = []
    for line in read_lines(path):
        if not line.strip().startswith("="):
            parts = (part.strip() for part in line.split(" . "))
            found += [f"{part} ." for part in parts if 6 <= len(part.split()) <= 60]
    return found


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("text", type=Path)
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--source", required=True, help="what the text is, and its licence")
    parser.add_argument("--texts", type=int, default=20_000)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    every = sentences(given.text)
    chosen = np.random.default_rng(0).permutation(len(every))[: given.texts]
    texts = sorted((every[index] for index in chosen), key=len)
    pair = split_model(load_model(given.model), "output", pooling=default_pooling(given.model))
    assert isinstance(pair.front, Front)
    tokens = FixedLength(load_tokenizer(given.model), given.rows, causal=pair.front.pads_left)
    batches = (tokens.encode(texts[start : start + _BATCH]) for start in range(0, len(texts), _BATCH))
    rows = rows_of(pair.front, batches, torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    made = statistics_of_rows(rows, pair.front, source=given.source)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    made.save(given.out)
    print(f"{given.out}: {made!r}, digest {file_digest(given.out)[:12]}, {given.out.stat().st_size} bytes")


if __name__ == "__main__":
    main()
