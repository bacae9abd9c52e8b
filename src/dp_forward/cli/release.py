"""`dpf release`: a corpus of texts into a stored corpus of releases, one per record."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dp_forward.cli import options, output
from dp_forward.cli.bars import Bars
from dp_forward.cli.plans import Data, data_paths, numbers

__all__ = ["release"]


def release(
    front: Annotated[Path, typer.Argument(help="The user's folder of a run: RUN/front.")],
    task: Annotated[str, typer.Option("--task", help="Whose records: sst2, imdb, qqp, rotten-tomatoes.")],
    out: Annotated[Path, typer.Option("--out", help="The folder for the shards, to be handed over.")],
    data: Data = None,
    split: Annotated[str, typer.Option("--split", help="Which split.")] = "train",
    limit: Annotated[int | None, typer.Option("--limit", help="A sample of the records.")] = None,
    label_epsilon: Annotated[
        float | None,
        typer.Option("--label-epsilon", help="Randomize labels with this budget [public labels]."),
    ] = None,
    label_prior: Annotated[
        str | None, typer.Option("--label-prior", help="A public prior over the labels: 0.5,0.5.")
    ] = None,
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
    json: options.Json = False,
) -> None:
    """Release every record of a corpus once: bounded, noised, charged, stored.

    A restart never draws a second release for a record. OUT is for the provider; OUT.private stays with you.

    Example: dpf release run/front --task rotten-tomatoes --limit 100 --out releases
    """
    from dp_forward.data.tasks import find_task
    from dp_forward.errors import InvalidInput
    from dp_forward.handed import load_user_side
    from dp_forward.privacy.ledger import Ledger
    from dp_forward.release.corpus import ledger_of, release_corpus
    from dp_forward.train.labels import label_mechanism_for
    from dp_forward.train.material import read_texts

    chosen = find_task(task)
    user = load_user_side(front)
    if chosen.labels != user.form.labels and not no_labels:
        raise InvalidInput(
            "task",
            f"have the labels of the front: {', '.join(user.form.labels)}",
            chosen.name,
            "Or --no-labels.",
        )
    labels = label_mechanism_for(
        label_epsilon, numbers("label-prior", label_prior), labels=len(user.form.labels)
    )
    with Bars() as bars:
        texts = read_texts(
            chosen,
            split,
            user.tokens,
            source=(data_paths(data) or {}).get(chosen.name),
            limit=limit,
            progress=lambda n: bars("reading", n, 0, {}),
        )
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
    if json:
        output.print_json(result)
        return
    shown = {name: value for name, value in result.items() if name != "guarantee"}
    output.print_fields(f"Released {chosen.name} {split}", shown, [corpus.guarantee.statement])
