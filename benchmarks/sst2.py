"""Accuracy on SST-2 for every cut and epsilon of the table in docs/recipes.md, many runs side by side.

    python -m benchmarks.sst2 prepare --data sst2=PATH --data imdb=PATH --cache CACHE     # token ids, once
    python -m benchmarks.sst2 run --cache CACHE --model MODEL --out results/sst2.jsonl --workers 14

`run` makes the plans below with `dp_forward.train.finetune` and appends one JSON line per run as it ends; a
run that is in the file already is not made again. ``--only output`` takes the jobs whose name holds the word.
Fine-tuning a small model is bound by kernel launches, so a GPU does many runs at once (with
``nvidia-cuda-mps-control -d`` started first).
"""

from __future__ import annotations

import argparse
import json
import lzma
import multiprocessing
import os
import sys
import tempfile
import time
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

ROWS = 64
SEEDS = (0, 1)
DRAWS = 20
PUBLIC = 560_000
"""A sample of the sentences of both IMDb splits."""
GAUSSIAN = "matrix-gaussian"
SPLITS = ("sst2-train", "sst2-validation", "imdb-train")


def jobs() -> dict[str, list[dict[str, Any]]]:
    """Name -> plans made one after the other by one worker; ``FIRST`` is the run of the first of them."""
    made: dict[str, list[dict[str, Any]]] = {}
    base = {"task": "sst2", "regime": "end-to-end", "evaluation_draws": DRAWS}
    for seed in SEEDS:
        public = {
            "regime": "public-front",
            "public_task": "imdb",
            "public_limit": PUBLIC,
            "precision": "fp32",
            "epsilon": 4.0,
            "seed": seed,
        }
        after = {
            "task": "sst2",
            "regime": "release-once",
            "model": "FIRST",
            "seed": seed,
            "evaluation_draws": DRAWS,
        }
        made[f"public-front/{seed}"] = [
            base | public,
            after | {"epsilon": 8.0},
            after | {"epsilon": 4.0, "mechanism": GAUSSIAN},
            after | {"epsilon": 8.0, "mechanism": GAUSSIAN},
        ]
    inner = [("embeddings", 16.0), ("encoder.1", 16.0), ("encoder.3", 8.0), ("encoder.5", 8.0)]
    for seed in SEEDS:
        for cut, epsilon in inner:
            made[f"{cut}/{epsilon:g}/{seed}"] = [base | {"cut": cut, "epsilon": epsilon, "seed": seed}]
    for cut, epsilon in inner:
        made[f"{cut}/{epsilon:g}/gaussian"] = [base | {"cut": cut, "epsilon": epsilon, "mechanism": GAUSSIAN}]
    at_output = {"cut": "output", "precision": "fp32"}
    for seed in SEEDS:
        made[f"output/none/{seed}"] = [base | at_output | {"mechanism": "none", "seed": seed}]
        for epsilon in (1.0, 2.0, 4.0, 8.0):
            plan = base | at_output | {"epsilon": epsilon, "seed": seed}
            made[f"output/{epsilon:g}/{seed}"] = [plan]
            made[f"output/{epsilon:g}/gaussian/{seed}"] = [plan | {"mechanism": GAUSSIAN}]
    return made


def prepare(args: argparse.Namespace) -> int:
    """Read the splits as `finetune` would, and store their token ids."""
    from dp_forward.data import FixedLength, find_task, read_texts
    from dp_forward.split.pretrained import load_tokenizer

    sources = dict(option.split("=", 1) for option in args.data)
    tokens = FixedLength(load_tokenizer(args.model), ROWS)
    args.cache.mkdir(parents=True, exist_ok=True)
    for name in SPLITS:
        task, split = name.split("-")
        words = 48 if task == "imdb" else 0
        limit = PUBLIC if task == "imdb" else None
        texts = read_texts(
            find_task(task), split, tokens, source=sources[task], words=words, limit=limit, treebank=True
        )
        ids, lengths, labels = (texts.columns[column] for column in ("ids", "lengths", "labels"))
        flat = np.concatenate([row[:k] for row, k in zip(ids, lengths, strict=True)]).astype("<u2")
        packed = flat.tobytes() + lengths.astype("u1").tobytes() + labels.astype("u1").tobytes()
        head = np.array([len(flat), len(lengths)], dtype="<i8").tobytes()
        (args.cache / f"{name}.xz").write_bytes(lzma.compress(head + packed, preset=9))
        print(f"{name}: {len(texts)} texts", file=sys.stderr)
    return 0


def load(cache: Path, name: str) -> tuple[Any, Any, Any]:
    """Ids [N, ROWS], lengths and labels of a prepared split."""
    data = lzma.decompress((cache / f"{name}.xz").read_bytes())
    tokens, texts = np.frombuffer(data, "<i8", 2)
    flat = np.frombuffer(data, "<u2", tokens, 16).astype(np.int32)
    lengths = np.frombuffer(data, "u1", texts, 16 + 2 * tokens).astype(np.int32)
    labels = np.frombuffer(data, "u1", texts, 16 + 2 * tokens + texts).astype(np.int64)
    ids = np.zeros((texts, ROWS), dtype=np.int32)
    ids[np.arange(ROWS)[None, :] < lengths[:, None]] = flat
    return ids, lengths, labels


def texts_of(prepared: tuple[Any, Any, Any], rows: int) -> Any:
    """A prepared split at fewer rows, cut as the tokenizer cuts: the last row kept is [SEP]."""
    from dp_forward.data import EncodedTexts

    ids, lengths, labels = prepared
    longer = lengths > rows
    kept = ids[:, :rows].copy()
    kept[longer, rows - 1] = ids[np.flatnonzero(longer), lengths[longer] - 1]
    columns = {
        "ids": kept,
        "lengths": np.minimum(lengths, rows),
        "types": np.zeros_like(kept, dtype=np.uint8),
        "labels": labels,
    }
    return EncodedTexts(columns, pads_left=False)


def one(
    plan_settings: dict[str, Any], splits: dict[str, Any], folder: Path, limit: int | None
) -> dict[str, Any]:
    """Carry out one plan; what is worth keeping of its report."""
    from dp_forward.data import find_task
    from dp_forward.train.defaults import effective_plan
    from dp_forward.train.finetune import finetune
    from dp_forward.train.inputs import Inputs, cut_model
    from dp_forward.train.plan import Plan

    plan = effective_plan(Plan.from_dict(plan_settings))
    if limit is not None:
        plan = replace(plan, evaluation_draws=2)
    pair, tokens, form = cut_model(plan)

    def split(name: str) -> Any:
        texts = texts_of(splits[name], plan.rows)
        return texts if limit is None else texts.subset(range(min(limit, len(texts))))

    inputs = Inputs(
        find_task("sst2"),
        pair,
        tokens,
        form,
        split("sst2-train"),
        split("sst2-validation"),
        split("imdb-train") if plan.public_task else None,
    )
    own = {"register": folder.with_name(f"{folder.name}.register")}  # public texts, released by every plan
    report = finetune(plan, folder=folder, inputs=inputs, checkpoints=False, **own).report
    kept = {name: value for name, value in report.items() if name not in ("stages", "guarantee")}
    kept["promise"] = report["guarantee"]["statement"]
    kept["curve"] = {
        stage: [entry for entry in facts["history"] if "accuracy" in entry]
        for stage, facts in report["stages"].items()
    }
    return kept


def work(queue: Any, splits: dict[str, Any], args: argparse.Namespace, stop: float) -> None:
    """One worker: jobs from the queue until it is empty or time is up."""
    import torch

    torch.set_num_threads(1)
    torch.set_float32_matmul_precision("high")
    while not queue.empty():
        name, plans = queue.get()
        if time.time() > stop:
            continue
        with tempfile.TemporaryDirectory() as folder:
            for number, settings in enumerate(plans):
                model = str(Path(folder) / "0") if settings.get("model") == "FIRST" else args.model
                started = time.time()
                try:
                    result = one({**settings, "model": model}, splits, Path(folder) / str(number), args.limit)
                except Exception:
                    result = {"error": traceback.format_exc()[-3000:]}
                line = {"job": name, "number": number, "seconds": time.time() - started, **result}
                if "plan" in line:
                    line["plan"] = {**line["plan"], "model": "minilm" if number == 0 else "the public front"}
                _append(args.out, line)
                shown = {k: line.get(k) for k in ("accuracy", "accuracy_without_noise", "error")}
                print(f"{name} {number} {line['seconds']:.0f} s {shown}", flush=True)


def _append(path: Path, line: dict[str, Any]) -> None:
    """One write, so that lines of several workers never mix."""
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(handle, (json.dumps(line) + "\n").encode())
    os.close(handle)


def run(args: argparse.Namespace) -> int:
    """All jobs that are not in the file yet, ``workers`` at a time."""
    known = set()
    if args.out.exists():
        known = {json.loads(line)["job"] for line in args.out.read_text().splitlines()}
    every = jobs() | (json.loads(args.also.read_text()) if args.also else {})
    wanted = [name for word in args.only for name in every if word in name and name not in known]
    chosen = {name: every[name] for name in dict.fromkeys(wanted)}
    splits = {
        name: load(args.cache, name) for name in SPLITS if name != "imdb-train" or _needs_public(chosen)
    }
    # Loaded once, before the fork; nothing here touches the GPU yet.
    import dp_forward.train.finetune  # noqa: F401

    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    for item in chosen.items():
        queue.put(item)
    time.sleep(0.5)
    stop = time.time() + args.seconds
    workers = [
        context.Process(target=work, args=(queue, splits, args, stop))
        for _ in range(min(args.workers, len(chosen)))
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return 0


def _needs_public(chosen: dict[str, list[dict[str, Any]]]) -> bool:
    return any("public_task" in plan for plans in chosen.values() for plan in plans)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sst2")
    verbs = parser.add_subparsers(required=True)
    for verb in (prepare, run):
        added = verbs.add_parser(verb.__name__)
        added.set_defaults(verb=verb)
        added.add_argument("--cache", type=Path, required=True)
        added.add_argument("--model", default="minilm")
        if verb is prepare:
            added.add_argument("--data", action="append", required=True)
            continue
        added.add_argument("--out", type=Path, required=True)
        added.add_argument("--workers", type=int, default=1)
        added.add_argument("--seconds", type=float, default=1e9, help="Start no job after so many seconds.")
        added.add_argument(
            "--only", nargs="*", default=[""], help="Jobs whose name holds a word, in its order."
        )
        added.add_argument("--also", type=Path, help="More jobs, as JSON: name -> plans.")
        added.add_argument("--limit", type=int, help="So many texts of each split, to try it out.")
    args = parser.parse_args()
    verb = args.verb
    code: int = verb(args)
    return code


if __name__ == "__main__":
    sys.exit(main())
