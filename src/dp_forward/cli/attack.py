"""`dpf attack`: how much do releases tell? Membership, inversion and attribute, each beside its ceiling.

The ceiling of membership is a theorem about a coin that decided which texts were trained on. That is so where
members and others are drawn from one split (a run with ``train_limit``: the rest of its training split).
Between two splits, or with words dropped, a success may tell how the texts differ, whoever was trained on
them. The ceiling is shown there too, but a success above it refutes nothing, and the exit code stays 0.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import numpy as np
import typer
from typer import Argument, Option

from dp_forward.cli import options, output
from dp_forward.cli.evaluate import task_of_run
from dp_forward.cli.plan_options import Data, data_paths
from dp_forward.errors import InvalidInput, refuse_if
from dp_forward.privacy import RECORD, TEXT
from dp_forward.privacy.rounding import shown_up
from dp_forward.progress import counter
from dp_forward.storage.json_files import read_json

if TYPE_CHECKING:
    from dp_forward.attacks.attack_result import AttackResult
    from dp_forward.data import EncodedTexts, Record, Task
    from dp_forward.train.plan import Plan

app = options.App(name="attack", help="Attack a trained run, and compare with what it promises.")

_SHARED: Final[Mapping[str, tuple[Any, Any]]] = {
    "run": (Annotated[Path, Argument(help="The folder of a run.")], inspect.Parameter.empty),
    "task": (Annotated[str | None, Option(help="The task of the texts [that of the run].")], None),
    "data": (Data, None),
    "seed": (Annotated[int, Option(help="Seed of texts and weights; never of noise.")], 0),
    "device": (options.Device, None),
    "json": (options.Json, False),
}
"""The options of every attack verb, with their defaults."""
_COLUMNS: Final[Mapping[str, Callable[[Any], str]]] = {
    "attack": lambda row: row["attack"],
    "success": lambda row: f"{row['success']:.3f}",
    "95 %": lambda row: f"{row['low']:.3f} to {row['high']:.3f}",
    "chance": lambda row: f"{row['chance']:.3f}",
    "ceiling": lambda row: "nothing promised" if row["ceiling"] is None else shown_up(row["ceiling"], 4),
    "trials": lambda row: str(row["trials"]),
}
_FEWEST: Final = 20
Split = Annotated[str | None, Option(help="Which split [the one that the run was measured on].")]


Outcome = tuple["AttackResult", Mapping[str, Any]]
"""What a verb found: its main result, and facts to print.

Of the facts, ``scores`` are further attacks on the target. Where ``drawn_alike`` is False, a success above
the ceiling would have another reason than the noise.
"""


class Target:
    """A front as an attacker has it, the noise that it is used with, and what its run says of texts.

    Edges:
        A folder without plan.json (of `dpf split`, or a user's own) has no task of its own.
    """

    def __init__(self, run: Path, bars: output.Bars, *, task: str | None, seed: int, **given: Any) -> None:
        from dp_forward.split.artifacts import load_user_side
        from dp_forward.split.device import pick_device

        self.bars, self.folder, self.task_name, self.seed = bars, run, task, seed
        self.device, self.data = str(pick_device(given["device"])), data_paths(given["data"]) or {}
        remedy = "A back alone reads no text: name a folder of dpf finetune."
        refuse_if(not (run / "front").is_dir(), "run", "hold a front", "none", remedy)
        user = load_user_side(run / "front")
        self.front, self.tokens, self.spec = user.front, user.tokens, user.spec
        self.plan: Any = {}
        if (run / "plan.json").is_file():
            self.plan = read_json(run / "plan.json", name="run", remedy="Get it again.").get("plan")
            if not isinstance(self.plan, dict):
                raise InvalidInput("run", "hold a readable plan.json", "no plan in it", "Get it again.")
        self.mechanism = None if self.spec.noise is None else self.spec.mechanism()

    def split(self, given: str | None) -> str:
        """The split that is given, else the one that the run was measured on."""
        return str(self.plan.get("evaluation_split") or "validation") if given is None else given

    def task(self, name: str | None = None) -> Task:
        """The task of this name, else the one asked for, else the run's own."""
        return task_of_run(self.plan, name or self.task_name, self.data)

    def encoded(self, records: Iterable[Record], limit: int | None = None) -> EncodedTexts:
        """The tokens of records, or of a sample of them, as the front reads them."""
        from dp_forward.data.encoded_texts import encode_records

        return encode_records(records, self.tokens, limit=limit, progress=counter(self.bars, "reading"))


def attack_verb(verb: Callable[..., Outcome]) -> Callable[..., None]:
    """Make a command of a function that attacks a `Target`: adds the shared options, shows the outcome.

    The function declares only its own options, after the target.
    """

    @functools.wraps(verb)
    def command(*, run: Path, json: bool, **given: Any) -> None:
        shared = {name: given.pop(name) for name in ("task", "data", "seed", "device")}
        with output.Bars() as bars:
            target = Target(run, bars, **shared)
            found, facts = verb(target, **given)
        _show(target, found.as_dict(), facts, json=json)

    options.declare(command, verb, _SHARED)
    return app.command()(command)


def _show(target: Target, first: Mapping[str, Any], facts: Mapping[str, Any], *, json: bool) -> None:
    """Print the outcome, and end with 1 where the promise is broken."""
    made, cut = target.mechanism, str(target.front.cut)
    promise = "none" if made is None else made.promise()
    rows = {first["attack"]: first, **facts.get("scores", {})}
    above = [name for name, found in rows.items() if not found["within_ceiling"]]
    comparable = facts.get("drawn_alike", True)
    refuted = comparable and bool(above)
    if not comparable:
        output.warn("the two groups are not drawn alike: success may tell how they differ, not who trained.")
    if json:
        noise = {"mechanism": "none" if made is None else made.name, "promise": promise}
        where = {"run": str(target.folder), "cut": cut, **noise}
        output.print_json({**first, **where, **facts, "refuted": refuted})
    else:
        output.print_rows(f"{target.folder}: {cut}, {promise}", rows.values(), _COLUMNS)
        output.print_fields("", {name: value for name, value in facts.items() if name != "scores"})
        if above:
            reason = "The promise is BROKEN" if refuted else "Not a fair comparison, so nothing is refuted"
            typer.echo(f"{reason}: above the ceiling: {', '.join(above)}.")
    if refuted:
        raise typer.Exit(1)


@attack_verb
def membership(
    target: Target,
    *,
    others: Annotated[
        str | None,
        Option("--others", "--split", help="A split not trained on [the rest of train, or as measured]."),
    ] = None,
    limit: Annotated[int, Option(help="At most so many members, and as many others.")] = 2000,
    draws: Annotated[int, Option(help="Noisy queries of each text, averaged.")] = 1,
    noiseless: Annotated[bool, Option("--noiseless", help="The attacker has the back: no noise.")] = False,
    drop_words: Annotated[float | None, Option(help="Drop this share of the others' words.")] = None,
) -> Outcome:
    """Guess from its answers which texts a run was trained on.

    A success of 0.5 is a coin.

    Exit code 1 if the success is above what the promise about training texts allows.

    Example: dpf attack membership run --others validation --limit 500
    """
    from dp_forward.attacks.membership import SCORES, answers, threshold_attack
    from dp_forward.train.regimes import promises_of
    from dp_forward.train.run import Halves

    plan = _plan_of(target)
    back = Halves.load(target.folder).pair.back
    texts, size, others_from, drawn_alike = _texts_to_tell_apart(target, plan, others, limit, drop_words)
    assert texts.labels is not None
    progress = counter(target.bars, "asking the run", len(texts))
    query: dict[str, Any] = {"draws": draws, "noiseless": noiseless}
    more: Any = {"device": target.device, "progress": progress, **query}
    answered = answers(target.front, back, target.mechanism, texts, **more)
    said = promises_of(plan, target.spec).training
    # A promise per token or phrase says little about a whole text, and gives no ceiling.
    ceiling = said.guess_rate if said is not None and said.unit in (TEXT, RECORD) else None
    rules: Any = {"seed": target.seed, "ceiling": ceiling}
    found = {}
    for name, scored in SCORES.items():
        numbers = scored(answered, texts.labels)
        found[name] = threshold_attack(numbers[:size], numbers[size:], name=f"membership, {name}", **rules)
    top, right = found.pop("entropy"), answered.argmax(axis=1) == texts.labels
    facts = {"task": plan.task, "regime": str(plan.regime), "members": size, "others": len(texts) - size}
    facts |= {"others_from": others_from, "drawn_alike": drawn_alike, **query}
    facts |= {"accuracy_on_members": float(right[:size].mean())}
    facts |= {"accuracy_on_others": float(right[size:].mean())}
    return top, {**facts, "scores": {one.attack: one.as_dict() for one in found.values()}}


def _plan_of(target: Target) -> Plan:
    """The plan that the run carried out, with the data that is named now."""
    from dp_forward.data.tasks import task_name
    from dp_forward.train.plan import Plan

    if "task" not in target.plan:  # where none was trained on texts, no texts are members
        rule, found = "say which texts it was trained on", "a run without a task"
        remedy = "A back from collected releases never saw them: attack a run of dpf finetune."
        raise InvalidInput("run", rule, found, remedy)
    plan, asked = Plan.from_dict(target.plan), target.task_name
    rule = f"be the one that the run was trained on, {plan.task}"
    refuse_if(asked is not None and task_name(asked) != plan.task, "task", rule, asked, "Drop it.")
    return replace(plan, data={**plan.data, **target.data})


def _texts_to_tell_apart(
    target: Target, plan: Plan, others: str | None, limit: int, drop_words: float | None
) -> tuple[EncodedTexts, int, str, bool]:
    """First the members, then as many others; how many, where the others come from, and if a coin chose."""
    from dp_forward.attacks.membership import drop_words as thin_out
    from dp_forward.data import read_records, sample_records
    from dp_forward.data.tasks import split_name
    from dp_forward.privacy.checks import count

    limit = count("limit", limit, remedy="Use 2000.")
    everybody = list(read_records(target.task(), "train"))
    members = everybody if plan.train_limit is None else sample_records(everybody, plan.train_limit)
    known = {id(record) for record in members}
    rest = [record for record in everybody if id(record) not in known]
    wanted = None if others is None else split_name(others)
    part, alike = "train, the rest", wanted == "train" or (wanted is None and len(rest) >= _FEWEST)
    if not alike:
        part = wanted or plan.evaluation_split or "validation"
        rest = list(read_records(target.task(), part))
    if drop_words is not None:
        rest = list(thin_out(rest, share=drop_words, seed=target.seed))
        part, alike = f"{part}, without {drop_words:g} of the words", False
    size = min(len(members), len(rest), limit)
    rule = f"be {_FEWEST} members and {_FEWEST} others or more"
    refuse_if(size < _FEWEST, "texts", rule, size, "An interval needs more.")
    drawn: list[Record] = []
    for seed, records in enumerate((members, rest), start=target.seed):
        chosen = np.random.default_rng(seed).permutation(len(records))[:size]
        drawn += [records[number] for number in chosen]
    texts = target.encoded(drawn)
    refuse_if(texts.labels is None, "others", "have labels", part, "Name another split.")
    return texts, size, part, alike


@attack_verb
def inversion(
    target: Target,
    *,
    split: Split = None,
    with_prior: Annotated[bool, Option("--with-prior", help="Weigh tokens by public frequency.")] = False,
    releases: Annotated[int, Option("--releases", "-k", help="Fresh releases of each text, averaged.")] = 1,
    public: Annotated[str | None, Option(help="The task whose training texts are known [the same].")] = None,
    public_limit: Annotated[int, Option(help="A sample of so many of those.")] = 20000,
    limit: Annotated[int, Option(help="Attack so many texts.")] = 200,
) -> Outcome:
    """Guess the tokens of a text from its release.

    The success is the share of tokens that are named at their place; at `output`, in any place.

    Exit code 1 if the success is above what the promise allows.

    Example: dpf attack inversion run --limit 100 --releases 8
    """
    from dp_forward.attacks.inversion.discriminant import invert_linearly
    from dp_forward.attacks.inversion.nearest_token import invert_nearest
    from dp_forward.attacks.inversion.recall import Inversion, TokenPrior, token_table
    from dp_forward.data import read_records

    tokens, tokenizer = int(token_table(target.front).num_embeddings), target.tokens.tokenizer  # type: ignore[arg-type]
    mixed, rule = not target.front.row_local, "go with a cut where a row is its own token's"
    refuse_if(with_prior and mixed, "with-prior", rule, target.front.cut, "It is weighed there anyway.")
    attacked, known, part = target.task(), target.task(public), target.split(split)
    same, rule = known.name == attacked.name and part == "train", "not be the attacker's own public texts"
    refuse_if(same, "split", rule, part, "Name other texts with --public.")
    own = target.encoded(read_records(known, "train"), public_limit)
    texts = target.encoded(read_records(attacked, part), limit)
    prior = TokenPrior.learn(own, special=tokenizer.all_special_ids, vocabulary=tokens)
    progress = counter(target.bars, "attacking", len(texts))
    seen = Inversion(target.front, target.mechanism, texts, prior, releases, target.device, progress)
    if target.front.row_local:
        found = invert_nearest(seen, use_prior=with_prior)
    else:
        found = invert_linearly(seen, own, progress=counter(target.bars, "learning", len(own)))
    facts = {"task": attacked.name, "split": part, "public": known.name, "public_texts": len(own)}
    return found, {**facts, "bag_recall": found.details["bag_recall"]}


@attack_verb
def attribute(
    target: Target,
    *,
    split: Split = None,
    labelled: Annotated[Path | None, Option(help="Texts with an attribute [genres, by keywords].")] = None,
    text: Annotated[str, Option(help="Its column of texts.")] = "text",
    column: Annotated[str, Option("--attribute", help="Its column of attributes.")] = "attribute",
    share: Annotated[float, Option(help="The share of the texts that the attacker learns from.")] = 0.5,
    epochs: Annotated[int, Option(help="Epochs of the attacker's training.")] = 20,
    limit: Annotated[int | None, Option(help="Use a sample of so many texts.")] = None,
) -> Outcome:
    """Guess an attribute of a text, such as its genre.

    The attribute is a genre by keywords, or a column of a file.

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
    refuse_if(not 0 < share < 1, "share", "lie between 0 and 1", share, "Half is 0.5.")
    most = len(records) if limit is None else min(limit, len(records))
    rule = f"be {2 * _FEWEST} or more with an attribute"
    refuse_if(most < 2 * _FEWEST, "texts", rule, most, "Name another split, or --labelled FILE.")
    test, train = target.encoded(records, most).split_off(float(share), seed=target.seed)
    progress = counter(target.bars, "learning the attribute", epochs + 1)
    how: Any = {"epochs": epochs, "seed": target.seed, "device": target.device, "progress": progress}
    found = attribute_attack(target.front, target.mechanism, train, test, **how)
    return found, {"source": source, "attribute_values": list(values)[:50], "pool": found.details["pool"]}
