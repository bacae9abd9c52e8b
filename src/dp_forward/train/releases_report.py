"""The report of a training from releases: what was reached, and what the releases promise.

Every promise is that of the corpus, proved anew from its public spec. A central epsilon stands here only for
a corpus all of whose records came through a shuffler, and never without what it rests on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dp_forward.corpus.corpus_spec import LabelMechanism
from dp_forward.corpus.reader import ReleasedCorpus
from dp_forward.privacy import TEXT, Guarantee
from dp_forward.train.evaluation import Accuracy
from dp_forward.train.label_debiasing import accuracy_of_answers
from dp_forward.train.learning_curve import draw_curve
from dp_forward.train.plan import ReleasesPlan
from dp_forward.train.provenance import provenance
from dp_forward.train.regimes import Promises, Regime
from dp_forward.train.report import made, promised
from dp_forward.train.run_folder import RunFolder
from dp_forward.train.starting_point import StartingPoint

__all__ = ["build_releases_report", "write_releases_report"]


def build_releases_report(
    plan: ReleasesPlan,
    corpus: ReleasedCorpus,
    start: StartingPoint,
    *,
    held: NDArray[np.int64],
    predicted: NDArray[np.int64],
    stages: Mapping[str, Mapping[str, Any]],
    digest: str,
    seconds: float,
) -> dict[str, Any]:
    """Everything worth knowing about a finished training, ready for JSON."""
    return {
        **_accuracies(corpus, held, predicted),
        "accuracy_without_noise": None,
        "draws": 1,
        "texts": len(held),
        "records": len(corpus) - len(held),
        "regime": str(Regime.RELEASE_ONCE),
        "guarantee": _limited(_promises(corpus).as_dict(), start),
        "central": _central(corpus, plan.central_delta),
        "front": corpus.front_digest,
        "front_has_seen_raw_texts_of": start.seen_raw,
        "back_has_learnt_from_releases_of": None,  # of whoever sent them: not known here
        "notes": " ".join(_notes(corpus, start)),
        "seconds": seconds,
        "peak_memory_mib": max(stage["peak_memory_mib"] for stage in stages.values()),
        "plan": plan.as_dict(),
        "plan_digest": digest,
        "stages": {name: dict(stage) for name, stage in stages.items()},
        "provenance": provenance(),
    }


def _accuracies(
    corpus: ReleasedCorpus, held: NDArray[np.int64], predicted: NDArray[np.int64]
) -> dict[str, float | None]:
    """Against the true labels (estimated where they were randomized), and against the released ones."""
    against_true: Accuracy | None = None
    against_released: Accuracy | None = None
    if len(held):
        assert corpus.labels is not None
        released = corpus.labels[held]
        against_true = accuracy_of_answers(predicted, released, corpus.label_transition)
        against_released = accuracy_of_answers(predicted, released, None)
    return {
        "accuracy": None if against_true is None else against_true.mean,
        "accuracy_low": None if against_true is None else against_true.low,
        "accuracy_high": None if against_true is None else against_true.high,
        "accuracy_on_released_labels": None if against_released is None else against_released.mean,
    }


def _promises(corpus: ReleasedCorpus) -> Promises:
    spec = corpus.spec
    return Promises(
        queries=Guarantee(spec.release.mechanism()),
        training=corpus.guarantee,
        labels=Guarantee(spec.labels) if isinstance(spec.labels, LabelMechanism) else None,
        regime=Regime.RELEASE_ONCE,
    )


def _limited(promised: dict[str, Any], start: StartingPoint) -> dict[str, Any]:
    """The promises with what the starting point takes from them, in the sentence itself."""
    limits = []
    if start.seen_raw:
        limits.append(f"NOT for texts of {', '.join(start.seen_raw)}: the front was trained on them.")
    if start.learnt is None:
        limits.append(
            "What the back had learnt before is not known: a text in other releases spends there too."
        )
    elif start.learnt:
        already = ", ".join(start.learnt)
        limits.append(
            f"The back had learnt from releases of {already} before: a text in both spends in both."
        )
    said = dict(promised["statements"])
    said["training_texts"] = " ".join([said["training_texts"], *limits])
    return {**promised, "statements": said}


def _central(corpus: ReleasedCorpus, delta: float) -> dict[str, Any] | None:
    """What a shuffler adds; None where none stood between, or where the noise protects less than a text."""
    batches = corpus.shuffled
    if batches is None or corpus.release.mechanism().unit != TEXT:
        return None
    from dp_forward.corpus.shuffled import ASSUMPTIONS, central_reading, central_statement

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
    if start.seen_raw is None:
        notes.append("What that front was trained on is not known here.")
    elif start.seen_raw:
        seen = ", ".join(start.seen_raw)
        notes.append(
            f"That front was trained on the raw texts of {seen}: releases of those are promised nothing."
        )
    else:
        notes.append("Its own report says that it was trained on no raw texts of any task.")
    if corpus.label_transition is not None:
        notes.append(
            "Labels were randomized: the accuracy is estimated for the true ones by undoing the public "
            "channel, and its interval holds that error too."
        )
    return notes


def write_releases_report(report: Mapping[str, Any], place: RunFolder) -> None:
    """report.md, the curve and, last, report.json; a missing matplotlib costs only the figure."""
    title = f"{report['records']} releases"
    drawn = draw_curve(report["stages"], place.path / "curve.png", title=title)
    place.write_text("report.md", _readable(report, title, figure="curve.png" if drawn else None))
    place.write_json("report.json", report)


def _readable(report: Mapping[str, Any], title: str, *, figure: str | None) -> str:
    low, high = (_number(report[name]) for name in ("accuracy_low", "accuracy_high"))
    lines = [
        f"# Back trained from {title}",
        "",
        f"`{report['plan']['model']}`, regime `{report['regime']}`.",
        "",
        "| | |",
        "|---|---|",
        f"| accuracy | {_number(report['accuracy'])} |",
        f"| 95 % interval | {low} to {high} |",
        f"| agreement with the released labels | {_number(report['accuracy_on_released_labels'])} |",
        f"| measured on | {report['texts']} held-out releases |",
        f"| seconds | {report['seconds']:.1f} |",
        f"| peak memory | {report['peak_memory_mib']:.0f} MiB |",
        "",
        *promised(report["guarantee"]),
        "## Through a shuffler",
        "",
    ]
    central = report["central"]
    lines += ["No central promise." if central is None else "\n\n".join(central["statements"]), ""]
    lines += ["## Note", "", report["notes"], ""]
    return "\n".join(lines + made(report, figure=figure)) + "\n"


def _number(value: float | None) -> str:
    return "not known" if value is None else f"{value:.4f}"
