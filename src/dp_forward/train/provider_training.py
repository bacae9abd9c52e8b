"""The provider's training: the back learns from collected releases, without a front and without a text.

    corpus of releases ──┬── 90 % ──► back, by the loss that knows how labels were randomized
                         └── 10 % held out ──► how often the trained back is right

Everything here is a function of the releases, so it costs no privacy: the promise is that of the corpus,
whatever the plan, and however often it is trained. The result is RUN/back, which `dpf serve` serves.

Edges:
    The texts are not here. So the accuracy is that of one noisy matrix per record, there is none without
    noise, and whether the front depends on the released texts cannot be looked up: the report says so.
"""

from __future__ import annotations

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
from dp_forward.errors import InvalidInput
from dp_forward.privacy import TEXT, Guarantee
from dp_forward.progress import Progress, counter
from dp_forward.split.artifacts import save_provider_side
from dp_forward.split.device import pick_device
from dp_forward.split.halves import AnyBack
from dp_forward.storage.digests import file_digest
from dp_forward.train.defaults import effective_releases_plan
from dp_forward.train.label_debiasing import LabelLoss, accuracy_of_answers
from dp_forward.train.lineage import StartingPoint, check_fits, copy_front, load_start
from dp_forward.train.noisy_model import ReleaseReader
from dp_forward.train.plan import ReleasesPlan
from dp_forward.train.processes import is_first_process, wait_for_everyone
from dp_forward.train.regimes import Promises, Regime
from dp_forward.train.report import build_report, with_subjects, write_report
from dp_forward.train.run import RunFolder
from dp_forward.train.training_loop import FitSettings, curve_sample, train_stage

__all__ = ["finetune_from_releases"]

_READ_AT_ONCE = 512
_HELD_OUT_STREAM = 7


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
    start = load_start(plan.model)
    kept = folder / "releases"
    source = kept if (kept / MANIFEST).is_file() else exported or Path(plan.releases)
    corpus = ReleasedCorpus.open(source, progress=counter(progress, "checking shards"))
    check_fits(start, corpus)
    plan = effective_releases_plan(plan, str(start.back.cut))
    train, held = held_out_records(len(corpus), share=plan.held_out, seed=plan.seed)
    # A collection grows, so it is known by its place; the records of this run lie in RUN/releases.
    identity = (
        str(Path(plan.releases).resolve()) if source in (kept, exported) else file_digest(source / MANIFEST)
    )
    digest = plan.digest(back=start.digest, corpus=identity)
    with RunFolder.opened(folder, plan, digest=digest, resume=resume) as place:
        if place.complete:
            return place.report
        if source == exported:
            if is_first_process():
                os.replace(exported, kept)
            wait_for_everyone()
            corpus = ReleasedCorpus.open(kept, verify=False)
        loss = LabelLoss(corpus.label_transition)
        facts = train_stage(
            place,
            "task",
            FitSettings.of(plan),
            make_module=lambda step: ReleaseReader(start.back, loss),
            train=Subset(corpus, train.tolist()),
            evaluation=Subset(corpus, held[curve_sample(len(held))].tolist()) if len(held) else None,
            halves={"back": start.back},
            lora_rank=plan.lora_rank,
            progress=progress,
        )
        report = _report(
            plan, corpus, start, held=held, facts=facts, digest=digest, started=started, progress=progress
        )
        if is_first_process():
            save_provider_side(start.back, corpus.release, place.path, front_digest=corpus.front_digest)
            if start.front is not None:
                copy_front(start.front, place.path / "front")
            write_report(report, place)
        wait_for_everyone()
        return report


def held_out_records(records: int, *, share: float, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Which records train and which are held out: by the seed alone, each record in one of the two."""
    held = int(np.ceil(share * records))
    if held >= records:
        rule = f"leave some of the {records} records to train on"
        raise InvalidInput("held_out", rule, share, "Use 0, or collect more.")
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


def _report(
    plan: ReleasesPlan,
    corpus: ReleasedCorpus,
    start: StartingPoint,
    *,
    held: NDArray[np.int64],
    facts: dict[str, Any],
    digest: str,
    started: float,
    progress: Progress | None,
) -> dict[str, Any]:
    """With the accuracy against the true labels, estimated where they were randomized."""
    accuracy = agreement = None
    if len(held):
        assert corpus.labels is not None
        predicted, released = _predict(start.back, corpus, held, progress), corpus.labels[held]
        accuracy = accuracy_of_answers(predicted, released, corpus.label_transition)
        agreement = float((predicted == released).mean())
    return build_report(
        plan,
        regime=str(Regime.RELEASE_ONCE),
        accuracy=accuracy,
        without_noise=None,
        labels=corpus.release.labels,
        records=len(corpus) - len(held),
        guarantee=_guarantee(corpus, start),
        stages={"task": facts},
        notes=" ".join(_notes(corpus, start)),
        digest=digest,
        more={
            "texts": len(held),
            "accuracy_on_released_labels": agreement,
            "central": _central_promise(corpus, plan.central_delta),
            "front": corpus.front_digest,
            "front_has_seen_raw_texts_of": start.seen_raw,
            "back_has_learnt_from_releases_of": None,  # of whoever sent them: not known here
        },
        seconds=time.perf_counter() - started,
    )


def _guarantee(corpus: ReleasedCorpus, start: StartingPoint) -> dict[str, Any]:
    """The promises of the corpus, proved anew from its public spec, less what the starting point takes."""
    spec = corpus.spec
    promised = Promises(
        queries=Guarantee(spec.release.mechanism()),
        training=corpus.guarantee,
        labels=Guarantee(spec.labels) if isinstance(spec.labels, LabelMechanism) else None,
        regime=Regime.RELEASE_ONCE,
    ).as_dict()
    limits = []
    if start.seen_raw:
        limits.append(f"NOT for texts of {', '.join(start.seen_raw)}: the front was trained on them.")
    if start.learnt:
        before = f"The back had learnt from releases of {', '.join(start.learnt)} before"
        limits.append(f"{before}: a text in both spends in both.")
    elif start.learnt is None:
        before = "What the back had learnt before is not known"
        limits.append(f"{before}: a text in other releases spends there too.")
    said = dict(promised["statements"])
    said["training_texts"] = " ".join([said["training_texts"], *limits])
    return {**promised, "statements": said, "statement": " ".join(with_subjects(said))}


def _central_promise(corpus: ReleasedCorpus, delta: float) -> dict[str, Any] | None:
    """What a shuffler adds; None where none stood between, or where the noise protects less than a text.

    A central epsilon never stands without what it rests on.
    """
    batches = corpus.shuffled
    if batches is None or corpus.release.mechanism().unit != TEXT:
        return None
    from dp_forward.corpus.shuffle_guarantee import ASSUMPTIONS, central_reading, central_statement

    reading = central_reading(corpus.spec, batches, delta=delta)
    return {
        "epsilon_upper": reading.upper.epsilon,
        "epsilon_lower": reading.lower.epsilon,
        "delta": delta,
        "trusted": reading.upper.trusted,
        "batches": len(batches),
        "statements": central_statement(reading, batches),
        "assumptions": list(ASSUMPTIONS),
    }


def _notes(corpus: ReleasedCorpus, start: StartingPoint) -> list[str]:
    notes = [
        "Trained from releases alone; the texts were never here. The promise for them rests on the front "
        f"({corpus.front_digest[:12]}...) not depending on the released texts, which releases cannot show."
    ]
    seen = ", ".join(start.seen_raw or ())
    if start.seen_raw is None:
        notes.append("What that front was trained on is not known here.")
    elif seen:
        promised = "releases of those are promised nothing"
        notes.append(f"That front was trained on the raw texts of {seen}: {promised}.")
    else:
        notes.append("Its own report says that it was trained on no raw texts of any task.")
    if corpus.label_transition is not None:
        notes.append(
            "Labels were randomized: the accuracy is estimated for the true ones by undoing the public "
            "channel, and its interval holds that error too."
        )
    return notes
