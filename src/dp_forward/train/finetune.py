"""Fine-tuning through the noise, in one of three regimes.

    release-once   front as published ─────────────────────► one release per record ─► back
    public-front   front trained on public texts, frozen ──► one release per record ─► back
    end-to-end     front and back together on the task's own texts (which are not protected)

Each arrow is a stage with a stored result, so a killed run goes on where it was. The release is charged once
in a ledger (`release`), before any noise is drawn.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dp_forward.corpus.reader import ReleasedCorpus
from dp_forward.corpus.writer import release_corpus
from dp_forward.errors import InvalidInput
from dp_forward.noise import Sanitizer
from dp_forward.noise.released.released_label import release_labels
from dp_forward.privacy import Mechanism
from dp_forward.split.artifacts import UserSide, save_provider_side, save_sides
from dp_forward.split.device import pick_device
from dp_forward.split.halves import remove_width_maps
from dp_forward.train.defaults import effective_plan
from dp_forward.train.evaluation import Accuracy, accuracy_over_draws, commonest_share
from dp_forward.train.inputs import Material, Texts, gather
from dp_forward.train.label_loss import LabelLoss
from dp_forward.train.labels import label_mechanism_for
from dp_forward.train.lora import add_lora, merge_lora
from dp_forward.train.noisy_model import ThroughNoise
from dp_forward.train.plan import Plan
from dp_forward.train.processes import is_first_process, wait_for_everyone
from dp_forward.train.promised import promises_of
from dp_forward.train.published import PUBLIC, raw_texts_of, refuse_seen_texts, releases_learnt
from dp_forward.train.regimes import Regime
from dp_forward.train.release_dataset import FromReleases, Held, Stored
from dp_forward.train.report import build_report, write_report
from dp_forward.train.run import Run
from dp_forward.train.run_folder import RunFolder
from dp_forward.train.training_loop import Fit, FitSettings, Progress, fit, last_step

__all__ = ["finetune"]

_RATE_AFTER_WARM_UP = 1 / 3
"""A front that has been warmed up learns more slowly through the noise, so as not to forget."""
_SETTLING_SHARE = 0.2
_READ_AT_ONCE = 512
_CURVE_TEXTS = 2000
"""How many evaluation texts the learning curve is drawn from; the final accuracy uses all."""


def finetune(
    plan: Plan,
    *,
    folder: Path | None = None,
    resume: bool = False,
    progress: Progress | None = None,
    material: Material | None = None,
    checkpoints: bool = True,
    ledger: Path | None = None,
    budget: float | None = None,
) -> Run:
    """Carry out a plan. With a ``folder``, everything is stored there and a killed run can be resumed.

    ``material`` is what `gather` would make of the plan, for a caller that has it already.
    ``checkpoints=False`` stores finished stages only: quicker, and a kill costs the stage that it met. The
    release of the training records is charged in ``ledger``, which may be shared with other releases of them
    (``budget`` is the cap of a new one); by default, in one of its own, which knows of no other.

    Edges:
        A folder whose run is complete gives that run again; nothing is trained, drawn or charged. A ledger is
        refused where nothing is released. A run is resumed with the ledger that it was charged in.
    """
    plan = effective_plan(plan)
    _check_ledger(plan, ledger, budget)
    refuse_seen_texts(plan)
    with _opened(folder, plan, resume=resume) as place:
        if place.complete:
            return Run.load(place.path)
        started = time.perf_counter()
        if material is None:
            material = gather(plan, progress=_reading(progress))
        job = _Job(
            plan,
            material,
            place,
            progress,
            checkpoints=checkpoints and folder is not None,
            ledger=ledger,
            budget=budget,
        )
        history = job.train()
        noisy, clean = job.evaluate()
        report = build_report(
            plan,
            regime=str(plan.regime),
            accuracy=noisy,
            without_noise=clean.mean,
            labels=job.material.task.labels,
            records=len(job.material.train),
            guarantee=job.promises.as_dict(),
            stages=history,
            notes=job.material.task.notes,
            seconds=time.perf_counter() - started,
            more={
                "accuracy_by_draw": list(noisy.by_draw),
                "accuracy_of_commonest_label": commonest_share(job.material.evaluation.labels),
                "front_has_seen_raw_texts_of": raw_texts_of(plan),
                **releases_learnt(plan),
            },
        )
        if is_first_process():
            save_sides(job.material.pair, job.material.spec, job.material.tokens.tokenizer, place.path)
            write_report(report, place)
        wait_for_everyone()
        return Run(plan, job.material.pair, job.material.spec, job.material.tokens, job.promises, report)


def _check_ledger(plan: Plan, ledger: Path | None, budget: float | None) -> None:
    given = {"ledger": ledger, "budget": budget}
    for name, value in given.items():
        if value is not None and not plan.regime.protects_training:
            remedy = "No training record is released there."
            raise InvalidInput(name, f"be left out in {plan.regime}", value, remedy)


class _Job:
    """One run in progress."""

    def __init__(
        self,
        plan: Plan,
        material: Material,
        place: RunFolder,
        progress: Progress | None,
        *,
        checkpoints: bool,
        ledger: Path | None,
        budget: float | None,
    ) -> None:
        self._ledger, self._budget = ledger, budget
        self._keeps_checkpoints = checkpoints
        self.plan, self.material, self.place, self.progress = plan, material, place, progress
        self.mechanism = None if plan.noise is None else material.spec.mechanism()
        self.labels = label_mechanism_for(
            plan.label_epsilon, plan.label_prior, labels=len(material.task.labels)
        )
        self.promises = promises_of(plan, material.spec)

    def train(self) -> dict[str, Any]:
        """Run the stages of the regime; what each of them logged."""
        if self.plan.regime is Regime.END_TO_END:
            texts, loss = self._own_texts(), self._loss()
            return self._warmed_up("task", texts, loss, **self._task_pace())
        history = self._public_step() if self.plan.regime is Regime.PUBLIC_FRONT else {}
        corpus = self._released()
        history["task"] = self._from_releases(corpus)
        return history

    def _public_step(self) -> dict[str, Any]:
        """Front and back on public texts, the noise in place.

        With ``public_relabel``, the warm-up learns the labels that the texts came with (that of a review for
        each of its sentences), and then the noise is met with what that model says of each sentence.
        """
        plan, texts = self.plan, self.material.public
        assert texts is not None
        names = ("epochs", "batch", "learning_rate", "head_learning_rate")
        pace: dict[str, Any] = {name: getattr(plan, f"public_{name}") for name in names}
        return self._warmed_up("public", texts, LabelLoss(), relabel=bool(plan.public_relabel), **pace)

    def _warmed_up(
        self, stage: str, texts: Texts, loss: LabelLoss, *, relabel: bool = False, **pace: Any
    ) -> dict[str, Any]:
        """The undefended model for the warm-up epochs, then front, noise and back together."""
        warm_up = self.plan.warm_up_epochs
        if not warm_up:
            return {stage: self._together(stage, texts, loss=loss, **pace)}
        first = self._undefended_stage("warm-up", texts, loss=loss, **{**pace, "epochs": warm_up})
        if relabel:
            texts = texts.with_labels(self._told("relabelling", texts))
        pace["learning_rate"] *= _RATE_AFTER_WARM_UP
        settle = _SETTLING_SHARE * pace["epochs"]
        return {"warm-up": first, stage: self._together(stage, texts, loss=loss, settle=settle, **pace)}

    @torch.inference_mode()
    def _told(self, stage: str, texts: Texts) -> NDArray[np.int64]:
        """What the undefended model says of each text."""
        stored = self.place.path / "stages" / f"{stage}.npy"
        if stored.is_file():
            return np.asarray(np.load(stored, allow_pickle=False), dtype=np.int64)
        module = self._undefended().to(pick_device()).eval()
        answers = np.empty(len(texts), dtype=np.int64)
        order = np.argsort(texts.lengths, kind="stable")
        for start in range(0, len(order), _READ_AT_ONCE):
            chosen = order[start : start + _READ_AT_ONCE]
            batch = texts.batch(chosen, trim=not texts.pads_left)
            batch.pop("labels")
            logits = module(**{name: value.to(pick_device()) for name, value in batch.items()})["logits"]
            answers[chosen] = logits.argmax(dim=-1).cpu().numpy()
            if self.progress is not None:
                self.progress(stage, min(start + _READ_AT_ONCE, len(order)), len(order), {})
        if is_first_process():
            draft = stored.with_name(f"{stage}.new.npy")
            np.save(draft, answers, allow_pickle=False)
            draft.replace(stored)
        return answers

    def evaluate(self) -> tuple[Accuracy, Accuracy]:
        """Accuracy through the noise over repeated draws, and without it."""
        module = self._module(step=1 << 20).to(pick_device())
        texts = self.material.evaluation

        def measured(stage: str, draws: int) -> Accuracy:
            tell = self.progress
            told = None if tell is None else lambda done: tell(stage, done, len(texts), {})
            return accuracy_over_draws(module, texts, draws=draws, progress=told)

        noisy = measured("evaluating", self.plan.evaluation_draws)
        module.clean = True
        return noisy, measured("evaluating without noise", 1)

    def _task_pace(self) -> dict[str, Any]:
        names = ("epochs", "batch", "learning_rate", "head_learning_rate")
        return {name: getattr(self.plan, name) for name in names}

    def _module(
        self, mechanism: Mechanism | None = None, *, step: int = 0, loss: LabelLoss | None = None
    ) -> ThroughNoise:
        plan, noise = self.plan, mechanism or self.mechanism
        # Simulated noise: another stream after every resume, so that no noise is met twice.
        seed = plan.seed * 1_000_003 + step
        return ThroughNoise(
            self.material.pair,
            None if noise is None else Sanitizer(noise, seed=seed),
            rows=self.material.spec.rows,
            labels=len(self.material.task.labels),
            draws=plan.draws or 1,
            auxiliary_weight=plan.auxiliary_weight or 0.0,
            auxiliary_alone=bool(plan.auxiliary_alone),
            loss=loss,
        )

    def _undefended_stage(self, stage: str, texts: Texts, *, loss: LabelLoss, **pace: Any) -> dict[str, Any]:
        """No noise, no bound, no maps: where the regime lets the front see the texts."""
        pair = remove_width_maps(self.material.pair)
        done = self.place.stage_result(stage)
        if done is not None:
            _put_back(done[0], front=pair.front, back=pair.back)
            return done[1]
        outcome = fit(
            self._undefended(loss),
            texts,
            self._curve_texts(),
            self._settings(trim=not pair.front.pads_left, **pace),
            stage=stage,
            folder=self._checkpoints(stage),
            progress=self.progress,
        )
        return self._finished(stage, outcome, front=pair.front, back=pair.back)

    def _undefended(self, loss: LabelLoss | None = None) -> ThroughNoise:
        labels = len(self.material.task.labels)
        return ThroughNoise(
            remove_width_maps(self.material.pair),
            None,
            rows=self.material.spec.rows,
            labels=labels,
            loss=loss,
        )

    def _together(
        self, stage: str, texts: Texts, *, loss: LabelLoss, settle: float = 0.0, **pace: Any
    ) -> dict[str, Any]:
        """Front and back, through the noise; new maps first settle for some epochs without it."""
        pair, plan = self.material.pair, self.plan
        done = self.place.stage_result(stage)
        if done is not None:
            _put_back(done[0], front=pair.front, back=pair.back)
            return done[1]
        if plan.lora_rank:
            add_lora(pair.back, rank=plan.lora_rank)
        checkpoints = self._checkpoints(stage)
        noise = plan.training_noise
        module = self._module(
            None if noise is None else noise.build(), step=last_step(checkpoints), loss=loss
        )
        settings = self._settings(trim=not pair.front.pads_left, settle=settle, **pace)
        outcome = fit(
            module,
            texts,
            self._curve_texts(),
            settings,
            stage=stage,
            folder=checkpoints,
            progress=self.progress,
        )
        if plan.lora_rank:
            merge_lora(pair.back)
        return self._finished(stage, outcome, front=pair.front, back=pair.back)

    def _released(self) -> ReleasedCorpus:
        """One stored release for every record of the task; charged once, drawn once."""
        material, root = self.material, self.place.path
        if not is_first_process():
            wait_for_everyone()
            return ReleasedCorpus.open(root / "releases")
        digests = save_sides(material.pair, material.spec, material.tokens.tokenizer, root)
        kept = root / PUBLIC / "back" / "release.json"  # written last
        if self.plan.regime is Regime.PUBLIC_FRONT and not kept.is_file():
            save_provider_side(
                material.pair.back, material.spec, root / PUBLIC, front_digest=digests["front"]
            )
        spec = replace(material.spec, front=digests["front"])
        user = UserSide(material.pair.front, material.tokens, spec)
        tell, total = self.progress, len(material.train)
        corpus = release_corpus(
            user,
            material.train,
            root / "releases",
            label_mechanism=self.labels,
            ledger=self._ledger,
            budget=self._budget,
            resume=(root / "releases").exists(),
            progress=None if tell is None else lambda done: tell("releasing", done, total, {}),
            device=pick_device(),
        )
        wait_for_everyone()
        return corpus

    def _from_releases(self, corpus: ReleasedCorpus) -> dict[str, Any]:
        """The back alone, from what was released."""
        back, stage = self.material.pair.back, "task"
        done = self.place.stage_result(stage)
        if done is not None:
            _put_back(done[0], back=back)
            return done[1]
        if self.plan.lora_rank:
            add_lora(back, rank=self.plan.lora_rank)
        outcome = fit(
            FromReleases(back, LabelLoss(corpus.label_transition)),
            Stored(corpus),
            self._noisy_curve(),
            self._settings(trim=False, **self._task_pace()),
            stage=stage,
            folder=self._checkpoints(stage),
            progress=self.progress,
        )
        if self.plan.lora_rank:
            merge_lora(back)
        return self._finished(stage, outcome, back=back)

    def _checkpoints(self, stage: str) -> Path | None:
        return self.place.checkpoints(stage) if self._keeps_checkpoints else None

    def _settings(self, *, trim: bool, settle: float = 0.0, **pace: Any) -> FitSettings:
        plan = self.plan
        return FitSettings(
            weight_decay=plan.weight_decay,
            average=plan.average or 0.0,
            early_stopping=plan.early_stopping,
            seed=plan.seed,
            precision=plan.precision,
            clean_epochs=settle,
            trim=trim,
            **pace,
        )

    def _finished(self, stage: str, outcome: Fit, **halves: nn.Module) -> dict[str, Any]:
        weights = {
            f"{side}.{name}": value
            for side, half in halves.items()
            for name, value in half.state_dict().items()
        }
        facts = asdict(outcome)
        self.place.finish_stage(stage, weights, facts)
        return facts

    def _own_texts(self) -> Texts:
        """The training texts, their labels randomized once where the plan says so."""
        texts = self.material.train
        if self.labels is None:
            return texts
        stored = self.place.path / "labels.npy"
        if is_first_process() and not stored.is_file():
            assert texts.labels is not None
            answers = release_labels(texts.labels, self.labels)
            draft = stored.with_name("labels.new.npy")
            np.save(draft, np.asarray(answers.values, dtype=np.int64), allow_pickle=False)
            draft.replace(stored)
        wait_for_everyone()
        return texts.with_labels(np.load(stored, allow_pickle=False))

    def _loss(self) -> LabelLoss:
        return LabelLoss(None if self.labels is None else self.labels.transition())

    def _curve_texts(self) -> Texts:
        texts = self.material.evaluation
        if len(texts) <= _CURVE_TEXTS:
            return texts
        return texts.subset(np.linspace(0, len(texts) - 1, _CURVE_TEXTS).astype(int))

    @torch.inference_mode()
    def _noisy_curve(self) -> Held:
        """Evaluation texts after one simulated draw, for the learning curve of the back."""
        module, texts = self._module(step=1 << 21).to(pick_device()).eval(), self._curve_texts()
        matrices, labels = [], []
        for start in range(0, len(texts), 64):
            batch = texts.batch(range(start, min(start + 64, len(texts))))
            labels.append(batch.pop("labels"))
            moved = {name: value.to(pick_device()) for name, value in batch.items()}
            hidden = module.hidden(moved["input_ids"], moved["attention_mask"], moved.get("token_type_ids"))
            matrices.append(module.crossed(hidden).float().cpu())
        return Held(torch.cat(matrices).clone(), torch.cat(labels).clone())


@contextmanager
def _opened(folder: Path | None, plan: Plan, *, resume: bool) -> Iterator[RunFolder]:
    if folder is not None:
        with RunFolder.opened(folder, plan, resume=resume) as place:
            yield place
        return
    with (
        tempfile.TemporaryDirectory() as temporary,
        RunFolder.opened(Path(temporary) / "run", plan, resume=False) as place,
    ):
        yield place


def _put_back(weights: dict[str, Tensor], **halves: nn.Module) -> None:
    for side, half in halves.items():
        prefix = f"{side}."
        half.load_state_dict({k.removeprefix(prefix): v for k, v in weights.items() if k.startswith(prefix)})


def _reading(progress: Progress | None) -> Any:
    return None if progress is None else lambda what, done: progress(what, done, 0, {})
