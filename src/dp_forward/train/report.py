"""The report of every kind of run: numbers, promises in words, the plan, provenance.

``report.json`` is for programs, ``report.md`` for people. The JSON is written last: where it is, the run is
complete.
"""

import json
import platform
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from dp_forward.privacy.rounding import brief, shown_up
from dp_forward.storage.files import draft_of
from dp_forward.train.evaluation import Accuracy
from dp_forward.train.figure_style import LIGHT, WIDTH, styled
from dp_forward.train.plan_base import PlanBase
from dp_forward.train.regimes import Regime

__all__ = ["draw_bars", "provenance", "weakness"]


def build_report(
    plan: PlanBase,
    *,
    regime: str,
    accuracy: Accuracy | None,
    labels: Sequence[str],
    records: int,
    guarantee: Mapping[str, Any],
    stages: Mapping[str, Mapping[str, Any]],
    notes: str,
    started: float,
    without_noise: float | None = None,
    digest: str | None = None,
    **more: Any,
) -> dict[str, Any]:
    """Everything worth knowing about a finished run, ready for JSON; ``more`` is of this kind of run only.

    ``accuracy`` and ``without_noise``, that of the same model without noise, are None where they cannot be
    known; ``stages`` is what each logged (``history``, ``peak_memory_mib``), ``started`` of
    `time.perf_counter`, and ``digest`` the plan's own, unless the plan names inputs only by place.
    """
    mean, low, high = (None,) * 3 if accuracy is None else (accuracy.mean, accuracy.low, accuracy.high)
    return {
        "accuracy": mean,
        "accuracy_low": low,
        "accuracy_high": high,
        "accuracy_without_noise": without_noise,
        "draws": 1 if accuracy is None else accuracy.draws,
        "texts": 0 if accuracy is None else accuracy.texts,
        "labels": list(labels),
        "records": records,
        "regime": regime,
        "guarantee": dict(guarantee),
        "notes": notes,
        "seconds": time.perf_counter() - started,
        "peak_memory_mib": max((stage["peak_memory_mib"] for stage in stages.values()), default=0.0),
        "plan": plan.as_dict(),
        "plan_digest": plan.digest() if digest is None else digest,
        "stages": {name: dict(stage) for name, stage in stages.items()},
        "provenance": provenance(),
        **more,
    }


def markdown(report: Mapping[str, Any]) -> str:
    plan = report["plan"]
    cut = f" cut at `{plan['cut']}`" if "cut" in plan else ""
    guarantee = report["guarantee"]
    lines = [
        f"# {_title(report)}",
        "",
        f"`{plan['model']}`{cut}, regime `{report['regime']}`.",
        "",
        "| | |",
        "|---|---|",
        *[f"| {name} | {value} |" for name, value in _numbers(report).items()],
        "",
        "## What is promised",
        "",
        *[f"* **{name.replace('_', ' ').capitalize()}.** {x}" for name, x in guarantee["statements"].items()],
        "",
    ]
    parts = [guarantee.get(name) for name in ("queries", "training", "labels")]
    assumed = dict.fromkeys(assumption for part in parts if part for assumption in part["assumptions"])
    if assumed:
        lines += ["It rests on:", "", *[f"* {assumption}" for assumption in assumed], ""]
    if "central" in report:  # trained from releases
        central = report["central"]
        said = "No central promise." if central is None else "\n\n".join(central["statements"])
        lines += ["## Through a shuffler", "", said, ""]
    if report.get("data"):
        lines += ["## Data", "", *[f"* {said}" for said in report["data"]], ""]
    notes = [note for note in (weakness(report), report["notes"]) if note]
    if notes:
        lines += ["## Note", "", *[line for note in notes for line in (note, "")]]
    given = {name: value for name, value in plan.items() if value is not None and name != "data"}
    settings = [f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in given.items()]
    lines += ["## Plan", "", "```toml", *settings, "```", "", "## Made with", ""]
    return "\n".join(lines + [f"* {name}: {value}" for name, value in report["provenance"].items()]) + "\n"


def _title(report: Mapping[str, Any]) -> str:
    if "central" in report:
        return f"Back trained from {report['records']} releases"
    plan, noise = report["plan"], "no noise"
    if plan["mechanism"] != "none":
        noise = f"{plan['mechanism']}, epsilon {brief(shown_up(plan['epsilon']))}"
    return f"{plan['task']}, {noise}"


def _numbers(report: Mapping[str, Any]) -> dict[str, str]:
    shares = {
        "the same model without noise": report["accuracy_without_noise"],
        "always naming the most frequent label": report.get("accuracy_of_commonest_label"),
        "the descriptions of the labels alone": report.get("accuracy_of_descriptions"),
    }
    rows = {
        "accuracy": _share(report["accuracy"]),
        "95 % interval": f"{_share(report['accuracy_low'])} to {_share(report['accuracy_high'])}",
    }
    if "accuracy_on_released_labels" in report:
        rows["agreement with the released labels"] = _share(report["accuracy_on_released_labels"])
    if "central" in report:
        measured_on = "held-out releases"
    elif report["regime"] == "dp-sgd" or report["plan"]["mechanism"] == "none":
        measured_on = "texts, no noise in a query"
    else:
        measured_on = f"texts, {report['draws']} draws of the noise each"
    rows["measured on"] = f"{report['texts']} {measured_on}"
    rows |= {name: _share(value) for name, value in shares.items() if value is not None}
    rows["seconds"] = f"{report['seconds']:.1f}"
    rows["peak memory"] = f"{report['peak_memory_mib']:.0f} MiB"
    return rows


def _share(value: float | None) -> str:
    return "not known" if value is None else f"{value:.4f}"


def weakness(report: Mapping[str, Any]) -> str | None:
    """What to say of a model that may have learnt nothing; None where it is better than that.

    Its interval must lie above what always naming the most frequent label reaches on the same texts, and its
    gain over the descriptions, compared text by text, above 0.
    """
    commonest, described = (report.get(f"accuracy_of_{of}") for of in ("commonest_label", "descriptions"))
    if commonest is None or report["accuracy_low"] > commonest:
        if described is None or report["gain_over_descriptions_low"] > 0:
            return None
        return (
            f"On these {report['texts']} texts the model is not shown to be better than the descriptions of "
            f"the labels alone ({described:.3f}), which cost nothing. More records or a larger epsilon may "
            "help; more texts to measure on may show it."
        )
    said = (
        f"On these {report['texts']} texts the model is not shown to be better than always naming the most "
        f"frequent label ({commonest:.3f})."
    )
    if report.get("regime") == Regime.RELEASE_ONCE:
        return (
            f"{said} A front that never learnt this kind of task puts little of it into a matrix of bounded "
            "norm. With public text of the kind, train it first: dpf finetune --regime public-front --public "
            "FILE."
        )
    return f"{said} More texts or a larger epsilon may help."


def draw_bars(
    bars: Sequence[tuple[str, float, float, float]],
    path: Path,
    *,
    title: str,
    measure: str,
    colours: Sequence[str] = ("blue",),
    chance: float | None = None,
) -> bool:
    """(name, value, low, high) as bars with intervals, between 0 and 1; False without matplotlib."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return False
    names, heights, _, _ = zip(*bars, strict=True)
    places = range(len(bars))
    with styled(LIGHT, 3.2, width=max(WIDTH, 0.6 * len(bars))) as figure:
        axes = figure.subplots()
        axes.bar(places, heights, color=[LIGHT.series[colour] for colour in colours], alpha=0.8)
        for place, (_, _, low, high) in enumerate(bars):
            axes.plot([place, place], [low, high], color=LIGHT.ink)
        # Beneath the bar: a small one has no room for its number.
        said = [f"{name}\n{height:.3f}" for name, height in zip(names, heights, strict=True)]
        axes.set_xticks(places, said, rotation=45 if len(bars) > 6 else 0)
        axes.set(ylim=(0, 1), ylabel=measure, title=title)
        axes.grid(visible=False, axis="x")
        if chance is not None:
            axes.axhline(chance, color=LIGHT.ink, linewidth=1, linestyle=":", label="a guess")
            axes.legend(loc="upper right")
        with draft_of(path) as draft:
            figure.savefig(draft, dpi=150, format=path.suffix[1:], facecolor="white")
    return True


@lru_cache(maxsize=1)
def provenance() -> dict[str, Any]:
    """Versions, hardware, commit and time, for a result file."""
    import torch
    import transformers

    return {
        "dp_forward": _version(),
        "commit": _commit(),
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "hardware": torch.cuda.get_device_name() if torch.cuda.is_available() else platform.machine(),
        "threads": torch.get_num_threads(),
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _version() -> str | None:
    try:
        return version("dp-forward")
    except PackageNotFoundError:  # a source tree that was not installed
        return None


def _commit() -> str | None:
    """The commit of a source checkout, with a + where sources were changed; None if installed."""
    head = _git("rev-parse", "--short", "HEAD")
    return f"{head}+" if head and _git("status", "--porcelain", "--", ".") else head


def _git(*words: str) -> str | None:
    command = ["git", "-C", str(Path(__file__).parents[1]), *words]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=5, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout.strip() or None
