"""Fine-tuning through the noise, in one of three regimes.

    release-once   front as published ─────────────────────► one release per record ─► back
    public-front   front trained on public texts, frozen ──► one release per record ─► back
    end-to-end     front and back together on the task's own texts (which are not protected)

Each arrow is a stage with a stored result, so a killed run is resumed from there. The release is charged once
in a ledger (`corpus.writer`), before any noise is drawn.
"""

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dp_forward.corpus.reader import ReleasedCorpus
from dp_forward.corpus.writer import release_corpus
from dp_forward.data import EncodedTexts
from dp_forward.errors import refuse_if
from dp_forward.noise import Sanitizer, release_labels
from dp_forward.privacy import KaryResponse, Mechanism, RandomizedResponse
from dp_forward.progress import Progress, counter, is_first_process
from dp_forward.split import Split
from dp_forward.split.artifacts import UserSide, save_provider_side, save_sides
from dp_forward.split.device import pick_device
from dp_forward.split.front_statistics import require_enough_texts
from dp_forward.train import evaluation
from dp_forward.train.closed_form import Discriminant
from dp_forward.train.closed_form_training import PROJECTION, Projected, outlook, project_records, read_rows
from dp_forward.train.defaults import effective_plan
from dp_forward.train.inputs import Inputs, describe_data, enter_texts, load_inputs
from dp_forward.train.label_debiasing import LabelLoss
from dp_forward.train.lineage import PUBLIC, raw_texts_of, refuse_learnt_releases, releases_learnt
from dp_forward.train.noisy_model import NoisyModel, ReleaseReader
from dp_forward.train.plan import Plan
from dp_forward.train.processes import peak_memory_mib, wait_for_everyone
from dp_forward.train.regimes import Regime, label_mechanism_for, promises_of, with_subjects
from dp_forward.train.report import build_report, markdown
from dp_forward.train.run import Run, RunFolder
from dp_forward.train.training_loop import FitSettings, curve_sample, train_stage

__all__ = ["finetune", "preview"]

Maker = Callable[[int], NoisyModel]  # from the step that training starts at
_PACE = ("epochs", "batch", "learning_rate", "head_learning_rate")
_EVALUATION_STREAM, _CURVE_STREAM = 1 << 20, 1 << 21
"""Beyond any step: simulated noise that training never met."""


def finetune(
    plan: Plan,
    *,
    folder: Path | None = None,
    resume: bool = False,
    progress: Progress | None = None,
    inputs: Inputs | None = None,
    checkpoints: bool = True,
    ledger: Path | None = None,
    budget: float | None = None,
    register: Path | None = None,
    say: Callable[[str], None] | None = None,
) -> Run:
    """Carry out a plan. With a ``folder``, everything is stored there and a killed run can be resumed.

    Args:
        inputs: what `load_inputs` would make of the plan, for a caller that has it already.
        checkpoints: False stores finished stages only: quicker, and a kill costs the stage that it met.
        ledger: where the release of the training records is charged, and which then bounds it alone. By
            default one of its own, and the register bounds what each text spends in all releases.
        budget: the cap of a new ledger, and of what a text spends in all.
        register: of the owner's texts (`ledger.text_register`); by default the owner's.
        say: called, before anything is charged, with what will be and whether it is likely enough.

    Edges:
        A folder whose run is complete gives that run again; nothing is trained, drawn or charged. A ledger is
        refused where nothing is released. A run is resumed with the ledger that it was charged in.
    """
    plan = effective_plan(plan)
    for name, value in {"ledger": ledger, "budget": budget}.items():
        rule, remedy = f"be left out in {plan.regime}", "No training record is released there."
        refuse_if(value is not None and not plan.regime.protects_training, name, rule, value, remedy)
    refuse_learnt_releases(plan)
    resume = resume and folder is not None
    with (
        tempfile.TemporaryDirectory() as temporary,
        RunFolder.opened(folder or Path(temporary) / "run", plan, resume=resume) as place,
    ):
        if place.complete:
            return Run.load(place.path)
        started = time.perf_counter()
        inputs = load_inputs(plan, progress=progress) if inputs is None else inputs
        keeps = checkpoints and folder is not None
        said = enter_texts(plan, inputs, register) if is_first_process() else []
        release = {"ledger": ledger, "budget": budget, "register": register, "say": say}
        training = _Training(plan, inputs, place, progress, keeps, release, said)
        report = training.report(training.run(), started=started)
        if is_first_process():
            save_sides(training.pair, training.spec, inputs.tokens.tokenizer, place.path)
            place.write_report(report, markdown(report))
        wait_for_everyone()
        return Run(plan, training.pair, training.spec, inputs.tokens, report)


def preview(plan: Plan, *, progress: Progress | None = None) -> tuple[dict[str, Any], list[str]]:
    """What a plan would charge, and whether it is likely enough; nothing is drawn, charged or stored."""
    plan = effective_plan(plan)
    inputs = load_inputs(plan, progress=progress)
    if plan.back == "closed-form":
        return outlook(_project(plan, inputs, progress), len(inputs.train))
    found = {"records": len(inputs.train), "labels": len(inputs.task.labels), "epsilon": plan.epsilon}
    return found, with_subjects(promises_of(plan, inputs.spec).statements)


def _project(plan: Plan, inputs: Inputs, progress: Progress | None) -> Projected:
    texts: dict[str, Any] = {"records": len(inputs.train), "public": inputs.public}
    return project_records(plan, inputs.pair.front, inputs.tokens, **texts, progress=progress)


@dataclass(eq=False)
class _Training:
    plan: Plan
    inputs: Inputs
    place: RunFolder
    progress: Progress | None
    checkpoints: bool
    release: dict[str, Any]  # settings of `release_corpus`
    said: list[str]  # what the register says of the texts

    def __post_init__(self) -> None:
        plan, self.pair, texts = self.plan, self.inputs.pair, self.inputs.evaluation or self.inputs.public
        self.spec = self.inputs.spec
        self.learnt: dict[str, Any] = {}
        self.measured: tuple[evaluation.Accuracy, float] | None = None
        self.curve_texts = None if texts is None else texts.subset(curve_sample(len(texts)))
        self.mechanism = None if plan.noise is None else plan.noise.build()
        kinds = len(self.inputs.task.labels)
        self.labels = label_mechanism_for(plan.label_epsilon, plan.label_prior, labels=kinds)
        self.train = partial(train_stage, self.place, checkpoints=self.checkpoints, progress=self.progress)

    def run(self) -> dict[str, Any]:
        """Run the stages of the regime; what each of them logged."""
        plan = self.plan
        if plan.back == "closed-form":
            return self._closed_form()
        if plan.regime is Regime.END_TO_END:
            loss = LabelLoss(None if self.labels is None else self.labels.transition())
            return self._train_both("task", self._own_texts(), loss, FitSettings.of(plan))
        stages = {}
        if plan.regime is Regime.PUBLIC_FRONT:
            assert self.inputs.public is not None
            settings = FitSettings.of(plan, **{name: getattr(plan, f"public_{name}") for name in _PACE})
            stages = self._train_both("public", self.inputs.public, LabelLoss(), settings)
        corpus, back = self._release(self._saved_front()), self.pair.back
        loss = LabelLoss(corpus.label_transition)
        stages["task"] = self.train(
            "task",
            FitSettings.of(plan),
            make_module=lambda step: ReleaseReader(back, loss),
            train=corpus,
            evaluation=self._noisy_records(),
            halves={"back": back},
        )
        return stages

    def _train_both(
        self, stage: str, texts: EncodedTexts, loss: LabelLoss, settings: FitSettings
    ) -> dict[str, Any]:
        """The undefended model for the warm-up epochs, then front, noise and back together.

        With ``public_relabel``, the warm-up learns the labels that the texts came with (that of a review for
        each of its sentences), and then the noise is met with what that model says of each sentence.
        """
        plan, stages = self.plan, {}
        if plan.warm_up_epochs:
            plain = Split(self.pair.front.plain, self.pair.back.plain)
            model, first = self._undefended(plain, loss), replace(settings, epochs=plan.warm_up_epochs)
            stages["warm-up"] = self._train_pair("warm-up", plain, texts, first, lambda step: model)
            if plan.public_relabel:
                settled, progress = model.to(pick_device()), counter(self.progress, "relabelling", len(texts))
                answer = partial(evaluation.answers_of, settled, texts, at_once=512, progress=progress)
                texts = texts.with_labels(self.place.stored_array("stages/relabelling.npy", answer))
            # A front that has been warmed up learns more slowly through the noise, so as not to forget, and
            # new maps settle without noise.
            rate, clean = settings.learning_rate * (1 / 3), 0.2 * settings.epochs
            settings = replace(settings, learning_rate=rate, clean_epochs=clean)
        noise = None if plan.training_noise is None else plan.training_noise.build()
        make = partial(self._noisy, noise, loss=loss)
        return {**stages, stage: self._train_pair(stage, self.pair, texts, settings, make)}

    def _train_pair(
        self, stage: str, pair: Split, texts: EncodedTexts, settings: FitSettings, make: Maker
    ) -> dict[str, Any]:
        """Front and back together, where the regime lets the front see the texts."""
        halves: dict[str, nn.Module] = {"front": pair.front, "back": pair.back}
        return self.train(
            stage, settings, make_module=make, train=texts, evaluation=self.curve_texts, halves=halves
        )

    def _undefended(self, pair: Split, loss: LabelLoss) -> NoisyModel:
        """Front and back without noise, bound or maps."""
        labels = len(self.inputs.task.labels)
        return NoisyModel(pair, None, rows=self.inputs.spec.rows, labels=labels, loss=loss)

    def _closed_form(self) -> dict[str, Any]:
        """One folded release per record, and the decision that its mean says (`closed_form_training`)."""
        plan, inputs, stages = self.plan, self.inputs, {}
        if inputs.public is not None:  # before a front trains on them
            require_enough_texts(len(inputs.public), self.pair.front.plain)
        if plan.regime is Regime.PUBLIC_FRONT:
            assert inputs.public is not None
            named = {name: getattr(plan, f"public_{name}") for name in _PACE if name != "epochs"}
            settings = FitSettings.of(plan, epochs=plan.warm_up_epochs, **named)
            model, texts = self._undefended(self.pair, LabelLoss()), inputs.public
            stages["public"] = self._train_pair("public", self.pair, texts, settings, lambda step: model)
        folder, projected = self.place.path / PROJECTION, None
        if is_first_process() and not (folder / "front" / "release.json").is_file():  # written last
            projected = _project(plan, inputs, self.progress).save(folder)
        wait_for_everyone()
        projected = projected or Projected.load(folder)
        if (say := self.release["say"]) is not None:
            for sentence in outlook(projected, len(inputs.train))[1]:
                say(sentence)
        corpus = self._release(projected.user)
        assert plan.noise is not None
        refined = projected.refine(corpus, query=plan.noise)
        self.pair, self.spec = refined.pair, refined.spec
        self.learnt = {**refined.facts(projected), "expected_signal": projected.expected_signal(len(corpus))}
        self._measure_decisions(projected, refined.learnt)
        stages["releases"] = {"history": [], "peak_memory_mib": peak_memory_mib()}
        return stages

    def _measure_decisions(self, projected: Projected, learnt: Discriminant) -> None:
        """Accuracy through the noise of a query, without it, and of the descriptions alone; one reading."""
        plan, texts, answer = self.plan, self.inputs.evaluation, self.mechanism
        if texts is None:
            return
        truth = texts.labels
        assert isinstance(answer, KaryResponse)
        assert truth is not None
        progress = counter(self.progress, "evaluating", len(texts))
        rows = read_rows(projected.front, texts, progress).astype(np.float64)
        decided, rng = learnt.decide(rows), np.random.default_rng((plan.seed, _EVALUATION_STREAM))
        response = RandomizedResponse(answer.label_epsilon, answer.labels)
        answers = np.stack([response.sample(decided, rng) for _ in range(plan.evaluation_draws)], axis=1)
        noisy = evaluation.accuracy_of((answers == truth[:, None]).astype(np.float64))
        self.measured = noisy, float((decided == truth).mean())
        if projected.projection.hint is not None:
            described = answer.transition()[projected.prior().decide(rows), truth]
            gain = answer.transition()[decided, truth] - described  # text by text: both meet the same texts
            low = float(gain.mean() - 1.96 * gain.std() / len(gain) ** 0.5)
            found = {"accuracy_of_descriptions": float(described.mean()), "gain_over_descriptions_low": low}
            self.learnt |= found

    def _saved_front(self) -> UserSide:
        """The front as the user holds it, and what a provider's back starts from."""
        inputs, root, digest = self.inputs, self.place.path, ""
        if is_first_process():
            digest = save_sides(self.pair, inputs.spec, inputs.tokens.tokenizer, root)["front"]
            kept = root / PUBLIC / "back" / "release.json"  # written last
            if self.plan.regime is Regime.PUBLIC_FRONT and not kept.is_file():
                save_provider_side(self.pair.back, inputs.spec, root / PUBLIC, front_digest=digest)
        return UserSide(self.pair.front, inputs.tokens, replace(inputs.spec, front=digest))

    def _release(self, user: UserSide) -> ReleasedCorpus:
        """One stored release for every record of the task; charged once, drawn once."""
        texts, place, corpus = self.inputs.train, self.place.path / "releases", None
        if is_first_process():
            more = {**self.release, "progress": counter(self.progress, "releasing", len(texts))}
            more |= {"label_mechanism": self.labels, "device": pick_device()}
            corpus = release_corpus(user, texts, place, resume=True, **more)  # the folder is this plan's
        wait_for_everyone()
        return ReleasedCorpus.open(place) if corpus is None else corpus

    def report(self, stages: dict[str, Any], *, started: float) -> dict[str, Any]:
        """Accuracy through the noise over repeated draws and without it, and what is promised."""
        plan, inputs, texts = self.plan, self.inputs, self.inputs.evaluation
        noisy, clean = (None, None) if texts is None else self.measured or self._measure(texts)
        return build_report(
            plan,
            regime=str(plan.regime),
            accuracy=noisy,
            without_noise=clean,
            labels=inputs.task.labels,
            records=len(inputs.train),
            guarantee=promises_of(plan, self.spec).as_dict(),
            stages=stages,
            notes=inputs.task.notes,
            started=started,
            accuracy_by_draw=[] if noisy is None else list(noisy.by_draw),
            accuracy_of_commonest_label=None if texts is None else evaluation.commonest_share(texts.labels),
            data=[*describe_data(inputs), *self.said],
            front_has_seen_raw_texts_of=raw_texts_of(plan),
            **releases_learnt(plan),
            **self.learnt,
        )

    def _measure(self, texts: EncodedTexts) -> tuple[evaluation.Accuracy, float]:
        model, draws = self._noisy(self.mechanism, _EVALUATION_STREAM), self.plan.evaluation_draws
        measure = partial(evaluation.accuracy_over_draws, model.to(pick_device()), texts)
        noisy = measure(draws=draws, progress=counter(self.progress, "evaluating", len(texts)))
        model.clean = True
        progress = counter(self.progress, "evaluating without noise", len(texts))
        return noisy, measure(draws=1, progress=progress).mean

    def _noisy(self, mechanism: Mechanism | None, step: int, loss: LabelLoss | None = None) -> NoisyModel:
        plan = self.plan
        # Simulated noise: another stream after every resume, so that no noise is met twice.
        seed = plan.seed * 1_000_003 + step
        return NoisyModel(
            self.pair,
            None if mechanism is None else Sanitizer(mechanism, seed=seed),
            rows=self.spec.rows,
            labels=len(self.inputs.task.labels),
            draws=plan.draws or 1,
            auxiliary_weight=plan.auxiliary_weight or 0.0,
            auxiliary_alone=bool(plan.auxiliary_alone),
            loss=loss,
        )

    def _own_texts(self) -> EncodedTexts:
        """The training texts, their labels randomized once where the plan says so."""
        texts, labels = self.inputs.train, self.labels
        if labels is None:
            return texts

        def draw() -> NDArray[np.int64]:
            assert texts.labels is not None
            return np.asarray(release_labels(texts.labels, labels).values, dtype=np.int64)

        return texts.with_labels(self.place.stored_array("labels.npy", draw))

    @torch.inference_mode()
    def _noisy_records(self) -> list[dict[str, Tensor]]:
        """Evaluation texts after one simulated draw, for the learning curve of the back."""
        device, texts, records = pick_device(), self.curve_texts, []
        assert texts is not None
        model = self._noisy(self.mechanism, _CURVE_STREAM).to(device).eval()
        for start in range(0, len(texts), 64):
            batch = texts.batch(range(start, min(start + 64, len(texts))))
            labels = batch.pop("labels")
            hidden = model.hidden(**{name: value.to(device) for name, value in batch.items()})
            pairs = zip(model.add_noise(hidden).float().cpu(), labels, strict=True)
            records += [{"hidden": matrix.clone(), "labels": label.clone()} for matrix, label in pairs]
        return records
