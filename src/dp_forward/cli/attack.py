"""`dpf attack`: how much do releases tell? Membership, inversion and attribute, each beside its ceiling."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer
from typer import Option

from dp_forward.cli.attack_membership import membership
from dp_forward.cli.attack_target import Outcome, Target, attack_verb
from dp_forward.errors import InvalidInput
from dp_forward.privacy.checks import count
from dp_forward.progress import counter

if TYPE_CHECKING:
    from dp_forward.attacks.attack_result import AttackResult
    from dp_forward.attacks.inversion.recall import Inversion
    from dp_forward.data import EncodedTexts

app = typer.Typer(
    help="Attack a run: success, chance, 95 % interval, and the ceiling that its promise allows.",
    no_args_is_help=True,
)


_How = Literal["nearest", "gradient", "decoder"]
_STEPS: Final = {"gradient": 150, "decoder": 3000}
_FEWEST_LABELLED: Final = 40

Split = Annotated[str | None, Option(help="Which split [the run's evaluation split].")]


@attack_verb
def inversion(
    target: Target,
    *,
    split: Split = None,
    how: Annotated[
        _How | None, Option(help="[nearest where a row is its own token's, decoder elsewhere].")
    ] = None,
    with_prior: Annotated[
        bool, Option("--with-prior", help="nearest: weigh tokens by how frequent they are.")
    ] = False,
    releases: Annotated[int, Option("--releases", "-k", help="Fresh releases of each text, averaged.")] = 1,
    steps: Annotated[int | None, Option(help="Of the fit [150] or of the decoder's training [3000].")] = None,
    public: Annotated[
        str | None, Option(help="The task whose training texts the attacker knows [the same task].")
    ] = None,
    public_limit: Annotated[int, Option(help="A sample of those.")] = 20000,
    limit: Annotated[int, Option(help="How many texts are attacked.")] = 200,
) -> Outcome:
    """Which tokens did a text have? The share that is named at its place; at `output`, the share of a bag.

    Exit code 1 if the success is above what the promise allows.

    Example: dpf attack inversion run --how nearest --limit 100 --releases 8
    """
    from dp_forward.attacks.inversion.gradient import invert_by_gradient
    from dp_forward.attacks.inversion.nearest_token import invert_nearest
    from dp_forward.attacks.inversion.recall import Inversion, TokenPrior, token_table
    from dp_forward.data import read_records

    table = token_table(target.front)
    chosen = how or ("nearest" if target.front.row_local else "decoder")
    if steps is not None and chosen == "nearest":
        raise InvalidInput("steps", "go with gradient or decoder", steps, "nearest takes none.")
    steps = count("steps", _STEPS.get(chosen, 1) if steps is None else steps, remedy="Leave it out.")
    if with_prior and chosen != "nearest":
        raise InvalidInput("with-prior", "go with nearest", chosen, "A decoder learns it anyway.")
    attacked, known, part = target.task(), target.task(public), target.split(split)
    if known.name == attacked.name and part == "train":
        rule = "not be the attacker's own public texts"
        raise InvalidInput("split", rule, part, "Name other texts with --public.")
    own = target.encoded(read_records(known, "train"), public_limit)
    texts = target.encoded(read_records(attacked, part), limit)
    special, tokens = target.tokens.tokenizer.all_special_ids, int(table.num_embeddings)  # type: ignore[arg-type]
    prior = TokenPrior.learn(own, special=special, vocabulary=tokens)
    progress = counter(target.bars, "attacking", len(texts))
    seen = Inversion(target.front, target.mechanism, texts, prior, releases, target.device, progress)
    if chosen == "nearest":
        found = invert_nearest(seen, use_prior=with_prior)
    elif chosen == "gradient":
        found = invert_by_gradient(seen, steps=steps)
    else:
        found = _invert_by_decoder(target, seen, own, steps)
    facts = {
        "task": attacked.name,
        "split": part,
        "public": known.name,
        "public_texts": len(own),
        "bag_recall": found.details["bag_recall"],
    }
    return Outcome(found, facts)


def _invert_by_decoder(target: Target, seen: Inversion, public: EncodedTexts, steps: int) -> AttackResult:
    from dp_forward.attacks.inversion.decoder import invert_with, train_decoder

    progress = counter(target.bars, "training the decoder", steps)
    return invert_with(train_decoder(seen, public, steps=steps, seed=target.seed, progress=progress))


@attack_verb
def attribute(
    target: Target,
    *,
    split: Split = None,
    labelled: Annotated[
        Path | None, Option(help="Texts with an attribute, in a file [genres by keywords].")
    ] = None,
    text: Annotated[str, Option(help="Its column of texts.")] = "text",
    column: Annotated[str, Option("--attribute", help="Its column of attributes.")] = "attribute",
    share: Annotated[float, Option(help="Of the texts, how many the attacker knows and learns from.")] = 0.5,
    epochs: Annotated[int, Option(help="Of the attacker's training.")] = 20,
    pool: Annotated[
        Literal["mean", "flatten"] | None, Option(help="[flatten up to 4,096 numbers, mean above].")
    ] = None,
    limit: Annotated[int | None, Option(help="A sample of the labelled texts.")] = None,
) -> Outcome:
    """What else does a release tell? A genre of the text by keywords, or any attribute of a labelled file.

    Exit code 1 if the success is above what the promise allows.

    Example: dpf attack attribute run --task imdb --split test --share 0.5
    """
    from dp_forward.attacks.attribute import GENRES, attribute_attack, keyword_genres, read_labelled
    from dp_forward.data import read_records

    values: Sequence[str] = GENRES
    if labelled is None:
        task, part = target.task(), target.split(split)
        records = list(keyword_genres(record.text for record in read_records(task, part)))
        source = f"{task.name} {part}, keywords"
    else:
        if target.task_name is not None or split is not None:
            raise InvalidInput("labelled", "go without --task and --split", "both", "The file has the texts.")
        source, (values, records) = labelled.name, read_labelled(labelled, text=text, attribute=column)
    if not 0 < share < 1:
        raise InvalidInput("share", "lie between 0 and 1", share, "Half is 0.5.")
    most = len(records) if limit is None else min(limit, len(records))
    if most < _FEWEST_LABELLED:
        rule = f"be {_FEWEST_LABELLED} or more with an attribute"
        raise InvalidInput("texts", rule, most, "Name another split, or --labelled FILE.")
    test, train = target.encoded(records, most).split_off(float(share), seed=target.seed)
    found = attribute_attack(
        target.front,
        target.mechanism,
        train,
        test,
        epochs=epochs,
        seed=target.seed,
        pool=pool,
        device=target.device,
        progress=counter(target.bars, "learning the attribute", epochs + 1),
    )
    facts = {"source": source, "attribute_values": list(values)[:50], "pool": found.details["pool"]}
    return Outcome(found, facts)


for _verb in (membership, inversion, attribute):
    app.command()(_verb)
