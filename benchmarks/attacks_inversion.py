"""How much of a text is read back from its release: the inversion table of docs, all attacks side by side.

    python -m benchmarks.sst2 prepare --data sst2=PATH --data imdb=PATH --cache CACHE     # token ids, once
    python -m benchmarks.attacks_inversion pack --model minilm --cache CACHE           # fp16 weights, once
    python -m benchmarks.attacks_inversion run --cache CACHE --out OUT/inversion.jsonl --workers 12
    python -m benchmarks.attacks_inversion run --smoke                     # random and tiny, on any machine

`run` needs torch, transformers and scipy only. Public text is SST-2's training split, attacked are the
sentences of its validation split; every defended text is attacked through real releases. One JSON line is
appended per attack as it ends, and an attack that is in the file already is not made again. Small models are
bound by kernel launches, so several processes share a GPU (best with ``nvidia-cuda-mps-control -d`` first).

The row `dp-sgd`: DP-SGD adds noise to gradients and none to a query, so a text is read from its front as from
any other. ``--dpsgd-front FOLDER`` names a front that it trained; without one the published front stands for
it, and the line says so.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.report import provenance
from benchmarks.sst2 import _append, load, texts_of

ROWS = 64
PLAIN, GAUSSIAN, PRIVUNIT = "undefended", "matrix-gaussian", "privunit"
DECODED = ("embeddings", "encoder.3", "encoder.6", "output")
TEXTS = {1: 872, 8: 400, 64: 150}
"""How many texts are attacked, by releases of each: exact noise takes its time."""
WANTED = {
    "nearest/embeddings/undefended": ("at least", 1.0),
    "gradient/embeddings/undefended": ("at least", 0.99),
    "decoder/encoder.3/undefended": ("at least", 0.8),
    "nearest/embeddings/privunit 8": ("at most", 0.05),
    "nearest/embeddings/matrix-gaussian 8": ("at most", 0.05),
    "dp-sgd": ("at least", 0.99),
}


@dataclass(frozen=True, kw_only=True)
class Job:
    """One attack on one target."""

    attack: str
    cut: str = "embeddings"
    mechanism: str = PLAIN
    epsilon: float = 8.0
    unit: str = "text"
    releases: int = 1
    texts: int | None = None
    extra: str = ""

    @property
    def name(self) -> str:
        """As it stands in the file."""
        noise = self.mechanism if self.mechanism == PLAIN else f"{self.mechanism} {self.epsilon:g}"
        per = "" if self.unit == "text" else f" per {self.unit}"
        many = "" if self.releases == 1 else f" x {self.releases}"
        more = f" {self.extra}" if self.extra else ""
        return "dp-sgd" if self.attack == "dp-sgd" else f"{self.attack}{more}/{self.cut}/{noise}{per}{many}"


def jobs() -> list[Job]:
    """The longest first."""
    decoders = [
        Job(attack="decoder", cut="embeddings", mechanism=PRIVUNIT, releases=64),
        Job(attack="decoder", cut="encoder.3", mechanism=PRIVUNIT, releases=64),
        *(
            Job(attack="decoder", cut=cut, mechanism=m)
            for m in (PLAIN, PRIVUNIT, GAUSSIAN)
            for cut in DECODED
        ),
        Job(attack="decoder", cut="embeddings", mechanism=PRIVUNIT, releases=8),
        Job(attack="decoder", cut="encoder.3", mechanism=PRIVUNIT, releases=8),
    ]
    gradient = [
        *(Job(attack="gradient", cut=cut, texts=256) for cut in ("embeddings", "encoder.1", "encoder.3")),
        Job(attack="gradient", cut="encoder.3", extra="after a linear map", texts=256),
        *(Job(attack="gradient", mechanism=m, texts=64) for m in (PRIVUNIT, GAUSSIAN)),
    ]
    nearest = [Job(attack="nearest"), Job(attack="dp-sgd")]
    for extra in ("", "with prior"):
        nearest += [
            *(Job(attack="nearest", mechanism=PRIVUNIT, releases=k, extra=extra) for k in TEXTS),
            Job(attack="nearest", mechanism=GAUSSIAN, extra=extra),
            *(
                Job(attack="nearest", mechanism=GAUSSIAN, unit="token", epsilon=epsilon, extra=extra)
                for epsilon in (8.0, 32.0)
            ),
        ]
    return [*decoders, *gradient, *nearest]


@dataclass(frozen=True, kw_only=True)
class Bench:
    """Where a worker finds things, and how large they are."""

    model: Path
    special: tuple[int, ...]
    public: Any
    secret: Any
    device: str
    steps: int = 3000
    batch: int = 128
    rate: float = 1e-3
    inner: int = 384
    layers: int = 3
    fit_steps: int = 150
    most_texts: int = 872
    dpsgd_front: Path | None = None


def attack(job: Job, bench: Bench) -> dict[str, Any]:
    """Make one attack; its line."""
    import torch

    from benchmarks.linear_map import fit_linear_map, invert_through
    from dp_forward.attacks.inversion.nearest_token import invert_nearest
    from dp_forward.attacks.inversion.recall import Inversion, TokenPrior
    from dp_forward.privacy import NoiseSpec
    from dp_forward.split import split_model
    from dp_forward.split.artifacts import load_front
    from dp_forward.split.pretrained import load_model
    from reproduction.attacks.decoder import invert_with, train_decoder
    from reproduction.attacks.gradient import invert_by_gradient

    # Rows are compared exactly; a decoder learns whatever its products are rounded to.
    torch.set_float32_matmul_precision("high" if job.attack == "decoder" else "highest")
    model = load_model(str(bench.model), labels=2).float()
    front, _ = split_model(model, job.cut)
    note: dict[str, Any] = {}
    if job.attack == "dp-sgd":
        note = {"front": "the published front: DP-SGD adds no noise to a query"}
        if bench.dpsgd_front is not None:
            front, note = load_front(bench.dpsgd_front), {"front": "trained by DP-SGD"}
    mechanism = None
    if job.mechanism != PLAIN:
        rows = None if job.unit == "text" else bench.secret.length
        mechanism = NoiseSpec(mechanism=job.mechanism, epsilon=job.epsilon, unit=job.unit, rows=rows).build()
        note["mechanism"] = repr(mechanism)
    wanted = min(len(bench.secret), bench.most_texts, job.texts or TEXTS[job.releases])
    secret = bench.secret.subset(np.linspace(0, len(bench.secret) - 1, wanted).astype(int))
    prior = TokenPrior.learn(bench.public, special=bench.special, vocabulary=model.config.vocab_size)
    target = Inversion(front, mechanism, secret, prior, job.releases, bench.device)
    if job.attack == "decoder":
        decoder = train_decoder(
            target,
            bench.public,
            steps=bench.steps,
            batch=bench.batch,
            rate=bench.rate,
            inner=bench.inner,
            layers=bench.layers,
        )
        result = invert_with(decoder)
        note["losses"] = [round(loss, 3) for loss in decoder.losses]
    elif job.attack == "gradient" or not front.row_local:
        if job.extra:
            sample = bench.public.subset(range(min(4000, len(bench.public))))
            result = invert_through(fit_linear_map(target, sample), target, steps=bench.fit_steps)
        else:
            result = invert_by_gradient(target, steps=bench.fit_steps)
    else:
        result = invert_nearest(target, use_prior=job.extra == "with prior")
    return {**result.as_dict(), **note}


def work(queue: Any, bench: Bench, out: Path, stop: float) -> None:
    """One worker: jobs from the queue until it is empty or time is up."""
    import torch

    torch.set_num_threads(1)
    while True:
        job = queue.get()
        if job is None:
            return
        if time.time() > stop:
            continue
        started = time.time()
        try:
            line = attack(job, bench)
        except Exception:
            line = {"error": traceback.format_exc()[-3000:]}
        line = {"job": job.name, "seconds": round(time.time() - started, 1), "cut": job.cut, **line}
        _append(out, line)
        if "error" in line:
            print(f"{job.name}: {line['error']}", file=sys.stderr, flush=True)
            continue
        print(f"{line['seconds']:6.1f} s  {shown(line)}", flush=True)


def shown(line: dict[str, Any]) -> str:
    """One line of the table."""
    ceiling = "none" if line["ceiling"] is None else f"{line['ceiling']:.3f}"
    found = f"{line['success']:.3f} [{line['low']:.3f}, {line['high']:.3f}]"
    rest = f"bag {line['bag_recall']:.3f}  chance {line['chance']:.3f}  ceiling {ceiling}"
    return f"{line['job']:58} recall {found}  {rest}"


def pack(args: argparse.Namespace) -> int:
    """The model as fp16 with its tokenizer, small enough to travel."""
    import torch
    import transformers

    from dp_forward.split.pretrained import load_model, model_folder

    folder = args.cache / "model"
    load_model(args.model).to(torch.float16).save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(model_folder(args.model)).save_pretrained(folder)
    print(folder, file=sys.stderr)
    return 0


def run(args: argparse.Namespace) -> int:
    """All attacks that are not in the file yet, ``workers`` at a time; 1 where one misses what is wanted."""
    with tempfile.TemporaryDirectory() as spare:
        if args.out is None:
            args.out = Path(os.environ.get("OUT", spare)) / "inversion.jsonl"
        bench = _tiny(Path(spare)) if args.smoke else _real(args)
        known = set()
        if args.out.exists():
            lines = map(json.loads, args.out.read_text().splitlines())
            known = {line["job"] for line in lines if "error" not in line}
        else:
            args.out.parent.mkdir(parents=True, exist_ok=True)
            _apart(_note, args.out)
        chosen = [job for job in jobs() if job.name not in known and any(w in job.name for w in args.only)]
        # Loaded once, before the fork; nothing here touches the GPU yet.
        import reproduction.attacks.decoder  # noqa: F401

        context = multiprocessing.get_context("fork")
        queue = context.Queue()
        number = min(args.workers, max(1, len(chosen)))
        for item in [*chosen, *[None] * number]:
            queue.put(item)
        stop = time.time() + args.seconds
        workers = [context.Process(target=work, args=(queue, bench, args.out, stop)) for _ in range(number)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        lines = [json.loads(line) for line in args.out.read_text().splitlines()]
        return _judge({line["job"]: line for line in lines if "success" in line}, smoke=args.smoke) or int(
            any("error" in line for line in lines)
        )


def _apart(ask: Any, *args: Any) -> Any:
    """Ask in a process of its own: once CUDA has started here, no worker could be forked."""
    with multiprocessing.get_context("fork").Pool(1) as pool:
        return pool.apply(ask, args)


def _note(out: Path) -> None:
    _append(out, {"job": "provenance", **provenance(("torch", "transformers", "scipy", "numpy"))})


def _judge(lines: dict[str, dict[str, Any]], *, smoke: bool) -> int:
    """Print the table and what misses its number; random weights of a smoke run are not judged by it."""
    missed = 0
    print(f"\n{len(lines)} attacks")
    for job in jobs():
        line = lines.get(job.name)
        if line is None:
            continue
        wrong = [] if line["within_ceiling"] else ["ABOVE ITS CEILING"]
        sense, number = WANTED.get(job.name, ("at least", 0.0))
        held = line["success"] >= number if sense == "at least" else line["success"] <= number
        if not held and not smoke:
            wrong.append(f"WANTED {sense} {number:g}")
        print(shown(line), *wrong)
        missed += bool(wrong)
    return int(missed > 0)


def _real(args: argparse.Namespace) -> Bench:
    import torch
    import transformers

    model = args.model or args.cache / "model"
    return Bench(
        model=model,
        special=tuple(transformers.AutoTokenizer.from_pretrained(model).all_special_ids),
        public=texts_of(load(args.cache, "sst2-train"), args.rows),
        secret=texts_of(load(args.cache, "sst2-validation"), args.rows),
        device=args.device or ("cuda" if _apart(torch.cuda.is_available) else "cpu"),
        steps=args.steps,
        dpsgd_front=args.dpsgd_front,
    )


def _tiny(folder: Path) -> Bench:
    """Random weights, and random texts whose words are as uneven as real ones."""
    import torch
    import transformers

    from dp_forward.data import EncodedTexts

    torch.manual_seed(0)
    vocabulary, rows = 300, 16
    shape = {"hidden_size": 32, "num_hidden_layers": 6, "num_attention_heads": 4, "intermediate_size": 64}
    settings = transformers.BertConfig(vocab_size=vocabulary, max_position_embeddings=rows, **shape)
    transformers.BertModel(settings).save_pretrained(folder / "model")
    rng = np.random.default_rng(0)

    def texts(count: int) -> EncodedTexts:
        lengths = rng.integers(6, rows + 1, count).astype(np.int32)
        share = 1 / np.arange(1, vocabulary - 4)
        ids = rng.choice(np.arange(5, vocabulary), (count, rows), p=share / share.sum()).astype(np.int32)
        ids[:, 0], ids[np.arange(count), lengths - 1] = 2, 3
        ids[np.arange(rows) >= lengths[:, None]] = 0
        columns = {"ids": ids, "lengths": lengths, "types": np.zeros_like(ids, dtype=np.uint8)}
        return EncodedTexts(columns, pads_left=False)

    return Bench(
        model=folder / "model",
        special=tuple(range(5)),
        public=texts(2000),
        secret=texts(40),
        device="cpu",
        steps=60,
        batch=64,
        rate=1e-2,
        inner=32,
        layers=1,
        fit_steps=30,
        most_texts=40,
    )


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.attacks_inversion")
    verbs = parser.add_subparsers(required=True)
    packed = verbs.add_parser("pack")
    packed.set_defaults(verb=pack)
    packed.add_argument("--model", default="minilm")
    packed.add_argument("--cache", type=Path, required=True)
    made = verbs.add_parser("run")
    made.set_defaults(verb=run)
    made.add_argument("--cache", type=Path, default=Path())
    made.add_argument("--model", type=Path, help="A model folder; CACHE/model unless given.")
    made.add_argument("--out", type=Path, help="JSON lines; $OUT/inversion.jsonl unless given.")
    made.add_argument("--dpsgd-front", type=Path, help="A front that DP-SGD trained.")
    made.add_argument("--rows", type=int, default=ROWS)
    made.add_argument("--steps", type=int, default=3000, help="Of a decoder's training.")
    made.add_argument("--device", help="cuda or cpu; what there is unless given.")
    made.add_argument("--workers", type=int, default=2)
    made.add_argument("--seconds", type=float, default=1e9, help="Start no attack after so many seconds.")
    made.add_argument("--only", nargs="*", default=[""], help="Attacks whose name holds one of these words.")
    made.add_argument("--smoke", action="store_true", help="Random and tiny, on the CPU.")
    args = parser.parse_args()
    verb = args.verb
    code: int = verb(args)
    return code


if __name__ == "__main__":
    sys.exit(main())
