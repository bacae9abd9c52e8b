"""Runners: how each kind of job is carried out, as a folder to work in and a plain result for the file.

Results hold numbers, the promise in words and the effective plan; never a text. What a later job builds on
(a run, a checkpoint) stays in the folder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from dp_forward.attacks.attribute import attribute_attack, keyword_genres
from dp_forward.attacks.inversion.nearest_token import invert_nearest
from dp_forward.attacks.inversion.recall import Inversion, TokenPrior, token_table
from dp_forward.attacks.membership import answers, entropy, threshold_attack
from dp_forward.data import EncodedTexts, FixedLength, read_records
from dp_forward.data.tasks import find_task
from dp_forward.errors import InvalidInput
from dp_forward.noise import Sanitizer
from dp_forward.privacy import Mechanism, NoiseSpec
from dp_forward.split import Split, split_model
from dp_forward.split.device import pick_device
from dp_forward.split.pretrained import load_model, load_tokenizer
from dp_forward.train.dpsgd.dpsgd_plan import DpSgdPlan
from dp_forward.train.dpsgd.dpsgd_training import run_dpsgd
from dp_forward.train.evaluation import accuracy_over_draws
from dp_forward.train.finetune import finetune
from dp_forward.train.noisy_model import NoisyModel
from dp_forward.train.pretrain.pretrain_plan import PretrainPlan
from dp_forward.train.pretrain.pretraining import pretrain
from dp_forward.train.run import Halves, Run
from reproduction.jobs import FIRST, Job, effective_settings, plan_of
from reproduction.model_setup import TASKS
from reproduction.runs.dataset_cache import DatasetCache

__all__ = ["run_job", "tokenizer_model"]

_LABELS: Final = 2
"""Of every task of the paper."""
_LEFT_OUT: Final = ("stages", "guarantee", "provenance", "plan_digest", "accuracy_by_draw")


@dataclass(frozen=True)
class _Work:
    """One job with what it needs: settings with paths filled in, its folder, and those it builds on."""

    job: Job
    settings: dict[str, Any]
    folder: Path
    after: Sequence[Path]
    cache: DatasetCache


def run_job(job: Job, *, folder: Path, after: Sequence[Path], cache: DatasetCache) -> dict[str, Any]:
    """Do it; ``after`` are the folders of the jobs that it builds on."""
    settings = {name: str(after[0]) if value == FIRST else value for name, value in job.settings.items()}
    if "model" in settings:
        settings["model"] = cache.models.get(settings["model"], settings["model"])
    return _RUNNERS[job.kind](_Work(job, settings, folder, after, cache))


def tokenizer_model(job: Job) -> str:
    """The model whose tokenizer reads the texts of a job."""
    model = str(job.settings.get("model", FIRST))
    return tokenizer_model(job.after[0]) if model == FIRST else model


def _kept(report: Mapping[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in report.items() if name not in _LEFT_OUT}
    kept["promise"] = report["guarantee"]["statement"]
    kept["promised"] = {
        part: None if said is None else {name: said.get(name) for name in ("notion", "epsilon", "delta")}
        for part, said in report["guarantee"].items()
        if part in ("queries", "training", "labels")
    }
    kept["plan"] = {
        name: value
        for name, value in report["plan"].items()
        if name not in ("data", "model") and value is not None
    }
    return kept


def _finetune(work: _Work) -> dict[str, Any]:
    plan = plan_of(work.settings)
    inputs = work.cache.inputs(plan, tokenizer_model(work.job))
    run = finetune(plan, folder=work.folder, inputs=inputs, checkpoints=False, register=_register(work))
    return _kept(run.report)


def _register(work: _Work) -> Path:
    """Of this job alone: the texts of a table are public, and every cell releases them again."""
    return work.folder.with_name(f"{work.folder.name}.register")


def _baseline(work: _Work) -> dict[str, Any]:
    plan = DpSgdPlan.from_dict({**work.settings, "data": work.cache.data})
    report = run_dpsgd(plan, folder=work.folder, register=_register(work))
    return {**_kept(report), "proved": report["guarantee"]["training"]}


def _pretrain(work: _Work) -> dict[str, Any]:
    plan = PretrainPlan.from_dict(work.settings)
    # The corpus of a table is a name; where it lies is no part of the job.
    report = pretrain(replace(plan, corpus=work.cache.data.get(plan.corpus, plan.corpus)), folder=work.folder)
    left_out = ("history", "plan", "plan_digest", "provenance")
    return {name: value for name, value in report.items() if name not in left_out}


def _queries(work: _Work) -> dict[str, Any]:
    """A trained model, asked through other noise than it was trained with, or that it never met."""
    built_on = work.job.after[0]
    pair, norm = _trained_halves(built_on, work.after[0], work.settings.get("cut"))
    noise = NoiseSpec(mechanism="matrix-gaussian", epsilon=work.settings["epsilon"], norm=norm).build()
    task = TASKS[str(built_on.settings["task"])]
    rows = int(effective_settings(built_on.kind, built_on.settings)["rows"])
    module = NoisyModel(pair, Sanitizer(noise, seed=work.settings["noise_seed"]), rows=rows, labels=_LABELS)
    module.to(pick_device())
    texts = work.cache.texts(
        task.name,
        task.split,
        model=tokenizer_model(built_on),
        rows=rows,
        limit=built_on.settings.get("evaluation_limit"),
    )
    found = accuracy_over_draws(module, texts, draws=work.settings["draws"])
    return {
        "accuracy": found.mean,
        "accuracy_low": found.low,
        "accuracy_high": found.high,
        "draws": found.draws,
        "texts": found.texts,
        "promise": f"Queries: {noise.promise()}.",
    }


def _trained_halves(job: Job, folder: Path, cut: str | None) -> tuple[Split, float]:
    """The halves of a run, or the model of a baseline cut in two; and the norm that the noise is for."""
    if job.kind == "baseline":
        assert cut is not None
        return split_model(load_model(str(folder / "model"), labels=_LABELS), cut), 1.0
    done = Halves.load(folder)
    return done.pair, 1.0 if done.spec.noise is None else done.spec.noise.norm


def _membership(work: _Work) -> dict[str, Any]:
    """The entropy attack on a run: its training texts against the rest of their split, or another split."""
    run = Run.load(work.after[0])
    plan, limit, draws = run.plan, int(work.settings["limit"]), work.settings["draws"]
    read: dict[str, Any] = {"model": tokenizer_model(work.job), "rows": run.spec.rows}
    members = work.cache.texts(plan.task, "train", limit=plan.train_limit, **read)
    if plan.train_limit is None:
        kind, limit_others = "evaluation split", plan.evaluation_limit
        others = work.cache.texts(plan.task, plan.evaluation_split, limit=limit_others, **read)
    else:
        kind, every = "rest of the training split", work.cache.texts(plan.task, "train", **read)
        known = set(_token_ids(members))
        others = every.subset([number for number, ids in enumerate(_token_ids(every)) if ids not in known])
    rng = np.random.default_rng(0)
    chosen = [texts.subset(rng.permutation(len(texts))[:limit]) for texts in (members, others)]
    mechanism = None if run.spec.noise is None else run.spec.mechanism()
    scores = [
        entropy(answers(run.pair.front, run.pair.back, mechanism, texts, draws=draws)) for texts in chosen
    ]
    return {**threshold_attack(scores[0], scores[1], seed=0).as_dict(), "others": kind}


def _token_ids(texts: EncodedTexts) -> list[bytes]:
    return [row.tobytes() for row in texts.batch(range(len(texts)))["input_ids"].numpy()]


def _front(settings: Mapping[str, Any]) -> tuple[Any, Mechanism | None]:
    """The published front at a cut, and the noise that it is used with."""
    model: Any = load_model(settings["model"], labels=_LABELS)
    pair = split_model(model.float(), settings["cut"])
    if settings["mechanism"] == "none":
        return pair.front, None
    choice = NoiseSpec(mechanism=settings["mechanism"], epsilon=settings["epsilon"])
    return pair.front, choice.build()


def _inversion(work: _Work) -> dict[str, Any]:
    front, mechanism = _front(work.settings)
    chosen: dict[str, Any] = {"model": tokenizer_model(work.job), "rows": work.settings["rows"]}
    public = work.cache.texts(work.settings["task"], "train", **chosen)
    texts = work.cache.texts(work.settings["task"], "validation", limit=work.settings["limit"], **chosen)
    prior = TokenPrior.learn(
        public,
        special=load_tokenizer(work.settings["model"]).all_special_ids,
        vocabulary=int(token_table(front).num_embeddings),  # type: ignore[arg-type]
    )
    return invert_nearest(Inversion(front, mechanism, texts, prior, device=str(pick_device()))).as_dict()


def _attribute(work: _Work) -> dict[str, Any]:
    task = find_task(work.settings["task"])
    read = read_records(task, "train", source=work.cache.data.get(task.name))
    genres = list(keyword_genres(record.text for record in read))
    if len(genres) < 40:
        raise InvalidInput("texts", "be 40 or more with a genre", len(genres), "Use more texts.")
    front, mechanism = _front(work.settings)
    tokens = FixedLength(load_tokenizer(work.settings["model"]), work.settings["rows"])
    texts = EncodedTexts.from_records(genres, tokens)
    test, train = texts.split_off(0.5, seed=0)
    epochs = int(work.settings.get("epochs", 20))
    found = attribute_attack(front, mechanism, train, test, epochs=epochs, seed=0, device=str(pick_device()))
    return found.as_dict()


def _speed(work: _Work) -> dict[str, Any]:
    from reproduction.runs.speed import measure

    return measure(**work.settings)


_RUNNERS: Final[Mapping[str, Callable[[_Work], dict[str, Any]]]] = {
    "finetune": _finetune,
    "baseline": _baseline,
    "pretrain": _pretrain,
    "queries": _queries,
    "membership": _membership,
    "inversion": _inversion,
    "attribute": _attribute,
    "speed": _speed,
}
