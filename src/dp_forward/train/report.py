"""The report of a run: numbers, promises in words, the plan, the learning curve.

``report.json`` is for programs, ``report.md`` for people, ``curve.png`` is drawn from the first. The JSON is
written last: where it is, the run is complete.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dp_forward.train.evaluation import Accuracy
from dp_forward.train.learning_curve import draw_curve
from dp_forward.train.plan import Plan
from dp_forward.train.provenance import provenance
from dp_forward.train.regimes import Promises, Regime
from dp_forward.train.run_folder import RunFolder

__all__ = ["build_report", "doubt", "made", "promised", "readable", "spoken", "write_report"]


def build_report(
    plan: Plan,
    promises: Promises,
    *,
    noisy: Accuracy,
    clean: Accuracy,
    commonest: float,
    history: Mapping[str, Mapping[str, Any]],
    notes: str,
    seen_raw: list[str],
    learnt: Mapping[str, list[str]],
    records: int,
    seconds: float,
) -> dict[str, Any]:
    """Everything worth knowing about a finished run, ready for JSON."""
    return {
        "accuracy": noisy.mean,
        "accuracy_low": noisy.low,
        "accuracy_high": noisy.high,
        "accuracy_by_draw": list(noisy.by_draw),
        "accuracy_without_noise": clean.mean,
        "accuracy_of_commonest_label": commonest,
        "draws": noisy.draws,
        "texts": noisy.texts,
        "training_records": records,
        "regime": str(plan.regime),
        "guarantee": promises.as_dict(),
        "front_has_seen_raw_texts_of": seen_raw,
        **learnt,
        "notes": notes,
        "seconds": seconds,
        "peak_memory_mib": max((stage["peak_memory_mib"] for stage in history.values()), default=0.0),
        "plan": plan.as_dict(),
        "plan_digest": plan.digest(),
        "stages": {name: dict(stage) for name, stage in history.items()},
        "provenance": provenance(),
    }


def write_report(report: Mapping[str, Any], place: RunFolder) -> None:
    """All three files; a missing matplotlib costs only the figure."""
    drawn = draw_curve(report["stages"], place.path / "curve.png", title=_title(report))
    place.write_text("report.md", readable(report, figure="curve.png" if drawn else None))
    place.write_json("report.json", report)


def _title(report: Mapping[str, Any]) -> str:
    plan = report["plan"]
    noise = (
        "no noise" if plan.get("mechanism") == "none" else f"{plan['mechanism']}, epsilon {plan['epsilon']:g}"
    )
    return f"{plan['task']}, {noise}"


def readable(report: Mapping[str, Any], *, figure: str | None) -> str:
    """The report as Markdown."""
    plan = report["plan"]
    cut = f" cut at `{plan['cut']}`" if "cut" in plan else ""
    lines = [
        f"# {_title(report)}",
        "",
        f"`{plan['model']}`{cut}, regime `{report['regime']}`.",
        "",
        "| | |",
        "|---|---|",
        f"| accuracy | {report['accuracy']:.4f} |",
        f"| 95 % interval | {report['accuracy_low']:.4f} to {report['accuracy_high']:.4f} |",
        f"| measured on | {report['texts']} texts, {_draws(report)} |",
        f"| the same model without noise | {report['accuracy_without_noise']:.4f} |",
        f"| always naming the most frequent label | {report['accuracy_of_commonest_label']:.4f} |",
        f"| seconds | {report['seconds']:.1f} |",
        f"| peak memory | {report['peak_memory_mib']:.0f} MiB |",
        "",
    ]
    lines += promised(report["guarantee"])
    notes = [note for note in (doubt(report), report["notes"]) if note]
    if notes:
        lines += ["## Note", "", *[line for note in notes for line in (note, "")]]
    return "\n".join(lines + made(report, figure=figure)) + "\n"


def _draws(report: Mapping[str, Any]) -> str:
    if report["regime"] == "dp-sgd" or report["plan"]["mechanism"] == "none":
        return "no noise in a query"
    return f"{report['draws']} draws of the noise each"


def doubt(report: Mapping[str, Any]) -> str | None:
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


def spoken(statements: Mapping[str, str]) -> list[str]:
    """Statements as sentences that say what each is about: "Training texts: ..."."""
    return [f"{name.replace('_', ' ').capitalize()}: {said}" for name, said in statements.items()]


def promised(guarantee: Mapping[str, Any]) -> list[str]:
    """The promises of a report in lines of Markdown, with what they rest on."""
    said = guarantee["statements"]
    lines = [
        "## What is promised",
        "",
        f"* **Queries.** {said['queries']}",
        f"* **Training texts.** {said['training_texts']}",
        f"* **Labels.** {said['labels']}",
        "",
    ]
    assumed = _assumptions(guarantee)
    if assumed:
        lines += ["It rests on:", "", *[f"* {assumption}" for assumption in assumed], ""]
    return lines


def made(report: Mapping[str, Any], *, figure: str | None) -> list[str]:
    """The learning curve, the plan and the provenance in lines of Markdown."""
    lines = []
    if figure is not None:
        lines += ["## Learning curve", "", f"![loss and accuracy over the steps]({figure})", ""]
    lines += ["## Plan", "", "```toml", *_toml(report["plan"]), "```", "", "## Made with", ""]
    return lines + [f"* {name}: {value}" for name, value in report["provenance"].items()]


def _assumptions(guarantee: Mapping[str, Any]) -> list[str]:
    parts = [guarantee.get(name) for name in ("queries", "training", "labels")]
    every = [assumption for part in parts if part for assumption in part["assumptions"]]
    return list(dict.fromkeys(every))


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
