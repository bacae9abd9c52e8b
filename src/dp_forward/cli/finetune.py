"""`dpf finetune`: train a model that works on noisy matrices."""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

from typer import Option

from dp_forward.cli import options, output, plan_options
from dp_forward.errors import InvalidInput, refuse_if
from dp_forward.progress import counter
from dp_forward.storage.stores import is_url, shown_place
from dp_forward.train.plan import Plan, ReleasesPlan

_ACCURACY, _COST = ("accuracy", "accuracy_low", "accuracy_high"), ("seconds", "peak_memory_mib")
_NUMBERS = (
    *("draws", "texts", "accuracy_without_noise", "accuracy_of_commonest_label"),
    *("accuracy_of_descriptions", "records", "width", "signal"),
)


@plan_options.plan_options(Plan)
def finetune(
    settings: dict[str, Any],
    *,
    out: plan_options.Out,
    from_releases: Annotated[
        str | None,
        Option(help="As the provider: learn from releases, or what was collected (or postgresql://...)."),
    ] = None,
    other_labels: Annotated[Path | None, Option(help="A file of other, public labels, one a line.")] = None,
    ledger: plan_options.RecordLedger = None,
    budget: plan_options.RecordBudget = None,
    dry_run: Annotated[bool, Option("--dry-run", help="Only say what it costs and what to expect.")] = False,
    resume: plan_options.Resume = False,
    json: options.Json = False,
) -> None:
    """Train a private classifier on your texts.

    The report says what is protected, and from whom. With --from-releases a provider trains the back alone,
    without texts, on what users released. Where they folded the label in (dpf split --fold), a decision is
    fitted in seconds, and both halves are written.

    Example: dpf finetune rotten-tomatoes --epsilon 8 --train-limit 2000 --out run
    """
    from dp_forward.train.defaults import effective_plan
    from dp_forward.train.finetune import finetune as run_plan
    from dp_forward.train.finetune import preview

    if from_releases is not None:
        for name, value in {"ledger": ledger, "budget": budget}.items():
            refuse_if(value is not None, name, "go without --from-releases", "both", "Users were charged.")
        settings |= {} if other_labels is None else {"other_labels": str(other_labels)}
        _finetune_releases(from_releases, settings, out=out, resume=resume, json=json)
        return
    if other_labels is not None:
        raise InvalidInput("other-labels", "go with --from-releases", other_labels, "Name the releases.")
    plan = effective_plan(Plan.from_dict(settings))
    if dry_run:
        with output.Bars() as bars:
            found, said = preview(plan, progress=bars)
        output.print_result(found, json=json, title="Nothing was charged", sentences=said)
        return
    if plan.regime.protects_training and plan.label_privacy is None and plan.label_epsilon is None:
        output.warn("Labels leave as they are, and count as public: --label-epsilon E randomizes them.")
    with plan_options.carry_out(plan, out) as bars:
        charged: dict[str, Any] = {"ledger": ledger, "budget": budget, "say": output.say}
        run = run_plan(plan, folder=out, resume=resume, progress=bars, **charged)
    more = [*run.report.get("data", []), *([plan_options.OWN_LEDGER] if ledger is not None else [])]
    print_report(run.report, out, json=json, more=more)


def _finetune_releases(place: str, settings: dict[str, Any], *, out: Path, resume: bool, json: bool) -> None:
    """As the provider: train the back on the releases in a ``place``, a corpus or a collection."""
    from dp_forward.train.defaults import effective_releases_plan
    from dp_forward.train.provider_training import finetune_from_releases

    # The delta of a release is its corpus's own; what can still be chosen is that of the central promise.
    renamed = {"central_delta" if name == "delta" else name: value for name, value in settings.items()}
    plan = effective_releases_plan(ReleasesPlan.from_dict({**renamed, "releases": shown_place(place)}))
    with plan_options.carry_out(plan, out) as bars, exported_collection(place, bars, out) as exported:
        report = finetune_from_releases(plan, folder=out, exported=exported, resume=resume, progress=bars)
    central = report["central"]
    shuffled = [] if central is None else [" ".join(["Through the shuffler:", *central["statements"]])]
    numbers = ("accuracy_on_released_labels", "texts", "records", "width", "signal")
    more = [*shuffled, report["notes"]]
    print_report(report, out, json=json, kind=", from releases", numbers=numbers, more=more)


@contextmanager
def exported_collection(releases: str, bars: output.Bars, run: Path | None = None) -> Iterator[Path | None]:
    """A corpus made from a collection, beside the run if any; None for a corpus, or where the run has one."""
    kept = run is not None and (run / "releases" / "manifest.json").is_file()
    if kept or not (is_url(releases) or (Path(releases) / "collection.json").is_file()):
        yield None
        return
    from dp_forward.service.collector.corpus_export import export_corpus

    beside = None if run is None else next(at for at in run.absolute().parents if at.is_dir())
    with tempfile.TemporaryDirectory(prefix=".dpf-", dir=beside) as draft:
        corpus = Path(draft) / "releases"
        export_corpus(releases, corpus, progress=counter(bars, "exporting"))
        yield corpus


def print_report(
    report: Mapping[str, Any],
    out: Path,
    *,
    json: bool,
    kind: str = "",
    numbers: Sequence[str] = _NUMBERS,
    more: Sequence[str] = (),
) -> None:
    """The whole report as JSON, or the numbers and the promises of a run, for people."""
    from dp_forward.train.regimes import with_subjects
    from dp_forward.train.report import weakness

    if json:
        output.print_json({**report, "out": str(out)})
        return
    names = (*_ACCURACY, *numbers, *_COST)
    shown = {name: report[name] for name in names if name in report} | {"report": out / "report.md"}
    weak = weakness(report)
    sentences = [*with_subjects(report["guarantee"]["statements"]), *more, *([weak] if weak else [])]
    output.print_fields(f"{out}: regime {report['regime']}{kind}", shown, sentences)
