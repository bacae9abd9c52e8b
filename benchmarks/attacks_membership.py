"""Membership and attribute inference on MiniLM: undefended, DP-SGD, and defended at epsilon 8.

    python -m benchmarks.attacks_membership prepare --imdb FOLDER --sst2 FOLDER --genres FILE --cache CACHE
    python -m benchmarks.attacks_membership run --cache CACHE --out OUT.jsonl --workers 12 --seconds 420
    python -m benchmarks.attacks_membership --smoke                                # tiny, on a CPU

`prepare` stores token ids and the model in half precision, so that `run` needs neither texts nor a tokenizer.
Where nothing can be installed, wheels in CACHE/wheels are unpacked and used (``pip download --no-deps
--python-version 3.12 --only-binary=:all: -d CACHE/wheels cryptography cffi opacus opt_einsum``).
`run` appends a JSON line per job as it ends and starts none after ``--seconds``; what is in the file is not
made again. ``--only`` takes the jobs whose name holds a word. At the end LiRA is run on what its shadows
left, and the seeds of a job are pooled (lines ``pooled ...``, of which the last of a name counts).

* *Undefended*: the whole model, trained on the members until it knows them by heart. Nothing is trained with
  dropout, so that all models learn by heart what they can.
* *Defended*: one real release of every member, and a back trained on those as long. It is asked through fresh
  releases, and, by an attacker who holds it, without noise.
* *Attribute*: a front as published, and texts with a genre: by keyword (after the authors' code), or true.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import multiprocessing
import os
import sys
import tempfile
import time
import traceback
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.sst2 import _append as append_line
from benchmarks.sst2 import texts_of

ROWS, MEMBER_ROWS, WORDS = 128, 64, 100
EPSILON = 8.0
FULL = {
    "members": 5000,
    "epochs": 20,
    "batch": 64,
    "shadows": 16,
    "seeds": 4,
    "attribute_epochs": 30,
    "rows": MEMBER_ROWS,
    "draws": 8,
}
SMALL = {
    "members": 60,
    "epochs": 2,
    "batch": 32,
    "shadows": 2,
    "seeds": 1,
    "attribute_epochs": 2,
    "rows": 12,
    "draws": 2,
    "attribute_texts": 200,
}
MECHANISMS = ("privunit", "matrix-gaussian")
CUTS = ("embeddings", "encoder.3", "output")
RATES = {"whole": 1e-4, "encoder.3": 2e-4, "output": 5e-3}
"""Learning rates: of the whole model, of three blocks, and of a head alone."""

_IMPORTED_AS = {"cffi": "_cffi_backend"}

Job = dict[str, Any]


def jobs(size: dict[str, int]) -> dict[str, Job]:
    """Name -> what to do, the most wanted first; a name ends in its seed."""
    made: dict[str, Job] = {}
    for seed in range(size["seeds"]):
        for task in ("imdb", "sst2"):
            common = {"kind": "membership", "task": task, "seed": seed}
            made[f"membership/{task}/undefended/{seed}"] = {**common, "cut": "whole"}
            for cut in ("encoder.3", "output"):
                for name in MECHANISMS:
                    made[f"membership/{task}/{name}/{cut}/{seed}"] = {**common, "cut": cut, "mechanism": name}
        if seed == 0:
            first = {**common, "task": "imdb"}
            made = {"membership/imdb/dp-sgd/0": first | {"cut": "dp-sgd"}} | made
            few = size["members"] * 2 // 5
            made[f"membership/imdb/undefended, {few} members/0"] = first | {"cut": "whole", "members": few}
            made |= _attribute_jobs()
            for cut, name in (("whole", None), ("output", "privunit"), ("encoder.3", "privunit")):
                for number in range(size["shadows"] + 1):
                    who = "undefended" if name is None else f"{name}/{cut}"
                    job = {"kind": "shadow", "cut": cut, "mechanism": name, "number": number}
                    made[f"lira/imdb/{who}/{number}"] = job | {"task": "imdb", "seed": 0}
    return made


def _attribute_jobs() -> dict[str, Job]:
    made: dict[str, Job] = {}
    for labels in ("keyword", "true"):
        for cut in CUTS:
            for name in (None, *MECHANISMS):
                for pool in ("mean",) if cut == "output" else ("mean", "flatten"):
                    key = f"attribute/{labels}/{name or 'undefended'}/{cut}/{pool}/0"
                    made[key] = {
                        "kind": "attribute",
                        "labels": labels,
                        "cut": cut,
                        "mechanism": name,
                        "pool": pool,
                    }
    return made


class Bench:
    """What a worker needs: the prepared files, sizes, the device, and where shadows leave their scores."""

    def __init__(self, cache: Path, size: dict[str, int], scores: Path) -> None:
        self.cache, self.size, self.scores = cache, size, scores
        self.files = {path.stem: load(path) for path in sorted(cache.glob("*.npz"))}

    def do(self, job: Job) -> dict[str, Any]:
        """One job; what it found."""
        kinds: dict[str, Callable[[Job], dict[str, Any]]] = {
            "membership": self.membership,
            "shadow": self.shadow,
            "attribute": self.attribute,
        }
        return kinds[job["kind"]](job)

    def has(self, name: str, job: Job, known: set[str]) -> bool:
        """Whether a job is done: written down, and for a shadow that its scores are here."""
        return name in known and (job["kind"] != "shadow" or self.left(job).exists())

    def left(self, job: Job) -> Path:
        """Where a shadow leaves its scores."""
        return self.scores / f"{job['cut']}-{job['mechanism']}-{job['number']}.npy"

    def pool(self, job: Job) -> tuple[Any, Any]:
        """As many members as others, drawn by the seed from one split."""
        texts = texts_of(self.files[job["task"]], self.size["rows"])
        order = np.random.default_rng(job["seed"]).permutation(len(texts))
        members = job.get("members", self.size["members"])
        return texts.subset(order[: 2 * members]), np.arange(members)

    def membership(self, job: Job) -> dict[str, Any]:
        """Train on the members, attack the answers."""
        from dp_forward.attacks.membership import SCORES, threshold_attack

        texts, members = self.pool(job)
        if job["cut"] == "dp-sgd":
            try:
                import opacus  # noqa: F401
            except ImportError:
                return {"skipped": "opacus is not installed here"}
            pair, facts = self.with_dpsgd(texts, members)
            told, ceiling = self.asked(pair, None, texts), membership_ceiling(facts["epsilon"], 1e-5)
        else:
            mechanism = _mechanism(job)
            pair, facts = self.trained(job, texts, members), {}
            ceiling = None if mechanism is None else mechanism.guess_rate()
            told = self.asked(pair, mechanism, texts)
            if mechanism is not None:
                facts["promise"] = mechanism.promise()
        found: dict[str, Any] = {**facts, "members": len(members), "epochs": self.size["epochs"]}
        inside = np.isin(np.arange(len(texts)), members)
        for how, answers in told.items():
            right = answers.argmax(axis=1) == texts.labels
            found[f"{how}_accuracy"] = [float(right[inside].mean()), float(right[~inside].mean())]
            for name, score in SCORES.items():
                scores = score(answers, texts.labels)
                attack = threshold_attack(
                    scores[inside], scores[~inside], seed=job["seed"], ceiling=ceiling, name=name
                )
                found[f"{how}_{name}"] = attack.as_dict()
        return found

    def asked(self, pair: Any, mechanism: Any, texts: Any) -> dict[str, Any]:
        """Answers to one query of each text; with noise, and without it where there is some."""
        from dp_forward.attacks.membership import answers

        if mechanism is None:
            return {"plain": answers(pair.front, pair.back, None, texts)}
        noisy = answers(pair.front, pair.back, mechanism, texts)
        return {"noisy": noisy, "noiseless": answers(pair.front, pair.back, mechanism, texts, noiseless=True)}

    def shadow(self, job: Job) -> dict[str, Any]:
        """One model of LiRA, number 0 being the target; its scores of all texts are left in a file."""
        from dp_forward.attacks.membership import answers
        from reproduction.attacks.lira import logit_confidence

        texts, _ = self.pool(job)
        chosen = lira_members(len(texts), self.size["shadows"])[job["number"]]
        mechanism = _mechanism(job)
        pair = self.trained(job | {"seed": job["number"]}, texts, np.flatnonzero(chosen))
        draws = 1 if mechanism is None or job["cut"] != "output" else self.size["draws"]
        told = answers(pair.front, pair.back, mechanism, texts, draws=draws)
        np.save(self.left(job), logit_confidence(told, texts.labels), allow_pickle=False)
        return {"draws": draws}

    def lira(self, cut: str, mechanism: str | None) -> list[dict[str, Any]]:
        """The attack, once target and shadows are there."""
        from reproduction.attacks.lira import lira

        numbers = range(self.size["shadows"] + 1)
        places = [self.left({"cut": cut, "mechanism": mechanism, "number": number}) for number in numbers]
        if not all(place.exists() for place in places):
            return []
        scores = np.stack([np.load(place, allow_pickle=False) for place in places])
        inside = lira_members(scores.shape[1], self.size["shadows"])
        noise = _mechanism({"mechanism": mechanism, "cut": cut})
        ceiling = None if noise is None else noise.guess_rate()
        return [
            lira(scores[0], inside[0], scores[1:], inside[1:], offline=offline, ceiling=ceiling).as_dict()
            for offline in (False, True)
        ]

    def attribute(self, job: Job) -> dict[str, Any]:
        """The front as published, the attack of the package."""
        from dp_forward.attacks.attribute import attribute_attack

        files = (self.files[f"{job['labels']}-{split}"] for split in ("train", "test"))
        train, test = (texts_of(file, file[0].shape[1]) for file in files)
        if most := self.size.get("attribute_texts"):
            train, test = (texts.subset(range(min(most, len(texts)))) for texts in (train, test))
        mechanism = _mechanism(job)
        found = attribute_attack(
            self.halves(job["cut"], seed=0).front,
            mechanism,
            train,
            test,
            epochs=self.size["attribute_epochs"],
            pool=job["pool"],
        )
        promise = "none" if mechanism is None else mechanism.promise()
        return {**found.as_dict(), "promise": promise, "rows": train.length}

    def halves(self, cut: str, *, seed: int) -> Any:
        """The published model with a new head, in float32, cut."""
        import torch

        from dp_forward.split import split_model
        from dp_forward.split.pretrained import load_model

        torch.manual_seed(seed)
        model = load_model(str(self.cache / "model"), labels=2).to(torch.float32)
        return split_model(model, "output" if cut == "whole" else cut)

    def trained(self, job: Job, texts: Any, members: Any) -> Any:
        """A pair: trained as a whole on raw texts, or its back alone on one real release of each member."""
        import torch

        from dp_forward.attacks.observations import observe_texts
        from dp_forward.split.device import pick_device

        cut, mechanism, device = job["cut"], _mechanism(job), pick_device(None)
        pair = self.halves(cut, seed=job["seed"])
        own = texts.subset(members)
        pair.front.to(device).eval()
        pair.back.to(device).eval()
        if mechanism is None:

            def whole(chosen: Any) -> Any:
                batch = {k: v.to(device) for k, v in own.batch(chosen, trim=True).items()}
                labels = batch.pop("labels")
                return pair.back(pair.front(**batch), labels=labels).loss

            weights = [*pair.front.parameters(), *pair.back.parameters()]
            self.fitted(whole, weights, len(own), RATES[cut], seed=job["seed"])
            return pair
        released = torch.cat([seen[:, 0] for seen in observe_texts(pair.front, mechanism, own)]).clone()
        labels = torch.from_numpy(np.array(own.labels)).to(device)

        def back(chosen: Any) -> Any:
            some = torch.from_numpy(chosen).to(device)
            return pair.back(released[some], labels=labels[some]).loss

        self.fitted(back, list(pair.back.parameters()), len(own), RATES[cut], seed=job["seed"])
        return pair

    def fitted(self, loss_of: Any, weights: list[Any], texts: int, rate: float, *, seed: int) -> None:
        """AdamW with a warm-up and a straight line down."""
        import torch

        rng, batch = np.random.default_rng(seed), self.size["batch"]
        steps = self.size["epochs"] * -(-texts // batch)
        optimiser = torch.optim.AdamW(weights, lr=rate, weight_decay=0.0)
        ramp = torch.optim.lr_scheduler.LambdaLR(
            optimiser, lambda n: min(1.0, (n + 1) / (0.1 * steps)) * max(0.0, 1 - n / steps)
        )
        for _ in range(self.size["epochs"]):
            order = rng.permutation(texts)
            for start in range(0, texts, batch):
                optimiser.zero_grad(set_to_none=True)
                loss_of(order[start : start + batch]).backward()
                torch.nn.utils.clip_grad_norm_(weights, 1.0)
                optimiser.step()
                ramp.step()

    def with_dpsgd(self, texts: Any, members: Any) -> tuple[Any, dict[str, Any]]:
        """The baseline at the same epsilon, for as many epochs."""
        import torch

        from dp_forward.split import split_model
        from dp_forward.split.device import pick_device
        from dp_forward.split.pretrained import load_model
        from dp_forward.train.dpsgd.dpsgd_plan import DpSgdPlan
        from dp_forward.train.dpsgd.dpsgd_training import train_dpsgd

        torch.manual_seed(0)
        model = load_model(str(self.cache / "model"), labels=2).to(torch.float32).to(pick_device(None))
        batch = min(256, len(members) // 4)
        plan = DpSgdPlan(
            task="imdb",
            epsilon=EPSILON,
            epochs=self.size["epochs"],
            batch=batch,
            micro_batch=128,
            learning_rate=1e-3,
        )
        own, few = texts.subset(members), texts.subset(range(len(texts) - 40, len(texts)))
        outcome = train_dpsgd(model, own, few, plan)
        facts = {"epsilon": outcome.epsilon, "noise_multiplier": outcome.noise_multiplier}
        return split_model(outcome.model.cpu().eval(), "output"), facts


def membership_ceiling(epsilon: float, delta: float = 0.0) -> float:
    r"""The most success at a fair coin (member or not) against an (epsilon, delta)-DP training.

    Proof: success is ``1/2 + (P(S) - Q(S))/2`` for the laws P, Q of what is seen. From ``P(S) <= E Q(S) +
    delta`` and ``1 - Q(S) <= E (1 - P(S)) + delta``, added, ``(1 + E)(P(S) - Q(S)) <= E - 1 + 2 delta``. So
    success is at most ``(E + delta) / (1 + E)``.

    The two worlds must be neighbours: for releases of training texts, that the record's text is this one or
    any other; for DP-SGD, with its record or without.
    """
    from scipy.special import expit

    from dp_forward.privacy import checks
    from dp_forward.privacy.rounding import nudge_up

    epsilon = checks.nonnegative("epsilon", epsilon, remedy="Take it from the guarantee.")
    delta = checks.delta(delta, zero=True)
    return min(1.0, nudge_up(float(expit(epsilon)) + delta * float(expit(-epsilon))))


def lira_members(texts: int, shadows: int) -> Any:
    """Who is in the target's half (row 0) and in each shadow's."""
    from reproduction.attacks.lira import halves

    target = np.random.default_rng(99).permutation(texts) < texts // 2
    return np.vstack([target[None], halves(texts, shadows, seed=0)])


def _mechanism(job: Job) -> Any:
    from dp_forward.privacy import NoiseSpec

    name = job.get("mechanism")
    return None if name is None else NoiseSpec(mechanism=name, epsilon=EPSILON).build()


def prepare(args: argparse.Namespace) -> int:
    """Token ids and the model, small enough to take along."""
    import torch

    from dp_forward.attacks.attribute import keyword_genres
    from dp_forward.data import FixedLength, Record, find_task, read_records, sample_records
    from dp_forward.data.row_files import read_rows
    from dp_forward.split.pretrained import load_model, load_tokenizer

    args.cache.mkdir(parents=True, exist_ok=True)
    tokenizer = load_tokenizer(args.model)

    def store(name: str, records: list[Record], rows: int) -> None:
        from dp_forward.data import EncodedTexts

        texts = EncodedTexts.from_records(records, FixedLength(tokenizer, rows))
        save(args.cache / f"{name}.npz", texts.columns["ids"], texts.lengths, texts.labels)
        print(f"{name}: {len(texts)} texts of {rows} rows", file=sys.stderr)

    pool = 4 * FULL["members"]
    store(
        "imdb", sample_records(read_records(find_task("imdb"), "train", source=args.imdb), pool), MEMBER_ROWS
    )
    store(
        "sst2", sample_records(read_records(find_task("sst2"), "train", source=args.sst2), pool), MEMBER_ROWS
    )
    genres = {
        str(row.fields["review_id"]): str(row.fields["single_of_four"])
        for row in read_rows(Path(args.genres))
    }
    names = sorted(set(genres.values()) - {""})
    for split in ("train", "test"):
        rows = list(read_rows(next(Path(args.imdb).glob(f"*{split}.jsonl*"))))
        begins = (" ".join(str(row.fields["text"]).split()[:WORDS]) for row in rows)
        store(f"keyword-{split}", list(keyword_genres(begins)), ROWS)
        true = [
            Record(str(row.fields["text"]), None, names.index(genres[str(row.fields["id"])]))
            for row in rows
            if genres.get(str(row.fields["id"]))
        ]
        store(f"true-{split}", true, ROWS)
    load_model(args.model).to(torch.float16).save_pretrained(args.cache / "model")
    size = sum(path.stat().st_size for path in args.cache.rglob("*") if path.is_file())
    print(f"{size / 2**20:.1f} MiB in {args.cache}", file=sys.stderr)
    return 0


def save(path: Path, ids: Any, lengths: Any, labels: Any) -> None:
    """Only the tokens that are text, 2 bytes each."""
    flat = np.concatenate([row[:k] for row, k in zip(ids, lengths, strict=True)]).astype(np.uint16)
    small = {"lengths": lengths.astype(np.uint8), "labels": labels.astype(np.uint8)}
    np.savez_compressed(path, flat=flat, rows=ids.shape[1], **small)


def load(path: Path) -> tuple[Any, Any, Any]:
    """Ids [N, rows], lengths and labels."""
    with np.load(path, allow_pickle=False) as file:
        lengths, labels = file["lengths"].astype(np.int32), file["labels"].astype(np.int64)
        ids = np.zeros((len(lengths), int(file["rows"])), dtype=np.int32)
        ids[np.arange(ids.shape[1])[None, :] < lengths[:, None]] = file["flat"]
    return ids, lengths, labels


def work(queue: Any, bench: Bench, out: Path, stop: float) -> None:
    """One worker: jobs from the queue until it is empty or time is up."""
    import torch

    torch.set_num_threads(1)
    torch.set_float32_matmul_precision("high")
    while not queue.empty():
        try:
            name, job = queue.get(timeout=5)
        except Exception:
            return
        if time.time() > stop:
            continue
        started = time.time()
        try:
            result = bench.do(job)
        except Exception:
            result = {"error": traceback.format_exc()[-3000:]}
        append_line(out, {"job": name, "seconds": time.time() - started, **result})
        print(f"{time.time() - started:6.1f} s  {name}  {shown(result)}", flush=True)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def shown(result: dict[str, Any]) -> str:
    """The numbers of a job in a few words."""
    if "success" in result:
        ceiling = "none" if result["ceiling"] is None else f"{result['ceiling']:.3f}"
        return f"{result['success']:.3f} (majority {result['chance']:.3f}, ceiling {ceiling})"
    parts = [
        f"{key} {value['success']:.3f} [{value['low']:.3f}, {value['high']:.3f}]"
        for key, value in result.items()
        if isinstance(value, dict) and "success" in value
    ]
    return ", ".join(parts) or str(result.get("error", result.get("skipped", "done")))[-300:]


def run(args: argparse.Namespace) -> int:
    """All jobs that are not in the file yet, ``workers`` at a time; then LiRA and the pooled lines."""
    args.scores.mkdir(parents=True, exist_ok=True)
    unpack(args.cache / "wheels")
    bench = Bench(args.cache, FULL if not args.small else SMALL, args.scores)
    known = {line["job"] for line in lines_of(args.out) if "error" not in line}
    wanted = {
        name: job
        for word in args.only
        for name, job in jobs(bench.size).items()
        if word in name and not bench.has(name, job, known)
    }
    # Loaded once, before the fork; nothing here touches the GPU yet.
    import reproduction.attacks.lira  # noqa: F401

    stop = time.time() + args.seconds
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    for item in wanted.items():
        queue.put(item)
    time.sleep(0.5)
    workers = [
        context.Process(target=work, args=(queue, bench, args.out, stop))
        for _ in range(min(args.workers, len(wanted)))
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for cut, name in (("whole", None), ("output", "privunit"), ("encoder.3", "privunit")):
        for found in bench.lira(cut, name):
            who = "undefended" if name is None else f"{name}/{cut}"
            append_line(args.out, {"job": f"pooled {found['attack']}/{who}", **found})
            print(f"{found['attack']}, {who}: {shown(found)}, AUC {found['auc']:.3f}", flush=True)
    for line in pooled(lines_of(args.out)):
        append_line(args.out, line)
        print(f"{line['job']}: {shown(line)}", flush=True)
    return 1 if any("error" in line for line in lines_of(args.out)) else 0


def unpack(wheels: Path) -> None:
    """Make importable what is not installed here, from wheels that were taken along."""
    missing = [
        wheel
        for wheel in sorted(wheels.glob("*.whl"))
        if importlib.util.find_spec(_IMPORTED_AS.get(name := wheel.name.split("-")[0], name)) is None
    ]
    folder = Path(tempfile.mkdtemp())
    for wheel in missing:
        zipfile.ZipFile(wheel).extractall(folder)
    if missing:
        sys.path.append(str(folder))
        importlib.invalidate_caches()
        print(f"unpacked: {', '.join(wheel.name for wheel in missing)}", file=sys.stderr)


def lines_of(path: Path) -> list[dict[str, Any]]:
    """What has been written so far."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def pooled(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One line for the seeds of each membership job: right guesses and trials added up.

    Seeds draw other members from one split, so texts recur; each time under another model.
    """
    from dp_forward.attacks.attack_result import AttackResult

    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for line in lines:
        if line["job"].startswith("membership/"):
            for key, value in line.items():
                if isinstance(value, dict) and "success" in value:
                    groups.setdefault((line["job"].rsplit("/", 1)[0], key), []).append(value)
    made = []
    for (job, key), found in groups.items():
        trials = sum(one["trials"] for one in found)
        right = sum(round(one["success"] * one["trials"]) for one in found)
        result = AttackResult.from_counts(
            key,
            right,
            trials,
            chance=0.5,
            ceiling=found[0]["ceiling"],
            auc=float(np.mean([one["auc"] for one in found])),
            seeds=len(found),
        )
        made.append({"job": f"pooled {job} {key}", **result.as_dict()})
    return made


def smoke(args: argparse.Namespace) -> int:
    """Every kind of job on a tiny random model and made-up texts, in this process."""
    with tempfile.TemporaryDirectory() as folder:
        args.cache, args.scores = Path(folder) / "cache", Path(folder) / "scores"
        args.out = args.out or Path(folder) / "out.jsonl"
        args.workers, args.seconds, args.small = 1, 1e9, True
        made_up(args.cache)
        code = run(args)
        print(f"{len(lines_of(args.out))} lines")
        return code


def made_up(cache: Path) -> None:
    """Files as `prepare` writes them: texts of 12 tokens whose words tell their label."""
    import torch
    import transformers

    settings = transformers.BertConfig(
        vocab_size=60,
        hidden_size=32,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=48,
        max_position_embeddings=40,
    )
    torch.manual_seed(0)
    transformers.BertModel(settings).to(torch.float16).save_pretrained(cache / "model")
    rng = np.random.default_rng(0)
    names = [f"{labels}-{split}" for labels in ("keyword", "true") for split in ("train", "test")]
    for name in ("imdb", "sst2", *names):
        kinds = 2 if name in ("imdb", "sst2") else 4
        labels = rng.integers(kinds, size=200)
        lengths = rng.integers(4, 13, size=200)
        ids = rng.integers(5, 15, size=(200, 12)) + 10 * labels[:, None]
        ids[np.arange(12)[None, :] >= lengths[:, None]] = 0
        save(cache / f"{name}.npz", ids, lengths, labels)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.attacks_membership")
    verbs = parser.add_subparsers(required=True)
    first = verbs.add_parser("prepare")
    first.set_defaults(verb=prepare)
    for name in ("imdb", "sst2", "genres"):
        first.add_argument(f"--{name}", required=True)
    first.add_argument("--cache", type=Path, required=True)
    first.add_argument("--model", default="minilm")
    second = verbs.add_parser("run")
    second.add_argument("--cache", type=Path, required=True)
    second.add_argument("--out", type=Path, required=True)
    second.add_argument("--workers", type=int, default=1)
    second.add_argument("--seconds", type=float, default=1e9, help="Start no job after so many seconds.")
    second.add_argument("--scores", type=Path, default=Path(tempfile.gettempdir()) / "lira-scores")
    second.add_argument("--small", action="store_true", help="Sizes to try it out.")
    second.set_defaults(verb=run)
    third = verbs.add_parser("smoke")
    third.add_argument("--out", type=Path)
    third.set_defaults(verb=smoke)
    for added in (second, third):
        added.add_argument("--only", nargs="*", default=[""], help="Jobs whose name holds a word.")
    args = parser.parse_args(["smoke" if word == "--smoke" else word for word in sys.argv[1:]])
    verb = args.verb
    code: int = verb(args)
    return code


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    sys.exit(main())
