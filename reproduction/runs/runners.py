"""How each kind of step is carried out: a folder to work in, and a plain result for the file.

Results hold numbers, the promise in words and the effective plan; never a text. What a later step builds on
(a run, a checkpoint) stays in the folder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dp_forward.errors import InvalidInput
from reproduction.jobs import FIRST, Step, effective
from reproduction.model_setup import TASKS
from reproduction.runs.dataset_cache import Shelf

if TYPE_CHECKING:
    from dp_forward.privacy import Mechanism
    from dp_forward.split import Split

__all__ = ["carry_out", "reader_of"]

_LABELS = 2
"""Of every task of the paper."""
_LEFT_OUT = ("stages", "guarantee", "provenance", "plan_digest", "accuracy_by_draw")


def carry_out(step: Step, *, folder: Path, after: Sequence[Path], shelf: Shelf) -> dict[str, Any]:
    """Do it; ``after`` are the folders of the steps that it builds on."""
    settings = {name: str(after[0]) if value == FIRST else value for name, value in step.settings.items()}
    if "model" in settings:
        settings["model"] = shelf.models.get(settings["model"], settings["model"])
    return _KINDS[step.kind](step, settings, folder, after, shelf)


def reader_of(step: Step) -> str:
    """The model whose tokenizer reads the texts of a step."""
    model = str(step.settings.get("model", FIRST))
    return reader_of(step.after[0]) if model == FIRST else model


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


def _finetune(
    step: Step, settings: dict[str, Any], folder: Path, after: Sequence[Path], shelf: Shelf
) -> dict[str, Any]:
    from dp_forward.train.defaults import effective_plan
    from dp_forward.train.finetune import finetune
    from dp_forward.train.plan import Plan

    plan = effective_plan(Plan.from_dict(settings))
    inputs = shelf.inputs(plan, reader_of(step))
    return _kept(finetune(plan, folder=folder, inputs=inputs, checkpoints=False).report)


def _baseline(
    step: Step, settings: dict[str, Any], folder: Path, after: Sequence[Path], shelf: Shelf
) -> dict[str, Any]:
    from dp_forward.train.dpsgd.dpsgd_plan import DpSgdPlan
    from dp_forward.train.dpsgd.dpsgd_training import run_dpsgd

    plan = DpSgdPlan.from_dict({**settings, "data": shelf.data})
    report = run_dpsgd(plan, folder=folder)
    return {**_kept(report), "proved": report["guarantee"]["training"]}


def _pretrain(
    step: Step, settings: dict[str, Any], folder: Path, after: Sequence[Path], shelf: Shelf
) -> dict[str, Any]:
    from dp_forward.train.pretrain.pretrain_plan import PretrainPlan
    from dp_forward.train.pretrain.pretraining import pretrain

    plan = PretrainPlan.from_dict(settings)
    corpus = shelf.data.get(plan.corpus, plan.corpus)
    outcome = pretrain(plan.model, corpus, plan.settings, folder=folder).as_dict()
    return {name: value for name, value in outcome.items() if name != "history"}


def _queries(
    step: Step, settings: dict[str, Any], folder: Path, after: Sequence[Path], shelf: Shelf
) -> dict[str, Any]:
    """A trained model, asked through other noise than it was trained with, or that it never met."""
    from dp_forward.noise import Sanitizer
    from dp_forward.privacy import NoiseSpec
    from dp_forward.split.device import pick_device
    from dp_forward.train.evaluation import accuracy_over_draws
    from dp_forward.train.noisy_model import NoisyModel

    built_on = step.after[0]
    pair, norm = _trained_halves(built_on, after[0], settings.get("cut"))
    noise = NoiseSpec(mechanism="matrix-gaussian", epsilon=settings["epsilon"], norm=norm).build()
    task = TASKS[str(built_on.settings["task"])]
    rows = int(effective(built_on.kind, built_on.settings)["rows"])
    module = NoisyModel(pair, Sanitizer(noise, seed=settings["noise_seed"]), rows=rows, labels=_LABELS)
    module.to(pick_device())
    texts = shelf.texts(
        task.name,
        task.split,
        model=reader_of(built_on),
        rows=rows,
        limit=built_on.settings.get("evaluation_limit"),
    )
    found = accuracy_over_draws(module, texts, draws=settings["draws"])
    return {
        "accuracy": found.mean,
        "accuracy_low": found.low,
        "accuracy_high": found.high,
        "draws": found.draws,
        "texts": found.texts,
        "promise": f"Queries: {noise.promise()}.",
    }


def _trained_halves(step: Step, folder: Path, cut: str | None) -> tuple[Split, float]:
    """The halves of a run, or the model of a baseline cut in two; and the norm that the noise is for."""
    from dp_forward.split import split_model
    from dp_forward.split.load_model import load_model
    from dp_forward.train.run import Halves

    if step.kind == "baseline":
        assert cut is not None
        return split_model(load_model(str(folder / "model"), labels=_LABELS), cut), 1.0
    done = Halves.load(folder)
    return done.pair, 1.0 if done.form.noise is None else done.form.noise.norm


def _membership(
    step: Step, settings: dict[str, Any], folder: Path, after: Sequence[Path], shelf: Shelf
) -> dict[str, Any]:
    """The entropy attack on a run: its training texts against the rest of their split, or another split."""
    import numpy as np

    from dp_forward.attacks.membership import answers, entropy, threshold_attack
    from dp_forward.train.run import Run

    run = Run.load(after[0])
    reader, rows = reader_of(step), run.form.rows
    plan, limit = run.plan, int(settings["limit"])
    members = shelf.texts(plan.task, "train", model=reader, rows=rows, limit=plan.train_limit)
    if plan.train_limit is None:
        others, kind = (
            shelf.texts(
                plan.task, plan.evaluation_split, model=reader, rows=rows, limit=plan.evaluation_limit
            ),
            "evaluation split",
        )
    else:
        every = shelf.texts(plan.task, "train", model=reader, rows=rows)
        known = {row.tobytes() for row in members.batch(range(len(members)))["input_ids"].numpy()}
        ids = every.batch(range(len(every)))["input_ids"].numpy()
        others = every.subset([number for number, row in enumerate(ids) if row.tobytes() not in known])
        kind = "rest of the training split"
    rng = np.random.default_rng(0)
    chosen = [texts.subset(rng.permutation(len(texts))[:limit]) for texts in (members, others)]
    mechanism = None if run.form.noise is None else run.form.mechanism()
    scores = [
        entropy(answers(run.pair.front, run.pair.back, mechanism, texts, draws=settings["draws"]))
        for texts in chosen
    ]
    return {**threshold_attack(scores[0], scores[1], seed=0).as_dict(), "others": kind}


def _front(settings: Mapping[str, Any]) -> tuple[Any, Mechanism | None]:
    """The published front at a cut, and the noise that it is used with."""
    from dp_forward.privacy import NoiseSpec
    from dp_forward.split import split_model
    from dp_forward.split.load_model import load_model

    model: Any = load_model(settings["model"], labels=_LABELS)
    pair = split_model(model.float(), settings["cut"])
    if settings["mechanism"] == "none":
        return pair.front, None
    choice = NoiseSpec(mechanism=settings["mechanism"], epsilon=settings["epsilon"])
    return pair.front, choice.build()


def _inversion(
    step: Step, settings: dict[str, Any], folder: Path, after: Sequence[Path], shelf: Shelf
) -> dict[str, Any]:
    from dp_forward.attacks.inversion.nearest_token import invert_nearest
    from dp_forward.attacks.inversion.recall import TokenPrior, token_table
    from dp_forward.split.device import pick_device
    from dp_forward.split.load_model import load_tokenizer

    front, mechanism = _front(settings)
    chosen: dict[str, Any] = {"model": reader_of(step), "rows": settings["rows"]}
    public = shelf.texts(settings["task"], "train", **chosen)
    texts = shelf.texts(settings["task"], "validation", limit=settings["limit"], **chosen)
    prior = TokenPrior.learn(
        public,
        special=load_tokenizer(settings["model"]).all_special_ids,
        vocabulary=int(token_table(front).num_embeddings),  # type: ignore[arg-type]
    )
    found = invert_nearest(front, mechanism, texts, prior=prior, device=str(pick_device()))
    return found.as_dict()


def _attribute(
    step: Step, settings: dict[str, Any], folder: Path, after: Sequence[Path], shelf: Shelf
) -> dict[str, Any]:
    from dp_forward.attacks.attribute import attribute_attack, keyword_genres
    from dp_forward.data import EncodedTexts, FixedLength, read_records
    from dp_forward.data.tasks import find_task
    from dp_forward.split.device import pick_device
    from dp_forward.split.load_model import load_tokenizer

    task = find_task(settings["task"])
    read = read_records(task, "train", source=shelf.data.get(task.name))
    genres = list(keyword_genres(record.text for record in read))
    if len(genres) < 40:
        raise InvalidInput("texts", "be 40 or more with a genre", len(genres), "Use more texts.")
    front, mechanism = _front(settings)
    tokens = FixedLength(load_tokenizer(settings["model"]), settings["rows"])
    texts = EncodedTexts.from_records(genres, tokens)
    test, train = texts.split_off(0.5, seed=0)
    epochs = int(settings.get("epochs", 20))
    found = attribute_attack(front, mechanism, train, test, epochs=epochs, seed=0, device=str(pick_device()))
    return found.as_dict()


def _speed(
    step: Step, settings: dict[str, Any], folder: Path, after: Sequence[Path], shelf: Shelf
) -> dict[str, Any]:
    from reproduction.runs.speed import measure

    return measure(**settings)


_KINDS: dict[str, Callable[[Step, dict[str, Any], Path, Sequence[Path], Shelf], dict[str, Any]]] = {
    "finetune": _finetune,
    "baseline": _baseline,
    "pretrain": _pretrain,
    "queries": _queries,
    "membership": _membership,
    "inversion": _inversion,
    "attribute": _attribute,
    "speed": _speed,
}
