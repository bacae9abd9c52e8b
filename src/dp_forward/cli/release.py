"""`dpf release`: a corpus of texts into a stored corpus of releases, one per record."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dp_forward.cli import options, output
from dp_forward.cli.plan_options import (
    OWN_LEDGER,
    Data,
    LabelEpsilon,
    LabelPrior,
    data_paths,
    numbers,
    warn_if_finished,
)
from dp_forward.cli.progress_bars import Bars

if TYPE_CHECKING:
    from dp_forward.corpus.corpus_spec import CorpusSpec, Labels
    from dp_forward.service.client.upload import UploadResult

__all__ = ["release"]


def release(
    front: Annotated[Path, typer.Argument(help="The user's folder of a run: RUN/front.")],
    task: Annotated[str, typer.Option("--task", help="Whose records: sst2, imdb, qqp, rotten-tomatoes.")],
    out: Annotated[Path, typer.Option("--out", help="The folder for the shards, to be handed over.")],
    data: Data = None,
    split: Annotated[str, typer.Option("--split", help="Which split.")] = "train",
    limit: Annotated[int | None, typer.Option("--limit", help="A sample of the records.")] = None,
    label_epsilon: LabelEpsilon = None,
    label_prior: LabelPrior = None,
    no_labels: Annotated[bool, typer.Option("--no-labels", help="Store no labels.")] = False,
    bits: Annotated[int, typer.Option("--bits", help="8 or 16 per number; both are as private.")] = 8,
    ledger: Annotated[
        Path | None, typer.Option("--ledger", help="Where the release is charged [OUT.private/ledger].")
    ] = None,
    budget: Annotated[
        float | None,
        typer.Option("--budget", help="What each record may spend in all, for a new ledger [this release]."),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue a release that was killed.")] = False,
    server: Annotated[
        str | None,
        typer.Option("--server", help="Push the stored release to this collector or shuffler, too."),
    ] = None,
    token_file: Annotated[Path | None, typer.Option("--token-file", help="The server's token.")] = None,
    device: options.Device = None,
    json: options.Json = False,
) -> None:
    """Release every record of a corpus once: bounded, noised, charged, stored.

    A restart never draws a second release for a record. OUT is for the provider; OUT.private stays with you.
    With --server the records are pushed once they are stored; the same command again pushes what is missing,
    and charges nothing.

    Example: dpf release run/front --task rotten-tomatoes --limit 100 --out releases
    """
    from dp_forward.corpus.reader import MANIFEST
    from dp_forward.corpus.writer import ledger_of, release_corpus
    from dp_forward.data import read_texts
    from dp_forward.data.tasks import find_task, split_name
    from dp_forward.errors import InvalidInput
    from dp_forward.ledger import Ledger
    from dp_forward.split.artifacts import load_user_side
    from dp_forward.split.device import pick_device
    from dp_forward.train.labels import label_mechanism_for
    from dp_forward.train.published import refuse_front_that_saw

    to, place = _destination(server, token_file), pick_device(device)
    chosen = find_task(task)
    user = load_user_side(front)
    if split_name(split) == "train":
        refuse_front_that_saw(chosen.name, front)
    if chosen.labels != user.spec.labels and not no_labels:
        raise InvalidInput(
            "task",
            f"have the labels of the front: {', '.join(user.spec.labels)}",
            chosen.name,
            "Or --no-labels.",
        )
    labels = label_mechanism_for(
        label_epsilon, numbers("label-prior", label_prior), labels=len(user.spec.labels)
    )
    with warn_if_finished(out, MANIFEST), Bars() as bars:
        texts = read_texts(
            chosen,
            split,
            user.tokens,
            source=(data_paths(data) or {}).get(chosen.name),
            limit=limit,
            progress=lambda n: bars("reading", n, 0, {}),
        )
        if to is not None:  # before anything is charged for a server that wants something else
            from dp_forward.service.client.upload import check_collector

            known: Labels = "none" if no_labels or texts.labels is None else "public"
            check_collector(user, labels or known, bits=bits, **to)
        corpus = release_corpus(
            user,
            texts,
            out,
            label_mechanism=labels,
            publish_labels=not no_labels,
            bits=bits,
            ledger=ledger,
            budget=budget,
            resume=resume,
            progress=lambda n: bars("releasing", n, len(texts), {}),
            device=place,
        )
        pushed = None
        if to is not None:
            from dp_forward.service.client.upload import push_corpus

            pushed = push_corpus(
                out,
                **to,
                cut=str(user.front.cut),
                ledger=ledger,
                progress=lambda n: bars("pushing", n, len(texts), {}),
            )
    with Ledger.open(ledger or ledger_of(out)) as book:
        spent, cap = book.spent(), book.cap
    result = {
        "records": corpus.records,
        "bytes": corpus.bytes,
        "guarantee": corpus.guarantee.as_dict(),
        "spent_per_record": spent,
        "cap_per_record": cap,
        "out": str(out),
    }
    sentences = [corpus.guarantee.statement]
    if ledger is None:
        sentences.append(OWN_LEDGER)
    if pushed is not None:
        more, told = _told(pushed, corpus.spec)
        result, sentences = result | more, sentences + told
    if json:
        output.print_json(result)
        return
    shown = {name: value for name, value in result.items() if name not in ("guarantee", "central")}
    output.print_fields(f"Released {chosen.name} {split}", shown, sentences)


def _destination(server: str | None, token_file: Path | None) -> dict[str, Any] | None:
    """Where to push, checked before anything else is done."""
    from dp_forward.errors import InvalidInput
    from dp_forward.service.protocol.access import read_token

    if server is not None:
        return {"server": server, "token": None if token_file is None else read_token(token_file)}
    if token_file is not None:
        raise InvalidInput("token-file", "go with --server", "alone", "Say where to push.")
    return None


def _told(pushed: UploadResult, form: CorpusSpec) -> tuple[dict[str, Any], list[str]]:
    """What came of pushing, as JSON and in words; a central epsilon only where a shuffler hides a record."""
    from dataclasses import replace

    from dp_forward.corpus.shuffle_guarantee import (
        ASSUMPTIONS,
        ShuffledBatch,
        central_reading,
        central_statement,
    )
    from dp_forward.privacy import TEXT
    from dp_forward.privacy.noise_spec import DEFAULT_DELTA

    told: dict[str, Any] = {"pushed": pushed.pushed, "known": pushed.known, "server": pushed.server}
    if pushed.form.shuffler_least is None:
        return told, []
    if pushed.least is None:
        return told | {"central": None}, ["Records went to this address before a shuffler was there."]
    least = pushed.least
    told |= {"shuffler_least": least, "central": None}
    mixed = f"The shuffler says that it passes records on in batches of at least {least}."
    if pushed.elsewhere:
        return told, [f"{mixed} The records went to another server too, or may have: no more is promised."]
    if form.labels == "public":
        return told, [f"{mixed} Labels are public, and how many share one is not known: no more is promised."]
    if form.release.mechanism().unit != TEXT:
        return told, [f"{mixed} Per token the local promise holds alone."]
    batch, delta = [ShuffledBatch(least)], form.guarantee().delta or DEFAULT_DELTA
    reading = central_reading(replace(form, records=least), batch, delta=delta)
    told["central"] = {
        "epsilon_upper": reading.upper.epsilon,
        "epsilon_lower": reading.lower.epsilon,
        "delta": delta,
        "batch": least,
        "trusted": reading.upper.trusted,
        "assumptions": list(ASSUMPTIONS),
    }
    promise, _, attack, assumed = central_statement(reading, batch)
    return told, [f"{mixed} For a batch of {least}: {promise} {attack} {assumed}"]
