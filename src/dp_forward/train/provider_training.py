"""The provider's training: the back learns from collected releases, without a front and without a text.

    corpus of releases ──┬── 90 % ──► back, by the loss that knows how labels were randomized
                         └── 10 % held out ──► how often the trained back is right
    of folded releases ───── their mean ──► a decision in closed form (`closed_form_training`)

Everything here is a function of the releases, so it costs no privacy. The result is RUN/back; folded releases
make RUN/front as well, with which users ask by K-ary response at the same epsilon.

Edges:
    The texts are not here. So the accuracy is that of one noisy matrix per record, and whether the front
    depends on the released texts cannot be looked up: the report says so.
"""

import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Subset

from dp_forward.corpus.corpus_spec import LabelMechanism
from dp_forward.corpus.reader import MANIFEST, ReleasedCorpus
from dp_forward.corpus.shuffle_guarantee import central_promise, hides_whole_texts
from dp_forward.data.own_data import task_from_labels
from dp_forward.errors import InvalidInput, refuse_if
from dp_forward.privacy import Deployment, NoiseSpec
from dp_forward.progress import Progress, counter, is_first_process
from dp_forward.split.artifacts import save_provider_side, save_sides
from dp_forward.split.device import pick_device
from dp_forward.split.halves import AnyBack
from dp_forward.storage.digests import file_digest
from dp_forward.train import lineage
from dp_forward.train.closed_form_training import Projected
from dp_forward.train.defaults import effective_releases_plan
from dp_forward.train.label_debiasing import LabelLoss, accuracy_of_answers
from dp_forward.train.noisy_model import ReleaseReader
from dp_forward.train.plan import ReleasesPlan
from dp_forward.train.processes import peak_memory_mib, wait_for_everyone
from dp_forward.train.regimes import Promises, Regime, as_guarantee
from dp_forward.train.report import build_report, markdown
from dp_forward.train.run import RunFolder
from dp_forward.train.training_loop import FitSettings, curve_sample, train_stage

__all__ = ["finetune_from_releases"]

_READ_AT_ONCE = 512
_HELD_OUT_STREAM = 7
_UNMEASURED = (
    "How often it is right is not known: the texts are not here, and folded records hold no label to compare "
    "an answer with. Measure it on labelled texts that are public, with dpf evaluate."
)
_OTHER_LABELS = (
    "public, by assumption, and others than those in the releases. Learning them costs nothing: it is a "
    "function of them and of the releases, which were charged when they were made."
)


def finetune_from_releases(
    plan: ReleasesPlan,
    *,
    folder: Path,
    exported: Path | None = None,
    resume: bool = False,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Train a back on a released corpus and write it to ``folder``; returns the report.

    ``exported`` is a corpus that was made for this run from the collection at ``plan.releases``. It is moved
    to RUN/releases, so that a killed run resumes with the same records while the collection grows.

    Guarantees:
        Nothing is written before corpus and back were found to fit. A killed run is resumed from its last
        checkpoint. A complete one gives its report again.
    """
    started = time.perf_counter()
    kept = folder / "releases"
    source = kept if (kept / MANIFEST).is_file() else exported or Path(plan.releases)
    corpus = ReleasedCorpus.open(source, progress=counter(progress, "checking shards"))
    plan = effective_releases_plan(plan)
    # A collection grows, so it is known by its place; the records of this run lie in RUN/releases.
    collected = source in (kept, exported)
    if collected and plan.other_labels is not None:
        remedy = "A collection forgets the order: whoever released the records can name their corpus."
        raise InvalidInput("other-labels", "go with a corpus", "a collection", remedy)
    learner = (_ClosedForm if lineage.is_projection(plan.model) else _Gradient)(plan, corpus, progress)
    identity = str(Path(plan.releases).resolve()) if collected else file_digest(source / MANIFEST)
    digest = plan.digest(corpus=identity, **learner.inputs)
    with RunFolder.opened(folder, plan, digest=digest, resume=resume) as place:
        if place.complete:
            return place.report
        if source == exported:
            if is_first_process():
                os.replace(exported, kept)
            wait_for_everyone()
            learner.corpus = ReleasedCorpus.open(kept, verify=False)
        central = None  # what a shuffler adds, where one stood between and the noise protects a whole text
        if corpus.shuffled is not None and hides_whole_texts(corpus.spec):
            central = central_promise(corpus.spec, corpus.shuffled, delta=plan.central_delta)
        report = build_report(
            plan,
            regime=str(Regime.RELEASE_ONCE),
            digest=digest,
            started=started,
            central=central,
            front=corpus.front_digest,
            front_has_seen_raw_texts_of=learner.seen_raw,
            back_has_learnt_from_releases_of=None,  # of whoever sent them: not known here
            **learner.run(place),
        )
        if is_first_process():
            learner.save(place.path)
            place.write_report(report, markdown(report))
        wait_for_everyone()
        return report


class _Gradient:
    """A back that trains on the releases, in epochs."""

    def __init__(self, plan: ReleasesPlan, corpus: ReleasedCorpus, progress: Progress | None) -> None:
        self.plan, self.corpus, self.progress = plan, corpus, progress
        self.start = start = lineage.StartingPoint(plan.model)
        lineage.check_fits(start, self.corpus)
        self.inputs, self.seen_raw = {"back": start.digest}, start.seen_raw
        share, seed = self.plan.held_out or 0.0, self.plan.seed
        self.train, self.held = held_out_records(len(self.corpus), share=share, seed=seed)

    def run(self, place: RunFolder) -> dict[str, Any]:
        plan, corpus, back, held = self.plan, self.corpus, self.start.back, self.held
        loss = LabelLoss(corpus.label_transition)
        facts = train_stage(
            place,
            "task",
            FitSettings.of(plan),
            make_module=lambda step: ReleaseReader(back, loss),
            train=Subset(corpus, self.train.tolist()),
            evaluation=Subset(corpus, held[curve_sample(len(held))].tolist()) if len(held) else None,
            halves={"back": back},
            progress=self.progress,
        )
        accuracy = agreement = None
        if len(held):
            assert corpus.labels is not None
            predicted, released = _predict(back, corpus, held, self.progress), corpus.labels[held]
            accuracy = accuracy_of_answers(predicted, released, corpus.label_transition)
            agreement = float((predicted == released).mean())
        return {
            "accuracy": accuracy,
            "labels": corpus.release.labels,
            "records": len(corpus) - len(held),
            "stages": {"task": facts},
            "guarantee": _guarantee(corpus, seen_raw=self.seen_raw, learnt=self.start.learnt),
            "notes": " ".join(_notes(corpus, self.seen_raw)),
            "texts": len(held),
            "accuracy_on_released_labels": agreement,
        }

    def save(self, folder: Path) -> None:
        """RUN/back, and RUN/front where the starting point has it."""
        front = self.corpus.front_digest
        save_provider_side(self.start.back, self.corpus.release, folder, front_digest=front)
        if self.start.front is not None:
            lineage.copy_front(self.start.front, folder / "front")


class _ClosedForm:
    """A decision that is read off the mean of folded releases."""

    def __init__(self, plan: ReleasesPlan, corpus: ReleasedCorpus, progress: Progress | None) -> None:
        self.plan, self.corpus = plan, corpus
        place, other = Path(self.plan.model), self.plan.other_labels
        self.projected = Projected.load(place)
        self.projected.refuse_others(self.corpus)
        self.inputs = {"back": self.projected.user.digest, "projection": file_digest(place / lineage.NUMBERS)}
        self.labels, self.public = self.projected.spec.labels, None
        if other is not None:
            self.labels, self.public = _read_labels(Path(other), len(self.corpus))
            self.inputs["labels"] = file_digest(Path(other))
        # There is no back yet; what the front has seen is in the report of the run that it lies in, if any.
        self.seen_raw = lineage.seen_raw_beside(place)

    def run(self, place: RunFolder) -> dict[str, Any]:
        """Fit the decision to all records; folded, they hold no label that it could be measured by."""
        corpus, other, said = self.corpus, None, None
        epsilon = corpus.release.required_noise().epsilon
        query = NoiseSpec(mechanism="k-ary-response", epsilon=epsilon, columns=len(self.labels))
        if self.public is not None:
            other, said = (self.labels, self.public), _OTHER_LABELS
        self.refined = self.projected.refine(corpus, query=query, other=other)
        return {
            "accuracy": None,
            "labels": self.labels,
            "records": len(corpus),
            "guarantee": _guarantee(corpus, seen_raw=self.seen_raw, learnt=[], query=query, labels=said),
            "stages": {"releases": {"history": [], "peak_memory_mib": peak_memory_mib()}},
            "notes": " ".join([*_notes(corpus, self.seen_raw), _UNMEASURED]),
            **self.refined.facts(self.projected),
        }

    def save(self, folder: Path) -> None:
        """RUN/front, which ends in the decision, and RUN/back, which reads its noisy answer."""
        save_sides(self.refined.pair, self.refined.spec, self.projected.tokens.tokenizer, folder)


def _read_labels(path: Path, records: int) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    """The labels in a file, a line for each record, and the number of each."""
    try:
        words = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        rule = "be a text file that can be read"
        raise InvalidInput("other-labels", rule, path.name, "One label in each line.") from None
    rule = f"have a line for each of the {records} records"
    refuse_if(len(words) != records, "other-labels", rule, len(words), "They are in the order of the corpus.")
    task = task_from_labels(words)
    return task.labels, np.array([task.label_of(word) for word in words], dtype=np.int64)


def held_out_records(records: int, *, share: float, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Which records train and which are held out: by the seed alone, each record in one of the two."""
    held = int(np.ceil(share * records))
    rule = f"leave some of the {records} records to train on"
    refuse_if(held >= records, "held_out", rule, share, "Use 0, or collect more.")
    order = np.random.default_rng((seed, _HELD_OUT_STREAM)).permutation(records)
    return np.sort(order[held:]), np.sort(order[:held])


@torch.inference_mode()
def _predict(
    back: AnyBack, corpus: ReleasedCorpus, held: NDArray[np.int64], progress: Progress | None
) -> NDArray[np.int64]:
    """What the trained back says of each held-out record."""
    device = pick_device()
    back.to(device).eval()
    answers = np.empty(len(held), dtype=np.int64)
    for first in range(0, len(held), _READ_AT_ONCE):
        last = min(first + _READ_AT_ONCE, len(held))
        noisy = corpus.__getitems__(held[first:last].tolist())["hidden"]
        answers[first:last] = back(noisy.to(device)).logits.argmax(dim=-1).cpu().numpy()
        if progress is not None:
            progress("evaluating", last, len(held), {})
    return answers


def _guarantee(
    corpus: ReleasedCorpus,
    *,
    seen_raw: list[str] | None,
    learnt: list[str] | None,
    query: NoiseSpec | None = None,
    labels: str | None = None,
) -> dict[str, Any]:
    """The promises of the corpus, proved anew from its public spec, less what the starting point takes.

    ``seen_raw`` is what the front has seen, ``learnt`` what the back has learnt from; None: not known.
    """
    spec = corpus.spec
    promised = Promises(
        queries=Deployment(spec.release.mechanism() if query is None else query.build()).guarantee(),
        training=corpus.guarantee,
        labels=Deployment(spec.labels).guarantee() if isinstance(spec.labels, LabelMechanism) else None,
        regime=Regime.RELEASE_ONCE,
    ).as_dict()
    limits = []
    if seen_raw:
        limits.append(f"NOT for texts of {', '.join(seen_raw)}: the front was trained on them.")
    if learnt:
        before = f"The back had learnt from releases of {', '.join(learnt)} before"
        limits.append(f"{before}: a text in both spends in both.")
    elif learnt is None:
        before = "What the back had learnt before is not known"
        limits.append(f"{before}: a text in other releases spends there too.")
    said = promised.pop("statements")
    said["training_texts"] = " ".join([said["training_texts"], *limits])
    said["labels"] = labels or said["labels"]
    return as_guarantee(statements=said, **promised)


def _notes(corpus: ReleasedCorpus, seen: list[str] | None) -> list[str]:
    notes = [
        "Trained from releases alone; the texts were never here. The promise for them rests on the front "
        f"({corpus.front_digest[:12]}...) not depending on the released texts, which releases cannot show."
    ]
    if seen is None:
        notes.append("What that front was trained on is not known here.")
    elif seen:
        promised = "releases of those are promised nothing"
        notes.append(f"That front was trained on the raw texts of {', '.join(seen)}: {promised}.")
    else:
        notes.append("Its own report says that it was trained on no raw texts of any task.")
    if corpus.label_transition is not None:
        notes.append(
            "Labels were randomized: the accuracy is estimated for the true ones by undoing the public "
            "channel, and its interval holds that error too."
        )
    return notes
