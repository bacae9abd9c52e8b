"""Runners: how each kind of job is carried out, as a folder to work in and a plain result for the file.

Results hold numbers, the promise in words and the effective plan; never a text. What a later job builds on
(a run, a checkpoint) stays in the folder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from dp_forward.attacks.attribute import attribute_attack, keyword_genres
from dp_forward.attacks.inversion.nearest_token import invert_nearest
from dp_forward.attacks.inversion.recall import Inversion, TokenPrior, token_table
from dp_forward.attacks.membership import SCORES, answers, drop_words, threshold_attack
from dp_forward.data import EncodedTexts, FixedLength, Record, find_task, read_records, sample_records
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
from dp_forward.train.run import Halves
from reproduction.attacks.gradient import invert_by_gradient
from reproduction.jobs import FIRST, Job, effective_settings, plan_of
from reproduction.model_setup import TASKS
from reproduction.runs.crossing_mask import mask_crossing
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


def _finetune_masked(work: _Work) -> dict[str, Any]:
    """Fine-tuning with the mask handed to the back, so no promise is left."""
    plan = plan_of(work.settings)
    inputs = work.cache.inputs(plan, tokenizer_model(work.job))
    with mask_crossing(inputs.pair):
        run = finetune(plan, folder=work.folder, inputs=inputs, checkpoints=False, register=_register(work))
    return {**_kept(run.report), "promise": "none: the mask crosses", "promised": {}}


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
    pair, spec = _trained_halves(built_on, work.after[0], work.settings.get("cut"))
    noise = replace(spec, mechanism="matrix-gaussian", epsilon=work.settings["epsilon"]).build()
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


def _trained_halves(job: Job, folder: Path, cut: str | None) -> tuple[Split, NoiseSpec]:
    """The halves of a run, or the model of a baseline cut in two; and the Gaussian noise that fits it."""
    plain = NoiseSpec(mechanism="matrix-gaussian")
    if job.kind == "baseline":
        assert cut is not None
        return split_model(load_model(str(folder / "model"), labels=_LABELS), cut), plain
    done = Halves.load(folder)
    own = done.spec.noise
    if own is None:
        return done.pair, plain
    kept: dict[str, Any] = {"unit": own.unit, "rows": own.rows} if own.unit != "text" else {}
    return done.pair, replace(plain, norm=own.norm, **kept)


def _membership(work: _Work) -> dict[str, Any]:
    """Tell a run's training texts from the rest of their split, or from another split, by what it answers.

    ``scores`` names the numbers that are looked at, each with a result of its own; without it, entropy.
    ``dropped`` is the share of the words that the others lose first, as in the paper.
    """
    built_on, limit = work.job.after[0], int(work.settings["limit"])
    settings = effective_settings(built_on.kind, built_on.settings)
    pair, mechanism = _asked(built_on, work.after[0])
    read: dict[str, Any] = {"model": tokenizer_model(work.job), "rows": int(settings["rows"])}
    task, only = str(settings["task"]), settings.get("train_limit")
    members = work.cache.texts(task, "train", limit=only, **read)
    if only is None:
        kind, others = "evaluation split", _others(work, settings, read)
    else:
        kind, every = "rest of the training split", work.cache.texts(task, "train", **read)
        known = set(_token_ids(members))
        others = every.subset([number for number, ids in enumerate(_token_ids(every)) if ids not in known])
    rng = np.random.default_rng(0)
    chosen = [texts.subset(rng.permutation(len(texts))[:limit]) for texts in (members, others)]
    seen = [
        answers(pair.front, pair.back, mechanism, texts, draws=work.settings["draws"]) for texts in chosen
    ]
    found = {
        name: threshold_attack(
            *(SCORES[name](some, texts.labels) for some, texts in zip(seen, chosen, strict=True)), seed=0
        ).as_dict()
        for name in work.settings.get("scores", ("entropy",))
    }
    return {**(found if "scores" in work.settings else found["entropy"]), "others": kind}


def _asked(job: Job, folder: Path) -> tuple[Split, Mechanism | None]:
    """What answers queries of a run, and through which noise; a baseline answers without."""
    if job.kind == "baseline":
        return _trained_halves(job, folder, "output")[0], None
    done = Halves.load(folder)
    return done.pair, None if done.spec.noise is None else done.spec.mechanism()


def _others(work: _Work, settings: Mapping[str, Any], read: Mapping[str, Any]) -> EncodedTexts:
    """The evaluation split of a run, with some words dropped where the job says so."""
    split, limit, share = settings["evaluation_split"], settings.get("evaluation_limit"), "dropped"
    if share not in work.settings:
        return work.cache.texts(str(settings["task"]), split, limit=limit, **read)
    task = find_task(str(settings["task"]))
    records: Iterable[Record] = read_records(task, split, source=work.cache.data.get(task.name))
    if limit is not None:
        records = sample_records(records, limit)
    thinned = drop_words(records, share=work.settings[share], seed=0)
    model = work.cache.models.get(read["model"], read["model"])
    return EncodedTexts.from_records(thinned, FixedLength(load_tokenizer(model), read["rows"]))


def _token_ids(texts: EncodedTexts) -> list[bytes]:
    return [row.tobytes() for row in texts.batch(range(len(texts)))["input_ids"].numpy()]


def _front(work: _Work) -> tuple[Any, Mechanism | None]:
    """The front at a cut, of the run that the job builds on or as published; and the noise of its queries."""
    settings, cut = work.settings, work.settings["cut"]
    if work.job.after:
        front: Any = _trained_halves(work.job.after[0], work.after[0], cut)[0].front
    else:
        model: Any = load_model(settings["model"], labels=_LABELS)
        front = split_model(model.float(), cut).front
    if settings["mechanism"] == "none":
        return front, None
    return front, NoiseSpec(mechanism=settings["mechanism"], epsilon=settings["epsilon"]).build()


def _inversion(work: _Work) -> dict[str, Any]:
    front, mechanism = _front(work)
    name = tokenizer_model(work.job)
    chosen: dict[str, Any] = {"model": name, "rows": work.settings["rows"]}
    split = work.settings.get("split", "validation")
    public = work.cache.texts(work.settings["task"], "train", **chosen)
    texts = work.cache.texts(work.settings["task"], split, limit=work.settings["limit"], **chosen)
    prior = TokenPrior.learn(
        public,
        special=load_tokenizer(work.cache.models.get(name, name)).all_special_ids,
        vocabulary=int(token_table(front).num_embeddings),  # type: ignore[arg-type]
    )
    target = Inversion(front, mechanism, texts, prior, device=str(pick_device()))
    if work.settings.get("attack") == "gradient":
        return invert_by_gradient(target, steps=int(work.settings.get("steps", 150))).as_dict()
    return invert_nearest(target).as_dict()


def _attribute(work: _Work) -> dict[str, Any]:
    """Genres by keyword: learnt and told on two halves of a task, or told on another task."""
    other = work.settings.get("test_task")
    task = str(work.settings["task"])
    front, mechanism = _front(work)
    name = tokenizer_model(work.job)
    tokens = FixedLength(load_tokenizer(work.cache.models.get(name, name)), work.settings["rows"])
    if other is None:
        test, train = _genres(work, task, ("train",), tokens).split_off(0.5, seed=0)
    else:
        train = _genres(work, task, ("train", "test"), tokens)
        test = _genres(work, other, ("train", "validation"), tokens)
    epochs = int(work.settings.get("epochs", 20))
    found = attribute_attack(front, mechanism, train, test, epochs=epochs, seed=0, device=str(pick_device()))
    return found.as_dict()


def _genres(work: _Work, name: str, splits: Sequence[str], tokens: FixedLength) -> EncodedTexts:
    task = find_task(name)
    source = work.cache.data.get(task.name)
    read = (record.text for split in splits for record in read_records(task, split, source=source))
    genres = list(keyword_genres(read))
    if len(genres) < 40:
        raise InvalidInput("texts", "be 40 or more with a genre", len(genres), "Use more texts.")
    return EncodedTexts.from_records(genres, tokens)


def _speed(work: _Work) -> dict[str, Any]:
    from reproduction.runs.speed import measure

    return measure(**work.settings)


_RUNNERS: Final[Mapping[str, Callable[[_Work], dict[str, Any]]]] = {
    "finetune": _finetune,
    "masked": _finetune_masked,
    "baseline": _baseline,
    "pretrain": _pretrain,
    "queries": _queries,
    "membership": _membership,
    "inversion": _inversion,
    "attribute": _attribute,
    "speed": _speed,
}
