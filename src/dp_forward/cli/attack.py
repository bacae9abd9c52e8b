"""`dpf attack`: how much do releases tell? Membership, inversion and attribute, each beside its ceiling."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from dp_forward.cli import options
from dp_forward.cli.attack_membership import membership
from dp_forward.cli.attack_target import (
    Figure,
    RunFolder,
    Seed,
    Target,
    check_figure_early,
    device_name,
    tell,
    told,
)
from dp_forward.cli.plan_options import Data
from dp_forward.cli.progress_bars import Bars
from dp_forward.errors import InvalidInput

if TYPE_CHECKING:
    from dp_forward.attacks.attack_result import AttackResult
    from dp_forward.attacks.inversion.recall import TokenPrior
    from dp_forward.data import EncodedTexts, Record

__all__ = ["app"]

app = typer.Typer(
    help="Attack a run: success, chance, 95 % interval, and the ceiling that its promise allows.",
    no_args_is_help=True,
)
app.command("membership")(membership)


@app.callback()
def attack() -> None:
    """Attack a run: success, chance, 95 % interval, and the ceiling that its promise allows."""


class How(StrEnum):
    """The inversion attacks by their names on the command line."""

    NEAREST = "nearest"
    GRADIENT = "gradient"
    DECODER = "decoder"


class Pooled(StrEnum):
    """How a matrix becomes a vector for the attribute attack."""

    MEAN = "mean"
    FLATTEN = "flatten"


_STEPS: Final = {How.GRADIENT: 150, How.DECODER: 3000}

TaskName = Annotated[str | None, typer.Option("--task", help="Whose texts [the run's task].")]
Split = Annotated[str | None, typer.Option("--split", help="Which split [the run's evaluation split].")]


@app.command("inversion")
def inversion(
    run: RunFolder,
    task: TaskName = None,
    data: Data = None,
    split: Split = None,
    how: Annotated[
        How | None,
        typer.Option("--how", help="[nearest where a row is its own token's, decoder elsewhere]."),
    ] = None,
    with_prior: Annotated[
        bool, typer.Option("--with-prior", help="nearest: weigh tokens by how frequent they are.")
    ] = False,
    releases: Annotated[
        int, typer.Option("--releases", "-k", help="Fresh releases of each text, averaged.")
    ] = 1,
    steps: Annotated[
        int | None, typer.Option("--steps", help="Of the fit [150] or of the decoder's training [3000].")
    ] = None,
    public: Annotated[
        str | None,
        typer.Option("--public", help="The task whose training texts the attacker knows [the same task]."),
    ] = None,
    public_limit: Annotated[int, typer.Option("--public-limit", help="A sample of those.")] = 20000,
    limit: Annotated[int, typer.Option("--limit", help="How many texts are attacked.")] = 200,
    seed: Seed = 0,
    device: options.Device = None,
    figure: Figure = None,
    json: options.Json = False,
) -> None:
    """Which tokens did a text have? The share that is named at its place; at `output`, the share of a bag.

    Exit code 1 if the success is above what the promise allows.

    Example: dpf attack inversion run --how nearest --limit 100 --releases 8
    """
    from dp_forward.attacks.inversion.recall import TokenPrior, token_table

    check_figure_early(figure)
    place, target = device_name(device), Target.load(run, data)
    table = token_table(target.front)
    chosen = how or (How.NEAREST if target.front.row_local else How.DECODER)
    if steps is not None and chosen is How.NEAREST:
        raise InvalidInput("steps", "go with gradient or decoder", steps, "nearest takes none.")
    if with_prior and chosen is not How.NEAREST:
        raise InvalidInput("with-prior", "go with nearest", chosen, "A decoder learns it anyway.")
    attacked = target.task(task)
    known = attacked if public is None else target.task(public)
    part = target.split if split is None else split
    if known.name == attacked.name and part == "train":
        raise InvalidInput(
            "split", "not be the attacker's own public texts", part, "Name other texts with --public."
        )
    with Bars() as bars:
        own = target.encoded(target.records(known, "train", public_limit), bars)
        texts = target.encoded(target.records(attacked, part, limit), bars)
        prior = TokenPrior.learn(
            own,
            special=target.tokens.tokenizer.all_special_ids,
            vocabulary=int(table.num_embeddings),  # type: ignore[arg-type]
        )
        prior.check(texts)
        common: dict[str, Any] = {"releases": releases, "steps": steps or _STEPS.get(chosen, 0), "seed": seed}
        found = _inverted(
            target, chosen, own, texts, prior, bars, device=place, use_prior=with_prior, **common
        )
    facts = {
        "task": attacked.name,
        "split": part,
        "public": known.name,
        "public_texts": len(own),
        "bag_recall": found.details["bag_recall"],
    }
    tell(found, target, facts, json=json, figure=figure)


def _inverted(
    target: Target,
    how: How,
    public: EncodedTexts,
    texts: EncodedTexts,
    prior: TokenPrior,
    bars: Bars,
    *,
    releases: int,
    steps: int,
    seed: int,
    device: str,
    use_prior: bool,
) -> AttackResult:
    from dp_forward.attacks.inversion.decoder import invert_with, train_decoder
    from dp_forward.attacks.inversion.gradient import invert_by_gradient
    from dp_forward.attacks.inversion.nearest_token import invert_nearest

    front, mechanism = target.front, target.mechanism
    attacking = told(bars, "attacking")
    if how is How.NEAREST:
        return invert_nearest(
            front,
            mechanism,
            texts,
            prior=prior,
            releases=releases,
            use_prior=use_prior,
            device=device,
            progress=attacking,
        )
    if how is How.GRADIENT:
        return invert_by_gradient(
            front,
            mechanism,
            texts,
            prior=prior,
            releases=releases,
            steps=steps,
            device=device,
            progress=attacking,
        )
    decoder = train_decoder(
        front,
        mechanism,
        public,
        prior=prior,
        average=releases,
        steps=steps,
        seed=seed,
        device=device,
        progress=told(bars, "training the decoder"),
    )
    return invert_with(decoder, front, mechanism, texts, device=device, progress=attacking)


@app.command("attribute")
def attribute(
    run: RunFolder,
    task: TaskName = None,
    data: Data = None,
    split: Split = None,
    labelled: Annotated[
        Path | None,
        typer.Option("--labelled", help="Texts with an attribute, in a file [genres by keywords]."),
    ] = None,
    text: Annotated[str, typer.Option("--text", help="Its column of texts.")] = "text",
    column: Annotated[str, typer.Option("--attribute", help="Its column of attributes.")] = "attribute",
    share: Annotated[
        float, typer.Option("--share", help="Of the texts, how many the attacker knows and learns from.")
    ] = 0.5,
    epochs: Annotated[int, typer.Option("--epochs", help="Of the attacker's training.")] = 20,
    pool: Annotated[
        Pooled | None, typer.Option("--pool", help="[flatten up to 4,096 numbers, mean above].")
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", help="A sample of the labelled texts.")] = None,
    seed: Seed = 0,
    device: options.Device = None,
    figure: Figure = None,
    json: options.Json = False,
) -> None:
    """What else does a release tell? A genre of the text by keywords, or any attribute of a labelled file.

    Exit code 1 if the success is above what the promise allows.

    Example: dpf attack attribute run --task imdb --split test --share 0.5
    """
    from dp_forward.attacks.attribute import attribute_attack

    check_figure_early(figure)
    place, target = device_name(device), Target.load(run, data)
    if labelled is not None and (task is not None or split is not None):
        raise InvalidInput("labelled", "go without --task and --split", "both", "The file has the texts.")
    values, records, source = _labelled(target, task, split, labelled, text, column)
    if limit is not None:
        from dp_forward.data import sample_records
        from dp_forward.privacy.checks import count

        records = sample_records(records, count("limit", limit, remedy="Leave it out to take all."))
    if not 0 < share < 1:
        raise InvalidInput("share", "lie between 0 and 1", share, "Half is 0.5.")
    if len(records) < 40:
        raise InvalidInput(
            "texts",
            "be 40 or more with an attribute",
            len(records),
            "Name another split, or --labelled FILE.",
        )
    with Bars() as bars:
        texts = target.encoded(records, bars)
        test, train = texts.split_off(float(share), seed=seed)
        found = attribute_attack(
            target.front,
            target.mechanism,
            train,
            test,
            epochs=epochs,
            seed=seed,
            pool=None if pool is None else pool.value,
            device=place,
            progress=told(bars, "learning the attribute"),
        )
    facts = {"source": source, "attribute_values": list(values)[:50], "pool": found.details["pool"]}
    tell(found, target, facts, json=json, figure=figure)


def _labelled(
    target: Target, task: str | None, split: str | None, file: Path | None, text: str, column: str
) -> tuple[tuple[str, ...], list[Record], str]:
    """The values of the attribute, the texts that have one, and where they come from."""
    from dp_forward.attacks.attribute import GENRES, keyword_genres, read_labelled

    if file is not None:
        values, records = read_labelled(file, text=text, attribute=column)
        return values, records, file.name
    chosen, part = target.task(task), target.split if split is None else split
    read = target.records(chosen, part)
    return GENRES, list(keyword_genres(record.text for record in read)), f"{chosen.name} {part}, keywords"
