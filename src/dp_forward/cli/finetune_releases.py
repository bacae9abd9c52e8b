"""`dpf finetune --from-releases`: the provider trains the back on what users released."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dp_forward.cli import output
from dp_forward.cli.plan_options import print_plan, warn_if_finished
from dp_forward.cli.progress_bars import Bars
from dp_forward.progress import counter

__all__ = ["finetune_releases"]

_RENAMED = {"delta": "central_delta"}
"""The delta of a release is its corpus's own; what can still be chosen is that of the central promise."""
_COLLECTION, _MANIFEST = "collection.json", "manifest.json"


def finetune_releases(
    releases: Path, settings: Mapping[str, Any], *, out: Path, resume: bool, json: bool
) -> None:
    """Train, and print the report; ``releases`` is a corpus or a collection of a collector."""
    from dp_forward.train.defaults import effective_releases_plan
    from dp_forward.train.lineage import cut_of_start
    from dp_forward.train.plan import ReleasesPlan
    from dp_forward.train.provider_training import finetune_from_releases

    renamed = {_RENAMED.get(name, name): value for name, value in settings.items()}
    wanted = ReleasesPlan.from_dict({**renamed, "releases": str(releases)})
    plan = effective_releases_plan(wanted, cut_of_start(wanted.model))
    print_plan(plan.as_dict())
    with warn_if_finished(out, "report.json"), Bars() as bars, _exported(releases, out, bars) as exported:
        report = finetune_from_releases(plan, folder=out, exported=exported, resume=resume, progress=bars)
    if json:
        output.print_json({**report, "out": str(out)})
        return
    _print(report, out)


@contextmanager
def _exported(releases: Path, out: Path, bars: Bars) -> Iterator[Path | None]:
    """A corpus made from a collection, beside the run; None for a corpus, and where the run has its own."""
    if not (releases / _COLLECTION).is_file() or (out / "releases" / _MANIFEST).is_file():
        yield None
        return
    from dp_forward.service.collector.corpus_export import export_corpus

    beside = next(folder for folder in out.absolute().parents if folder.is_dir())
    with tempfile.TemporaryDirectory(prefix=".dpf-", dir=beside) as draft:
        corpus = Path(draft) / "releases"
        export_corpus(releases, corpus, progress=counter(bars, "exporting"))
        yield corpus


def _print(report: Mapping[str, Any], out: Path) -> None:
    """The numbers and the promises, for people."""
    from dp_forward.train.report import with_subjects

    numbers = ("accuracy", "accuracy_low", "accuracy_high", "accuracy_on_released_labels")
    shown = {name: report[name] for name in (*numbers, "texts", "records", "seconds", "peak_memory_mib")}
    said: Mapping[str, str] = report["guarantee"]["statements"]
    sentences = with_subjects(said)
    central = report["central"]
    if central is not None:
        sentences.append(" ".join(["Through the shuffler:", *central["statements"]]))
    output.print_fields(
        f"{out}: regime {report['regime']}, from releases",
        {**shown, "report": out / "report.md"},
        [*sentences, report["notes"]],
    )
