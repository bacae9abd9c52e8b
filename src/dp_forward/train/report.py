"""The report of every kind of run: numbers, promises in words, the plan, the learning curve.

``report.json`` is for programs, ``report.md`` for people, ``curve.png`` is drawn from the first. The JSON is
written last: where it is, the run is complete.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dp_forward.train.evaluation import Accuracy
from dp_forward.train.learning_curve import draw_curve
from dp_forward.train.plan_base import PlanBase
from dp_forward.train.provenance import provenance
from dp_forward.train.regimes import Regime
from dp_forward.train.run_folder import RunFolder

__all__ = ["build_report", "markdown", "weakness", "with_subjects", "write_report"]


def build_report(
    plan: PlanBase,
    *,
    regime: str,
    accuracy: Accuracy | None,
    without_noise: float | None,
    labels: Sequence[str],
    records: int,
    guarantee: Mapping[str, Any],
    stages: Mapping[str, Mapping[str, Any]],
    notes: str,
    seconds: float,
    digest: str | None = None,
    more: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Everything worth knowing about a finished run, ready for JSON.

    Args:
        accuracy: None where it cannot be known.
        without_noise: the accuracy of the same model without noise; None where it cannot be known.
        records: how many records it was trained on.
        guarantee: ``statements`` about queries, training texts and labels, and what proves them.
        stages: what each stage of the training logged: ``history`` and ``peak_memory_mib``.
        digest: the plan's own, unless the plan names inputs only by place.
        more: what only this kind of run can say.
    """
    return {
        "accuracy": None if accuracy is None else accuracy.mean,
        "accuracy_low": None if accuracy is None else accuracy.low,
        "accuracy_high": None if accuracy is None else accuracy.high,
        "accuracy_without_noise": without_noise,
        "draws": 1 if accuracy is None else accuracy.draws,
        "texts": 0 if accuracy is None else accuracy.texts,
        "labels": list(labels),
        "records": records,
        "regime": regime,
        "guarantee": dict(guarantee),
        "notes": notes,
        "seconds": seconds,
        "peak_memory_mib": max((stage["peak_memory_mib"] for stage in stages.values()), default=0.0),
        "plan": plan.as_dict(),
        "plan_digest": plan.digest() if digest is None else digest,
        "stages": {name: dict(stage) for name, stage in stages.items()},
        "provenance": provenance(),
        **(more or {}),
    }


def write_report(report: Mapping[str, Any], place: RunFolder) -> None:
    """All three files; a missing matplotlib costs only the figure."""
    drawn = draw_curve(report["stages"], place.path / "curve.png", title=_title(report))
    place.write_report(report, markdown(report, figure="curve.png" if drawn else None))


def markdown(report: Mapping[str, Any], *, figure: str | None) -> str:
    """The report for people."""
    plan = report["plan"]
    cut = f" cut at `{plan['cut']}`" if "cut" in plan else ""
    lines = [
        f"# {'Back trained from ' if _from_releases(report) else ''}{_title(report)}",
        "",
        f"`{plan['model']}`{cut}, regime `{report['regime']}`.",
        "",
        "| | |",
        "|---|---|",
        *[f"| {name} | {value} |" for name, value in _numbers(report).items()],
        "",
    ]
    lines += _promises(report["guarantee"])
    if _from_releases(report):
        central = report["central"]
        said = "No central promise." if central is None else "\n\n".join(central["statements"])
        lines += ["## Through a shuffler", "", said, ""]
    notes = [note for note in (weakness(report), report["notes"]) if note]
    if notes:
        lines += ["## Note", "", *[line for note in notes for line in (note, "")]]
    if figure is not None:
        lines += ["## Learning curve", "", f"![loss and accuracy over the steps]({figure})", ""]
    lines += ["## Plan", "", "```toml", *_toml(plan), "```", "", "## Made with", ""]
    return "\n".join(lines + [f"* {name}: {value}" for name, value in report["provenance"].items()]) + "\n"


def _from_releases(report: Mapping[str, Any]) -> bool:
    return "central" in report


def _title(report: Mapping[str, Any]) -> str:
    if _from_releases(report):
        return f"{report['records']} releases"
    plan = report["plan"]
    noise = (
        "no noise" if plan.get("mechanism") == "none" else f"{plan['mechanism']}, epsilon {plan['epsilon']:g}"
    )
    return f"{plan['task']}, {noise}"


def _numbers(report: Mapping[str, Any]) -> dict[str, str]:
    """The rows of the table."""
    shares = {
        "the same model without noise": report["accuracy_without_noise"],
        "always naming the most frequent label": report.get("accuracy_of_commonest_label"),
    }
    rows = {
        "accuracy": _share(report["accuracy"]),
        "95 % interval": f"{_share(report['accuracy_low'])} to {_share(report['accuracy_high'])}",
    }
    if "accuracy_on_released_labels" in report:
        rows["agreement with the released labels"] = _share(report["accuracy_on_released_labels"])
    rows["measured on"] = f"{report['texts']} {_measured_on(report)}"
    rows |= {name: _share(value) for name, value in shares.items() if value is not None}
    rows["seconds"] = f"{report['seconds']:.1f}"
    rows["peak memory"] = f"{report['peak_memory_mib']:.0f} MiB"
    return rows


def _share(value: float | None) -> str:
    return "not known" if value is None else f"{value:.4f}"


def _measured_on(report: Mapping[str, Any]) -> str:
    if _from_releases(report):
        return "held-out releases"
    if report["regime"] == "dp-sgd" or report["plan"]["mechanism"] == "none":
        return "texts, no noise in a query"
    return f"texts, {report['draws']} draws of the noise each"


def weakness(report: Mapping[str, Any]) -> str | None:
    """What to say of a model that may have learnt nothing; None where it is better than that.

    Its interval must lie above what always naming the most frequent label reaches on the same texts.
    """
    commonest = report.get("accuracy_of_commonest_label")
    if commonest is None or report["accuracy_low"] > commonest:
        return None
    said = (
        f"On these {report['texts']} texts the model is not shown to be better than always naming the most "
        f"frequent label ({commonest:.3f})."
    )
    if report.get("regime") == Regime.RELEASE_ONCE:
        return (
            f"{said} A front that never learnt this kind of task puts little of it into a matrix of bounded "
            "norm: with public text of the kind, train it first (--regime public-front --public-task NAME)."
        )
    return f"{said} More texts or a larger epsilon may help."


def with_subjects(statements: Mapping[str, str]) -> list[str]:
    """Statements as sentences that say what each is about: "Training texts: ..."."""
    return [f"{name.replace('_', ' ').capitalize()}: {said}" for name, said in statements.items()]


def _promises(guarantee: Mapping[str, Any]) -> list[str]:
    """The promises in lines of Markdown, with what they rest on."""
    said = guarantee["statements"]
    lines = [
        "## What is promised",
        "",
        f"* **Queries.** {said['queries']}",
        f"* **Training texts.** {said['training_texts']}",
        f"* **Labels.** {said['labels']}",
        "",
    ]
    parts = [guarantee.get(name) for name in ("queries", "training", "labels")]
    assumed = dict.fromkeys(assumption for part in parts if part for assumption in part["assumptions"])
    if assumed:
        lines += ["It rests on:", "", *[f"* {assumption}" for assumption in assumed], ""]
    return lines


def _toml(plan: Mapping[str, Any]) -> list[str]:
    lines = []
    for name, value in plan.items():
        if value is None or name == "data":
            continue
        shown = (
            f'"{value}"'
            if isinstance(value, str)
            else str(list(value) if isinstance(value, tuple) else value)
        )
        lines.append(f"{name} = {shown.lower() if isinstance(value, bool) else shown}")
    return lines
