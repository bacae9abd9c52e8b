"""A decoder trained through the noise, beside MiniLM: SST-2 and film genres, many runs side by side.

    python -m benchmarks.decoder_training --data sst2=FOLDER --data genres=FILE.csv --workers 8 \
        --out results/decoder-training.json

Every run is a plan of `dpf finetune --regime end-to-end`, so the training texts are not protected and each
query is. ``--only WORD`` takes the runs whose name holds a word, ``--jobs FILE`` other plans (JSON: name ->
plan). A run that is in the file already is not made again; each is written as it ends.
``--model NAME=FOLDER`` says where the weights of a model lie. With a GPU start `nvidia-cuda-mps-control -d`
first. What was chosen, was chosen on a part of the training records: ``--hold-out FOLDER`` writes it.
"""

from __future__ import annotations

import argparse
import fcntl
import itertools
import json
import multiprocessing
import os
import queue
import random
import tempfile
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dp_forward.storage.json_files import write_json

GAUSSIAN = "matrix-gaussian"
CUTS = {"smollm2": ("output", "encoder.20", "encoder.10"), "minilm": ("output", "encoder.4", "encoder.2")}
"""At the same depths: two thirds and one third of the blocks."""
NOISES: tuple[Mapping[str, Any], ...] = (
    {"epsilon": 4.0},
    {"epsilon": 8.0},
    {"epsilon": 8.0, "mechanism": GAUSSIAN},
)
TASKS: Mapping[str, Mapping[str, Any]] = {
    "sst2": {},
    "genres": {"rows": 128, "batch": 32, "evaluation_draws": 3},
}
"""A tenth of SST-2's records: smaller steps, and four epochs of each kind."""


def jobs() -> dict[str, dict[str, Any]]:
    """Name -> plan."""
    made = {}
    for task, own in TASKS.items():
        for model, cuts in CUTS.items():
            base = {"task": task, "model": model, "regime": "end-to-end", **own}
            longer = {"epochs": 4.0} if task == "genres" else {}
            made[f"{task} {model} none"] = {**base, "mechanism": "none", **longer}
            for cut in cuts:
                if longer:
                    longer = {"warm_up_epochs" if cut == "output" else "epochs": 4.0}
                for noise in NOISES:
                    name = f"{task} {model} {cut} {noise.get('mechanism', 'privunit')} {noise['epsilon']:g}"
                    made[name] = {**base, "cut": cut, **noise, **longer}
    return made


def hold_out(source: Path, folder: Path, *, sentences: int = 1000) -> None:
    """Write SST-2's training part in two, to choose on: whole sentences, and what has no phrase of them."""
    head, *lines = (source / "train.tsv").read_text(encoding="utf-8").splitlines()
    texts = [" ".join(line.split("\t")[0].split()) for line in lines]
    every = "\n".join(f" {text} " for text in texts)
    order = [i for i, text in enumerate(texts) if len(text.split()) >= 10]
    random.Random(1).shuffle(order)
    held = list(itertools.islice((i for i in order if every.count(f" {texts[i]} ") == 1), sentences))
    said, chosen = "\n".join(f" {texts[i]} " for i in held), set(held)
    rest = [i for i in range(len(texts)) if i not in chosen and f" {texts[i]} " not in said]
    folder.mkdir(parents=True)
    for name, part in (("train", rest), ("dev", held)):
        written = "\n".join([head, *(lines[i] for i in part)])
        (folder / f"{name}.tsv").write_text(written + "\n", encoding="utf-8")


def one(settings: dict[str, Any], data: dict[str, str], models: dict[str, str]) -> dict[str, Any]:
    """Carry out a plan; what is worth keeping of its report."""
    from dp_forward.train.finetune import finetune
    from dp_forward.train.plan import Plan

    name = settings["model"]
    plan = Plan.from_dict({**settings, "model": models.get(name, name), "data": data})
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        report = finetune(plan, folder=place / "run", checkpoints=False, register=place / "register").report
    known = ("accuracy", "accuracy_low", "accuracy_high", "accuracy_without_noise", "draws", "texts")
    kept = {name: report[name] for name in (*known, "records", "peak_memory_mib", "provenance")}
    kept["plan"] = {**report["plan"], "model": name, "data": {}}
    kept["promise"] = report["guarantee"]["statement"]
    kept["curve"] = {
        stage: [entry for entry in facts["history"] if "accuracy" in entry]
        for stage, facts in report["stages"].items()
    }
    return kept


def work(waiting: Any, given: argparse.Namespace) -> None:
    """One worker: runs until none is left."""
    import torch

    torch.set_num_threads(1)
    torch.set_float32_matmul_precision("high")
    data, models = (dict(option.split("=", 1) for option in said) for said in (given.data, given.model))
    stop = time.time() + given.seconds
    while time.time() < stop:
        try:
            name, settings = waiting.get(timeout=1)
        except queue.Empty:
            return
        started = time.time()
        try:
            found = one(settings, data, models)
        except Exception:
            found = {"error": traceback.format_exc()[-3000:]}
        seconds = time.time() - started
        store(given.out, name, {"seconds": seconds, **found})
        shown = {k: found[k] for k in ("accuracy", "accuracy_without_noise", "error") if k in found}
        print(f"{name}: {seconds:.0f} s, {shown}", flush=True)


def store(path: Path, name: str, found: dict[str, Any]) -> None:
    """Add a result; one process at a time reads and writes the file."""
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        write_json(path, {**known(path), name: found})


def known(path: Path) -> dict[str, Any]:
    """The results that are there; those that failed are made again."""
    stored = json.loads(path.read_text()) if path.is_file() else {}
    return {name: found for name, found in stored.items() if "error" not in found}


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", action="append", required=True, help="TASK=PATH")
    parser.add_argument("--hold-out", type=Path, help="only write SST-2's training part here, in two")
    parser.add_argument("--model", action="append", default=[], help="NAME=FOLDER")
    parser.add_argument("--jobs", type=Path, help="other plans than the table's")
    parser.add_argument("--only", action="append", help="runs whose name holds a word")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1e9, help="start nothing after so many")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    if given.hold_out:
        hold_out(Path(dict(option.split("=", 1) for option in given.data)["sst2"]), given.hold_out)
        return
    if not given.out:
        parser.error("--out says where the results go")
    given.out = given.out.resolve()
    os.environ.setdefault("DPF_ONNX", "0")  # no front is kept
    every = json.loads(given.jobs.read_text()) if given.jobs else jobs()
    done = known(given.out)
    words = given.only or [""]
    chosen = [(name, plan) for word in words for name, plan in every.items() if word in name]
    waiting = multiprocessing.get_context("fork").Queue()
    names = []
    for name, plan in chosen:
        if name not in done and name not in names:
            names.append(name)
            waiting.put((name, plan))
    import dp_forward.train.finetune  # noqa: F401  (once, before the fork; nothing touches the GPU yet)

    start = multiprocessing.get_context("fork").Process
    workers = [start(target=work, args=(waiting, given)) for _ in range(min(given.workers, len(names)))]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    given.out.with_suffix(".lock").unlink(missing_ok=True)


if __name__ == "__main__":
    main()
