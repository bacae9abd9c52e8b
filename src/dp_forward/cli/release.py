"""`dpf release`: store one release per record of a corpus; push them to a collector."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from typer import Option

from dp_forward.cli import options, output, plan_options
from dp_forward.errors import InvalidInput, refuse_if
from dp_forward.progress import counter

if TYPE_CHECKING:
    from dp_forward.corpus.corpus_spec import CorpusSpec
    from dp_forward.corpus.reader import ReleasedCorpus
    from dp_forward.data import EncodedTexts
    from dp_forward.data import Task as TaskSpec
    from dp_forward.service.client.upload import UploadResult
    from dp_forward.split.artifacts import UserSide

_Server = Annotated[str | None, Option(help="Then send the records to this collector or shuffler.")]
_Again = Annotated[bool, Option("--again", help="Send all records again, to a server that lost its records.")]
_RayStore = Annotated[str | None, Option(metavar="URL", help="Postgres, where Ray runs on several machines.")]
_PUBLIC_LABELS = (
    "The labels lie beside the releases as they are, and nothing protects them. --label-epsilon randomizes "
    "them, --no-labels leaves them out, and RUN/projection/front folds each into the release of its text."
)


def release(
    front: options.UserFront,
    source: plan_options.DataArgument = None,
    *,
    task: Annotated[str | None, Option(help="sst2, imdb, qqp, rotten-tomatoes; or a name for DATA.")] = None,
    out: Annotated[Path, Option(help="The folder for the releases, to hand over.")],
    data: plan_options.Data = None,
    text_column: Annotated[list[str] | None, Option(help="The column of texts; twice, for pairs.")] = None,
    label_column: Annotated[str | None, Option(help="The column of labels.")] = None,
    header: Annotated[bool, Option(help="Whether a CSV or TSV file names its columns.")] = True,
    split: Annotated[str, Option(help="Which split.")] = "train",
    limit: Annotated[int | None, Option(help="Release a sample of so many records.")] = None,
    label_epsilon: Annotated[float | None, Option(help="Randomize labels with this own budget.")] = None,
    label_prior: Annotated[str | None, Option(help="A public prior over the labels: 0.5,0.5.")] = None,
    no_labels: Annotated[bool, Option("--no-labels", help="Release no labels.")] = False,
    bits: Annotated[int, Option(help="Bits per number: 8 or 16, equally private.")] = 8,
    ledger: plan_options.RecordLedger = None,
    budget: plan_options.RecordBudget = None,
    resume: plan_options.Resume = False,
    server: _Server = None,
    token_file: options.ProviderToken = None,
    ca: options.Ca = None,
    proxy: options.Proxy = None,
    again: _Again = False,
    engine: Annotated[
        Literal["local", "ray"], Option(help="What reads and draws: this process, or Ray.")
    ] = "local",
    ray_address: Annotated[str | None, Option(help="HOST:PORT of the cluster [starts one here].")] = None,
    ray_workers: Annotated[int | None, Option(help="How many workers draw [one per processor].")] = None,
    ray_store: _RayStore = None,
    device: options.Device = None,
    json: options.Json = False,
) -> None:
    """Store one noisy release of every record, to hand over.

    Every record is bounded, noised and charged once. A restart never draws a second release for a record. OUT
    is for the provider; OUT.private stays with you. With --server the records are sent once they are stored;
    the same command again sends what is missing, and charges nothing.

    Example: dpf release run/front rotten-tomatoes --limit 100 --out releases
    """
    from dp_forward.corpus.reader import MANIFEST
    from dp_forward.data import read_texts
    from dp_forward.split.artifacts import front_of, load_user_side
    from dp_forward.split.device import pick_device
    from dp_forward.train.regimes import label_mechanism_for

    for name, given in (("token-file", token_file), ("ca", ca), ("proxy", proxy), ("again", again or None)):
        if given is not None and server is None:
            raise InvalidInput(name, "go with --server", "alone", "Say where to push.")
    on_ray: dict[str, Any] = {"workers": ray_workers, "store": ray_store}
    if engine == "local" and any(given is not None for given in (ray_address, *on_ray.values())):
        raise InvalidInput("engine", "be ray for the options of Ray", "local", "Add --engine ray.")
    if engine == "ray" and limit is not None:
        raise InvalidInput("limit", "be left out with --engine ray", limit, "Release a file of that size.")
    to = None if server is None else {"server": server, **options.connection(token_file, ca, proxy)}
    place, user = pick_device(device), load_user_side(front_of(front))
    columns = {"text_column": text_column, "label_column": label_column, "header": header}
    named = {"task": task, "data": plan_options.data_paths(data) or {}, **columns}
    chosen = _find_task(source, user, no_labels=no_labels, **named)
    prior = plan_options.numbers("label-prior", label_prior)
    mechanism = label_mechanism_for(label_epsilon, prior, labels=len(user.spec.labels))
    settings = {"label_mechanism": mechanism, "publish_labels": not no_labels, "bits": bits, "ledger": ledger}
    with contextlib.ExitStack() as stack:
        stack.enter_context(plan_options.warn_if_finished(out, MANIFEST))
        bars = stack.enter_context(output.Bars())
        more: dict[str, Any] = {"budget": budget, "resume": resume, "device": place, "say": output.say}
        if engine == "ray":
            from dp_forward.integrations.ray import connect, prepare, read_task

            connect(ray_address)
            on_ray |= {"device": str(place), "progress": counter(bars, "reading")}
            prepared = prepare(*read_task(chosen, split), user, out, **on_ray)
            texts, more["engine"] = stack.enter_context(prepared)
        else:
            texts = read_texts(chosen, split, user.tokens, limit=limit, progress=counter(bars, "reading"))
        corpus, upload = _store(user, texts, out, bars, to, again, **settings, **more)
    result, sentences = _report(corpus, upload, out, ledger)
    title, hidden = f"Released {chosen.name} {split}", ("guarantee", "central")
    output.print_result(result, json=json, title=title, sentences=sentences, only_json=hidden)


def _find_task(source: str | None, user: UserSide, *, no_labels: bool, **settings: Any) -> TaskSpec:
    """The records to release: a split of a built-in task, or all of a user's own data, with its labels."""
    from dp_forward.data.own_data import task_of
    from dp_forward.train.plan_base import TaskSettings

    settings |= {"labels": user.spec.labels, "validation_share": 0.0}
    if source is not None:
        plan_options.name_data(settings, source)
    task = task_of({**TaskSettings.from_dict(settings).as_dict(), "unlabelled": no_labels})
    rule = f"have the labels of the front: {', '.join(user.spec.labels)}"
    refuse_if(task.labels != user.spec.labels and not no_labels, "task", rule, task.name, "Or --no-labels.")
    return task


def _store(
    user: UserSide, texts: EncodedTexts, out: Path, bars: output.Bars, to: Any, again: bool, **settings: Any
) -> tuple[ReleasedCorpus, UploadResult | None]:
    """Store the release, and push it where there is a destination; ``settings`` are of `release_corpus`."""
    from dp_forward.corpus.writer import choose_labels, release_corpus
    from dp_forward.service.client.upload import check_collector, push_corpus

    if to is not None:  # before anything is charged for a server that wants something else
        mechanism, publish = settings["label_mechanism"], settings["publish_labels"]
        labels = choose_labels(user.spec, texts, mechanism, publish=publish)
        check_collector(user, labels, bits=settings["bits"], **to)
    progress = counter(bars, "releasing", len(texts))
    corpus = release_corpus(user, texts, out, progress=progress, **settings)
    if to is None:
        return corpus, None
    progress = counter(bars, "pushing", len(texts))
    cut, ledger = str(user.front.cut), settings["ledger"]
    return corpus, push_corpus(out, **to, cut=cut, ledger=ledger, again=again, progress=progress)


def _report(
    corpus: ReleasedCorpus, upload: UploadResult | None, out: Path, ledger: Path | None
) -> tuple[dict[str, Any], list[str]]:
    from dp_forward.corpus.writer import ledger_of
    from dp_forward.ledger import Ledger

    with Ledger.open(ledger or ledger_of(out)) as book:
        summary = book.summary()
    result = {"records": len(corpus), "bytes": corpus.bytes, "guarantee": corpus.guarantee.as_dict()}
    result |= {"charged_per_record": summary.charged, "spent_per_record": summary.spent}
    result |= {"cap_per_record": summary.cap, "out": str(out)}
    sentences = [corpus.guarantee.statement]
    if corpus.spec.labels == "public":
        sentences.append(_PUBLIC_LABELS)
    if ledger is not None:
        sentences.append(plan_options.OWN_LEDGER)
    if upload is not None:
        result |= {"pushed": upload.pushed, "known": upload.known, "server": upload.server}
        if upload.spec.shuffler_least is not None:
            more, sentence = _shuffler_report(upload, corpus.spec)
            result |= more
            sentences.append(sentence)
    return result, sentences


def _shuffler_report(upload: UploadResult, spec: CorpusSpec) -> tuple[dict[str, Any], str]:
    """What a shuffler adds; a central epsilon only where it hides a record."""
    from dp_forward.corpus.shuffle_guarantee import ShuffledBatch, central_promise, hides_whole_texts
    from dp_forward.privacy.noise_spec import DEFAULT_DELTA

    least, central = upload.least, None
    if least is None:
        return {"central": None}, "Records went to this address before a shuffler was there."
    said = f"The shuffler says that it passes records on in batches of at least {least}."
    if upload.elsewhere:
        said += " The records went to another server too, or may have: no more is promised."
    elif spec.labels == "public":
        said += " Labels are public, and how many share one is not known: no more is promised."
    elif not hides_whole_texts(spec):
        said += " Per token the local promise holds alone."
    else:
        one, delta = replace(spec, records=least), spec.guarantee().delta or DEFAULT_DELTA
        central = {"batch": least, **central_promise(one, [ShuffledBatch(least)], delta=delta)}
        promise, _, attack, assumed = central["statements"]
        said += f" For a batch of {least}: {promise} {attack} {assumed}"
    return {"shuffler_least": least, "central": central}, said
