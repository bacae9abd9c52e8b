"""What a run works on: the model cut in two, and the records as token ids."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch

from dp_forward.data import EncodedTexts, FixedLength, Record, Task, find_task, read_records, read_texts
from dp_forward.data.encoded_texts import encode_records
from dp_forward.data.public_text import has_labels, read_public_records
from dp_forward.data.tokens import check_vocabulary, tokens_for
from dp_forward.errors import InvalidInput, refuse_if
from dp_forward.ledger.text_register import FROM_ELSEWHERE, TextRegister, compare_texts
from dp_forward.progress import Progress, counter
from dp_forward.release_spec import ReleaseSpec
from dp_forward.split import Split, split_model
from dp_forward.split.halves import note_seen_texts
from dp_forward.split.pretrained import load_model, load_tokenizer
from dp_forward.split.surgery import keep_blocks
from dp_forward.train.dpsgd.dpsgd_plan import DpSgdPlan
from dp_forward.train.lineage import load_published, raw_texts_seen
from dp_forward.train.plan import Plan
from dp_forward.train.regimes import Regime

__all__ = ["Inputs", "check_public_task", "cut_model"]


@dataclass(frozen=True, eq=False)
class Inputs:
    """Model and records of a run.

    Guarantees:
        Whoever makes it, the public texts are not the private ones, and every split has labels that fit.
    """

    task: Task
    pair: Split
    tokens: FixedLength
    spec: ReleaseSpec
    train: EncodedTexts
    evaluation: EncodedTexts | None  # None where nothing is measured
    public: EncodedTexts | None  # labelled where a front trains on it

    def __post_init__(self) -> None:
        self.spec.refuse_mixed_rows(row_local=self.pair.front.row_local)
        if self.public is not None:
            # A front that depends on fixed public texts does not depend on the private ones, also where a
            # short phrase is in both by accident. Where many are, the "public" texts are the private ones.
            common, total = self.overlap[0], len(self.train)
            found = f"{common} of {total} private texts in it"
            remedy = "They would train the front as they are: name other public data."
            refuse_if(common > 0.1 * total, "public", "have other texts than the task", found, remedy)
        for texts in filter(None, (self.train, self.evaluation)):
            texts.check_labels(len(self.task.labels), name=f"labels of {self.task.name}")

    @cached_property
    def overlap(self) -> tuple[int, int]:
        """How many private texts are among the public ones, and how many more nearly."""
        return (0, 0) if self.public is None else compare_texts(self.train.prints, self.public.all_prints)


def load_inputs(plan: Plan, *, progress: Progress | None = None) -> Inputs:
    """Load and cut the model, read the splits; the same plan gives the same halves on every start."""
    task = plan.find_task()
    pair, tokens, spec = cut_model(plan)
    train, evaluation = read_splits(plan, tokens, progress=progress)
    return Inputs(task, pair, tokens, spec, train, evaluation, public_texts(plan, tokens, progress=progress))


def enter_texts(plan: Plan, inputs: Inputs, register: Path | None) -> list[str]:
    """Ask the register about the texts of a run, and enter what it will use raw; what a report says of it.

    The front carries the commitments to what it will have seen raw. Where this register does not know those
    that it has, the names of tasks in the report of its run are compared.
    """
    front, train, said, rule = inputs.pair.front.plain, inputs.train, list[str](), ""
    if plan.regime.protects_training:
        rule = f"not have been trained on the raw texts of {plan.task}"
    elif plan.label_epsilon is not None:
        rule = f"be one that has not learnt labels of {plan.task}"
    with TextRegister(register) as known:
        elsewhere = known.unknown(front.seen_texts)
        if rule and (elsewhere or not front.seen_texts) and plan.task in raw_texts_seen(plan.model):
            remedy = "No regime can protect them any more: start from the published model."
            raise InvalidInput("model", rule, plan.model, remedy)
        if elsewhere:
            said.append(FROM_ELSEWHERE)
        near = known.refuse_seen(train.prints, front.seen_texts, name="model", rule=rule) if rule else 0
        if near:
            said.append(f"{near} of {len(train)} texts are nearly such that the model was trained on raw.")
        for texts in (inputs.evaluation, inputs.public):
            if texts is not None:
                known.declare("public", texts.all_prints)
        if not plan.regime.protects_training:
            note_seen_texts(front.settings, known.declare("raw", train.prints))
    return said


def public_texts(plan: Plan, tokens: FixedLength, *, progress: Progress | None = None) -> EncodedTexts | None:
    """The public texts of a plan; with labels for `public-front`, or where they are those of the task."""
    task, labelled = plan.find_task(), plan.regime is Regime.PUBLIC_FRONT
    name = plan.public or plan.public_task
    if name is None:
        return None
    records: Iterable[Record]
    if plan.public is not None:
        labelled = labelled or has_labels(plan.public, task)
        records = read_public_records(plan.public, task if labelled else None, name="public")
    else:
        public_task = find_task(name)
        check_public_task(task, public_task)
        records = read_records(public_task, "train", source=plan.data.get(name))
    return encode_records(
        records,
        tokens,
        limit=plan.public_limit,
        words=plan.public_words or 0,
        treebank=task.treebank,
        progress=counter(progress, "reading public texts"),
    )


def describe_data(inputs: Inputs) -> list[str]:
    """What a report says of the records: labels, what was measured on, what was cut, what is in both."""
    task, train, said = inputs.task, inputs.train, []
    if task.own:
        labels = ", ".join(task.labels[:20]) + (", ..." if len(task.labels) > 20 else "")
        columns = " and ".join(f"`{name}`" for name in task.text_fields)
        said.append(f"Texts are in {columns}, labels in `{task.label_field}`: {len(task.labels)} ({labels}).")
    if task.validation_share and inputs.evaluation is not None:
        said.append(
            f"The data has no part to measure on: {len(inputs.evaluation)} of its records were split off "
            f"(one in {1 / task.validation_share:g} of each label, seed {task.split_seed}) and are thereby "
            "declared PUBLIC. They are not released or protected."
        )
    if train.cut:
        said.append(f"{train.cut} of {len(train)} texts are cut to {inputs.tokens.length} tokens.")
    if inputs.public is not None:
        common, near = inputs.overlap
        said.append(
            f"{common} of {len(train)} private texts are among the public ones, and {near} more share "
            "half of their runs of four words or more with them."
        )
    return said


def read_splits(
    plan: Plan | DpSgdPlan, tokens: FixedLength, *, progress: Progress | None = None
) -> tuple[EncodedTexts, EncodedTexts | None]:
    """The texts of a plan's task: to train on, and (public, in words that are known) to measure on."""
    task = plan.find_task()

    def read(split: str, limit: int | None) -> EncodedTexts:
        reading, source = counter(progress, f"reading {task.name} {split}"), plan.data.get(task.name)
        return read_texts(task, split, tokens, source=source, limit=limit, progress=reading)

    evaluation = None
    if plan.evaluation_split:
        evaluation = read(plan.evaluation_split, plan.evaluation_limit)
        evaluation.check_known(tokens.tokenizer)
    return read("train", plan.train_limit), evaluation


def check_public_task(task: Task, public_task: Task) -> None:
    """Refuse a public task whose labels mean something else."""
    rule, found = f"have the labels of {task.name}: {', '.join(task.labels)}", ", ".join(public_task.labels)
    other = public_task.labels != task.labels
    refuse_if(other, "public_task", rule, found, "Its records train the same head.")


def cut_model(plan: Plan) -> tuple[Split, FixedLength, ReleaseSpec]:
    """The model in two halves (or those of the run it starts from), its tokens and the spec of a release."""
    import transformers

    task = plan.find_task()
    # The head and the maps start from random weights: a run that is continued must meet the same ones.
    transformers.set_seed(plan.seed)
    assert plan.cut is not None
    assert plan.rows is not None
    published = load_published(plan, labels=len(task.labels))
    if published is not None:
        pair, tokenizer = published
    else:
        model = load_model(plan.model, labels=len(task.labels))
        # A checkpoint may be stored in half precision; weights that train are kept in float32.
        model.to(torch.float32)  # type: ignore[arg-type]
        if plan.blocks is not None:
            keep_blocks(model, plan.blocks)
        width = None if plan.back == "closed-form" else plan.width or None
        pair = split_model(model, plan.cut, width=width, pooling=plan.pooling, prompt=plan.prompt)
        tokenizer = load_tokenizer(plan.model)
    front = pair.front
    check_vocabulary(tokenizer, front.plain.settings.get("vocab_size"))
    tokens = tokens_for(front, tokenizer, plan.rows)
    noise = None if plan.back == "closed-form" else plan.noise  # there the front is not yet what is asked
    return pair, tokens, ReleaseSpec.of(front, noise=noise, rows=plan.rows, labels=task.labels)
